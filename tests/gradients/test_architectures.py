"""Every way of taking a layer's gradients against the plain gradients of single rows."""

import keras
import numpy as np
import pytest

from tests import oracles
from tests.gradients.architectures import ARCHITECTURES
from tests.gradients.support import (
    WHOLE_MODEL,
    assert_close,
    built,
    plan_for,
    row_gradients,
    runner,
    ways,
)


def case(name):
    architecture = ARCHITECTURES[name]
    if keras.backend.backend() in architecture.not_on:
        pytest.skip(f"{keras.backend.backend()} cannot run this layer (on a CPU)")
    model, x, y = architecture.data(rows=3)
    arguments = {"loss_weights": [0.3, 2.0]} if name == "inputs_and_outputs" else {}
    model = built(model, x, y, loss=["mse", "mae"] if arguments else "mse", **arguments)
    rng = np.random.default_rng(4)
    for variable in model.trainable_variables:
        noise = rng.normal(scale=0.3, size=variable.shape).astype("float32")
        variable.assign(variable + noise)
    return architecture, model, x, y


def check_against_rows(model, x, y, plan):
    expected = row_gradients(model, x, y)
    norms = oracles.gradient_norms(expected)
    assert np.all(norms > 0)
    clip_norm = float(np.median(norms))
    found = runner(model, plan, clip_norm)(x, y)
    np.testing.assert_allclose(found.norms, norms, rtol=1e-5)
    assert_close(found.gradients, oracles.clipped_sums(expected, clip_norm))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_clipped_sums_are_those_of_plain_gradients(name):
    architecture, model, x, y = case(name)
    plan = plan_for(model, x, y)
    assert sorted(ways(plan)) == sorted(architecture.ways), plan.describe()
    check_against_rows(model, x, y, plan)


@pytest.mark.parametrize(
    "name", ["convolutions", "embedding_masked_mean", "inputs_and_outputs", "shared_dense"]
)
def test_one_example_after_another_gives_the_same_sums(name):
    _, model, x, y = case(name)
    check_against_rows(model, x, y, WHOLE_MODEL)
