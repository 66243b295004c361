"""Keras's preprocessing layers in private training.

`RandomCrop` draws one position for the whole batch, and cannot be compiled on JAX. Here it draws a
position for each image. Layers that mix the examples of a batch are refused: `Equalization` uses
one histogram for the whole batch, `RandAugment` and `AugMix` contain it, and on TensorFlow
`RandomElasticTransform` can put the first image of a batch in place of all others.

Only Keras's own classes are changed, on batches of images, and only while a model is called.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import keras
from keras import ops

from keras_adaclip.backend import keras_private

Tensor = Any

_MIXING = (
    keras.layers.Equalization,
    keras.layers.RandAugment,
    keras.layers.AugMix,
    keras.layers.RandomElasticTransform,
)


def drawing_for_each_example(layer: keras.layers.Layer) -> AbstractContextManager[None]:
    """Return a context for calls in training mode, in which each example draws for itself.

    Args:
        layer: A layer or model. Layers inside it are changed too.

    Raises:
        ValueError: If one of Keras's layers mixes the examples of a batch.
    """
    methods = {}
    for inner in keras_private.flatten_layers(layer):
        if isinstance(inner, _MIXING):
            raise ValueError(
                f"Layer {inner.name!r} ({type(inner).__name__}) cannot be used in private "
                "training, because it mixes the examples of a batch. Apply it to the data before "
                "training, or use augmentations such as RandomFlip, RandomRotation and RandomCrop."
            )
        if type(inner) is keras.layers.RandomCrop:
            methods[inner] = _crop_methods(inner)
    return keras_private.replaced_methods(methods)


def _crop_methods(layer: Any) -> dict[str, Callable[..., Any]]:
    """Return methods of `RandomCrop` that crop each image at its own position."""
    axes = {layer.height_axis: layer.height, layer.width_axis: layer.width}

    def get_random_transformation(data: Any, training: bool = True, seed: Any = None) -> Any:
        """Draw the first row and column of each image's crop."""
        margins = [data.shape[axis] - size for axis, size in axes.items()]
        # Otherwise Keras resizes, and draws nothing.
        if not training or len(data.shape) != 4 or min(margins) <= 0:
            return type(layer).get_random_transformation(layer, data, training, seed)
        shape = (ops.shape(data)[0],)
        generator = layer.generator if seed is None else seed
        return [keras.random.randint(shape, 0, most + 1, seed=generator) for most in margins]

    def transform_images(images: Tensor, transformation: Any, training: bool = True) -> Tensor:
        """Crop each image."""
        if not ops.is_tensor(transformation[0]):
            return type(layer).transform_images(layer, images, transformation, training)
        images = ops.cast(images, layer.compute_dtype)
        for (axis, size), starts in zip(axes.items(), transformation, strict=True):
            places = ops.expand_dims(starts, 1) + ops.arange(size, dtype=starts.dtype)
            shape = [-1, 1, 1, 1]
            shape[axis] = size
            images = ops.take_along_axis(images, ops.reshape(places, shape), axis=axis)
        return images

    return {
        "get_random_transformation": get_random_transformation,
        "transform_images": transform_images,
    }
