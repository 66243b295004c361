"""What one example contributes does not depend on any other example, whatever the loss."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers, ops

from keras_adaclip.gradients import GradientPlan
from keras_adaclip.gradients.plan import assign_rules
from tests import oracles
from tests.gradients.support import LOOPED, assert_close, built, row_gradients, runner, tensors

ROWS, CLASSES = 4, 3
# One of each shape of targets and reduction: all are mapped over the examples by one function.
LOSSES = ["BinaryCrossentropy", "CTC", "CosineSimilarity", "Dice", "MeanAbsoluteError"]
LOSSES += ["SparseCategoricalCrossentropy"]


def targets(name, rng):
    """Targets that suit the loss, and the activation of the model's last layer."""
    if name == "CTC":
        return rng.integers(1, CLASSES, (ROWS, 2)).astype("int32"), None
    labels = rng.integers(0, CLASSES, ROWS)
    if name == "SparseCategoricalCrossentropy":
        return labels.astype("int32"), "softmax"
    if name == "CategoricalCrossentropy":
        return np.eye(CLASSES, dtype="float32")[labels], "softmax"
    if name in ("BinaryCrossentropy", "Dice"):
        return rng.integers(0, 2, (ROWS, CLASSES)).astype("float32"), "sigmoid"
    return rng.normal(size=(ROWS, CLASSES)).astype("float32"), None


def prepared(name):
    rng = np.random.default_rng(7)
    y, activation = targets(name, rng)
    shape = (4, 2) if name == "CTC" else (2,)
    x = rng.normal(size=(ROWS, *shape)).astype("float32")
    weight = rng.uniform(0.5, 2.0, ROWS).astype("float32")
    model = keras.Sequential([keras.Input(shape), layers.Dense(CLASSES, activation=activation)])
    model = built(model, x, y, weight, loss=getattr(keras.losses, name)())
    # The plan of so small a model needs no trial; the trial has tests of its own.
    return model, GradientPlan(*assign_rules(model)), x, y, weight


def mask_of(*rows):
    return np.isin(np.arange(ROWS), rows)


def assert_contributions_are_their_own(model, plan, x, y, weight, **options):
    """Sums against those of rows that were differentiated alone; then other rows change."""
    expected = row_gradients(model, x, y, weight)
    clip_norm = float(np.median(oracles.gradient_norms(expected))) or 1.0
    run = runner(model, plan, clip_norm, **options)
    found = run(x, y, weight, mask_of(0, 1, 2, 3)).gradients
    assert_close(found, oracles.clipped_sums(expected, clip_norm), tolerance=2e-5)

    @settings(max_examples=8)
    @given(
        row=st.integers(0, ROWS - 1),
        seed=st.integers(0, 10**6),
        size=st.sampled_from([0.0, 1.0, 100.0, 1e30, np.nan]),
    )
    def other_examples_change(row, seed, size):
        rng = np.random.default_rng(seed)
        others = rng.permutation(ROWS)
        others[np.flatnonzero(others == row)[0]], others[row] = others[row], row
        changed = [part[others].copy() for part in (x, y, weight)]
        if x.dtype.kind == "f":
            noise = rng.normal(size=x.shape).astype("float32") * np.float32(size)
            changed[0][others != row] = noise[others != row]
        changed[2][others != row] *= np.float32(rng.uniform(0, 50))
        before = run(x, y, weight, mask_of(row))
        after = run(*changed, mask_of(row))
        assert_close(before.gradients, after.gradients, tolerance=1e-6)
        assert before.norms[row] == pytest.approx(after.norms[row], rel=1e-6)
        # With and without it, everything else as it is: the difference is the contribution.
        if size <= 1.0:
            everyone = run(*changed, mask_of(0, 1, 2, 3)).gradients
            without = run(*changed, mask_of(*(set(range(ROWS)) - {row}))).gradients
            differences = [a - b for a, b in zip(everyone, without, strict=True)]
            for found, own in zip(differences, before.gradients, strict=True):
                np.testing.assert_allclose(found, own, atol=3e-6 * ROWS * clip_norm)

    other_examples_change()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", LOSSES)
def test_contributions_do_not_depend_on_other_examples(name):
    assert_contributions_are_their_own(*prepared(name))


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight", None])
def test_masks_of_a_sequence_are_rescaled_over_one_example(reduction):
    rng = np.random.default_rng(8)
    x = np.array([[1, 2, 3], [4, 0, 0], [2, 0, 0], [3, 3, 0]], np.int32)
    y = rng.integers(0, CLASSES, x.shape).astype("int32")
    weight = rng.uniform(0.5, 2.0, x.shape).astype("float32")
    made = [layers.Embedding(5, 4, mask_zero=True), layers.Dense(CLASSES, activation="softmax")]
    model = keras.Sequential([keras.Input((3,), dtype="int32"), *made])
    loss = keras.losses.SparseCategoricalCrossentropy(reduction=reduction)
    model = built(model, x, y, weight, loss=loss)
    plan, given = GradientPlan(*assign_rules(model)), tensors(weight)
    assert_contributions_are_their_own(model, plan, x, y, weight)
    # Keras would multiply the mask into the weights in place.
    runner(model, plan)(x, y, given)
    np.testing.assert_array_equal(ops.convert_to_numpy(given), weight)


def centered(y_true, y_pred):
    mixed = y_pred - ops.mean(y_pred, axis=0) / 2 + ops.mean(y_pred) - ops.mean(y_true)
    return ops.mean(ops.square(mixed), axis=-1)


@pytest.mark.parametrize("is_looped", [False, True])
def test_a_custom_loss_that_mixes_the_batch_sees_one_example_at_a_time(is_looped):
    model, plan, x, y, weight = prepared("MeanSquaredError")
    model = built(model, x, y, weight, loss=centered)
    assert_contributions_are_their_own(model, LOOPED if is_looped else plan, x, y, weight)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="maps no gradients")
@pytest.mark.parametrize("num_copies", [1, 2])
def test_examples_side_by_side_are_those_that_are_differentiated_alone(monkeypatch, num_copies):
    """Padding, copies, draws and rows without a finite loss, with a last chunk that is not full."""
    rows, copies = 11, num_copies
    rng = np.random.default_rng(5)
    x = rng.normal(size=(rows * copies, 6)).astype("float32")
    y = rng.integers(0, CLASSES, rows * copies).astype("int32")
    weight = rng.uniform(0.5, 2.0, rows * copies).astype("float32")
    x[3 * copies] = np.inf
    hidden = [layers.Dense(5, "tanh"), layers.Dropout(0.5), layers.Dense(CLASSES)]
    model = keras.Sequential([keras.Input((6,)), *hidden])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = built(model, x, y, weight, loss=loss)
    mask, seed = np.arange(rows) != 7, np.array([3, 4], "int32")
    # An error would end in differentiating one by one.
    monkeypatch.setattr("keras_adaclip.backend.attempt", lambda run, *given: (run(*given), None))
    found = []
    for size in (1, 4):
        monkeypatch.setattr("keras_adaclip.backend.examples_at_once", lambda _, size=size: size)
        run = runner(model, LOOPED, 0.3, num_copies=copies, seed=seed)
        found.append(run(x, y, weight, mask))
    alone, together = found
    assert_close(together.gradients, alone.gradients)
    np.testing.assert_allclose(together.norms, alone.norms, rtol=1e-5)
    np.testing.assert_array_equal(together.finite, mask & (np.arange(rows) != 3))
    assert len(np.unique(together.norms)) == rows - 1  # Two add nothing.


class Turned(layers.Layer):
    """Each example times the sign of its sum, which Python may find."""

    kind = "plain"

    def call(self, inputs):
        if self.kind == "branch":
            return inputs if float(ops.sum(inputs)) > 0.0 else -inputs
        if self.kind == "plain":
            return inputs * ops.sign(ops.sum(inputs, axis=1, keepdims=True))
        import jax

        shape = jax.ShapeDtypeStruct((len(inputs), 1), "float32")
        return inputs * jax.pure_callback(lambda v: np.sign(v.sum(1, keepdims=True)), shape, inputs)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="maps no gradients")
@pytest.mark.parametrize("kind", ["branch", "callback"])
def test_examples_that_cannot_be_mapped_are_differentiated_one_by_one(kind):
    rng = np.random.default_rng(6)
    x, y = (rng.normal(size=(5, size)).astype("float32") for size in (4, 2))
    turned = Turned()
    model = keras.Sequential([keras.Input((4,)), turned, layers.Dense(2, "tanh")])
    expected = row_gradients(built(model, x, y), x, y)
    turned.kind = kind
    found = runner(model, LOOPED, 0.3, compile_step=kind != "branch")(x, y)
    assert_close(found.gradients, oracles.clipped_sums(expected, 0.3))
