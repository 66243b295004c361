"""Keras's preprocessing layers, made to treat each example of a batch by itself.

Some of them draw once for the whole batch: where `RandomCrop` cuts, how wide `RandomGaussianBlur`
is, which operations `RandAugment` takes. Here they draw for each example. `Equalization` takes one
histogram of the whole batch, and so mixes its examples; here each image has its own. Besides,
neither `RandomCrop` nor `Equalization` could be compiled on JAX.

Only Keras's own classes are changed, on batches of images, and only while a model is called.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip.backend import keras_private

Tensor = Any
_Methods = dict[str, Callable[..., Any]]


def drawing_for_each_example(layer: keras.layers.Layer) -> AbstractContextManager[None]:
    """A context in which each example of a batch has random numbers and statistics of its own.

    Args:
        layer: a layer or model; layers inside of it are changed too.
    """
    methods = {
        inner: _METHODS[type(inner)](inner)
        for inner in keras_private.flatten_layers(layer)
        if type(inner) in _METHODS
    }
    return keras_private.replaced_methods(methods)


def _random_crop(layer: Any) -> _Methods:
    def get_random_transformation(data: Any, training: bool = True, seed: Any = None) -> Any:
        rest = [
            data.shape[axis] - size
            for axis, size in ((layer.height_axis, layer.height), (layer.width_axis, layer.width))
        ]
        # Otherwise Keras resizes, and draws nothing.
        if not training or len(data.shape) != 4 or min(rest) <= 0:
            return type(layer).get_random_transformation(layer, data, training, seed)
        shape = (ops.shape(data)[0],)
        generator = layer.generator if seed is None else seed
        return tuple(keras.random.randint(shape, 0, most + 1, seed=generator) for most in rest)

    def transform_images(images: Tensor, transformation: Any, training: bool = True) -> Tensor:
        if not ops.is_tensor(transformation[0]):
            return type(layer).transform_images(layer, images, transformation, training)
        images = ops.cast(images, layer.compute_dtype)
        sizes = (layer.height, layer.width)
        for axis, size, starts in zip(
            (layer.height_axis, layer.width_axis), sizes, transformation, strict=True
        ):
            places = ops.expand_dims(starts, 1) + ops.arange(size, dtype=starts.dtype)
            shape = [-1, 1, 1, 1]
            shape[axis] = size
            images = ops.take_along_axis(images, ops.reshape(places, shape), axis=axis)
        return images

    return {
        "get_random_transformation": get_random_transformation,
        "transform_images": transform_images,
    }


def _random_gaussian_blur(layer: Any) -> _Methods:
    def get_random_transformation(data: Any, training: bool = True, seed: Any = None) -> Any:
        drawn = type(layer).get_random_transformation(layer, data, training, seed)
        if drawn is not None and len(data.shape) == 4:
            drawn["blur_factor"] = 1e-6 + keras.random.uniform(
                (ops.shape(data)[0], 2),
                *layer.sigma,
                dtype=layer.compute_dtype,
                seed=seed or layer.generator,
            )
        return drawn

    def transform_images(
        images: Tensor, transformation: Any = None, training: bool = True
    ) -> Tensor:
        if not training or transformation is None or len(transformation["blur_factor"].shape) == 1:
            return type(layer).transform_images(layer, images, transformation, training)
        images = ops.cast(images, layer.compute_dtype)
        blurred = images
        height_axis = 1 if layer.data_format == "channels_last" else 2
        for number, axis in enumerate((height_axis + 1, height_axis)):
            widths = transformation["blur_factor"][:, number]
            blurred = _blurred(blurred, layer.kernel_size[number], widths, axis)
        is_blurred = ops.reshape(transformation["should_apply_blur"], (-1, 1, 1, 1))
        images = ops.clip(ops.where(is_blurred, blurred, images), *layer.value_range)
        return ops.cast(images, layer.compute_dtype)

    return {
        "get_random_transformation": get_random_transformation,
        "transform_images": transform_images,
    }


def _blurred(images: Tensor, size: int, widths: Tensor, axis: int) -> Tensor:
    """A convolution along `axis` with Gaussian weights, whose width is each example's own."""
    distances = (np.arange(size) - (size - 1) / 2).astype("float32")
    distances = ops.cast(distances, images.dtype)
    kernels = ops.exp(-0.5 * ops.square(distances / ops.expand_dims(widths, 1)))
    kernels = kernels / ops.sum(kernels, axis=1, keepdims=True)
    around = [(0, 0)] * 4
    around[axis] = ((size - 1) // 2, size // 2)
    padded, length, total = ops.pad(images, around), images.shape[axis], 0.0
    for place in range(size):
        window: list[slice] = [slice(None)] * 4
        window[axis] = slice(place, place + length)
        total = total + padded[tuple(window)] * ops.reshape(kernels[:, place], (-1, 1, 1, 1))
    return total


def _random_elastic_transform(layer: Any) -> _Methods:
    """Keras takes a batch of unknown size, as in TensorFlow graphs, for its first image alone."""

    def get_random_transformation(data: Any, training: bool = True, seed: Any = None) -> Any:
        drawn = type(layer).get_random_transformation(layer, data, training, seed)
        if drawn is not None and len(data.shape) == 4:
            generator, batch_size = seed or layer.generator, ops.shape(data)[0]
            drawn["distortion_factor"] = keras.random.uniform(
                (batch_size,), *layer.scale, dtype=layer.compute_dtype, seed=generator
            )
            shape = (batch_size, data.shape[layer.height_axis], data.shape[layer.width_axis], 2)
            drawn["shifts"] = keras.random.normal(shape, dtype=layer.compute_dtype, seed=generator)
        return drawn

    def transform_images(images: Tensor, transformation: Any, training: bool = True) -> Tensor:
        if not training or transformation is None or "shifts" not in transformation:
            return type(layer).transform_images(layer, images, transformation, training)
        images = ops.cast(images, layer.compute_dtype)
        is_first = layer.data_format == "channels_first"
        placed = ops.transpose(images, (0, 2, 3, 1)) if is_first else images
        height, width = placed.shape[1:3]
        factors = transformation["distortion_factor"]
        strengths, widths = layer.get_elastic_transform_params(height, width, factors)
        _, largest = layer.get_elastic_transform_params(height, width, layer.scale[1])
        widths, size = ops.maximum(widths, 1e-3), int(6 * largest) | 1
        shifts = transformation["shifts"] * ops.reshape(widths, (-1, 1, 1, 1))
        shifts = _blurred(_blurred(shifts, size, widths, axis=1), size, widths, axis=2)
        shifts = shifts * ops.reshape(strengths, (-1, 1, 1, 1))
        rows = ops.reshape(ops.arange(height, dtype=shifts.dtype), (1, -1, 1)) + shifts[..., 0]
        columns = ops.arange(width, dtype=shifts.dtype) + shifts[..., 1]
        placed = _values_at(placed, rows, columns, layer)
        transformed = ops.transpose(placed, (0, 3, 1, 2)) if is_first else placed
        is_moved = ops.reshape(transformation["apply_transform"], (-1, 1, 1, 1))
        images = ops.clip(ops.where(is_moved, transformed, images), *layer.value_range)
        return ops.cast(images, layer.compute_dtype)

    return {
        "get_random_transformation": get_random_transformation,
        "transform_images": transform_images,
    }


def _values_at(images: Tensor, rows: Tensor, columns: Tensor, layer: Any) -> Tensor:
    """The values of each image between its pixels, as by `ops.image.map_coordinates`.

    Args:
        images: tensor of shape `(batch_size, height, width, channels)`.
        rows: where in the height, of shape `(batch_size, height, width)`.
        columns: where in the width, of the same shape.
        layer: knows how to interpolate, and what lies beyond the edges.
    """
    height, width, num_channels = images.shape[1:]
    flat, total = ops.reshape(images, (-1, height * width, num_channels)), 0.0
    if layer.interpolation == "nearest":
        rows, columns = ops.round(rows), ops.round(columns)
    for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
        row, column = ops.floor(rows) + down, ops.floor(columns) + right
        weight = (1 - ops.abs(rows - row)) * (1 - ops.abs(columns - column))
        place = _inside(row, height, layer.fill_mode) * width
        place = ops.cast(place + _inside(column, width, layer.fill_mode), "int32")
        values = ops.take_along_axis(flat, ops.reshape(place, (-1, height * width, 1)), axis=1)
        values = ops.reshape(values, (-1, height, width, num_channels))
        if layer.fill_mode == "constant":
            is_row = ops.logical_and(row >= 0, row < height)
            is_inside = ops.logical_and(is_row, ops.logical_and(column >= 0, column < width))
            values = ops.where(is_inside[..., None], values, layer.fill_value)
        total = total + values * weight[..., None]
    return total


def _inside(index: Tensor, size: int, fill_mode: str) -> Tensor:
    """The pixel that stands for one beyond the edges."""
    if fill_mode == "wrap":
        return ops.mod(index, size)
    if fill_mode == "mirror":
        return (size - 1) - ops.abs(ops.mod(index, max(2 * size - 2, 1)) - (size - 1))
    if fill_mode == "reflect":
        index = ops.mod(index, 2 * size)
        return ops.minimum(index, 2 * size - 1 - index)
    return ops.clip(index, 0, size - 1)


def _equalization(layer: Any) -> _Methods:
    def transform_images(
        images: Tensor, transformation: Any = None, training: bool = True
    ) -> Tensor:
        if not training or len(images.shape) != 4:
            return type(layer).transform_images(layer, images, transformation, training)
        images = ops.cast(images, layer.compute_dtype)
        if layer.data_format == "channels_last":
            equalized = _equalized(ops.transpose(images, (0, 3, 1, 2)), layer)
            return ops.transpose(equalized, (0, 2, 3, 1))
        return _equalized(images, layer)

    return {"transform_images": transform_images}


def _equalized(images: Tensor, layer: Any) -> Tensor:
    """Each channel of each image with its histogram made flat, as by `Equalization`.

    Args:
        images: tensor of shape `(batch_size, channels, height, width)`.
        layer: the layer, which knows the range of values and the number of bins.
    """
    low, high = layer.value_range
    rows = images.shape[1]
    flat = (ops.reshape(images, (-1, images.shape[2] * images.shape[3])) - low) * (
        255.0 / (high - low)
    )
    num_bins, num_rows = layer.bins, ops.shape(images)[0] * rows
    bins = ops.cast(ops.clip(flat / 255.0 * (num_bins - 1), 0, num_bins - 1), "int32")
    # A bin of the histogram of each row.
    numbers = bins + num_bins * ops.expand_dims(ops.arange(num_rows, dtype="int32"), 1)
    numbers = ops.reshape(numbers, (-1,))
    counts = ops.segment_sum(ops.ones_like(numbers), numbers, num_segments=num_rows * num_bins)
    cumulative = ops.cumsum(ops.reshape(counts, (num_rows, num_bins)), axis=1)
    cumulative = ops.cast(cumulative, "float32")
    total = cumulative[:, -1:]
    first = ops.min(ops.where(cumulative > 0, cumulative, total), axis=1, keepdims=True)
    table = (cumulative - first) * 255.0 / ops.where(total == first, 1.0, total - first)
    table = ops.clip(ops.round(table), 0.0, 255.0)
    found = ops.reshape(ops.take(ops.reshape(table, (-1,)), numbers), ops.shape(flat))
    found = ops.where(total == first, flat, ops.cast(found, flat.dtype))
    return ops.reshape(found * ((high - low) / 255.0) + low, ops.shape(images))


def _rand_augment(layer: Any) -> _Methods:
    def get_random_transformation(data: Any, training: bool = True, seed: Any = None) -> Any:
        drawn = type(layer).get_random_transformation(layer, data, training, seed)
        if drawn is not None and len(data.shape) == 4:
            shape = (layer.num_ops, ops.shape(data)[0], 1, 1, 1)
            drawn["layer_idxes"] = keras.random.randint(
                shape, 0, len(drawn["transforms"]), seed=layer.generator
            )
        return drawn

    return {"get_random_transformation": get_random_transformation}


def _aug_mix(layer: Any) -> _Methods:
    """Weights of its own for each example; the operations stay those of the whole batch."""

    def get_random_transformation(data: Any, training: bool = True, seed: Any = None) -> Any:
        if not training or len(data.shape) != 4:
            return type(layer).get_random_transformation(layer, data, training, seed)
        with _python_numbers_from(layer.generator):
            drawn = type(layer).get_random_transformation(layer, data, training, seed)
        shape = (ops.shape(data)[0], 1, 1, 1)
        weights = keras.random.gamma((layer.num_chains, *shape), layer.alpha, seed=layer.generator)
        drawn["chain_mixing_weights"] = weights / ops.sum(weights, axis=0, keepdims=True)
        drawn["weight_sample"] = keras.random.beta(
            shape, layer.alpha, layer.alpha, seed=layer.generator
        )
        return drawn

    return {"get_random_transformation": get_random_transformation}


@contextmanager
def _python_numbers_from(generator: keras.random.SeedGenerator) -> Iterator[None]:
    """Makes Python's own random numbers follow a generator of Keras, where its state is known.

    In compiled code it is not; there they are drawn once, when the code is traced.
    """
    state = generator.next()
    try:
        seed = ops.convert_to_numpy(state).tobytes()
    except Exception:  # Each backend has an error of its own for what is not computed yet.
        yield
        return
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


_METHODS: dict[type, Callable[[Any], _Methods]] = {
    keras.layers.RandomCrop: _random_crop,
    keras.layers.RandomGaussianBlur: _random_gaussian_blur,
    keras.layers.RandomElasticTransform: _random_elastic_transform,
    keras.layers.Equalization: _equalization,
    keras.layers.RandAugment: _rand_augment,
    keras.layers.AugMix: _aug_mix,
}
