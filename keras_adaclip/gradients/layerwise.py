"""One forward pass and one backward pass, to the taps only; then norms layer by layer.

The total loss is the sum of the examples' losses, so the cotangent of a layer's output at example
i is the gradient of that example's loss alone. Weight gradients are never formed for the batch:
each layer's rule turns inputs and cotangents into per-example gradients in their cheapest form.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients.batch import Batch
from keras_adaclip.gradients.batch_gradients import BatchGradients
from keras_adaclip.gradients.forms import PerExampleGradient, combined
from keras_adaclip.gradients.forward import Forward, call_discarding_state
from keras_adaclip.gradients.losses import per_example_losses
from keras_adaclip.gradients.plan import GradientPlan
from keras_adaclip.gradients.taps import TapRecorder, tapped

Tensor = Any


# From the batch and the predictions, the losses of the examples and what they add to the trackers.
LossesOf = Callable[[Batch, Any], tuple[Tensor, list[Tensor]]]


def per_example_gradients(
    model: keras.Model,
    batch: Batch,
    plan: GradientPlan,
    training: bool = True,
    losses_of: LossesOf | None = None,
) -> tuple[BatchGradients, Forward]:
    """The gradients of all examples from one forward and one backward pass.

    Args:
        model: a built model.
        batch: the examples.
        plan: a layer-wise plan.
        training: the mode of the forward pass.
        losses_of: what is differentiated; None stands for the compiled loss.

    Returns:
        The gradients, and what the forward pass showed.
    """
    recorders: list[TapRecorder] = []

    def forward(tap: Any) -> tuple[Tensor, Any]:
        recorder = TapRecorder(tap)
        recorders.append(recorder)
        with tapped(plan.rules, recorder, plan.quicker_calls):
            y_pred = call_discarding_state(model, batch.x, training)
        if losses_of is None:
            losses, increments = per_example_losses(
                model, batch.x, batch.y, y_pred, batch.sample_weight
            )
        else:
            losses, increments = losses_of(batch, y_pred)
        masks = [keras_private.mask_of(value) for value in keras.tree.flatten(y_pred)]
        total = ops.sum(losses) / batch.num_copies
        return total, (recorder.tensors, y_pred, losses, increments, masks)

    variables = [*model.variables, *model.metrics_variables]
    further, cotangents = backend.differentiate_at_taps(forward, variables)
    tensors, y_pred, losses, increments, masks = further
    for value, mask in zip(keras.tree.flatten(y_pred), masks, strict=True):
        keras_private.attach_mask(value, mask)
    shown = Forward(y_pred, losses, increments).of_units(batch.num_copies)

    parts: dict[int, list[PerExampleGradient]] = {}
    for call in recorders[-1].calls(tensors, cotangents):
        call.batched = plan.batched.get(call.layer)
        call.quicker_call = plan.quicker_calls.get(call.layer)
        own = plan.variables[call.layer]
        for variable, part in zip(own, plan.rules[call.layer].gradients(call, own), strict=True):
            if part is None:
                continue
            if batch.num_copies > 1:
                part = part.merged(batch.num_copies)
            parts.setdefault(id(variable), []).append(part)
    trainable = model.trainable_variables
    gradients = [
        combined(parts[id(variable)]) if id(variable) in parts else None for variable in trainable
    ]
    return BatchGradients(trainable, gradients, batch.num_rows), shown
