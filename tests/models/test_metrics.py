"""Training metrics are those of the rows that were drawn, padding left out."""

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.models import helpers

X, Y = helpers.features(), helpers.labels()


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def frozen(model=None, **options):
    """Compiled with a learning rate of zero: the predictions stay what they were."""
    return helpers.compiled(model, optimizer=keras.optimizers.SGD(0.0), **options)


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
