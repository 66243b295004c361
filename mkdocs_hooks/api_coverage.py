"""Lists the public names on the first page of the API, and fails the build if a page lacks one.

`mkdocstrings` leaves out what has no docstring, what no page names, and what hides behind a module
of the same name. None of these is an error for it; here each of them is.
"""

import functools
import re
from typing import Any

import griffe
from mkdocs.exceptions import PluginError
from public_names import KERAS_PROTOCOL, PACKAGE, ROOT, public_modules

FOLDER = "api/"
_shown: set[str] = set()


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Puts a table of the names of a module in the place of each `<!-- names of MODULE -->`.

    Args:
        markdown: the text of the page.
        page: the page.
        config: not used.
        files: not used.
    """
    del config, files
    if page.file.src_uri == f"{FOLDER}index.md":
        return re.sub(r"<!-- names of (\S+) -->", lambda found: _table(found[1]), markdown)
    return markdown


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Notes the anchors on a page of the API.

    Args:
        output: the page as HTML.
        page: the page.
        config: not used.
    """
    del config
    if page.file.src_uri.startswith(FOLDER):
        _shown.update(re.findall(rf'id="({PACKAGE}[^"]*)"', output))
    return output


def on_post_build(config: Any) -> None:
    """Compares the anchors on the pages of the API with what is public.

    Args:
        config: not used.
    """
    del config
    missing = [name for name in _required() if _shown.isdisjoint(name)]
    if missing:
        names = "\n".join(f"  {ways[0]}" for ways in missing)
        raise PluginError(
            f"docs/{FOLDER} leaves out public names, or they have no docstring:\n{names}\n"
            "Give them a docstring, and a page a `:::` that shows them; or take them out of "
            "`__all__`."
        )


def _table(module: str) -> str:
    """The names of a module with the first lines of their docstrings, linked to their entries."""
    rows = ["| name | what it is |", "| --- | --- |"]
    for name in public_modules()[module]:
        if f"{module}.{name}" not in public_modules():
            target = _target(module, name)
            summary = target.docstring.value.partition("\n")[0] if target.docstring else ""
            rows.append(f"| [`{name}`][{target.path}] | {summary} |")
    return "\n".join(rows)


@functools.cache
def _required() -> list[tuple[str, ...]]:
    """Each public name as the anchors of which one must be there, the best one first."""
    found = []
    for module, names in public_modules().items():
        for name in names:
            if f"{module}.{name}" in public_modules():
                continue
            target = _target(module, name)
            anchors = (f"{module}.{name}", target.path)
            found.append(anchors)
            if target.is_class:
                found += _required_members(target, anchors)
    return found


@functools.cache
def _package() -> Any:
    return griffe.load(PACKAGE, search_paths=[ROOT], resolve_aliases=True)


def _target(module: str, name: str) -> Any:
    """What a public name stands for, also where a submodule has the same name."""
    found = _package()[module.removeprefix(f"{PACKAGE}.")][name]
    if found.is_alias:
        found = found.final_target
    return found[name] if found.is_module else found


def _required_members(target: Any, anchors: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Methods and properties, also of the bases within the package that nobody calls by name."""
    found = []
    for name, member in target.all_members.items():
        owner = member.final_target.parent if member.is_alias else member.parent
        is_shown = member.is_function or "property" in getattr(member, "labels", ())
        if not name.startswith("_") and name not in KERAS_PROTOCOL and is_shown:
            # A base that is public itself shows its members for all of its children.
            owners = [owner.path, *(base.path for base in target.mro() if name in base.members)]
            ways = (*anchors, *owners, *(way for path in owners for way in _public_paths(path)))
            found.append(tuple(f"{way}.{name}" for way in ways))
    return found


def _public_paths(path: str) -> list[str]:
    """Under which public names a class may stand on the page."""
    name = path.rpartition(".")[2]
    return [f"{module}.{name}" for module, names in public_modules().items() if name in names]
