"""Several augmented copies of one example, averaged *before* clipping.

    g_i = (1 / k) sum_j gradient(loss(model(augment_j(x_i)), y_i))

The copies of an example are one contribution with one norm, so that they cost no privacy.

Source: De et al. 2022, "Unlocking high-accuracy differentially private image classification
through scale", section 3.
"""

from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_adaclip.backend import keras_private
from keras_adaclip.gradients.batch import Batch
from keras_adaclip.gradients.example_draws import drawing_for_each_example

Tensor = Any


@dataclass(frozen=True)
class Augmentation:
    """How each example of a batch is augmented.

    Args:
        layer: a Keras layer without trainable weights that treats each example alone, and keeps
            the shape of the inputs; it is called in training mode.
        multiplicity: number of copies of each example.
    """

    layer: keras.layers.Layer
    multiplicity: int = 1

    def as_model(self, rows: Batch) -> keras.Model:
        """The layer as a model of its own, which can be examined.

        Args:
            rows: a few examples with one input tensor.
        """
        (inputs,) = keras.tree.flatten(rows.x)
        tensor = ops.convert_to_tensor(inputs)
        return keras.Sequential([keras.Input(tensor.shape[1:], dtype=tensor.dtype), self.layer])

    def applied(self, batch: Batch, seed: Tensor) -> Batch:
        """The augmented copies of each example.

        Args:
            batch: the examples, one row each.
            seed: integer tensor of shape `(2,)`, which the layer's random numbers come from.
        """
        copies = batch.copied(self.multiplicity)
        states = keras_private.seed_generator_states(self.layer)
        mapping = [(variable, variable.value) for variable in self.layer.variables]
        # The layer is no part of the model, so nothing would carry its generators' state over
        # from one compiled step to the next.
        for number, state in enumerate(states):
            mapping.append((state, ops.cast(seed + number, state.dtype)))
        # The one tensor in whatever structure the model takes: what was examined is what runs.
        (inputs,) = keras.tree.flatten(copies.x)
        with keras.StatelessScope(mapping), drawing_for_each_example(self.layer):
            augmented = self.layer(inputs, training=True)
        x = keras.tree.pack_sequence_as(copies.x, [augmented])
        return Batch(x, copies.y, copies.sample_weight, batch.mask, self.multiplicity)
