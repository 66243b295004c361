"""The code of `docs/sharp_edges.md` runs from top to bottom and prints what the page says."""

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.docs import pages

PATH = pages.DOCS / "sharp_edges.md"


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
