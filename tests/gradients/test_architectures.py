"""Every way of taking a layer's gradients against the plain gradients of single rows."""

import numpy as np
import pytest

from keras_adaclip.clipping import FixedClipping
from tests import oracles
from tests.gradients.architectures import ARCHITECTURES
from tests.gradients.cases import (
    case,
    check_against_rows,
    skip_where_it_cannot_run,
    with_other_weights,
)
from tests.gradients.configurations import TABLES
from tests.gradients.support import (
    WHOLE_MODEL,
    assert_close,
    built,
    plan_for,
    row_gradients,
    runner,
    ways,
)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_clipped_sums_are_those_of_plain_gradients(name):
    architecture, model, x, y = case(name)
    plan = plan_for(model, x, y)
    assert sorted(ways(plan)) == sorted(architecture.ways), plan.describe()
    check_against_rows(model, x, y, plan)


@pytest.mark.filterwarnings("ignore:.*You passed `rms_scaling=True`, which is deprecated")
@pytest.mark.parametrize("name", TABLES)
def test_each_variable_of_a_layer_is_clipped_by_its_true_norm(name):
    table = TABLES[name]
    skip_where_it_cannot_run(table)
    x, y = table.data(rows=3)
    model = with_other_weights(built(table.model(), x, y))
    plan = plan_for(model, x, y)
    found_ways = dict(zip(plan.describe(), ways(plan), strict=True))
    assert found_ways == table.ways

    expected = row_gradients(model, x, y)
    norms = [oracles.gradient_norms([gradients]) for gradients in expected]
    floor = 0.05 * np.max(norms)
    clip_norms = [float(max(np.median(of_variable), floor)) for of_variable in norms]
    clipping = FixedClipping(clip_norms, groups=lambda variable: variable.path)
    found = runner(model, plan, clipping=clipping)(x, y)
    np.testing.assert_allclose(found.norms, np.stack(norms, axis=1), rtol=1e-5, atol=1e-5 * floor)
    sums = [
        oracles.clipped_sums([gradients], clip_norm)[0]
        for gradients, clip_norm in zip(expected, clip_norms, strict=True)
    ]
    assert_close(found.gradients, sums)


@pytest.mark.parametrize(
    "name", ["convolution_groups", "embedding_masked_mean", "inputs_and_outputs", "shared_dense"]
)
def test_one_example_after_another_gives_the_same_sums(name):
    _, model, x, y = case(name)
    check_against_rows(model, x, y, WHOLE_MODEL)
