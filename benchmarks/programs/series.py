"""The first four of keras.io/examples/timeseries, and the first of audio that `fit` trains."""

from typing import Any

import keras
from catalogue import (
    Made,
    PredictionsOfEpochs,
    ctc_cost,
    example,
    labels,
    numbers,
    one_hot,
    saved_model,
    slower,
    stopping,
)
from keras import layers


@example("timeseries")
def timeseries_classification_from_scratch(random: float) -> Made:
    """Return convolutions with batch normalization."""
    inputs = x = keras.Input((32, 1))
    for _ in range(3):
        x = layers.BatchNormalization()(layers.Conv1D(8, 3, padding="same")(x))
        x = layers.ReLU()(x)
    outputs = layers.Dense(2, "softmax")(layers.GlobalAveragePooling1D()(x))
    stops = stopping(50, restore_best_weights=False, monitor="val_loss")
    extra = {"callbacks": [saved_model(), slower(patience=20, min_lr=1e-4), stops]}
    loss, metrics = "sparse_categorical_crossentropy", ["sparse_categorical_accuracy"]
    return Made(keras.Model(inputs, outputs), numbers(32, 1), labels(2), loss, metrics, fit=extra)


def encoder(inputs: Any, random: float) -> Any:
    """Return attention and convolutions of single times, each normalized before it is added."""
    attention = layers.MultiHeadAttention(key_dim=8, num_heads=2, dropout=0.25 * random)
    x = layers.Dropout(0.25 * random)(attention(inputs, inputs))
    before = layers.LayerNormalization(epsilon=1e-6)(x) + inputs
    x = layers.Dropout(0.25 * random)(layers.Conv1D(4, 1, activation="relu")(before))
    x = layers.Conv1D(inputs.shape[-1], 1)(x)
    return layers.LayerNormalization(epsilon=1e-6)(x) + before


@example("timeseries")
def timeseries_classification_transformer(random: float) -> Made:
    """Return a transformer of one channel, whose normalization makes all of it zero."""
    inputs = keras.Input((24, 1))
    x = encoder(encoder(inputs, random), random)
    x = layers.GlobalAveragePooling1D(data_format="channels_last")(x)
    x = layers.Dropout(0.4 * random)(layers.Dense(16, "relu")(x))
    model = keras.Model(inputs, layers.Dense(2, "softmax")(x))
    loss, metrics = "sparse_categorical_crossentropy", ["sparse_categorical_accuracy"]
    optimizer, extra = keras.optimizers.Adam(1e-4), {"callbacks": [stopping()]}
    return Made(model, numbers(24, 1), labels(2), loss, metrics, optimizer, extra)


@example("timeseries")
def eeg_signal_classification(random: float) -> Made:
    """Return strided convolutions, decayed kernels, and class weights for one-hot labels."""
    inputs = x = keras.Input((64, 1))
    for width, kernel in ((8, 3), (8, 3), (12, 5), (12, 5), (16, 7), (16, 7)):
        x = layers.Conv1D(width, kernel, strides=2, activation="relu", padding="same")(x)
        x = layers.BatchNormalization()(x)
    x = layers.Flatten()(layers.Dropout(0.2 * random)(x))
    x = layers.Dropout(0.2 * random)(layers.Dense(32, "relu")(x))
    for width in (24, 16):
        x = layers.Dense(width, "relu", kernel_regularizer=keras.regularizers.L2())(x)
        x = layers.Dropout(0.2 * random)(x)
    x = layers.Dense(8, "relu", kernel_regularizer=keras.regularizers.L2())(x)
    model = keras.Model(inputs, layers.Dense(4, "softmax")(x))
    metrics = [
        *(keras.metrics.TopKCategoricalAccuracy(k=3), keras.metrics.AUC()),
        *(keras.metrics.Precision(), keras.metrics.Recall()),
    ]
    plateau = slower("val_top_k_categorical_accuracy", factor=0.2, patience=2, min_lr=1e-6)
    weights = {0: 0.9, 1: 0.7, 2: 0.6, 3: 0.8}
    extra = {"callbacks": [saved_model("loss"), plateau], "class_weight": weights}
    optimizer = keras.optimizers.Adam(amsgrad=True, learning_rate=0.001)
    loss = keras.losses.CategoricalCrossentropy()
    return Made(model, numbers(64, 1), one_hot(4), loss, metrics, optimizer, extra)


@example("timeseries")
def event_classification_for_payment_card_fraud_detection(random: float) -> Made:
    """Return an input for each feature of a transaction, whose rows are single numbers."""
    names = ["amount", "moving_average", "count", "hour"]
    inputs = [keras.Input((1,), name=name) for name in names]
    x = layers.concatenate(inputs)
    for width in (32, 16, 1):
        x = layers.Dense(width, "sigmoid")(x)
    x_rows = {name: numbers(seed=place) for place, name in enumerate(names)}
    return Made(
        keras.Model(inputs, x),
        x_rows,
        labels(2, dtype="int32"),
        keras.losses.BinaryCrossentropy(),
        [keras.metrics.Accuracy(), keras.metrics.AUC()],
        keras.optimizers.Adam(0.01),
    )


@example("audio")
def ctc_asr(random: float) -> Made:
    """Return convolutions and recurrent layers over spectrograms of any length, and a CTC loss."""
    inputs = keras.Input((None, 24), name="input")
    x = layers.Reshape((-1, 24, 1))(inputs)
    for kernel, strides in (([5, 11], [2, 2]), ([5, 7], [1, 2])):
        x = layers.Conv2D(4, kernel, strides, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Reshape((-1, x.shape[-2] * x.shape[-1]))(x)
    for place in range(2):
        rows = layers.GRU(6, return_sequences=True, reset_after=True)
        x = layers.Bidirectional(rows, merge_mode="concat")(x)
        x = layers.Dropout(0.5 * random)(x) if place == 0 else x
    x = layers.Dropout(0.5 * random)(layers.ReLU()(layers.Dense(12)(x)))
    model = keras.Model(inputs, layers.Dense(8, "softmax")(x))
    x_rows, targets = numbers(24, 24), labels(7, 5)
    targets[:, 3:] = 0
    extra = {"callbacks": [PredictionsOfEpochs(x_rows[:8])]}
    return Made(model, x_rows, targets, ctc_cost, None, keras.optimizers.Adam(1e-4), extra)


PROGRAMS = (
    timeseries_classification_from_scratch,
    timeseries_classification_transformer,
    eeg_signal_classification,
    event_classification_for_payment_card_fraud_detection,
    ctc_asr,
)
