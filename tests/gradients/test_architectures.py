"""The rule of every layer against the plain gradients of single rows."""

import keras
import numpy as np
import pytest

from keras_adaclip.clipping import FixedClipping
from tests import oracles
from tests.gradients import support
from tests.gradients.architectures import ARCHITECTURES, case
from tests.gradients.configurations import TABLES

LOOPED_TOO = ["embedding_masked_mean", "inputs_and_outputs"]


@pytest.mark.parametrize(
    ("name", "is_looped"), [*((n, False) for n in ARCHITECTURES), *((n, True) for n in LOOPED_TOO)]
)
def test_clipped_sums_are_those_of_plain_gradients(name, is_looped):
    architecture, model, x, y = case(name)
    plan = support.LOOPED if is_looped else support.plan_for(model, x, y)
    assert is_looped or sorted(support.rules(plan)) == sorted(architecture.rules)
    support.check_against_rows(model, x, y, plan)


@pytest.mark.filterwarnings("ignore:.*You passed `rms_scaling=True`, which is deprecated")
@pytest.mark.parametrize("name", TABLES)
def test_each_variable_of_a_layer_is_clipped_by_its_true_norm(name):
    table = TABLES[name]
    if keras.backend.backend() in table.not_on:
        pytest.skip("the backend cannot run these layers on a CPU")
    x, y = table.data(rows=3)
    model = support.with_other_weights(support.built(table.model(), x, y))
    plan = support.plan_for(model, x, y)
    assert (
        dict(zip([each.name for each in plan.rules], support.rules(plan), strict=True))
        == table.rules
    )

    expected = support.row_gradients(model, x, y)
    norms = [oracles.gradient_norms([gradients]) for gradients in expected]
    floor = 0.05 * np.max(norms)
    clip_norms = [float(max(np.median(of_variable), floor)) for of_variable in norms]
    clipping = FixedClipping(clip_norms, groups=lambda variable: variable.path)
    found = support.runner(model, plan, clipping=clipping)(x, y)
    np.testing.assert_allclose(found.norms, np.stack(norms, axis=1), rtol=1e-5, atol=1e-5 * floor)
    sums = [
        oracles.clipped_sums([gradients], clip_norm)[0]
        for gradients, clip_norm in zip(expected, clip_norms, strict=True)
    ]
    support.assert_close(found.gradients, sums)
