"""Groups of variables: each part is clipped by its own norm; a broken part drops the whole unit."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_adaclip as ka
from keras_adaclip.clipping import Clipper
from keras_adaclip.gradients import BatchGradients, clipped_contributions
from tests import oracles
from tests.gradients import support

ROWS = 5


def of_two(variable):
    """Two groups that cut across the layers."""
    return "first" if variable.path.endswith(("conv/kernel", "logits/bias")) else "rest"


# The groups of conv/kernel, conv/bias, hidden/kernel, hidden/bias, logits/kernel, logits/bias.
GROUPS = {
    "flat": ("flat", [0, 0, 0, 0, 0, 0]),
    "per layer": ("per_layer", [0, 0, 1, 1, 2, 2]),
    "across": (of_two, [0, 1, 1, 1, 1, 0]),
}


@pytest.fixture(scope="module")
def case():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, 6, 6, 2)).astype("float32")
    y = generator.integers(0, 3, ROWS).astype("int32")
    stack = [layers.Conv2D(3, 3, activation="tanh", name="conv"), layers.Flatten()]
    stack += [layers.Dense(4, activation="tanh", name="hidden"), layers.Dense(3, name="logits")]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = support.built(keras.Sequential([keras.Input(x.shape[1:]), *stack]), x, y, loss=loss)
    return model, x, y, support.row_gradients(model, x, y)


def by_group(gradients, assignment):
    """The gradients of each group's variables."""
    return [
        [g for g, of in zip(gradients, assignment, strict=True) if of == number]
        for number in range(max(assignment) + 1)
    ]


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("is_looped", [False, True])
def test_each_part_is_clipped_to_its_own_norm(case, name, is_looped):
    model, x, y, gradients = case
    groups, assignment = GROUPS[name]
    parts = by_group(gradients, assignment)
    norms = [oracles.gradient_norms(part) for part in parts]
    # Some units of each group are clipped and some are not.
    clip_norms = [float(np.median(each)) for each in norms]
    clipping = ka.clipping.FixedClipping(clip_norms, groups=groups)
    found = support.runner(
        model, support.LOOPED if is_looped else support.plan_for(model, x, y), clipping=clipping
    )(x, y)
    sums = [iter(each) for each in map(oracles.clipped_sums, parts, clip_norms)]
    support.assert_close(found.gradients, [next(sums[number]) for number in assignment])
    np.testing.assert_allclose(found.norms.reshape(ROWS, -1), np.stack(norms, axis=1), rtol=1e-4)


@pytest.mark.parametrize("option", [{"groups": "per-layer"}, {"noise_allocation": "even"}])
def test_other_groups_and_allocations_are_refused(option):
    with pytest.raises(ValueError, match=f"`{next(iter(option))}` must be one of"):
        ka.clipping.FixedClipping(1.0, **option)


def test_one_group_that_is_not_finite_makes_the_whole_unit_so():
    variables = [keras.Variable(np.zeros(1, "float32"), name=name) for name in ("a", "b")]
    values = np.array([[1, np.nan], [2, 3], [np.inf, 1]], np.float32)
    parts = [ka.gradients.Materialized(values[:, :1]), ka.gradients.Materialized(values[:, 1:])]
    clipping = ka.clipping.FixedClipping([1.0, 1.0], groups=lambda variable: variable.name)
    groups = ka.clipping.ParameterGroups.of(clipping.groups, variables)
    state = support.tensors(clipping.initial_state(groups))
    gradients, current = BatchGradients(variables, parts, 3), Clipper(clipping, groups, state)
    sums, norms, finite, _ = clipped_contributions(gradients, ops.ones((3,), "bool"), current)
    np.testing.assert_array_equal(ops.convert_to_numpy(norms), [[0, 0], [2, 3], [0, 0]])
    np.testing.assert_array_equal(ops.convert_to_numpy(finite), [False, True, False])
    np.testing.assert_allclose([ops.convert_to_numpy(part)[0] for part in sums.sums], [1.0, 1.0])
