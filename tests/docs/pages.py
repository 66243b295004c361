"""The code on the pages of the documentation."""

import contextlib
import io
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def python_blocks(page):
    """Pairs of the line that a block of Python begins on, from 1, and its text."""
    blocks = re.finditer(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    return [(page.count("\n", 0, found.start(1)) + 1, found[1]) for found in blocks]


def printed_by_claim(block):
    """What a block says that it prints: the comments that begin with an arrow."""
    return re.findall(r"  # -> (.+)$", block, flags=re.MULTILINE)


def run(path):
    """Runs a page's blocks in one namespace, which is returned; each prints what it claims."""
    page = path.read_text(encoding="utf-8")
    names = {"__name__": path.stem}
    for line, block in python_blocks(page):
        # Blank lines before it, so that a traceback tells the line of the page.
        code = compile("\n" * (line - 1) + block, str(path), "exec")
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(code, names)
        assert output.getvalue().splitlines() == printed_by_claim(block), f"line {line} of the page"
    return names
