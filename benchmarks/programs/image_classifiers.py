"""Image classification, in the order of keras.io/examples/vision."""

from typing import Any

import keras
from catalogue import (
    Made,
    PatchEncoder,
    Patches,
    augmentation,
    checkpoint,
    example,
    images,
    labels,
    mlp,
    numbers,
    one_hot,
    saved_model,
    slower,
    smoothed,
    sparse,
    stopping,
    transformer,
    vision_transformer,
)
from keras import layers, ops


def norm_relu(x: Any) -> Any:
    """Return batch normalization and ReLU."""
    return layers.Activation("relu")(layers.BatchNormalization()(x))


@example("vision")
def image_classification_from_scratch(random: float) -> Made:
    """Return a small Xception: separable convolutions and projected residuals."""
    inputs = keras.Input((32, 32, 3))
    x = norm_relu(layers.Conv2D(8, 3, strides=2, padding="same")(layers.Rescaling(1 / 255)(inputs)))
    for width in (8, 12):
        before = x
        for _ in range(2):
            x = layers.Activation("relu")(x)
            x = layers.BatchNormalization()(layers.SeparableConv2D(width, 3, padding="same")(x))
        x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
        x = layers.add([x, layers.Conv2D(width, 1, strides=2, padding="same")(before)])
    x = norm_relu(layers.SeparableConv2D(16, 3, padding="same")(x))
    x = layers.Dropout(0.25 * random)(layers.GlobalAveragePooling2D()(x))
    return Made(
        keras.Model(inputs, layers.Dense(1)(x)),
        255 * numbers(32, 32, 3),
        labels(2),
        keras.losses.BinaryCrossentropy(from_logits=True),
        [keras.metrics.BinaryAccuracy(name="acc")],
        keras.optimizers.Adam(3e-4),
        {"callbacks": [keras.callbacks.ModelCheckpoint("save_at_{epoch}.keras")]},
    )


@example("vision")
def mnist_convnet(random: float) -> Made:
    """Return the plain network for digits."""
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.5 * random),
            layers.Dense(10, "softmax"),
        ]
    )
    return Made(model, numbers(28, 28, 1), one_hot(10), "categorical_crossentropy", ["accuracy"])


@example("vision")
def image_classification_efficientnet_fine_tuning(random: float) -> Made:
    """Return a head with batch normalization on a frozen EfficientNet."""
    inputs = keras.Input((32, 32, 3))
    backbone = keras.applications.EfficientNetB0(
        include_top=False, input_tensor=inputs, weights=None
    )
    backbone.trainable = False
    x = layers.BatchNormalization()(layers.GlobalAveragePooling2D()(backbone.output))
    x = layers.Dense(6, "softmax", name="pred")(layers.Dropout(0.2 * random)(x))
    x_rows = 255 * numbers(32, 32, 3)
    model = keras.Model(inputs, x)
    optimizer = keras.optimizers.Adam(1e-2)
    return Made(model, x_rows, one_hot(6), "categorical_crossentropy", ["accuracy"], optimizer)


@example("vision")
def image_classification_with_vision_transformer(random: float) -> Made:
    """Return a vision transformer with augmentation inside of the model."""
    inputs = keras.Input((16, 16, 3))
    augment = augmentation(random, layers.RandomRotation(0.02), size=24)
    x = vision_transformer(augment(inputs), random, 0.5)
    model = keras.Model(inputs, layers.Dense(10)(x))
    optimizer = keras.optimizers.AdamW(1e-3, weight_decay=1e-4)
    extra = {"callbacks": [checkpoint("val_acc")]}
    y_rows = labels(10, 1, dtype="uint8")
    return Made(model, images(16, 16, 3), y_rows, **sparse(optimizer=optimizer), fit=extra)


class MultipleInstanceAttention(layers.Layer):
    """Gated attention over a list of instances, with regularized weights."""

    def build(self, shapes: Any) -> None:
        """Make the three matrices."""
        decay = keras.regularizers.L2(0.01)
        width = shapes[0][1]
        self.v = self.add_weight(shape=(width, 16), name="v", regularizer=decay)
        self.w = self.add_weight(shape=(16, 1), name="w", regularizer=decay)
        self.u = self.add_weight(shape=(width, 16), name="u", regularizer=decay)

    def call(self, instances: Any) -> Any:
        """Return the weight of each instance, a list of `(batch, 1)`."""
        scores = [
            ops.tensordot(
                ops.tanh(ops.tensordot(each, self.v, axes=1))
                * ops.sigmoid(ops.tensordot(each, self.u, axes=1)),
                self.w,
                axes=1,
            )
            for each in instances
        ]
        alpha = ops.softmax(ops.stack(scores), axis=0)
        return [alpha[place] for place in range(len(instances))]


@example("vision")
def attention_mil_classification(random: float) -> Made:
    """Return a classifier of bags: three inputs, shared layers, class weights."""
    first, second = layers.Dense(16, "relu"), layers.Dense(8, "relu")
    inputs = [keras.Input((14, 14)) for _ in range(3)]
    features = [second(first(layers.Flatten()(each))) for each in inputs]
    alpha = MultipleInstanceAttention(name="alpha")(features)
    weighted = [layers.multiply(pair) for pair in zip(alpha, features, strict=True)]
    outputs = layers.Dense(2, "softmax")(layers.concatenate(weighted, axis=1))
    stops = stopping(mode="min", restore_best_weights=False)
    extra = {"callbacks": [stops, checkpoint()], "class_weight": {0: 0.6, 1: 3.0}}
    x = [numbers(14, 14, seed=seed) for seed in range(3)]
    loss = "sparse_categorical_crossentropy"
    return Made(keras.Model(inputs, outputs), x, labels(2, 1), loss, ["accuracy"], fit=extra)


class Mixer(layers.Layer):
    """Mixes places, then channels; one normalization is called twice."""

    def __init__(self, number: int, width: int, rate: float) -> None:
        super().__init__()
        self.places, self.channels = (
            keras.Sequential([layers.Dense(size, "gelu"), layers.Dense(size), layers.Dropout(rate)])
            for size in (number, width)
        )
        self.normalize = layers.LayerNormalization(epsilon=1e-6)

    def call(self, inputs: Any) -> Any:
        """Return mixed patches."""
        turned = ops.transpose(self.normalize(inputs), (0, 2, 1))
        x = ops.transpose(self.places(turned), (0, 2, 1)) + inputs
        return x + self.channels(self.normalize(x))


class Fourier(layers.Layer):
    """Mixes by the real part of a Fourier transform."""

    def __init__(self, width: int, rate: float) -> None:
        super().__init__()
        self.channels = keras.Sequential(
            [layers.Dense(width, "gelu"), layers.Dropout(rate), layers.Dense(width)]
        )
        self.first = layers.LayerNormalization(epsilon=1e-6)
        self.second = layers.LayerNormalization(epsilon=1e-6)

    def call(self, inputs: Any) -> Any:
        """Return mixed patches."""
        x = self.first(ops.fft2((inputs, ops.zeros_like(inputs)))[0] + inputs)
        return self.second(x + self.channels(x))


class Gated(layers.Layer):
    """A gated MLP: half of the channels, projected over places, multiplies the other half."""

    def __init__(self, number: int, width: int, rate: float) -> None:
        super().__init__()
        self.widen = keras.Sequential([layers.Dense(2 * width, "gelu"), layers.Dropout(rate)])
        self.narrow = layers.Dense(width)
        self.over_places = layers.Dense(number, bias_initializer="ones")
        self.first = layers.LayerNormalization(epsilon=1e-6)
        self.second = layers.LayerNormalization(epsilon=1e-6)

    def call(self, inputs: Any) -> Any:
        """Return gated patches."""
        x = self.first(inputs)
        u, v = ops.split(self.widen(x), 2, axis=2)
        v = self.over_places(ops.transpose(self.second(v), (0, 2, 1)))
        return x + self.narrow(u * ops.transpose(v, (0, 2, 1)))


class Positions(layers.Layer):
    """A weight for each position, repeated for each row; of the input, only the shape is used."""

    def build(self, shape: Any) -> None:
        """Make the weight."""
        self.embeddings = self.add_weight(
            shape=shape[1:], initializer="glorot_uniform", name="embeddings"
        )
        super().build(shape)

    def call(self, x: Any) -> Any:
        """Return the weights, to be added."""
        shape = ops.shape(x)
        weights = ops.slice(ops.convert_to_tensor(self.embeddings), (0, 0), shape[1:])
        return ops.broadcast_to(weights, shape)

    def compute_output_shape(self, shape: Any) -> Any:
        """Return the same shape."""
        return shape


@example("vision")
def mlp_image_classification(random: float) -> Made:
    """Return a block of each of the example's three networks, one after another."""
    inputs = keras.Input((16, 16, 3))
    x = layers.Dense(16)(Patches(4)(augmentation(random, size=16)(inputs)))
    x = x + Positions()(x)  # Only the network with a Fourier transform has them.
    rate = 0.2 * random
    x = keras.Sequential([Mixer(16, 16, rate), Fourier(16, rate), Gated(16, 16, rate)])(x)
    x = layers.Dropout(rate)(layers.GlobalAveragePooling1D()(x))
    extra = {"callbacks": [stopping(), slower()]}
    model = keras.Model(inputs, layers.Dense(10)(x))
    optimizer = keras.optimizers.AdamW(5e-3, weight_decay=1e-4)
    y_rows = labels(10, 1, dtype="uint8")
    return Made(model, images(16, 16, 3), y_rows, **sparse(optimizer=optimizer), fit=extra)


def inverted(x: Any, width: int, strides: int = 1) -> Any:
    """Return MobileNetV2's block: wide, by depth, narrow."""
    y = layers.Conv2D(2 * x.shape[-1], 1, padding="same", use_bias=False)(x)
    y = keras.activations.swish(layers.BatchNormalization()(y))
    if strides == 2:
        y = layers.ZeroPadding2D(((0, 1), (0, 1)))(y)
    padding = "same" if strides == 1 else "valid"
    y = layers.DepthwiseConv2D(3, strides=strides, padding=padding, use_bias=False)(y)
    y = keras.activations.swish(layers.BatchNormalization()(y))
    y = layers.BatchNormalization()(layers.Conv2D(width, 1, padding="same", use_bias=False)(y))
    return layers.Add()([y, x]) if strides == 1 and x.shape[-1] == width else y


@example("vision")
def mobilevit(random: float) -> Made:
    """Return convolutions around a transformer over pixels of patches."""

    def convolution(x: Any, width: int, kernel: int = 3, strides: int = 1) -> Any:
        return layers.Conv2D(width, kernel, strides, "same", activation="swish")(x)

    inputs = keras.Input((32, 32, 3))
    x = convolution(layers.Rescaling(1 / 255)(inputs), 8, strides=2)
    x = inverted(inverted(x, 8), 12, strides=2)
    local = convolution(convolution(x, 16), 16, kernel=1)
    height, width = local.shape[1:3]
    y = layers.Reshape((4, height * width // 4, 16))(local)
    y = layers.Reshape((height, width, 16))(transformer(y, 16, random, "swish"))
    x = convolution(layers.Concatenate()([x, convolution(y, x.shape[-1], kernel=1)]), 16)
    x = layers.GlobalAvgPool2D()(convolution(x, 24, kernel=1))
    return Made(
        keras.Model(inputs, layers.Dense(5, "softmax")(x)),
        255 * numbers(32, 32, 3),
        one_hot(5),
        keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
        ["accuracy"],
        keras.optimizers.Adam(2e-3),
        {"callbacks": [checkpoint("val_accuracy")]},
    )


@example("vision")
def xray_classification_with_tpus(random: float) -> Made:
    """Return a convnet for rare classes: true and false, class weights, precision and recall."""
    inputs = keras.Input((32, 32, 3))
    x = layers.Rescaling(1 / 255)(inputs)
    for _ in range(2):
        x = layers.Conv2D(8, 3, activation="relu", padding="same")(x)
    x = layers.MaxPool2D()(x)
    for width, rate in ((8, None), (8, None), (12, 0.2), (16, 0.2)):
        for _ in range(2):
            x = layers.SeparableConv2D(width, 3, activation="relu", padding="same")(x)
        x = layers.MaxPool2D()(layers.BatchNormalization()(x))
        x = layers.Dropout(rate * random)(x) if rate else x
    x = layers.Flatten()(x)
    for width, rate in ((32, 0.7), (16, 0.5), (8, 0.3)):
        x = layers.BatchNormalization()(layers.Dense(width, "relu")(x))
        x = layers.Dropout(rate * random)(x)
    model = keras.Model(inputs, layers.Dense(1, "sigmoid")(x))
    metrics = [
        keras.metrics.BinaryAccuracy(),
        keras.metrics.Precision(name="precision"),
        keras.metrics.Recall(name="recall"),
    ]
    rate_schedule = keras.optimizers.schedules.ExponentialDecay(0.015, 100_000, 0.96, True)
    optimizer = keras.optimizers.Adam(rate_schedule)
    extra = {"callbacks": [saved_model(), stopping()], "class_weight": {0: 1.9, 1: 0.7}}
    x_rows, y_rows = 255 * numbers(32, 32, 3), labels(2, dtype="bool")
    return Made(model, x_rows, y_rows, "binary_crossentropy", metrics, optimizer, extra)


class StochasticDepth(layers.Layer):
    """Leaves out a branch for some rows; it draws for a rate of zero, too."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate, self.seeds = rate, keras.random.SeedGenerator(1337)

    def call(self, x: Any, training: bool | None = None) -> Any:
        """Return the branch, or zeros, row by row."""
        if not training:
            return x
        keep = 1 - self.rate
        shape = (ops.shape(x)[0],) + (1,) * (len(x.shape) - 1)
        return (x / keep) * ops.floor(keep + keras.random.uniform(shape, 0, 1, seed=self.seeds))


class SequencePooling(layers.Layer):
    """Weighs places by a dense layer's softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = layers.Dense(1)

    def call(self, x: Any) -> Any:
        """Return the weighted mean."""
        weights = ops.transpose(ops.softmax(self.attention(x), axis=1), (0, 2, 1))
        return ops.squeeze(ops.matmul(weights, x), -2)


class ConvolutionTokenizer(layers.Layer):
    """Cuts images into tokens by convolutions and pooling."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.network = keras.Sequential()
        for width in widths:
            convolution = layers.Conv2D(
                width, 3, use_bias=False, activation="relu", kernel_initializer="he_normal"
            )
            self.network.add(convolution)
            self.network.add(layers.ZeroPadding2D(1))
            self.network.add(layers.MaxPooling2D(3, 2, "same"))

    def call(self, images: Any) -> Any:
        """Return tokens of shape `(batch, number, width)`."""
        x = self.network(images)
        _, height, width, channels = ops.shape(x)
        return ops.reshape(x, (-1, height * width, channels))


@example("vision")
def cct(random: float) -> Made:
    """Return a compact transformer with stochastic depth and pooling by attention."""
    inputs = keras.Input((32, 32, 3))
    moves = [layers.RandomCrop(32, 32), layers.RandomFlip("horizontal")]
    x = keras.Sequential([layers.Rescaling(1 / 255), *(moves if random else [])])(inputs)
    x = ConvolutionTokenizer((8, 16))(x)
    x = x + Positions()(x)
    for rate in (0.0, 0.1):
        normed = layers.LayerNormalization(epsilon=1e-5)(x)
        y = layers.MultiHeadAttention(2, 16, dropout=0.1 * random)(normed, normed)
        x = layers.Add()([StochasticDepth(rate * random)(y), x])
        y = mlp(layers.LayerNormalization(epsilon=1e-5)(x), [16, 16], 0.1 * random)
        x = layers.Add()([StochasticDepth(rate * random)(y), x])
    x = SequencePooling()(layers.LayerNormalization(epsilon=1e-5)(x))
    model = keras.Model(inputs, layers.Dense(10)(x))
    optimizer = keras.optimizers.AdamW(1e-3, weight_decay=1e-4)
    extra = {"callbacks": [checkpoint("val_accuracy")]}
    x_rows = images(32, 32, 3)
    return Made(model, x_rows, one_hot(10), **smoothed(True), optimizer=optimizer, fit=extra)


@example("vision")
def convmixer(random: float) -> Made:
    """Return convolutions by depth with large kernels, and batch normalization after GELU."""

    def block(x: Any) -> Any:
        return layers.BatchNormalization()(layers.Activation("gelu")(x))

    inputs = keras.Input((16, 16, 3))
    x = block(layers.Conv2D(16, 2, strides=2)(layers.Rescaling(1 / 255)(inputs)))
    for _ in range(2):
        x = layers.Add()([block(layers.DepthwiseConv2D(5, padding="same")(x)), x])
        x = block(layers.Conv2D(16, 1)(x))
    outputs = layers.Dense(10, "softmax")(layers.GlobalAvgPool2D()(x))
    return Made(
        keras.Model(inputs, outputs),
        255 * numbers(16, 16, 3),
        labels(10, 1),
        "sparse_categorical_crossentropy",
        ["accuracy"],
        keras.optimizers.AdamW(1e-3, weight_decay=1e-4),
        {"callbacks": [checkpoint("val_accuracy")]},
    )


def external_attention(x: Any, width: int, random: float) -> Any:
    """Return attention to two memories, dense layers, with a double normalization."""
    number, heads, per_head = x.shape[1], 8, width // 2
    x = layers.Dense(4 * width)(x)
    x = ops.transpose(ops.reshape(x, (-1, number, heads, per_head)), (0, 2, 1, 3))
    scores = layers.Softmax(axis=2)(layers.Dense(width // 4)(x))
    scores = layers.Lambda(lambda a: a / (1e-9 + ops.sum(a, axis=-1, keepdims=True)))(scores)
    x = layers.Dense(per_head)(layers.Dropout(0.2 * random)(scores))
    x = ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (-1, number, 4 * width))
    return layers.Dropout(0.2 * random)(layers.Dense(width)(x))


@example("vision")
def eanet(random: float) -> Made:
    """Return a transformer with external attention."""
    inputs = keras.Input((16, 16, 3))
    moves = layers.RandomRotation(0.1), layers.RandomContrast(0.1)
    x = PatchEncoder(16, 16)(Patches(4)(augmentation(random, *moves)(inputs)))
    for _ in range(2):
        normed = layers.LayerNormalization(epsilon=1e-5)(x)
        x = layers.add([external_attention(normed, 16, random), x])
        y = mlp(layers.LayerNormalization(epsilon=1e-5)(x), [16], 0.2 * random)
        x = layers.add([layers.Dropout(0.2 * random)(layers.Dense(16)(y)), x])
    outputs = layers.Dense(10, "softmax")(layers.GlobalAveragePooling1D()(x))
    optimizer = keras.optimizers.AdamW(1e-3, weight_decay=1e-4)
    model = keras.Model(inputs, outputs)
    return Made(model, images(16, 16, 3), one_hot(10), **smoothed(False), optimizer=optimizer)


class Involution(layers.Layer):
    """Applies to each pixel a kernel that is made of this pixel; returns the kernels, too."""

    def build(self, shape: Any) -> None:
        """Make the network of kernels, with batch normalization, and layers that reshape."""
        _, height, width, channels = shape
        self.kernels = keras.Sequential(
            [layers.Conv2D(1, 1), layers.BatchNormalization(), layers.ReLU(), layers.Conv2D(9, 1)]
        )
        self.as_kernels = layers.Reshape((height, width, 9, 1, 1))
        self.as_patches = layers.Reshape((height, width, 9, channels, 1))
        self.as_images = layers.Reshape((height, width, channels))

    def call(self, x: Any) -> Any:
        """Return images of the same shape, and kernels."""
        kernel = self.as_kernels(self.kernels(x))
        patches = self.as_patches(ops.image.extract_patches(x, 3, strides=1, padding="same"))
        return self.as_images(ops.sum(kernel * patches, axis=3)), kernel


@example("vision")
def involution(random: float) -> Made:
    """Return a network with involution."""
    inputs = keras.Input((16, 16, 3))
    x = inputs
    for place in range(3):
        x = layers.ReLU()(Involution(name=f"inv_{place}")(x)[0])
        x = layers.MaxPooling2D(2)(x) if place < 2 else x
    x = layers.Dense(16, "relu")(layers.Flatten()(x))
    model = keras.Model(inputs, layers.Dense(10)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Made(model, numbers(16, 16, 3), labels(10, 1), loss, ["accuracy"])


PROGRAMS = (
    image_classification_from_scratch,
    mnist_convnet,
    image_classification_efficientnet_fine_tuning,
    image_classification_with_vision_transformer,
    attention_mil_classification,
    mlp_image_classification,
    mobilevit,
    xray_classification_with_tpus,
    cct,
    convmixer,
    eanet,
    involution,
)
