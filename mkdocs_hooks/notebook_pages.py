"""A page for each notebook, made when the documentation is built: a hook of mkdocs.

Text, code, printed output and figures stand below each other, as they are stored in the notebook.
"""

import base64
import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files


def on_files(files: "Files", *, config: Any) -> "Files":
    """Adds the pages and their figures to what is built.

    Args:
        files: what is built.
        config: of mkdocs.
    """
    from mkdocs.structure.files import File

    for file in [each for each in files if each.src_uri.endswith(".ipynb")]:
        uri = PurePosixPath(file.src_uri)
        page, figures = converted(json.loads(file.content_string), uri.stem)
        files.append(File.generated(config, str(uri.with_suffix(".md")), content=page))
        for name, content in figures.items():
            files.append(File.generated(config, str(uri.with_name(name)), content=content))
    return files


def converted(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown.

    Args:
        notebook: what the file holds.
        name: the file's name without its ending.

    Returns:
        The page, and the figures that it refers to by the name of their file.
    """
    parts: list[str] = []
    figures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            parts.append(source)
            continue
        parts.append(fenced(source, "python"))
        for output in cell["outputs"]:
            if output.get("name") == "stderr":
                continue  # what frameworks say of the machine
            if "text" in output:
                parts.append(fenced("".join(output["text"]), "text"))
            elif "image/png" in output.get("data", {}):
                figure = f"{name}_{len(figures) + 1}.png"
                figures[figure] = base64.b64decode("".join(output["data"]["image/png"]))
                parts.append(f"![Figure {len(figures)}]({figure})")
    # Below the title, which the first cell begins with.
    title, _, rest = parts[0].partition("\n")
    parts[0] = f"{title}\n\nThis page is a notebook: [{name}.ipynb]({name}.ipynb).\n{rest}"
    return "\n\n".join(parts) + "\n", figures


def fenced(text: str, language: str) -> str:
    """A block of code, with a fence that does not occur in it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
