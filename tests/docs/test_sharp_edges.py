"""The code of `docs/sharp_edges.md` runs from top to bottom and prints what the page says."""

import re

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.docs import pages

PATH = pages.DOCS / "sharp_edges.md"
PAGE = PATH.read_text(encoding="utf-8")

# Each of these has its right code below it, before the next heading.
ITEMS = (
    "Loss and metrics on the training data",
    "Validation data and early stopping",
    "What happened before `fit`",
    "Hyperparameters, thresholds and schedules",
    "Choosing among runs, and several models",
    "Several checkpoints",
    "People and rows",
    "What is taken to be public",
    "Seeds",
    "Noise in floating point",
    "Shuffling",
    "Data sets, loaders and generators",
    "Padding, weights and masks",
    "Layers and losses",
    "Stopping, saving and going on",
    "Noise of zero",
)


def sections(page):
    """The text below each heading, up to the next one of any level."""
    # A comment in Python begins as a heading does.
    code = re.compile(r"^```.*?^```$", flags=re.DOTALL | re.MULTILINE)
    without_comments = code.sub(lambda found: re.sub("^#", " ", found[0], flags=re.M), page)
    parts = re.split(r"^#+ (.+)\n", without_comments, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture
def _precision_as_before():
    """The page asks for full precision, for the whole process."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        before = jax.config.jax_default_matmul_precision
        yield
        jax.config.update("jax_default_matmul_precision", before)
    elif backend == "torch":
        import torch

        flags = torch.backends.cudnn, torch.backends.cuda.matmul
        before = [flag.allow_tf32 for flag in flags]
        yield
        for flag, value in zip(flags, before, strict=True):
            flag.allow_tf32 = value
    else:
        import tensorflow as tf

        before = tf.config.experimental.tensor_float_32_execution_enabled()
        yield
        tf.config.experimental.enable_tensor_float_32_execution(before)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("item", ITEMS)
def test_each_item_has_its_code(item):
    assert pages.python_blocks(sections(PAGE)[item]), (
        f"{item!r} on {PATH.name} has no block of Python"
    )


@pytest.mark.usefixtures("_precision_as_before")
def test_the_code_runs_and_prints_what_the_page_says(folder):
    names = pages.run(PATH)
    assert_what_the_page_promises(names)


def assert_what_the_page_promises(names):
    """What the words beside the code say, of what the code has left behind."""
    assert not {"loss", "accuracy"} & set(names["published"])
    # The accountant's number of epochs is the greatest within the target.
    plan = names["plan"]
    assert (
        plan.epsilon
        <= 1.5
        < ka.accounting.compute_epsilon(2.0, 400, 40, epochs=plan.epochs + 1, delta=1e-5)
    )
    # Ledgers together: above each, below the sum.
    separate = [candidate.privacy_spent(1e-5).epsilon for candidate in names["candidates"]]
    assert max(separate) < names["together"] < sum(separate)
    # Of several checkpoints the last one has spent what all have.
    assert names["spent"] == sorted(names["spent"])
    # No more than two rows of a person, and none left out without need.
    counts = np.bincount(names["people"], minlength=150)
    kept = np.bincount(names["people"][names["kept"]], minlength=150)
    np.testing.assert_array_equal(kept, np.minimum(counts, 2))
    assert names["of_person"] > 2 * names["of_row"]
    # What is released holds no seed.
    assert keras.models.load_model("release.keras").optimizer.seed is None
    with np.load("release.npz") as released:
        assert [released[name].shape for name in released.files] == [(8, 3), (3,)]
