"""Mistakes that `fit` tells before its first step, since a budget cannot be refilled.

Warnings are errors here, so that each row shows when it is told: no step has run then, and no
weight has moved.
"""

import re
import sys

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.models.helpers import features

X = features(40)
Y = np.arange(40) % 2
BINARY, SPARSE = "binary_crossentropy", "sparse_categorical_crossentropy"
CALLBACKS = keras.callbacks


def classifier(units=2, loss=SPARSE, activation="softmax", optimizer=None, layers=(), **options):
    """A compiled model with one dense layer."""
    layers = [keras.Input((4,)), *layers, keras.layers.Dense(units, activation)]
    model = ka.PrivateSequential(layers)
    model.compile(optimizer or ka.optimizers.AutoDPOptimizer(3.0), loss, **options)
    return model


def one_unit(loss=BINARY, **options):
    return classifier(1, loss, "sigmoid", **options)


def two_heads():
    """Two outputs by name, of which the second has one unit."""
    inputs = keras.Input((4,))
    outputs = {
        "kind": keras.layers.Dense(2, "softmax", name="kind")(inputs),
        "size": keras.layers.Dense(1, "sigmoid", name="size")(inputs),
    }
    model = ka.PrivateModel(inputs, outputs)
    model.compile(ka.optimizers.AutoDPOptimizer(3.0), {"kind": SPARSE, "size": BINARY})
    return model


# Ten rows of class 1 stand three times, and the thirty of class 0 once.
COPIED, CLASSES = np.concatenate([X[:30], np.repeat(X[30:], 3, axis=0)]), np.repeat([0, 1], 30)
# By name: what is fitted, on which targets and with which arguments; what tells of it, in which
# words.
MISTAKES = {
    "no loss": (lambda: classifier(loss=None), Y, {}, ValueError, "no loss"),
    "classes from 1": (classifier, Y + 1, {}, ValueError, "from 0 to 1.*from 1 to 2"),
    "a class below 0": (classifier, Y - 1, {}, ValueError, "from 0 to 1.*from -1 to 0"),
    "-1 and 1": (
        *(one_unit, 2 * Y - 1, {}, ValueError),
        "between 0 and 1.*from -1 to 1.*not private.*hinge",
    ),
    "one unit, sparse": (lambda: one_unit(SPARSE), Y, {}, ValueError, "one unit.*binary"),
    "the second head": (
        *(two_heads, {"size": 2 * Y - 1, "kind": Y}, {}, ValueError),
        "between 0 and 1.*from -1 to 1",
    ),
    "shuffled": (classifier, Y + 1, {"sampling": "shuffle"}, ValueError, "from 0 to 1"),
    "a column too few to validate": (
        *(classifier, Y, {"validation_data": (X[:, :3], Y)}, ValueError),
        "first batch of `validation_data`",
    ),
    "other targets to validate": (
        *(lambda: classifier(metrics=["accuracy"]), Y),
        *({"validation_data": (X, np.eye(2)[Y])}, ValueError, "first batch of `validation_data`"),
    ),
    "repeated rows": (
        *(classifier, np.repeat([0, 1, 0, 1], 10), {"x": np.repeat(X[:4], 10, 0)}),
        *(UserWarning, "stands 10 times: 4 of 40.*not private"),
    ),
    "copies of one class": (
        *(classifier, CLASSES, {"x": COPIED}),
        *(UserWarning, "stands 3 times: 40 of 60.*not private.*`class_weight`"),
    ),
    **{
        name: (classifier, Y, {"callbacks": [callback], "validation_data": (X, Y)}, *told)
        for name, callback, *told in (
            (
                "a schedule",
                CALLBACKS.LearningRateScheduler(abs),
                ValueError,
                "plans the size.*Adam",
            ),
            ("a plateau", CALLBACKS.ReduceLROnPlateau(), ValueError, "plans the size.*Adam"),
            ("early stopping", CALLBACKS.EarlyStopping(), UserWarning, "planned to its last step"),
        )
    },
    "gaps in many rows": (
        *(classifier, Y, {"x": np.where(np.arange(40)[:, None] < 15, np.nan, X)}),
        *(UserWarning, "15 of 40 examples hold NaN.*not private"),
    ),
    "a class left out": (
        *(lambda: classifier(3, optimizer=fixed()), np.arange(40) % 3),
        *({"class_weight": {0: 1.0, 1: 2.0}}, UserWarning, "weight.*: 2.*not private"),
    ),
}


def fixed():
    """An optimizer that heeds weights."""
    return ka.optimizers.AutoDPOptimizer(3.0, plan={"clipping": 1.0})


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_before_the_first_step(name):
    make, y, options, error, words = MISTAKES[name]
    model = make()
    before = model.get_weights()
    with pytest.raises(error, match=re.compile(words, re.DOTALL)):
        model.fit(**{"x": X, "y": y, "epochs": 2, "verbose": 0, **options})
    assert model.privacy_ledger.steps == 0
    for value, present in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(value, present)


def test_tensorboard_that_is_not_installed_fails_before_the_first_step(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorflow.summary", None)
    model = classifier()
    with pytest.raises(ImportError):
        model.fit(X, Y, verbose=0, callbacks=[CALLBACKS.TensorBoard(tmp_path)])
    assert model.privacy_ledger.steps == 0


UNSURE = keras.losses.BinaryCrossentropy(label_smoothing=0.1)
IGNORING = keras.losses.SparseCategoricalCrossentropy(ignore_class=-1)
# What looks like a mistake and is none.
FINE = {
    "-1 and 1 for a hinge": (lambda: one_unit("hinge"), 2 * Y - 1, {}),
    "soft labels": (one_unit, Y * 0.3 + 0.2, {}),
    "smoothed labels": (lambda: one_unit(UNSURE), Y, {}),
    "a class to ignore": (lambda: classifier(loss=IGNORING), Y - 1, {}),
    "a label without weight": (
        *(lambda: one_unit(optimizer=fixed()), 2 * Y - 1),
        {"sample_weight": Y.astype("float32")},
    ),
    "a schedule for Adam": (
        *(lambda: classifier(optimizer=ka.optimizers.AutoDPOptimizer(3.0, optimizer="adam")), Y),
        {"callbacks": [CALLBACKS.LearningRateScheduler(lambda epoch: 0.1)]},
    ),
    "gaps in few rows": (
        *(classifier, np.repeat([0, 1], 20)),
        {"x": np.repeat([[0, 1, np.nan, np.inf], [1, 0, 1, 0]], [4, 36], 0).astype("float32")},
    ),
    "copies in both classes": (classifier, CLASSES, {"x": np.repeat(X[:30], 2, axis=0)}),
    "copies of few rows": (classifier, CLASSES[15:45], {"x": COPIED[15:45]}),
    "copies of one person": (
        *(classifier, CLASSES),
        {"x": COPIED, "unit_ids": np.minimum(np.arange(60), 30), "max_rows_per_unit": 30},
    ),
    "few kinds of fractions": (classifier, Y, {"x": 0.7 * np.sign(X)}),
    "few kinds of rows": (classifier, Y, {"x": np.round(X).clip(0, 1)}),
}


@pytest.mark.parametrize("name", FINE)
def test_what_is_no_mistake_trains(name):
    make, y, options = FINE[name]
    model = make()
    model.fit(**{"x": X, "y": y, "verbose": 0, **options})
    assert model.privacy_ledger.steps > 0


class Draws(keras.layers.Layer):
    """Draws a number whenever it is called."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(0)

    def call(self, x):
        return x + 0.0 * keras.random.normal((1,), seed=self.seeds)


def test_the_trial_of_validation_data_leaves_no_trace():
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            seen.append([float(each) for each in self.model.metrics_variables[:2]])
            seen.append(keras.ops.convert_to_numpy(self.model.layers[0].seeds.state).tolist())

    for options in ({}, {"validation_data": (X, Y)}):
        model = classifier(layers=[Draws()], metrics=["accuracy"])
        model.fit(X, Y, verbose=0, callbacks=[Look()], **options)
    assert seen[:2] == seen[2:]
