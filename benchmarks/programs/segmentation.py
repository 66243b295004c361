"""Segmentation and detection, in the order of keras.io/examples/vision."""

from typing import Any

import keras
import numpy as np
from catalogue import (
    ROWS,
    Made,
    checkpoint,
    example,
    labels,
    numbers,
    saved_model,
    stopping,
    vision_transformer,
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
    loss, extra = "sparse_categorical_crossentropy", {"callbacks": [saved_model()]}
    y_rows = labels(3, 32, 32, 1, dtype="uint8")
    model = keras.Model(inputs, outputs)
    return Made(model, numbers(32, 32, 3), y_rows, loss, None, optimizer, extra)


def residual_backbone(inputs: Any) -> list[Any]:
    """Return features of half, a quarter and an eighth of the side, with normalization."""
    x, found = inputs, []
    for width in (8, 12, 16):
        y = norm_relu(layers.Conv2D(width, 3, strides=2, padding="same")(x))
        y = layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(y))
        before = layers.Conv2D(width, 1, strides=2, padding="same")(x)
        x = layers.Activation("relu")(layers.add([y, before]))
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
    preprocessed = keras.applications.resnet50.preprocess_input(inputs)
    fine, _, coarse = residual_backbone(preprocessed)
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
    x_rows, y_rows = 255 * numbers(32, 32, 3), labels(5, 32, 32, 1, dtype="float32")
    return Made(model, x_rows, y_rows, loss, ["accuracy"], optimizer)


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

    The source takes similarity and overlap of all outputs at once, which sums over rows; here
    each output has its own, and `keras.ops` compute similarity in the place of `tf.image.ssim`.
    """

    def build(base: Any) -> Any:
        class BoundaryAware(base):
            """Predicts coarse maps, refines the first one, and learns from all of them."""

            def compute_loss(
                self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: Any = True
            ) -> Any:
                total, y = 0.0, ops.convert_to_tensor(y)
                for found in y_pred:
                    total += keras.losses.BinaryCrossentropy()(y, found)
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
    y_rows = labels(2, 32, 32, 1, dtype="float32")
    return Made(build, numbers(32, 32, 3), y_rows, None, metrics, optimizer)


@example("vision", torch="PyTorch cannot differentiate bilinear upsampling in front of its loss")
def fully_convolutional_network(random: float) -> Made:
    """Return heads of zeros on three pools of a frozen VGG, in half precision.

    The comparison of a step is in full precision.
    """
    keras.config.set_dtype_policy("mixed_float16" if random else "float32")
    inputs, x, pools = keras.Input((32, 32, 3)), keras.Input((32, 32, 3)), []
    images = x
    for width in (8, 12, 16):
        x = layers.Conv2D(width, 3, activation="relu", padding="same")(x)
        x = layers.MaxPooling2D(2)(x)
        pools.append(x)
    backbone = keras.Model(images, pools)
    backbone.trainable = False
    third, fourth, fifth = backbone(inputs)
    dense = keras.Sequential()
    for kernel in (3, 1):
        dense.add(layers.Conv2D(16, kernel, activation="relu", padding="same", use_bias=False))
        dense.add(layers.Dropout(0.5 * random))
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
    optimizer = keras.optimizers.AdamW(1e-3, weight_decay=1e-4)
    y_rows = labels(4, 32, 32, 1, dtype="float32")
    return Made(model, numbers(32, 32, 3), y_rows, loss, metrics, optimizer)


class BoxLoss(keras.losses.Loss):
    """Smooth L1, summed over the numbers of a box."""

    def __init__(self) -> None:
        super().__init__(reduction="none")

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return a number for each anchor."""
        gaps = ops.abs(y_true - y_pred)
        return ops.sum(ops.where(gaps < 1.0, 0.5 * gaps**2, gaps - 0.5), axis=-1)


class FocalLoss(keras.losses.Loss):
    """Focal loss, summed over classes."""

    def __init__(self) -> None:
        super().__init__(reduction="none")

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return a number for each anchor."""
        crossed = ops.binary_crossentropy(y_true, y_pred, from_logits=True)
        chances = ops.sigmoid(y_pred)
        hits = ops.where(ops.equal(y_true, 1.0), chances, 1 - chances)
        alpha = ops.where(ops.equal(y_true, 1.0), 0.25, 0.75)
        return ops.sum(alpha * ops.power(1.0 - hits, 2.0) * crossed, axis=-1)


class DetectionLoss(keras.losses.Loss):
    """Both losses, each summed over anchors, over the number of matched anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes, self.kinds = BoxLoss(), FocalLoss()

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return a number for each row."""
        targets = ops.one_hot(ops.cast(y_true[:, :, 4], "int32"), 3)
        matched = ops.cast(ops.greater(y_true[:, :, 4], -1.0), "float32")
        ignored = ops.cast(ops.equal(y_true[:, :, 4], -2.0), "float32")
        kinds = self.kinds(targets, y_pred[:, :, 4:])
        boxes = self.boxes(y_true[:, :, :4], y_pred[:, :, :4])
        kinds = ops.where(ops.equal(ignored, 1.0), 0.0, kinds)
        boxes = ops.where(ops.equal(matched, 1.0), boxes, 0.0)
        number = ops.sum(matched, axis=-1)
        kinds = ops.divide_no_nan(ops.sum(kinds, axis=-1), number)
        return kinds + ops.divide_no_nan(ops.sum(boxes, axis=-1), number)


def detection_head(number: int, bias: Any) -> keras.Sequential:
    """Return convolutions that all levels share."""
    normal = keras.initializers.RandomNormal(0.0, 0.01, seed=0)
    head = keras.Sequential([keras.Input((None, None, 8))])
    for _ in range(2):
        head.add(layers.Conv2D(8, 3, padding="same", kernel_initializer=normal))
        head.add(layers.ReLU())
    last = layers.Conv2D(
        number, 3, 1, padding="same", kernel_initializer=normal, bias_initializer=bias
    )
    head.add(last)
    return head


class FeaturePyramid(layers.Layer):
    """Features of five sizes from three of a backbone, which has batch normalization."""

    def __init__(self) -> None:
        super().__init__()
        inputs = keras.Input((None, None, 3))
        self.backbone = keras.Model(inputs, residual_backbone(inputs))
        self.sides = [layers.Conv2D(8, 1, 1, "same") for _ in range(3)]
        self.smooths = [layers.Conv2D(8, 3, 1, "same") for _ in range(3)]
        self.sixth, self.seventh = (layers.Conv2D(8, 3, 2, "same") for _ in range(2))
        self.grow = layers.UpSampling2D(2)

    def call(self, images: Any, training: bool = False) -> Any:
        """Return five tensors, from large to small."""
        found = self.backbone(images, training=training)
        third, fourth, fifth = (side(x) for side, x in zip(self.sides, found, strict=True))
        fourth = fourth + self.grow(fifth)
        third = third + self.grow(fourth)
        levels = zip(self.smooths, (third, fourth, fifth), strict=True)
        sixth = self.sixth(found[2])
        return *(smooth(x) for smooth, x in levels), sixth, self.seventh(ops.relu(sixth))


@example("vision")
def retinanet(random: float) -> Made:
    """Return a subclassed detector: a pyramid in a layer, and heads that run on each level."""

    def build(base: Any) -> Any:
        class Detector(base):
            """Finds boxes and classes for nine anchors a place."""

            def __init__(self) -> None:
                super().__init__()
                self.pyramid = FeaturePyramid()
                prior = keras.initializers.Constant(-float(np.log(99.0)))
                self.kinds, self.boxes = detection_head(27, prior), detection_head(36, "zeros")

            def call(self, image: Any, training: bool = False) -> Any:
                features = self.pyramid(image, training=training)
                number, kinds, boxes = ops.shape(image)[0], [], []
                for feature in features:
                    boxes.append(ops.reshape(self.boxes(feature), [number, -1, 4]))
                    kinds.append(ops.reshape(self.kinds(feature), [number, -1, 3]))
                parts = [ops.concatenate(boxes, axis=1), ops.concatenate(kinds, axis=1)]
                return ops.concatenate(parts, axis=-1)

        return Detector()

    anchors = 9 * (16**2 + 8**2 + 4**2 + 2**2 + 1)
    kinds = np.random.default_rng(2).choice([-2, -1, 0, 1, 2], (ROWS, anchors, 1))
    targets = np.concatenate([numbers(anchors, 4), kinds.astype("float32")], axis=-1)
    rates = keras.optimizers.schedules.PiecewiseConstantDecay([125, 250], [2.5e-6, 6e-4, 1e-3])
    optimizer = keras.optimizers.SGD(rates, momentum=0.9)
    weights = keras.callbacks.ModelCheckpoint(
        "epoch_{epoch}.weights.h5", "loss", save_weights_only=True
    )
    extra = {"callbacks": [weights]}
    return Made(build, numbers(32, 32, 3), targets, DetectionLoss(), None, optimizer, extra)


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
    x_rows = labels(256, 64, 64, 3)
    return Made(model, x_rows, numbers(1, 1, 48), "mse", None, optimizer)


@example("vision")
def object_detection_using_vision_transformer(random: float) -> Made:
    """Return a transformer that finds the four numbers of a box, in double precision."""
    inputs = keras.Input((16, 16, 3))
    model = keras.Model(inputs, layers.Dense(4)(vision_transformer(inputs, random, 0.3)))
    optimizer = keras.optimizers.AdamW(1e-3, weight_decay=1e-4)
    extra = {"callbacks": [checkpoint(), stopping(restore_best_weights=False)]}
    loss, x_rows = keras.losses.MeanSquaredError(), 255 * numbers(16, 16, 3)
    y_rows = numbers(4).astype("float64")
    return Made(model, x_rows, y_rows, loss, None, optimizer, extra)


PROGRAMS = (
    oxford_pets_image_segmentation,
    deeplabv3_plus,
    basnet_segmentation,
    fully_convolutional_network,
    retinanet,
    keypoint_detection,
    object_detection_using_vision_transformer,
)
