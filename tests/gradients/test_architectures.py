"""Clipped sums against the plain gradients of single rows: every layer, copies, and groups."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_adaclip as ka
from keras_adaclip.clipping import Clipper, FixedClipping
from keras_adaclip.gradients import BatchGradients, Materialized, clipped_contributions
from tests import oracles
from tests.gradients import support
from tests.gradients.architectures import ARCHITECTURES
from tests.gradients.configurations import TABLES

LOOPED_TOO = ["embedding_masked_mean", "inputs_and_outputs", "one_filter"]


@pytest.mark.parametrize(
    ("name", "is_looped"), [*((n, False) for n in ARCHITECTURES), *((n, True) for n in LOOPED_TOO)]
)
def test_clipped_sums_are_those_of_plain_gradients(name, is_looped):
    architecture = ARCHITECTURES[name]
    model, x, y = architecture.case()
    plan = support.LOOPED if is_looped else support.plan_for(model, x, y)
    assert is_looped or sorted(support.rules(plan)) == sorted(architecture.rules)
    support.check_against_rows(model, x, y, plan)


@pytest.mark.parametrize("name", TABLES)
def test_each_variable_of_a_layer_is_clipped_by_its_true_norm(name):
    table = TABLES[name]
    if keras.backend.backend() in table.not_on:
        pytest.skip("the backend cannot run these layers on a CPU")
    model, x, y = table.case()
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


class ComputedAgain(layers.Layer):
    """Lets its inner layers compute their results again for the gradients."""

    def __init__(self, *inner):
        super().__init__()
        self.inner = keras.Sequential(inner)

    def call(self, inputs):
        return keras.remat(self.inner)(inputs)


def test_layers_that_compute_results_again_train_as_others_do():
    found = []
    x, y = np.ones((3, 3), "float32"), np.eye(3, 2, dtype="float32")
    # Keras itself cannot build a model on TensorFlow that computes all layers again.
    mode = "activations" if keras.backend.backend() == "tensorflow" else "full"
    for outer in (keras.Sequential, lambda inner: ComputedAgain(*inner)):
        keras.utils.set_random_seed(0)
        with keras.RematScope(mode=mode):
            inner = [keras.Input((3,)), layers.Dense(4, activation="tanh"), layers.Dense(2)]
        model = ka.PrivateSequential([keras.Input((3,)), outer(inner), layers.Dense(2)])
        before = model.get_weights()
        # Steps as large as the weights, so that their rounding is far below the tolerance.
        sgd = keras.optimizers.SGD(1.0)
        model.compile(ka.optimizers.DPOptimizer(sgd, noise_multiplier=0.0), loss="mse")
        model.fit(x, y, batch_size=3, verbose=0)
        changes = zip(before, model.get_weights(), strict=True)
        found.append([new - old for old, new in changes])
    assert all(np.abs(each).max() > 0 for each in found[0])
    support.assert_close(*found)


def gradients_by_hand(x, labels, kernel, bias, last, last_bias):
    """Losses and gradients of each row; a tanh unit, the mean over positions, cross-entropy."""
    hidden = np.tanh(x @ kernel + bias)
    mean = hidden.mean(axis=1)
    logits = mean @ last + last_bias
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    chosen = probabilities[np.arange(len(x)), labels]
    by_logits = probabilities - np.eye(logits.shape[1])[labels]
    by_sums = (1 - hidden**2) * (by_logits @ last.T)[:, None] / x.shape[1]
    by_weights = [np.einsum("bti,btj->bij", x, by_sums), by_sums.sum(axis=1)]
    return -np.log(chosen), [*by_weights, mean[:, :, None] * by_logits[:, None], by_logits]


def of_two(variable):
    """Two groups that cut across the layers."""
    return "first" if variable.path.endswith(("tanh/kernel", "logits/bias")) else "rest"


# The groups of both kernels and biases.
@pytest.mark.parametrize(
    ("groups", "assignment"),
    [("flat", [0, 0, 0, 0]), ("per_layer", [0, 0, 1, 1]), (of_two, [0, 1, 1, 0])],
)
def test_clipped_sums_are_those_worked_out_by_hand(groups, assignment):
    rng = np.random.default_rng(1)
    x, labels = rng.normal(size=(5, 3, 8)).astype("float32"), rng.integers(0, 3, 5)
    stack = [layers.Dense(9, activation="tanh", name="tanh"), layers.GlobalAveragePooling1D()]
    stack = [keras.Input((3, 8)), *stack, layers.Dense(3, name="logits")]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = support.built(keras.Sequential(stack), x, labels, loss=loss)
    model = support.with_other_weights(model)
    values = [value.astype(np.float64) for value in model.get_weights()]
    losses, gradients = gradients_by_hand(x.astype(np.float64), labels, *values)
    numbers = range(max(assignment) + 1)
    parts = [[gradients[i] for i in range(4) if assignment[i] == number] for number in numbers]
    norms = [oracles.gradient_norms(part) for part in parts]
    # Some units of each group are clipped and some are not.
    clip_norms = [float(np.median(each)) for each in norms]
    clipping = FixedClipping(clip_norms if len(parts) > 1 else clip_norms[0], groups=groups)
    for plan in (support.plan_for(model, x, labels), support.LOOPED):
        found = support.runner(model, plan, clipping=clipping)(x, labels)
        np.testing.assert_allclose(found.losses, losses, rtol=1e-5)
        left = [iter(oracles.clipped_sums(*each)) for each in zip(parts, clip_norms, strict=True)]
        support.assert_close(found.gradients, [next(left[number]) for number in assignment])
        for name, expected in (
            ("norms", norms),
            ("factors", map(oracles.clip_factors, norms, clip_norms)),
        ):
            by_group = getattr(found, name).reshape(5, -1).T
            np.testing.assert_allclose(by_group, list(expected), rtol=1e-4)


# Augmented copies of an example: their mean gradient is clipped as one contribution.

COPIES = 3


@pytest.mark.parametrize(
    ("name", "is_looped"),
    [
        *((name, False) for name in ("convolution_groups", "embedding_masked_mean")),
        *((name, False) for name in ("shared_dense", "shared_general")),
        ("shared_general", True),
    ],
)
def test_the_mean_over_the_copies_is_clipped(name, is_looped):
    """Nine rows: three copies, all different, of each of three examples."""
    model, _, _ = ARCHITECTURES[name].case()
    _, x, y = ARCHITECTURES[name].data(rows=3 * COPIES)
    rows = support.row_gradients(model, x, y)
    expected = [g.reshape(3, COPIES, *g.shape[1:]).mean(axis=1) for g in rows]
    norms = oracles.gradient_norms(expected)
    clip_norm = float(np.median(norms))
    plan = support.LOOPED if is_looped else support.plan_for(model, x, y)
    run = support.runner(model, plan, clip_norm, num_copies=COPIES)
    found = run(x, y, mask=np.ones(3, bool))
    np.testing.assert_allclose(found.norms, norms, rtol=1e-4)
    support.assert_close(found.gradients, oracles.clipped_sums(expected, clip_norm), 2e-5)
    assert found.losses.shape == (3,)
    if name == "embedding_masked_mean":
        return
    # One copy that is not finite drops its example.
    x[4] = np.nan
    found = run(x, y, mask=np.ones(3, bool))
    without = run(x, y, mask=np.array([True, False, True]))
    np.testing.assert_array_equal(found.finite, [True, False, True])
    support.assert_close(found.gradients, without.gradients)


def test_one_group_that_is_not_finite_drops_the_whole_unit():
    variables = [keras.Variable(np.zeros(1, "float32"), name=name) for name in ("a", "b")]
    values = np.array([[1, np.nan], [2, 3], [np.inf, 1]], np.float32)
    parts = [Materialized(values[:, :1]), Materialized(values[:, 1:])]
    clipping = FixedClipping([1.0, 1.0], groups=lambda variable: variable.name)
    groups = ka.clipping.ParameterGroups.of(clipping.groups, variables)
    state = support.tensors(clipping.initial_state(groups))
    gradients, current = BatchGradients(variables, parts, 3), Clipper(clipping, groups, state)
    sums, norms, finite, _ = clipped_contributions(gradients, ops.ones((3,), "bool"), current)
    np.testing.assert_array_equal(ops.convert_to_numpy(norms), [[0, 0], [2, 3], [0, 0]])
    np.testing.assert_array_equal(ops.convert_to_numpy(finite), [False, True, False])
    np.testing.assert_allclose([ops.convert_to_numpy(part)[0] for part in sums.sums], [1.0, 1.0])
