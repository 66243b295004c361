"""The size of the package and of its tests, and what the smallest `fit` executes.

A change may raise a row only in a commit that says what a user gets for it. A row that is much
larger than what it limits is lowered, so that nothing grows back.
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_adaclip as ka

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "keras_adaclip"
# By folder of the package: lines of code, without docstrings, comments and blanks, and files.
FOLDERS = {
    "accounting": (2_332, 15),
    "training": (2_133, 12),
    "gradients": (2_043, 17),
    "federated": (1_770, 15),
    "backend": (1_658, 11),
    "examination": (1_397, 9),
    "optimizers": (1_215, 8),
    "tuners": (1_093, 7),
    "models": (870, 8),
    "sampling": (856, 7),
    "clipping": (643, 12),
    "audit": (562, 6),
    ".": (439, 7),
    "testing": (401, 6),
    "integrations": (352, 6),
    "callbacks": (263, 4),
    "schedules": (170, 2),
    "plots": (140, 3),
}
# Lines of `tests/`, whole.
LINES_OF_TESTS = 28_013
# Files and functions of the package that the smallest `fit` executes on PyTorch.
EXECUTED = {"before the first step": (55, 718), "in a step": (37, 244)}
# How much smaller than its row a figure may be.
SLACK = 0.02
_SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
_SKIPPED.add(tokenize.ENDMARKER)


def code_lines(source):
    """The number of lines that hold code."""
    documentation = set()
    for node in ast.walk(ast.parse(source)):
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            documentation |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _SKIPPED:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - documentation)


def check(row, figure, limit):
    """Compares a figure with its row."""
    assert figure <= limit, f"{row} grew to {figure}; its row allows {limit}"
    lowest = limit - max(SLACK * limit, 5)
    assert figure >= lowest, f"{row} shrank to {figure}; lower its row from {limit}"


def test_a_line_of_code_is_counted_once_and_a_docstring_is_not():
    source = '"""Module."""\n\n# Comment.\ndef f(\n    a,\n):\n    """One."""\n    return """\n"""'
    assert code_lines(source) == 5


def test_every_folder_keeps_its_size():
    paths = sorted(PACKAGE.rglob("*.py"))
    folders = {path: path.relative_to(PACKAGE).parts[:-1][:1] for path in paths}
    names = {path: "".join(folder) or "." for path, folder in folders.items()}
    assert set(names.values()) == set(FOLDERS)
    for folder, (lines, files) in FOLDERS.items():
        inside = [path for path in paths if names[path] == folder]
        check(f"code of {folder}", sum(code_lines(each.read_text()) for each in inside), lines)
        assert len(inside) <= files, f"{folder} has {len(inside)} files; its row allows {files}"


def test_the_tests_keep_their_size():
    files = (ROOT / "tests").rglob("*.py")
    check("tests", sum(len(each.read_text().splitlines()) for each in files), LINES_OF_TESTS)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="counted where steps run eagerly")
def test_the_smallest_fit_executes_few_files_and_functions():
    found = {row: set() for row in (*EXECUTED, "in other steps")}
    row = "before the first step"

    def profile(frame, event, _):
        nonlocal row
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            if frame.f_code.co_name == "private_step" and row == "before the first step":
                row = "in other steps"
            found[row].add(frame.f_code)

    class AfterStep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            nonlocal row
            row = "in a step" if batch == 1 else "in other steps"

    layers = [keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)]
    model = ka.PrivateSequential(layers)
    optimizer = keras.optimizers.SGD(0.1)
    model.compile(ka.optimizers.DPOptimizer(optimizer, clipping=1.0, noise_multiplier=1.0), "mse")
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        model.fit(x, x[:, :1], batch_size=8, steps_per_epoch=4, verbose=0, callbacks=[AfterStep()])
    finally:
        sys.setprofile(before)
    for name, (files, functions) in EXECUTED.items():
        check(f"files {name}", len({code.co_filename for code in found[name]}), files)
        check(f"functions {name}", len(found[name]), functions)
