"""The whole model as one vectorized map over the examples: every gradient written out.

Takes the memory of a whole gradient for each example, and needs neither rules nor a model that
goes layer by layer: what other libraries do, a check on the layer-wise way, and a way for models
without it on accelerators, where one example after another would leave most of the device idle.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.gradients.batch import Batch
from keras_adaclip.gradients.batch_gradients import BatchGradients
from keras_adaclip.gradients.forms import Materialized
from keras_adaclip.gradients.forward import Forward, call_model, first_copies, forward_alone
from keras_adaclip.gradients.losses import compute_loss

Tensor = Any


def per_example_gradients(
    model: keras.Model, batch: Batch, training: bool = True
) -> tuple[BatchGradients, Forward]:
    """The gradients of all examples by `vmap`.

    Args:
        model: a built model with a compiled loss, which draws no random numbers.
        batch: the examples.
        training: the mode of the forward pass.

    Returns:
        The gradients, and what a forward pass over the batch showed.
    """
    structure = (batch.x, batch.y, batch.sample_weight)
    flat = keras.tree.flatten(structure)
    numbers = [number for number, value in enumerate(flat) if value is not None]
    trainable = model.trainable_variables
    held = {id(variable) for variable in trainable}
    constants = [
        (variable, variable.value)
        for variable in [*model.variables, *model.metrics_variables]
        if id(variable) not in held
    ]

    def losses(values: Sequence[Tensor], example: Sequence[Tensor]) -> list[Tensor]:
        """The loss of an example, which may stand beside copies of itself, once for each."""

        def arguments(leaves: Sequence[Tensor]) -> Any:
            given = list(flat)
            for number, value in zip(numbers, leaves, strict=True):
                given[number] = value
            return keras.tree.pack_sequence_as(structure, given)

        size = example[0].shape[0]
        with keras.StatelessScope([*constants, *zip(trainable, values, strict=True)]):
            x, _, _ = arguments(example)
            y_pred = first_copies(call_model(model, x, training), size)
            x, y, sample_weight = arguments([value[:1] for value in example])
            loss = compute_loss(model, y_pred, x=x, y=y, sample_weight=sample_weight)
        return [ops.broadcast_to(loss, (size,))]

    num_rows = batch.num_rows * batch.num_copies
    gradients = backend.per_example_layer_gradients(
        losses,
        [variable.value for variable in trainable],
        [flat[number] for number in numbers],
        [ops.ones((num_rows,), "float32") / batch.num_copies],
    )
    written = [Materialized(gradient) for gradient in gradients]
    if batch.num_copies > 1:
        written = [part.merged(batch.num_copies) for part in written]
    forward = forward_alone(model, batch, training)
    return BatchGradients(trainable, list(written), batch.num_rows), forward
