"""Ten families of `keras.applications` at 64 pixels, with few classes and no weights."""

from collections.abc import Callable
from functools import partial

import keras
from catalogue import Made, Program, labels, numbers

FAMILIES = (
    "VGG16",
    "ResNet50V2",
    "MobileNet",
    "MobileNetV2",
    "MobileNetV3Small",
    "DenseNet121",
    "NASNetMobile",
    "EfficientNetB0",
    "EfficientNetV2B0",
    "ConvNeXtTiny",
)


def application(name: str, random: float) -> Made:
    """Return a family; its dropout is switched off where a step is compared."""
    make: Callable[..., keras.Model] = getattr(keras.applications, name)
    model = make(weights=None, input_shape=(64, 64, 3), classes=5)
    x, loss = 255 * numbers(64, 64, 3), "sparse_categorical_crossentropy"
    return Made(model, x, labels(5), loss, ["accuracy"], keras.optimizers.SGD(0.01))


PROGRAMS = tuple(
    Program(name, f"https://keras.io/api/applications/#{name}", partial(application, name))
    for name in FAMILIES
)
