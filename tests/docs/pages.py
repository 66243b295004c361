"""The code on the pages of the documentation: found, run, and held against what stands below it."""

import contextlib
import io
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from keras_adaclip.__main__ import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

# Three backticks, the language and perhaps options (`title="Opacus"`), at any indentation.
_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?P<options>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    flags=re.DOTALL | re.MULTILINE,
)
# Of a block beside one of another library's, which has a title as well.
OUR_TITLE = 'title="keras_adaclip"'
# A command of ours, of the shell: `python -m keras_adaclip plan --epsilon 3`.
_COMMAND = re.compile(r"^python -m keras_adaclip (.+)$", flags=re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code on a page.

    Args:
        language: `"python"`, `"sh"`, `"text"`, or whatever stands behind the backticks.
        options: what stands behind the language: `title="Opacus"` marks another library's code.
        text: its lines.
        line: the line of the page that it begins on, from 1.
        follows_directly: whether nothing but blank lines stands between it and the block before.
    """

    language: str
    options: str
    text: str
    line: int
    follows_directly: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether it is Python to run: that of other libraries has a title."""
        return self.language == "python" and self.options in ("", OUR_TITLE)


def all_pages():
    """README.md and every page below docs/."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def name_of(path):
    """`docs/speed.md`, for one."""
    return path.relative_to(ROOT).as_posix()


def blocks(page):
    """All blocks of a page's text, in order."""
    found, end = [], 0
    for match in _BLOCK.finditer(page):
        indent = match["indent"]
        text = "".join(line.removeprefix(indent) for line in match["text"].splitlines(True))
        between = page[end : match.start()]
        found.append(
            Block(
                match["language"],
                match["options"].strip(),
                text,
                page.count("\n", 0, match.start("text")) + 1,
                bool(found) and not between.strip(),
            )
        )
        end = match.end()
    return found


def python_blocks(page):
    """Pairs of the line that a block of our own Python begins on, from 1, and its text."""
    return [(block.line, block.text) for block in blocks(page) if block.is_ours]


def has_code(page):
    """Whether there is anything on the page to run."""
    return any(_is_run(block) for block in blocks(page))


def _is_run(block):
    return block.is_ours or (block.language == "sh" and bool(_COMMAND.search(block.text)))


def printed_by_claim(block):
    """What a block says that it prints: the comments that begin with an arrow."""
    return re.findall(r"  # -> (.+)$", block, flags=re.MULTILINE)


def run(path, names=None, compare=True):
    """Runs a page's Python and its commands of ours in one namespace, which is returned.

    Args:
        path: the page.
        names: what the page takes to be there already.
        compare: whether each block must print what it claims, by arrows or in the block of text
            below it. A page whose results depend on real data runs on made-up data without it.
    """
    names = {"__name__": path.stem} | (names or {})
    found = blocks(path.read_text(encoding="utf-8"))
    for block, after in zip(found, [*found[1:], None], strict=True):
        if block.is_ours:
            printed, claimed = _run_python(path, block, names), printed_by_claim(block.text)
        elif _is_run(block):
            printed, claimed = _run_commands(block), []
        else:
            continue
        if after is not None and after.language == "text" and after.follows_directly:
            claimed = after.text.splitlines()
        elif block.language == "sh":
            continue
        if compare:
            assert [line.rstrip() for line in printed] == claimed, f"{name_of(path)}:{block.line}"
    return names


def _run_python(path, block, names):
    # Blank lines before it, so that a traceback tells the line of the page.
    code = compile("\n" * (block.line - 1) + block.text, str(path), "exec")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, names)
    return output.getvalue().splitlines()


def _run_commands(block):
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        for command in _COMMAND.finditer(block.text):
            words = shlex.split(command[1], comments=True)
            assert main(words) == 0, command[0]
    return output.getvalue().splitlines()
