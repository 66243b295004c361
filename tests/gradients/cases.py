"""The architectures as models ready for comparison, and the comparison with plain gradients."""

import keras
import numpy as np
import pytest

from tests import oracles
from tests.gradients.architectures import ARCHITECTURES
from tests.gradients.support import assert_close, built, row_gradients, runner


def skip_where_it_cannot_run(case):
    if keras.backend.backend() in case.not_on:
        pytest.skip(f"{keras.backend.backend()} cannot run this layer (on a CPU)")


def with_other_weights(model):
    """The model with no weight at zero or one."""
    rng = np.random.default_rng(4)
    for variable in model.trainable_variables:
        noise = rng.normal(scale=0.3, size=variable.shape).astype("float32")
        variable.assign(variable + noise)
    return model


def case(name):
    architecture = ARCHITECTURES[name]
    skip_where_it_cannot_run(architecture)
    model, x, y = architecture.data(rows=3)
    arguments = {"loss_weights": [0.3, 2.0]} if name == "inputs_and_outputs" else {}
    model = built(model, x, y, loss=["mse", "mae"] if arguments else "mse", **arguments)
    return architecture, with_other_weights(model), x, y


def check_against_rows(model, x, y, plan):
    expected = row_gradients(model, x, y)
    norms = oracles.gradient_norms(expected)
    assert np.all(norms > 0)
    clip_norm = float(np.median(norms))
    found = runner(model, plan, clip_norm)(x, y)
    np.testing.assert_allclose(found.norms, norms, rtol=1e-5)
    assert_close(found.gradients, oracles.clipped_sums(expected, clip_norm))
