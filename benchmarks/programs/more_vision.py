"""Volumes, points, text in images, enhancement and mixed rows, from keras.io/examples/vision."""

import math
from typing import Any

import keras
import numpy as np
from catalogue import (
    Made,
    PredictionsOfEpochs,
    checkpoint,
    ctc_cost,
    example,
    labels,
    numbers,
    one_hot,
    saved_model,
    slower,
    stopping,
)
from image_classifiers import norm_relu
from keras import layers, ops


@example("vision")
def _3D_image_classification(random: float) -> Made:  # noqa: N802
    """Return convolutions of volumes."""
    inputs = x = keras.Input((16, 16, 16, 1))
    for width in (8, 12):
        x = layers.MaxPool3D(2)(layers.Conv3D(width, 3, activation="relu")(x))
        x = layers.BatchNormalization()(x)
    x = layers.Dense(16, "relu")(layers.GlobalAveragePooling3D()(x))
    outputs = layers.Dense(1, "sigmoid")(layers.Dropout(0.3 * random)(x))
    schedule = keras.optimizers.schedules.ExponentialDecay(1e-4, 100_000, 0.96, True)
    optimizer = keras.optimizers.Adam(schedule)
    stops = stopping(15, monitor="val_acc", restore_best_weights=False)
    extra = {"callbacks": [saved_model(), stops], "shuffle": True}
    model, x_rows = keras.Model(inputs, outputs), numbers(16, 16, 16, 1).astype("float64")
    return Made(model, x_rows, labels(2), "binary_crossentropy", ["acc"], optimizer, extra)


class Orthogonal(keras.regularizers.Regularizer):
    """Draws matrices that a layer finds towards orthogonal ones.

    As in the source, `tensordot` multiplies the matrices of every two rows.
    """

    def __init__(self, size: int) -> None:
        self.size, self.eye = size, ops.eye(size)

    def __call__(self, x: Any) -> Any:
        """Return the penalty, summed over the rows."""
        x = ops.reshape(x, (-1, self.size, self.size))
        products = ops.tensordot(x, x, axes=(2, 2))
        products = ops.reshape(products, (-1, self.size, self.size))
        return ops.sum(0.001 * ops.square(products - self.eye))


def point_block(x: Any, width: int) -> Any:
    """Return a convolution of single points."""
    return norm_relu(layers.Conv1D(width, 1)(x))


def turned(x: Any, size: int) -> Any:
    """Return points times a matrix that a network finds for each row, regularized."""
    y = x
    for width in (8, 8, 16):
        y = point_block(y, width)
    y = layers.GlobalMaxPooling1D()(y)
    for width in (12, 8):
        y = norm_relu(layers.Dense(width)(y))
    y = layers.Dense(
        size**2,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(np.eye(size).flatten()),
        activity_regularizer=Orthogonal(size),
    )(y)
    return layers.Dot(axes=(2, 1))([x, layers.Reshape((size, size))(y)])


@example("vision")
def pointnet_segmentation(random: float) -> Made:
    """Return a class for each point, from its features and those of the cloud."""
    inputs = keras.Input((None, 3))
    found = [point_block(turned(inputs, 3), 8)]
    for width in (8, 8):
        found.append(point_block(found[-1], width))
    found.append(turned(found[-1], 8))
    found.append(point_block(found[-1], 12))
    cloud = layers.MaxPool1D(32)(point_block(found[-1], 16))
    x = layers.Concatenate()([*found, ops.tile(cloud, [1, 32, 1])])
    outputs = layers.Conv1D(5, 1, activation="softmax")(point_block(x, 8))
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([100, 200], [1e-3, 5e-4, 2e-4])
    optimizer = keras.optimizers.Adam(schedule)
    extra = {"callbacks": [checkpoint()]}
    loss = keras.losses.CategoricalCrossentropy()
    model = keras.Model(inputs, outputs)
    return Made(model, numbers(32, 3), one_hot(5, 32), loss, ["accuracy"], optimizer, extra)


@example("vision")
def pointnet(random: float) -> Made:
    """Return a class for a cloud of points."""
    inputs = keras.Input((32, 3))
    x = turned(inputs, 3)
    for width in (8, 8):
        x = point_block(x, width)
    x = turned(x, 8)
    for width in (8, 12, 16):
        x = point_block(x, width)
    x = layers.GlobalMaxPooling1D()(x)
    for width in (12, 8):
        x = layers.Dropout(0.3 * random)(norm_relu(layers.Dense(width)(x)))
    model = keras.Model(inputs, layers.Dense(10, "softmax")(x))
    loss, metrics = "sparse_categorical_crossentropy", ["sparse_categorical_accuracy"]
    optimizer = keras.optimizers.Adam(1e-3)
    return Made(model, numbers(32, 3), labels(10), loss, metrics, optimizer)


class CTCLayer(layers.Layer):
    """Adds the loss of a sequence of labels, which are an input of the model."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the predictions; what is added has the shape `(batch, 1)`."""
        self.add_loss(ctc_cost(y_true, y_pred))
        return y_pred


def reader(random: float, num_classes: int) -> tuple[keras.Model, keras.Model]:
    """Return a model with a loss inside, and the model without labels that shares its layers."""
    image = x = keras.Input((32, 16, 1), name="image", dtype="float32")
    label = keras.Input((None,), name="label", dtype="float32")
    for width in (4, 8):
        convolution = layers.Conv2D(
            width, 3, activation="relu", kernel_initializer="he_normal", padding="same"
        )
        x = layers.MaxPooling2D(2)(convolution(x))
    x = layers.Dense(8, "relu")(layers.Reshape((8, 32))(x))
    x = layers.Dropout(0.2 * random)(x)
    for width in (8, 4):
        rows = layers.LSTM(width, return_sequences=True, dropout=0.25 * random)
        x = layers.Bidirectional(rows)(x)
    x = layers.Dense(num_classes, "softmax")(x)
    model = keras.Model([image, label], CTCLayer(name="ctc_loss")(label, x))
    return model, keras.Model(image, x)


@example("vision")
def captcha_ocr(random: float) -> Made:
    """Return a reader of codes."""
    x_rows = {"image": numbers(32, 16, 1), "label": labels(10, 4)}
    return Made(reader(random, 11)[0], x_rows, fit={"callbacks": [stopping()]})


@example("vision")
def handwriting_recognition(random: float) -> Made:
    """Return a reader of words, whose labels are padded."""
    model, other = reader(random, 12)
    targets = labels(10, 4)
    targets[:, 2:] = 10
    x_rows = {"image": numbers(32, 16, 1), "label": targets}
    extra = {"callbacks": [PredictionsOfEpochs(x_rows["image"][:8], other)]}
    return Made(model, x_rows, fit=extra)


@example("vision")
def autoencoder(random: float) -> Made:
    """Return an autoencoder whose targets are images."""
    inputs = x = keras.Input((28, 28, 1))
    for _ in range(2):
        x = layers.Conv2D(8, 3, activation="relu", padding="same")(x)
        x = layers.MaxPooling2D(2, padding="same")(x)
    for _ in range(2):
        x = layers.Conv2DTranspose(8, 3, strides=2, activation="relu", padding="same")(x)
    outputs = layers.Conv2D(1, 3, activation="sigmoid", padding="same")(x)
    model = keras.Model(inputs, outputs)
    return Made(model, numbers(28, 28, 1), numbers(28, 28, 1, seed=1), "binary_crossentropy")


def resized(x: Any, times: int, is_up: bool) -> Any:
    """Return twice or half of the side, by two branches, once or twice."""
    for _ in range(times):
        channels = x.shape[-1]
        resize = layers.UpSampling2D if is_up else layers.MaxPooling2D
        width = channels // 2 if is_up else 2 * channels
        y = layers.Conv2D(channels, 1, activation="relu")(x)
        y = resize()(layers.Conv2D(channels, 3, padding="same", activation="relu")(y))
        x = layers.Add()([layers.Conv2D(width, 1)(resize()(x)), layers.Conv2D(width, 1)(y)])
    return x


def squeezed(x: Any) -> Any:
    """Return the mean of each channel, narrowed."""
    means = layers.Reshape((1, 1, x.shape[-1]))(layers.GlobalAveragePooling2D()(x))
    return layers.Conv2D(max(x.shape[-1] // 8, 1), 1, activation="relu")(means)


def fused(features: list[Any]) -> Any:
    """Return features weighed by softmaxes over channels of what they share."""
    compact = squeezed(layers.Add()(features))
    channels = features[0].shape[-1]
    return layers.Add()(
        [x * layers.Conv2D(channels, 1, activation="softmax")(compact) for x in features]
    )


def exchanged(levels: list[Any]) -> list[Any]:
    """Return features of each size, fused of those of all sizes."""
    return [
        fused([resized(x, abs(a - b), a > b) for a, x in enumerate(levels)])
        for b in range(len(levels))
    ]


class ChannelPooling(layers.Layer):
    """Joins the mean and the maximum over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.join = layers.Concatenate(axis=-1)

    def call(self, x: Any) -> Any:
        """Return two channels."""
        means, extremes = ops.mean(x, axis=-1), ops.max(x, axis=-1)
        return self.join([ops.expand_dims(means, -1), ops.expand_dims(extremes, -1)])


def dual_attention(x: Any) -> Any:
    """Return features weighed by channel and by place."""
    channels = x.shape[-1]
    y = layers.Conv2D(channels, 3, padding="same", activation="relu")(x)
    y = layers.Conv2D(channels, 3, padding="same")(y)
    by_channel = y * layers.Conv2D(channels, 1, activation="sigmoid")(squeezed(y))
    by_place = y * keras.activations.sigmoid(layers.Conv2D(1, 1)(ChannelPooling()(y)))
    joined = layers.Concatenate()([by_channel, by_place])
    return layers.Add()([x, layers.Conv2D(channels, 1)(joined)])


def charbonnier(y_true: Any, y_pred: Any) -> Any:
    """Return the mean over the whole batch, one number."""
    return ops.mean(ops.sqrt(ops.square(y_true - y_pred) + 1e-6))


def peak_signal_noise_ratio(y_true: Any, y_pred: Any) -> Any:
    """Return decibels of each row."""
    errors = ops.mean(ops.square(y_true - y_pred), axis=(1, 2, 3))
    return 20 * math.log10(255.0) - 10 * ops.log(errors) / math.log(10)


@example("vision")
def mirnet(random: float) -> Made:
    """Return three streams for images of any size; loss and metric are functions."""
    inputs = keras.Input((None, None, 3))
    x = start = layers.Conv2D(8, 3, padding="same")(inputs)
    x = group = layers.Conv2D(8, 3, padding="same")(x)
    levels = [dual_attention(resized(x, times, is_up=False)) for times in range(3)]
    levels = [dual_attention(x) for x in exchanged(levels)]
    x = fused([resized(x, times, is_up=True) for times, x in enumerate(levels)])
    x = layers.Add()([group, layers.Conv2D(8, 3, padding="same")(x)])
    x = layers.Add()([layers.Conv2D(8, 3, padding="same")(x), start])
    outputs = layers.Add()([inputs, layers.Conv2D(3, 3, padding="same")(x)])
    plateau = slower("val_peak_signal_noise_ratio", min_delta=1e-7, mode="max")
    return Made(
        keras.Model(inputs, outputs),
        numbers(16, 16, 3),
        numbers(16, 16, 3, seed=1),
        charbonnier,
        [peak_signal_noise_ratio],
        keras.optimizers.Adam(1e-4),
        {"callbacks": [plateau]},
    )


class ToPixels(layers.Layer):
    """Makes blocks of pixels of channels."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def call(self, x: Any) -> Any:
        """Return larger images."""
        size, (batch_size, height, width, depth) = self.size, ops.shape(x)
        depth = depth // size**2
        x = ops.reshape(x, [batch_size, height, width, size, size, depth])
        x = ops.transpose(x, [0, 1, 3, 2, 4, 5])
        return ops.reshape(x, [batch_size, height * size, width * size, depth])


class DecibelsOfEpochs(keras.callbacks.Callback):
    """Collects decibels of validation batches."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin a list."""
        self.found: list[float] = []

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note a batch."""
        self.found.append(10 * math.log10(1 / logs["loss"]))


@example("vision")
def super_resolution_sub_pixel(random: float) -> Made:
    """Return channels that become pixels, and a callback that predicts."""
    inputs = x = keras.Input((10, 10, 1))
    for width, kernel in ((8, 5), (8, 3), (8, 3), (9, 3)):
        x = layers.Conv2D(
            width, kernel, activation="relu", kernel_initializer="orthogonal", padding="same"
        )(x)
    model = keras.Model(inputs, ToPixels(3)(x))
    stops = stopping(monitor="loss", restore_best_weights=False)
    predicts = PredictionsOfEpochs(np.zeros((1, 10, 10, 1), "float32"))
    callbacks = [DecibelsOfEpochs(), predicts, stops, checkpoint("loss")]
    loss, optimizer = keras.losses.MeanSquaredError(), keras.optimizers.Adam(1e-3)
    x_rows, extra = numbers(10, 10, 1), {"callbacks": callbacks}
    return Made(model, x_rows, numbers(30, 30, 1), loss, None, optimizer, extra)


@example("vision")
def cutmix(random: float) -> Made:
    """Return a small ResNet with decayed kernels; rows are mixed before they are given."""

    def convolution(x: Any, width: int, kernel: int = 3, strides: int = 1) -> Any:
        decay = keras.regularizers.L2(1e-4)
        return layers.Conv2D(
            *(width, kernel, strides, "same"),
            kernel_initializer="he_normal",
            kernel_regularizer=decay,
        )(x)

    inputs = keras.Input((16, 16, 3))
    x = norm_relu(convolution(inputs, 8))
    for width, strides in ((8, 1), (12, 2), (16, 2)):
        y = norm_relu(convolution(x, width, strides=strides))
        y = layers.BatchNormalization()(convolution(y, width))
        x = convolution(x, width, 1, strides) if strides > 1 else x
        x = layers.Activation("relu")(layers.add([x, y]))
    x = layers.Flatten()(layers.AveragePooling2D(4)(x))
    model = keras.Model(inputs, layers.Dense(10, "softmax", kernel_initializer="he_normal")(x))
    mixed = 0.7 * one_hot(10) + 0.3 * np.roll(one_hot(10), 1, axis=0)
    return Made(model, numbers(16, 16, 3), mixed, "categorical_crossentropy", ["accuracy"])


@example("vision")
def mixup(random: float) -> Made:
    """Return a convnet; rows and labels are mixed before they are given."""
    model = keras.Sequential([keras.Input((28, 28, 1))])
    for width in (8, 12):
        model.add(layers.Conv2D(width, 5, activation="relu"))
        model.add(layers.MaxPooling2D(2))
    model.add(layers.Dropout(0.2 * random))
    model.add(layers.GlobalAvgPool2D())
    model.add(layers.Dense(16, "relu"))
    model.add(layers.Dense(10, "softmax"))
    mixed = 0.8 * one_hot(10) + 0.2 * np.roll(one_hot(10), 1, axis=0)
    return Made(model, numbers(28, 28, 1), mixed, "categorical_crossentropy", ["accuracy"])


@example("vision")
def randaugment(random: float) -> Made:
    """Return a whole model inside of a sequential one."""
    network = keras.applications.ResNet50V2(weights=None, input_shape=(64, 64, 3), classes=10)
    model = keras.Sequential(
        [keras.Input((64, 64, 3)), layers.Rescaling(1 / 127.5, offset=-1), network]
    )
    loss = "sparse_categorical_crossentropy"
    return Made(model, 255 * numbers(64, 64, 3), labels(10), loss, ["accuracy"])


PROGRAMS = (
    _3D_image_classification,
    pointnet_segmentation,
    pointnet,
    captcha_ocr,
    handwriting_recognition,
    autoencoder,
    mirnet,
    super_resolution_sub_pixel,
    cutmix,
    mixup,
    randaugment,
)
