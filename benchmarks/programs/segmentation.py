"""Segmentation and detection, in the order of keras.io/examples/vision."""

from typing import Any

import keras
import numpy as np
from catalogue import (
    ROWS,
    Made,
    PatchEncoder,
    Patches,
    checkpoint,
    example,
    labels,
    mlp,
    numbers,
    stopping,
    transformer,
)
from image_classifiers import norm_relu
from keras import layers, ops


@example("vision")
def oxford_pets_image_segmentation(random: float) -> Made:
    """Return a U-Net of separable convolutions going down and transposed ones going up."""
    inputs = keras.Input((32, 32, 3))
    x = before = norm_relu(layers.Conv2D(8, 3, strides=2, padding="same")(inputs))
    for width in (12, 16):
        for _ in range(2):
            x = layers.Activation("relu")(x)
            x = layers.BatchNormalization()(layers.SeparableConv2D(width, 3, padding="same")(x))
        x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
        x = before = layers.add([x, layers.Conv2D(width, 1, strides=2, padding="same")(before)])
    for width in (16, 12, 8):
        for _ in range(2):
            x = layers.Activation("relu")(x)
            x = layers.BatchNormalization()(layers.Conv2DTranspose(width, 3, padding="same")(x))
        x = layers.UpSampling2D(2)(x)
        y = layers.Conv2D(width, 1, padding="same")(layers.UpSampling2D(2)(before))
        x = before = layers.add([x, y])
    outputs = layers.Conv2D(3, 3, activation="softmax", padding="same")(x)
    optimizer = keras.optimizers.Adam(1e-4)
    loss, extra = "sparse_categorical_crossentropy", {"callbacks": [checkpoint()]}
    y_rows = labels(3, 32, 32, 1).astype("uint8")
    model = keras.Model(inputs, outputs)
    return Made(model, numbers(32, 32, 3), y_rows, loss, None, optimizer, extra)


def residual_backbone(inputs: Any, has_norm: bool = True) -> list[Any]:
    """Return features of half, a quarter and an eighth of the side, with normalization."""
    x, found = inputs, []
    for width in (8, 12, 16):
        y = layers.Conv2D(width, 3, strides=2, padding="same")(x)
        y = norm_relu(y) if has_norm else layers.Activation("relu")(y)
        y = layers.Conv2D(width, 3, padding="same")(y)
        y = layers.BatchNormalization()(y) if has_norm else y
        x = layers.Activation("relu")(
            layers.add([y, layers.Conv2D(width, 1, strides=2, padding="same")(x)])
        )
        found.append(x)
    return found


def dilated(x: Any, width: int = 8, kernel: int = 3, rate: int = 1, bias: bool = False) -> Any:
    """Return a dilated convolution with normalization."""
    he = keras.initializers.HeNormal()
    convolution = layers.Conv2D(
        width, kernel, 1, "same", dilation_rate=rate, use_bias=bias, kernel_initializer=he
    )
    return norm_relu(convolution(x))


@example("vision")
def deeplabv3_plus(random: float) -> Made:
    """Return a pyramid of dilated convolutions, and a pool of the whole image, on a ResNet."""
    inputs = keras.Input((32, 32, 3))
    fine, _, coarse = residual_backbone(inputs)
    side = coarse.shape[1]
    pooled = dilated(layers.AveragePooling2D(side)(coarse), kernel=1, bias=True)
    pyramid = [layers.UpSampling2D(side, interpolation="bilinear")(pooled)]
    pyramid += [dilated(coarse, kernel=1)]
    pyramid += [dilated(coarse, rate=rate) for rate in (2, 3, 4)]
    x = dilated(layers.Concatenate()(pyramid), kernel=1)
    x = layers.UpSampling2D(4, interpolation="bilinear")(x)
    x = dilated(dilated(layers.Concatenate()([x, dilated(fine, 4, kernel=1)])))
    x = layers.UpSampling2D(2, interpolation="bilinear")(x)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(1e-3)
    model = keras.Model(inputs, layers.Conv2D(5, 1, padding="same")(x))
    y_rows = labels(5, 32, 32, 1).astype("float32")
    return Made(model, numbers(32, 32, 3), y_rows, loss, ["accuracy"], optimizer)


def similarity(one: Any, other: Any) -> Any:
    """Return the structural similarity of images with one channel, a number for each row."""

    def blurred(x: Any) -> Any:
        return ops.average_pool(x, 7, strides=1)

    mean, mean_other = blurred(one), blurred(other)
    variance = blurred(one**2) - mean**2
    variance_other = blurred(other**2) - mean_other**2
    covariance = blurred(one * other) - mean * mean_other
    a, b = 0.01**2, 0.03**2
    above = (2 * mean * mean_other + a) * (2 * covariance + b)
    below = (mean**2 + mean_other**2 + a) * (variance + variance_other + b)
    return ops.mean(above / below, axis=(1, 2, 3))


@example("vision")
def basnet_segmentation(random: float) -> Made:
    """Return a subclass with inputs and outputs, and a hybrid loss over all its outputs.

    The source computes similarity by `tf.image.ssim`; here `keras.ops` do.
    """

    def build(base: Any) -> Any:
        class BoundaryAware(base):
            """Predicts coarse maps, refines the first one, and learns from all of them."""

            def compute_loss(
                self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: Any = True
            ) -> Any:
                total, y = 0.0, ops.convert_to_tensor(y)
                for found in y_pred:
                    total += ops.mean(keras.losses.binary_crossentropy(y, found))
                    total += ops.mean(1 - similarity(y, found) + 1e-9, axis=0)
                    both = ops.sum(ops.abs(y * found), axis=(1, 2, 3))
                    either = ops.sum(y + found, axis=(1, 2, 3)) - both
                    total += 1 - ops.mean((both + 1e-9) / (either + 1e-9), axis=0)
                return total

        inputs = keras.Input((32, 32, 3))
        encoded = residual_backbone(inputs)
        x, maps = dilated(encoded[-1], rate=2), []
        for features in reversed(encoded):
            x = layers.Resizing(*features.shape[1:3])(x)
            x = dilated(layers.concatenate([features, x]))
            maps.insert(0, layers.Resizing(32, 32)(layers.Conv2D(1, 3, padding="same")(x)))
        y = dilated(maps[0], 4)
        y = layers.Resizing(32, 32)(dilated(layers.MaxPool2D(2)(y), 4))
        refined = layers.Add()([maps[0], layers.Conv2D(1, 3, padding="same")(y)])
        outputs = [layers.Activation("sigmoid")(each) for each in (refined, *maps)]
        return BoundaryAware(inputs, outputs)

    metrics = [keras.metrics.MeanAbsoluteError(name="mae") for _ in range(4)]
    optimizer = keras.optimizers.Adam(1e-4, epsilon=1e-8)
    y_rows = labels(2, 32, 32, 1).astype("float32")
    return Made(build, numbers(32, 32, 3), y_rows, None, metrics, optimizer)


@example("vision")
def fully_convolutional_network(random: float) -> Made:
    """Return heads of zeros on three pools of a frozen VGG, with the mean overlap as metric."""
    inputs, images = keras.Input((32, 32, 3)), keras.Input((32, 32, 3))
    x, pools = images, []
    for width in (8, 12, 16):
        x = layers.Conv2D(width, 3, activation="relu", padding="same")(x)
        x = layers.MaxPooling2D(2)(x)
        pools.append(x)
    backbone = keras.Model(images, pools)
    backbone.trainable = False
    third, fourth, fifth = backbone(inputs)
    dense = keras.Sequential(
        [layers.Conv2D(16, 1, activation="relu"), layers.Dropout(0.5 * random)]
    )
    dense.trainable = False

    def scores(x: Any, **options: Any) -> Any:
        return layers.Conv2D(4, 1, padding="same", **options)(x)

    def larger(x: Any, factor: int) -> Any:
        return layers.UpSampling2D(factor, interpolation="bilinear")(x)

    x = larger(scores(dense(fifth), activation="relu"), 2)
    x = larger(layers.Add()([scores(fourth, kernel_initializer="zeros"), x]), 2)
    x = layers.Add()([scores(third, kernel_initializer="zeros"), x])
    model = keras.Model(inputs, larger(scores(x, activation="softmax"), 2))
    metrics = [
        keras.metrics.MeanIoU(num_classes=4, sparse_y_pred=False),
        keras.metrics.SparseCategoricalAccuracy(),
    ]
    loss = keras.losses.SparseCategoricalCrossentropy()
    optimizer = keras.optimizers.AdamW(1e-4, weight_decay=1e-4)
    return Made(model, numbers(32, 32, 3), labels(4, 32, 32), loss, metrics, optimizer)


class DetectionLoss(keras.losses.Loss):
    """Focal loss and smooth L1, each summed over anchors, over the number of matched anchors."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return a number for each row."""
        boxes, kinds = y_true[..., :4], y_true[..., 4]
        matched = ops.cast(kinds > -1.0, "float32")
        counted = ops.cast(kinds != -2.0, "float32")
        targets = ops.one_hot(ops.cast(kinds, "int32"), 3)
        crossed = ops.binary_crossentropy(targets, y_pred[..., 4:], from_logits=True)
        chances = ops.sigmoid(y_pred[..., 4:])
        hits = ops.where(targets == 1.0, chances, 1 - chances)
        focal = ops.where(targets == 1.0, 0.25, 0.75) * (1 - hits) ** 2 * crossed
        gaps = ops.abs(boxes - y_pred[..., :4])
        smooth = ops.sum(ops.where(gaps < 1.0, 0.5 * gaps**2, gaps - 0.5), axis=-1)
        number = ops.maximum(ops.sum(matched, axis=-1), 1.0)
        focal = ops.sum(counted * ops.sum(focal, axis=-1), axis=-1)
        return (focal + ops.sum(matched * smooth, axis=-1)) / number


def detection_head(number: int, bias: Any) -> keras.Sequential:
    """Return convolutions that all levels share."""
    normal = keras.initializers.RandomNormal(0.0, 0.01)
    head = keras.Sequential([keras.Input((None, None, 8))])
    for _ in range(2):
        head.add(layers.Conv2D(8, 3, padding="same", kernel_initializer=normal))
        head.add(layers.ReLU())
    last = layers.Conv2D(
        number, 3, padding="same", kernel_initializer=normal, bias_initializer=bias
    )
    head.add(last)
    return head


@example("vision")
def retinanet(random: float) -> Made:
    """Return a subclassed detector: a pyramid in a layer, and heads that run on each level."""

    def build(base: Any) -> Any:
        class Detector(base):
            """Finds boxes and classes for nine anchors a place."""

            def __init__(self) -> None:
                super().__init__()
                inputs = keras.Input((32, 32, 3))
                self.backbone = keras.Model(inputs, residual_backbone(inputs, has_norm=False))
                self.sides = [layers.Conv2D(8, 1) for _ in range(3)]
                self.smooths = [layers.Conv2D(8, 3, padding="same") for _ in range(3)]
                self.sixth = layers.Conv2D(8, 3, 2, "same")
                self.grow = layers.UpSampling2D(2)
                prior = keras.initializers.Constant(-float(np.log(99.0)))
                self.kinds, self.boxes = detection_head(27, prior), detection_head(36, "zeros")

            def call(self, images: Any, training: bool = False) -> Any:
                found = self.backbone(images, training=training)
                levels = [side(each) for side, each in zip(self.sides, found, strict=True)]
                levels[1] = levels[1] + self.grow(levels[2])
                levels[0] = levels[0] + self.grow(levels[1])
                levels = [smooth(x) for smooth, x in zip(self.smooths, levels, strict=True)]
                levels.append(self.sixth(found[2]))
                boxes = [ops.reshape(self.boxes(x), (-1, x.shape[1] ** 2 * 9, 4)) for x in levels]
                kinds = [ops.reshape(self.kinds(x), (-1, x.shape[1] ** 2 * 9, 3)) for x in levels]
                parts = [ops.concatenate(each, axis=1) for each in (boxes, kinds)]
                return ops.concatenate(parts, axis=-1)

        return Detector()

    anchors = 9 * (16**2 + 8**2 + 4**2 + 2**2)
    kinds = np.random.default_rng(2).choice([-2, -1, 0, 1, 2], (ROWS, anchors, 1))
    targets = np.concatenate([numbers(anchors, 4), kinds.astype("float32")], axis=-1)
    optimizer = keras.optimizers.SGD(1e-3, momentum=0.9)
    return Made(build, numbers(32, 32, 3), targets, DetectionLoss(), None, optimizer)


@example("vision")
def keypoint_detection(random: float) -> Made:
    """Return separable convolutions on a frozen MobileNetV2, whose targets are `(1, 1, 48)`."""
    backbone = keras.applications.MobileNetV2(
        input_shape=(64, 64, 3), alpha=0.35, include_top=False, weights=None
    )
    backbone.trainable = False
    inputs = keras.Input((64, 64, 3))
    x = keras.applications.mobilenet_v2.preprocess_input(inputs)
    x = layers.Dropout(0.3 * random)(backbone(x))
    x = layers.SeparableConv2D(48, 2, strides=1, activation="relu")(x)
    outputs = layers.SeparableConv2D(48, 1, strides=1, activation="sigmoid")(x)
    optimizer = keras.optimizers.Adam(1e-4)
    model = keras.Model(inputs, outputs)
    return Made(model, 255 * numbers(64, 64, 3), numbers(1, 1, 48), "mse", None, optimizer)


@example("vision")
def object_detection_using_vision_transformer(random: float) -> Made:
    """Return a transformer that finds the four numbers of a box."""
    inputs = keras.Input((16, 16, 3))
    x = PatchEncoder(16, 16, has_batch_axis=True)(Patches(4)(inputs))
    for _ in range(2):
        x = transformer(x, 16, random)
    x = layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(x))
    x = mlp(layers.Dropout(0.3 * random)(x), [32, 16], 0.3 * random)
    model = keras.Model(inputs, layers.Dense(4)(x))
    optimizer = keras.optimizers.AdamW(1e-3, weight_decay=1e-4)
    extra = {"callbacks": [checkpoint(), stopping()]}
    loss = keras.losses.MeanSquaredError()
    return Made(model, numbers(16, 16, 3), numbers(4), loss, None, optimizer, extra)


PROGRAMS = (
    oxford_pets_image_segmentation,
    deeplabv3_plus,
    basnet_segmentation,
    fully_convolutional_network,
    retinanet,
    keypoint_detection,
    object_detection_using_vision_transformer,
)
