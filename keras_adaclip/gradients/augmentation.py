"""Augmented copies of one example, averaged *before* clipping.

    g_i = (1 / k) sum_j gradient(loss(model(augment_j(x_i)), y_i))

The copies of an example are one contribution with one norm, so they cost no privacy.

Source: De et al. 2022, "Unlocking high-accuracy differentially private image classification
through scale", section 3.
"""

from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_adaclip.backend import keras_private
from keras_adaclip.gradients.batch import Batch
from keras_adaclip.gradients.preprocessing import drawing_for_each_example

Tensor = Any


@dataclass(frozen=True)
class Augmentation:
    """The augmentation of each example of a batch.

    Args:
        layer: A Keras layer without trainable weights that treats each example alone, and keeps
            the shape of the inputs. It is called in training mode.
        multiplicity: The number of copies of each example.
    """

    layer: keras.layers.Layer
    multiplicity: int = 1

    def as_model(self, rows: Batch) -> keras.Model:
        """Return a model that consists of the layer, for examination.

        Args:
            rows: A few examples with one input tensor.
        """
        (inputs,) = keras.tree.flatten(rows.x)
        tensor = ops.convert_to_tensor(inputs)
        return keras.Sequential([keras.Input(tensor.shape[1:], dtype=tensor.dtype), self.layer])

    def applied(self, batch: Batch, seed: Tensor) -> Batch:
        """Return the augmented copies of each example.

        Args:
            batch: The examples, one row each.
            seed: Integer tensor of shape `(2,)`, the seed of the layer's random numbers.
        """
        copies = batch.copied(self.multiplicity)
        states = keras_private.seed_generator_states(self.layer)
        mapping = [(variable, variable.value) for variable in self.layer.variables]
        # The layer is not part of the model, so its generators' state would not be carried from
        # one compiled step to the next.
        for number, state in enumerate(states):
            mapping.append((state, ops.cast(seed + number, state.dtype)))
        # The layer sees the one tensor alone, as in the examination.
        (inputs,) = keras.tree.flatten(copies.x)
        with keras.StatelessScope(mapping), drawing_for_each_example(self.layer):
            augmented = self.layer(inputs, training=True)
        x = keras.tree.pack_sequence_as(copies.x, [augmented])
        return Batch(x, copies.y, copies.sample_weight, batch.mask, self.multiplicity)
