"""Training metrics are those of the rows that were drawn, padding left out."""

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.models import helpers

X, Y = helpers.features(), helpers.labels()
WEIGHTS = np.linspace(0.0, 2.0, helpers.NUM_EXAMPLES).astype("float32")


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def frozen(model=None, **options):
    """Compiled with a learning rate of zero: the predictions stay what they were."""
    return helpers.compiled(model, optimizer=keras.optimizers.SGD(0.0), **options)


@pytest.mark.parametrize("microbatch_size", [None, 2])
def test_values_are_those_of_the_rows_drawn(microbatch_size):
    model = frozen(
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2")],
        weighted_metrics=[
            keras.metrics.SparseCategoricalCrossentropy("weighted", from_logits=True)
        ],
        microbatch_size=microbatch_size,
    )
    dataset = ka.sampling.PoissonDataset(X, Y, WEIGHTS, expected_batch_size=4)
    taken, take = [], dataset.take
    dataset.take = lambda rows, *rest: (taken.append(rows), take(rows, *rest))[1]
    logits = model.predict(X, verbose=0)
    losses = -log_softmax(logits)[np.arange(len(Y)), Y]
    order = np.argsort(-logits, axis=-1)

    def expected(rows):
        return {
            "loss": (losses * WEIGHTS)[rows].mean(),
            "accuracy": (order[rows, 0] == Y[rows]).mean(),
            "top2": (order[rows, :2] == Y[rows, None]).any(-1).mean(),
            "weighted": (losses * WEIGHTS)[rows].sum() / WEIGHTS[rows].sum(),
        }

    for _ in range(3):
        taken.clear()
        found = helpers.quiet_fit(model, dataset, steps_per_epoch=1)
        found = {name: values[0] for name, values in found.items()}
        # Keras draws ahead for shapes, so the step's rows are one of the draws.
        draws = [rows for rows in taken if len(rows) > 1]
        assert any(found == pytest.approx(expected(rows), rel=1e-4) for rows in draws) or (
            len(draws) < len(taken)
        )


def test_names_of_several_outputs():
    inputs = keras.Input((helpers.NUM_FEATURES,))
    outputs = {
        "kind": keras.layers.Dense(3, name="kind")(inputs),
        "size": keras.layers.Dense(1, name="size")(inputs),
    }
    model = frozen(
        ka.PrivateModel(inputs, outputs),
        loss={"kind": helpers.sparse_crossentropy(), "size": "mse"},
        metrics={"kind": ["accuracy"], "size": ["mae"]},
    )
    size = helpers.features(shape=(1,), seed=4)
    # Every row is drawn at every step.
    found = helpers.quiet_fit(
        model, X, {"kind": Y, "size": size}, batch_size=helpers.NUM_EXAMPLES, epochs=2
    )
    predicted = model.predict(X, verbose=0)
    crossentropy = -log_softmax(predicted["kind"])[np.arange(len(Y)), Y].mean()
    expected = {
        "loss": crossentropy + np.square(predicted["size"] - size).mean(),
        "kind_loss": crossentropy,
        "size_loss": np.square(predicted["size"] - size).mean(),
        "kind_accuracy": (predicted["kind"].argmax(-1) == Y).mean(),
        "size_mae": np.abs(predicted["size"] - size).mean(),
    }
    assert set(found) == set(expected)
    for key, value in expected.items():
        assert found[key] == pytest.approx([value, value], rel=1e-4), key


def test_sequences_with_masks():
    inputs = keras.Input((5,), dtype="int32")
    embedded = keras.layers.Embedding(7, 3, mask_zero=True)(inputs)
    model = frozen(ka.PrivateModel(inputs, keras.layers.Dense(3)(embedded)), metrics=["accuracy"])
    ids = np.random.default_rng(8).integers(1, 7, (helpers.NUM_EXAMPLES, 5)).astype("int32")
    ids[::2, 3:] = 0
    targets = np.repeat(Y[:, None], 5, axis=1)
    found = helpers.quiet_fit(model, ids, targets, batch_size=helpers.NUM_EXAMPLES)
    right = (model.predict(ids, verbose=0).argmax(-1) == targets) * (ids != 0)
    assert found["accuracy"][0] == pytest.approx(right.sum() / (ids != 0).sum(), rel=1e-4)
