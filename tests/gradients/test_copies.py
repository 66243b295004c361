"""Augmented copies of an example: their mean gradient is clipped as one contribution."""

import numpy as np
import pytest

from tests import oracles
from tests.gradients.architectures import case
from tests.gradients.support import LOOPED, assert_close, plan_for, row_gradients, runner

COPIES = 3
NAMES = ["convolution_groups", "embedding_masked_mean", "shared_dense", "shared_general"]


def copied_case(name):
    """An architecture with nine rows: three copies, all different, of each of three examples."""
    architecture, model, _, _ = case(name)
    _, x, y = architecture.data(rows=3 * COPIES)
    return model, x, y


@pytest.mark.parametrize(
    ("name", "is_looped"), [*((name, False) for name in NAMES), ("shared_general", True)]
)
def test_the_mean_over_the_copies_is_clipped(name, is_looped):
    model, x, y = copied_case(name)
    rows = row_gradients(model, x, y)
    expected = [g.reshape(3, COPIES, *g.shape[1:]).mean(axis=1) for g in rows]
    norms = oracles.gradient_norms(expected)
    clip_norm = float(np.median(norms))
    plan = LOOPED if is_looped else plan_for(model, x, y)
    found = runner(model, plan, clip_norm, num_copies=COPIES)(x, y, mask=np.ones(3, bool))
    np.testing.assert_allclose(found.norms, norms, rtol=1e-4)
    assert_close(found.gradients, oracles.clipped_sums(expected, clip_norm), tolerance=2e-5)
    assert found.losses.shape == (3,)


@pytest.mark.parametrize("is_looped", [False, True])
def test_one_copy_that_is_not_finite_drops_the_example(is_looped):
    model, x, y = copied_case("convolution_groups")
    x = x.copy()
    x[4] = np.nan
    plan = LOOPED if is_looped else plan_for(model, x, y)
    run = runner(model, plan, 0.5, num_copies=COPIES)
    found = run(x, y, mask=np.array([True, True, True]))
    without = run(x, y, mask=np.array([True, False, True]))
    np.testing.assert_array_equal(found.finite, [True, False, True])
    assert_close(found.gradients, without.gradients)
