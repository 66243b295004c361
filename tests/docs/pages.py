"""The code on the pages of the documentation: found, run, and compared with the output below it."""

import contextlib
import io
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from keras_adaclip.__main__ import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

# Three backticks, the language and perhaps options (`title="Opacus"`), at any indentation.
_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?P<options>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    flags=re.DOTALL | re.MULTILINE,
)
# A block beside another library's has a title as well.
_RUN_OPTIONS = ("", 'title="keras_adaclip"')
_COMMAND = re.compile(r"^keras-adaclip (.+)$", flags=re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code: the words behind its backticks, its lines, and where it stands."""

    language: str
    options: str
    text: str
    line: int
    follows_directly: bool

    @property
    def is_python(self):
        """Whether it is Python of this package."""
        return self.language == "python" and self.options in _RUN_OPTIONS

    @property
    def is_run(self):
        """Whether the tests run it: as Python, or as commands of this package."""
        return self.is_python or (self.language == "sh" and bool(_COMMAND.search(self.text)))


def name_of(path):
    """The path of a page in the repository."""
    return path.relative_to(ROOT).as_posix()


def blocks(page):
    """All blocks of the text of a page, in order."""
    found, end = [], 0
    for match in _BLOCK.finditer(page):
        text = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        line = page.count("\n", 0, match.start("text")) + 1
        follows = bool(found) and not page[end : match.start()].strip()
        found.append(Block(match["language"], match["options"].strip(), text, line, follows))
        end = match.end()
    return found


def run(path, names, compare):
    """Run the Python and the commands of a page in the namespace `names`.

    With `compare`, each block must print what its arrows or the block of text below it say.
    """
    found = blocks(path.read_text(encoding="utf-8"))
    for block, after in zip(found, [*found[1:], None], strict=True):
        if not block.is_run:
            continue
        with contextlib.redirect_stdout(io.StringIO()) as output:
            if block.is_python:
                # Blank lines before it, so that a traceback has the line of the page.
                exec(compile("\n" * (block.line - 1) + block.text, str(path), "exec"), names)
            else:
                for command in _COMMAND.findall(block.text.replace("\\\n", "")):
                    assert main(shlex.split(command, comments=True)) == 0, command
        claimed = re.findall(r"  # -> (.+)$", block.text, flags=re.MULTILINE)
        if after is not None and after.language == "text" and after.follows_directly:
            claimed = after.text.splitlines()
        elif not block.is_python:
            continue
        if compare:
            printed = [line.rstrip() for line in output.getvalue().splitlines()]
            assert printed == claimed, f"{name_of(path)}:{block.line}"
