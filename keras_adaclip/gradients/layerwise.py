"""Per-example gradients layer by layer, from one forward and one backward pass.

The total loss is the sum of the examples' losses, so the cotangent of a layer's output at example i
is the gradient of that example's loss alone. Backpropagation stops at the tapped tensors. Weight
gradients are never formed for the batch: each layer's rule turns inputs and cotangents into
per-example gradients in their cheapest form.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients.batch import Batch
from keras_adaclip.gradients.contributions import BatchGradients
from keras_adaclip.gradients.forms import Lookup, Materialized, OuterProduct, PerExampleGradient
from keras_adaclip.gradients.forward import Forward, call_discarding_state
from keras_adaclip.gradients.losses import per_example_losses
from keras_adaclip.gradients.taps import TapRecorder, tapped

if TYPE_CHECKING:
    from keras_adaclip.gradients.plan import GradientPlan

Tensor = Any
# Maps batch and predictions to the losses of the examples and their increments of the trackers.
LossesOf = Callable[[Batch, Any], tuple[Tensor, list[Tensor]]]


def per_example_gradients(
    model: keras.Model,
    batch: Batch,
    plan: "GradientPlan",
    training: bool = True,
    losses_of: LossesOf | None = None,
) -> tuple[BatchGradients, Forward]:
    """Return the gradients of all examples, and the results of the forward pass.

    Args:
        model: A built model.
        batch: The examples.
        plan: A layer-wise plan.
        training: The mode of the forward pass.
        losses_of: The function to differentiate. None means the compiled loss.
    """
    recorders: list[TapRecorder] = []

    def forward(tap: Any) -> tuple[Tensor, Any]:
        """Return the total loss, and everything else that the forward pass yields."""
        recorder = TapRecorder(tap)
        recorders.append(recorder)
        with tapped(plan.rules, recorder, plan.fast_calls):
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

    parts: dict[int, list[PerExampleGradient]] = {}
    for call in recorders[-1].calls(tensors, cotangents):
        call.batched = plan.batched.get(call.layer)
        call.fast_call = plan.fast_calls.get(call.layer)
        own = plan.variables[call.layer]
        for variable, part in zip(own, plan.rules[call.layer].gradients(call, own), strict=True):
            if part is not None:
                merged = part.merged(batch.num_copies) if batch.num_copies > 1 else part
                parts.setdefault(id(variable), []).append(merged)
    trainable = model.trainable_variables
    gradients = [
        combined(parts[id(variable)]) if id(variable) in parts else None for variable in trainable
    ]
    shown = Forward(y_pred, losses, increments).of_units(batch.num_copies)
    return BatchGradients(trainable, gradients, batch.num_rows), shown


def combined(parts: Sequence[PerExampleGradient]) -> PerExampleGradient:
    """Return the gradient of a variable that was used several times.

    The parts are added *before* the norm. Products or lookups of one shape are concatenated along
    their positions, anything else is written out.

    Args:
        parts: The gradients of the single uses, at least one.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, OuterProduct):
        products = [part for part in parts if isinstance(part, OuterProduct)]
        if len(products) == len(parts) and all(part.shape == first.shape for part in products):
            return OuterProduct(
                ops.concatenate([part.inputs for part in products], axis=1),
                ops.concatenate([part.cotangents for part in products], axis=1),
                first.shape,
            )
    if isinstance(first, Lookup):
        lookups = [part for part in parts if isinstance(part, Lookup)]
        if len(lookups) == len(parts):
            return Lookup(
                ops.concatenate([part.ids for part in lookups], axis=1),
                ops.concatenate([part.cotangents for part in lookups], axis=1),
                first.shape,
            )
    return Materialized(sum(part.materialize() for part in parts))
