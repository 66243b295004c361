"""Private classification of photographs by AlexNet or ResNet-18: Imagenette at epsilon 11.

The networks and the smallest budget of Lin et al. 2022, by DP-SGD (Abadi et al. 2016): each step
draws images at random, clips the gradient of each one to a norm, and adds noise to their sum.

    python examples/imagenette.py

**Expected**: this script was run with `--smoke` only, narrow networks on made-up images. Lin et al.
report, in table 2 at epsilon 11, test accuracies of AlexNet of 39.3% with a fixed norm, 45.7% with
quantile clipping, 55.6% with a power decay and 55.8% with transferred norms; 70.7% without privacy.
Their ResNet-18 has, in table 3, 34.9%, 37.6%, 46.0% and 46.2%. Use a GPU: AlexNet has 36 million
weights, and an epoch 148 steps of 64.

**Data**: downloaded into Keras's folder; without a network, see `docs/examples.md`.
"""

import math
from typing import Any

import keras
from keras import layers

import keras_adaclip as ka
from data import LabelledData, load_imagenette, make_up_images
from private_classification import Task, Training, main

"""
## What to choose

Epsilon, batch size, learning rate 0.01 and the settings of the clipping methods are the paper's, of
its tables D1 and D2; AUTO-S, which it does not have, gets the norm of the fixed one. The paper does
not print the number of epochs, nor where the power decay begins: 20, and the 6 of the linear decay,
are ours. Its delta, one over the number of images, is what publishing an image outright would have;
ours is smaller. It also compares at epsilon 46.6 and 130.5, which promise next to nothing.

AdaClip writes out the gradient of every example, 36 million numbers each; in the paper it ran out
of memory with ResNet-18.
"""

TASK = Task(
    title="Imagenette",
    epsilon=11.0,
    delta=5e-5,
    batch_size=64,
    trainings={
        "quantile": Training(0.01, 20, settings={"target_quantile": 0.025}),
        "fixed": Training(0.01, 20, settings={"clip_norm": 5.0}),
        "linear": Training(0.01, 20, settings={"initial_value": 6.0}),
        "exponential": Training(0.01, 20, settings={"initial_value": 5.0}),
        "power": Training(0.01, 20, settings={"initial_value": 6.0}),
        "transfer": Training(0.01, 20),
        "automatic": Training(0.01, 20, settings={"clip_norm": 5.0}),
        "adaclip": Training(0.01, 20, settings={"min_variance": 1e-5, "max_variance": 1e-3}),
    },
    networks=("alexnet", "resnet18"),
)

"""
## The data

9,469 training and 3,925 test photographs, ten classes of ImageNet. The paper does not say at which
size it took them. Here the square in the middle of each image is resized to 160 by 160 pixels. The
images stay bytes, and the networks divide them by 255.
"""

IMAGE_SIZE = 160


def load(is_smoke: bool) -> LabelledData:
    """The photographs, or made-up images of their shape."""
    if is_smoke:
        shape = (IMAGE_SIZE, IMAGE_SIZE, 3)
        return make_up_images("Imagenette", shape, num_train=128, num_test=64, as_bytes=True)
    return load_imagenette(IMAGE_SIZE)


"""
## AlexNet

As PyTorch has it (Krizhevsky 2014), which the paper's library builds on; without the
normalization of the first AlexNet, and so with nothing that would mix the images of a batch.
"""


def alexnet(x: Any, width: float) -> Any:
    """Five convolutions and two hidden layers of 4,096 units, times `width`."""

    def convolution(x: Any, filters: int, size: int, strides: int = 1) -> Any:
        filters = round(width * filters)
        return layers.Conv2D(filters, size, strides, padding="same", activation="relu")(x)

    x = convolution(x, 64, 11, strides=4)
    x = layers.MaxPooling2D(3, strides=2)(x)
    x = convolution(x, 192, 5)
    x = layers.MaxPooling2D(3, strides=2)(x)
    for filters in (384, 256, 256):
        x = convolution(x, filters, 3)
    x = layers.MaxPooling2D(3, strides=2)(x)
    x = layers.Flatten()(x)
    for _ in range(2):
        x = layers.Dropout(0.5)(x)
        x = layers.Dense(round(width * 4096), activation="relu")(x)
    return x


"""
## ResNet-18

Its batch normalization divides by what all images of a batch have in common, so one image has a
part in the gradients of all others, and clipping its own does not bound what it does. A private
model refuses that. The paper leaves the normalization out; here `GroupNormalization`, which looks
at one image alone, takes its place. (In a model that you have:
`ka.privatize(model, replace_batch_normalization=True)`.)
"""


def resnet18(x: Any, width: float) -> Any:
    """He et al. 2016: four stages of two residual blocks, times `width`."""

    def normalized_convolution(x: Any, filters: int, size: int, strides: int = 1) -> Any:
        x = layers.Conv2D(filters, size, strides, padding="same", use_bias=False)(x)
        return layers.GroupNormalization(math.gcd(filters, 32))(x)

    def block(x: Any, filters: int, strides: int) -> Any:
        shortcut = x
        if strides > 1:
            shortcut = normalized_convolution(x, filters, 1, strides)
        x = layers.ReLU()(normalized_convolution(x, filters, 3, strides))
        x = normalized_convolution(x, filters, 3)
        return layers.ReLU()(layers.Add()([x, shortcut]))

    filters = round(width * 64)
    x = layers.ReLU()(normalized_convolution(x, filters, 7, strides=2))
    x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    for stage in range(4):
        x = block(x, filters << stage, strides=1 if stage == 0 else 2)
        x = block(x, filters << stage, strides=1)
    return layers.GlobalAveragePooling2D()(x)


def build_model(network: str, width: float = 1.0) -> keras.Model:
    """Build one of the two networks, for bytes from 0 to 255."""
    inputs = keras.Input((IMAGE_SIZE, IMAGE_SIZE, 3))
    x = layers.Rescaling(1 / 255)(inputs)
    x = {"alexnet": alexnet, "resnet18": resnet18}[network](x, width)
    return ka.PrivateModel(inputs, layers.Dense(10)(x), name=network)


# `main` finds the noise with which all epochs together cost epsilon, compiles, fits and reports.
if __name__ == "__main__":
    main(
        __doc__,
        TASK,
        load,
        lambda options: build_model(options.network, width=1 / 16 if options.smoke else 1.0),
    )
