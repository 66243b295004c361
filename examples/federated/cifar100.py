"""CIFAR-100 divided among 500 clients (CIFAR-100 of Andrew et al. 2021), private by client.

    python examples/federated/cifar100.py

trains the paper's ResNet-18 for its 4,000 rounds, on `fed_cifar100.tar.bz2` of TensorFlow
Federated; `--smoke` takes seconds and needs no data. Every 50 rounds it prints accuracy on 100
clients that take no part in training, the clipping norm and epsilon.
"""

import argparse
from typing import Any

import keras
import numpy as np
from keras import layers

import keras_adaclip as ka
import made_up
from common import Task, data_files, parse_options, train
from tff_files import CIFAR100

TASK = Task(
    rounds=4000,
    noise_multiplier=0.03,
    client_learning_rate=0.1,
    server_learning_rate=0.32,
    client_batch_size=20,
    large_cohort=2231,
    large_noise_multiplier=0.669,
)
NUM_CLASSES = 100
SIZE = 24  # of 32: the crop of Reddi et al.

# ---- clients ----------------------------------------------------------------------------------
# `image` is of unsigned bytes; `coarse_label`, by which Pachinko allocation formed the clients, is
# not read. A client is cropped and flipped again whenever it is read, so in each of its rounds.

FILES = {"fed_cifar100_train.h5": CIFAR100, "fed_cifar100_test.h5": CIFAR100}


def distorted(image: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Crop and mirror each image at random, and standardize it."""
    corners = np.random.randint(0, image.shape[1] - SIZE + 1, (len(image), 2))
    crops = [
        picture[top : top + SIZE, left : left + SIZE]
        for picture, (top, left) in zip(image, corners, strict=True)
    ]
    images = np.stack(crops)
    is_mirrored = np.random.random(len(images)) < 0.5
    images[is_mirrored] = images[is_mirrored, :, ::-1]
    return standardized(images), label


def cropped(image: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The middle of each image, standardized."""
    edge = (image.shape[1] - SIZE) // 2
    return standardized(image[:, edge : edge + SIZE, edge : edge + SIZE]), label


def standardized(images: np.ndarray) -> np.ndarray:
    """Scale each image to mean 0 and standard deviation 1; a constant image stays finite."""
    images = images.astype(np.float32)
    axes = (1, 2, 3)
    least = np.float32(images[0].size ** -0.5)
    deviation = np.maximum(images.std(axes, keepdims=True), least)
    return (images - images.mean(axes, keepdims=True)) / deviation


def load(options: argparse.Namespace) -> tuple[Any, Any]:
    """The clients to train on, and those to evaluate on."""
    train_path, test_path = data_files(options, FILES, made_up.cifar100)
    return (
        ka.federated.ClientData.from_hdf5(train_path, "image", "label").map(distorted),
        ka.federated.ClientData.from_hdf5(test_path, "image", "label").map(cropped),
    )


# ---- model ------------------------------------------------------------------------------------
# ResNet-18 with normalization first (He et al. 2016b) and groups instead of batches: a batch's
# statistics are a client's data. As in the published code only the stem makes images smaller.


def build_model(filters: int = 64, num_groups: int = 2) -> keras.Model:
    """Four stages of two residual blocks, each with twice the filters: 11M parameters."""

    def convolution(x: Any, filters: int, size: int, strides: int = 1) -> Any:
        return layers.Conv2D(
            filters, size, strides, "same", use_bias=False, kernel_initializer="he_normal"
        )(x)

    def normalized(x: Any) -> Any:
        return layers.GroupNormalization(num_groups)(x)

    def active(x: Any) -> Any:
        return layers.ReLU()(normalized(x))

    def block(x: Any, filters: int, is_first: bool) -> Any:
        shortcut = x if x.shape[-1] == filters else normalized(convolution(x, filters, 1))
        residual = convolution(x if is_first else active(x), filters, 3)
        return layers.Add()([shortcut, convolution(active(residual), filters, 3)])

    inputs = keras.Input((SIZE, SIZE, 3))
    x = active(convolution(inputs, filters, 7, strides=2))
    x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    for stage in range(4):
        for number in range(2):
            x = block(x, filters << stage, is_first=stage == number == 0)
    x = layers.GlobalAveragePooling2D()(active(x))
    return keras.Model(inputs, layers.Dense(NUM_CLASSES)(x), name="resnet18")


# ---- training ---------------------------------------------------------------------------------


def main() -> None:
    """Loads, trains and reports."""
    options = parse_options(__doc__, TASK)
    train(
        TASK,
        options,
        build_model(filters=4) if options.smoke else build_model(),
        load(options),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


if __name__ == "__main__":
    main()
