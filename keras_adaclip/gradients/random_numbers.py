"""Random numbers of a model's layers in private steps: secret, and without a trace.

Layers draw by the place of a row in its batch. Removing a row moves all rows behind it to other
places, so a sum whose draws are known changes by far more than one contribution. Draws that nobody
knows, independent between rows and of one law, can be coupled so that each row keeps its own.

Augmented copies of an example are averaged *before* clipping:

    g_i = (1 / k) sum_j gradient(loss(model(augment_j(x_i)), y_i))

They are one contribution with one norm, so they cost no privacy (De et al. 2022, "Unlocking
high-accuracy differentially private image classification through scale", section 3).

Keras's `RandomCrop` draws one position for the whole batch, and cannot be compiled on JAX. Here it
draws a position for each image. Layers that mix the examples of a batch are refused: `Equalization`
uses one histogram for the whole batch, `RandAugment` and `AugMix` contain it, and on TensorFlow
`RandomElasticTransform` can put the first image of a batch in place of all others. Only Keras's own
classes are changed, on batches of images, and only while a model is called.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients.batch import Batch

Tensor = Any
_GENERATORS, _PLACES = 0, 1
MIXING_LAYERS = (
    keras.layers.MixUp,
    keras.layers.CutMix,
    keras.layers.Equalization,  # one histogram for the whole batch
    keras.layers.RandAugment,  # these two contain `Equalization`
    keras.layers.AugMix,
    keras.layers.RandomElasticTransform,  # on TensorFlow, the first image for all others
)


@dataclass(frozen=True)
class Draws:
    """The random numbers of one place in one step.

    Args:
        seed: Int32 tensor of shape `(2,)`, 64 bits that nobody knows.
    """

    seed: Tensor

    def at(self, place: Any) -> "Draws":
        """Return independent draws for a part of this place, such as a chunk or a row of it.

        Args:
            place: Its number, an integer or a scalar tensor.
        """
        return Draws(backend.seed_of_step(self.seed, place, _PLACES))

    @contextmanager
    def made(
        self, values: Iterable[tuple[keras.Variable, Tensor]]
    ) -> Iterator[keras.StatelessScope]:
        """Let layers draw from the seed within the context, which discards all updates.

        Args:
            values: Pairs of a variable and its value within the context.
        """
        with backend.seeded_outside(self.seed), DrawingScope(values, self.seed) as scope:
            yield scope


class DrawingScope(keras.StatelessScope):
    """A scope in which every draw of every `keras.random.SeedGenerator` has a seed of its own.

    Args:
        values: Pairs of a variable and its value within the scope.
        seed: Int32 tensor of shape `(2,)`, 64 secret bits.
    """

    def __init__(self, values: Iterable[tuple[keras.Variable, Tensor]], seed: Tensor) -> None:
        super().__init__(
            [pair for pair in values if not keras_private.is_seed_generator_state(pair[0])]
        )
        self._seed, self._num_draws = seed, 0

    def get_current_value(self, variable: keras.Variable) -> Tensor:
        """Return a variable's value; a seed generator's stays the same until it is used."""
        is_seed = keras_private.is_seed_generator_state(variable)
        if is_seed and id(variable) not in self.state_mapping:
            seed = backend.seed_of_step(self._seed, self._num_draws, _GENERATORS)
            self._num_draws += 1
            self.state_mapping[id(variable)] = ops.cast(seed, variable.dtype)
        return super().get_current_value(variable)

    def add_update(self, update: tuple[keras.Variable, Tensor]) -> None:
        """Note an update; a seed generator gets another seed instead."""
        if keras_private.is_seed_generator_state(update[0]):
            self.state_mapping.pop(id(update[0]), None)
        else:
            super().add_update(update)


@dataclass(frozen=True)
class Augmentation:
    """The augmentation of each example of a batch.

    Args:
        layer: A Keras layer without trainable weights that treats each example alone, and keeps
            the shape of the inputs. It is called in training mode.
        multiplicity: The number of copies of each example.
    """

    layer: keras.Layer
    multiplicity: int = 1

    def as_model(self, rows: Batch) -> keras.Model:
        """Return a model that consists of the layer, for examination.

        Args:
            rows: A few examples with one input tensor.
        """
        (inputs,) = keras.tree.flatten(rows.x)
        tensor = ops.convert_to_tensor(inputs)
        return keras.Sequential([keras.Input(tensor.shape[1:], dtype=tensor.dtype), self.layer])

    def applied(self, batch: Batch, draws: Draws) -> Batch:
        """Return the augmented copies of each example.

        Args:
            batch: The examples, one row each.
            draws: The random numbers of the layer.
        """
        number = self.multiplicity
        copies = batch.map_rows(lambda v: ops.repeat(v, number, axis=0), batch.mask, number)
        values = [(variable, variable.value) for variable in self.layer.variables]
        # The layer sees the one tensor alone, as in the examination.
        (inputs,) = keras.tree.flatten(copies.x)
        with draws.made(values), drawing_for_each_example(self.layer):
            augmented = self.layer(inputs, training=True)
        return replace(copies, x=keras.tree.pack_sequence_as(copies.x, [augmented]))


def drawing_for_each_example(layer: keras.Layer) -> AbstractContextManager[None]:
    """Return a context for calls in training mode, in which each example draws for itself.

    Args:
        layer: A layer or model. Layers inside it are changed too.

    Raises:
        ValueError: If one of Keras's layers mixes the examples of a batch.
    """
    changes: list[tuple[Any, str, Any]] = []
    for inner in keras_private.flatten_layers(layer):
        if isinstance(inner, MIXING_LAYERS):
            raise ValueError(
                f"Layer {inner.name!r} ({type(inner).__name__}) cannot be used in private "
                "training, because it mixes the examples of a batch. Apply it to the data before "
                "training, or use augmentations such as RandomFlip, RandomRotation and RandomCrop."
            )
        if type(inner) is keras.layers.RandomCrop:
            changes += [(inner, name, each) for name, each in _crop_methods(inner).items()]
    return keras_private.replaced_attributes(changes)


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
