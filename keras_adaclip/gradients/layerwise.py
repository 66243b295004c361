"""One forward pass and one backward pass, to the taps only; then norms layer by layer.

The total loss is the sum of the examples' losses, so the cotangent of a layer's output at example
i is the gradient of that example's loss alone. Weight gradients are never formed for the batch:
each layer's rule turns inputs and cotangents into per-example gradients in their cheapest form.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.clipping import ParameterGroups
from keras_adaclip.gradients.batch import Batch
from keras_adaclip.gradients.factored import PerExampleGradient, combined, shifted_and_scaled
from keras_adaclip.gradients.losses import per_example_losses
from keras_adaclip.gradients.plan import GradientPlan
from keras_adaclip.gradients.taps import TapRecorder, tapped

Tensor = Any


@dataclass(frozen=True)
class Forward:
    """Predictions, losses of shape `(batch_size,)`, and increments of the loss trackers."""

    y_pred: Any
    losses: Tensor
    loss_increments: list[Tensor]

    def of_units(self, num_copies: int) -> "Forward":
        """The mean loss of each unit's copies, and the predictions for its first copy."""
        if num_copies == 1:
            return self

        def mean(values: Tensor) -> Tensor:
            return ops.mean(ops.reshape(values, (-1, num_copies, *values.shape[1:])), axis=1)

        def first(values: Tensor) -> Tensor:
            mask = keras_private.mask_of(values)
            if mask is not None:
                mask = mask[::num_copies]
            return keras_private.attach_mask(values[::num_copies], mask)

        y_pred = keras.tree.map_structure(first, self.y_pred)
        return Forward(y_pred, mean(self.losses), [mean(each) for each in self.loss_increments])


@dataclass(frozen=True)
class BatchGradients:
    """The per-example gradients of every trainable variable.

    Args:
        variables: the trainable variables.
        parts: the gradients of each, None where it was not used.
        num_rows: the number of rows of the batch.
    """

    variables: list[keras.Variable]
    parts: list[PerExampleGradient | None]
    num_rows: Any

    def in_coordinates(self, coordinates: Sequence[tuple[Tensor, Tensor]]) -> "BatchGradients":
        """The gradients as `(g - centre) / scale`, written out.

        Args:
            coordinates: centre and scale of each variable.
        """
        return BatchGradients(
            self.variables,
            [
                shifted_and_scaled(part, centre, scale, self.num_rows)
                for part, (centre, scale) in zip(self.parts, coordinates, strict=True)
            ],
            self.num_rows,
        )

    def squared_norms(self, groups: ParameterGroups) -> Tensor:
        """Squared norms of each group's part, float32 of shape `(batch_size, num_groups)`."""
        norms: list[list[Tensor]] = [[] for _ in groups.names]
        for part, number in zip(self.parts, groups.assignment, strict=True):
            if part is not None:
                norms[number].append(part.squared_norms())
        unused = ops.zeros((self.num_rows,), "float32")
        return ops.stack(
            [sum(of_group[1:], of_group[0]) if of_group else unused for of_group in norms], axis=1
        )

    def weighted_sums(
        self, factors: Tensor, finite: Tensor, groups: ParameterGroups
    ) -> list[Tensor]:
        """The sum over the batch of `factors[i, k]` times gradient i, for each variable of group k.

        Args:
            factors: float32 of shape `(batch_size, num_groups)`, zero where not finite.
            finite: bool of shape `(batch_size,)`.
            groups: the groups of the variables.
        """
        return [
            ops.zeros(variable.shape, "float32")
            if part is None
            else part.weighted_sum(factors[:, number], finite)
            for variable, part, number in zip(
                self.variables, self.parts, groups.assignment, strict=True
            )
        ]


def per_example_gradients(
    model: keras.Model, batch: Batch, plan: GradientPlan, training: bool = True
) -> tuple[BatchGradients, Forward]:
    """The gradients of all examples from one forward and one backward pass.

    Args:
        model: a built model with a compiled loss.
        batch: the examples.
        plan: a layer-wise plan.
        training: the mode of the forward pass.

    Returns:
        The gradients, and what the forward pass showed.
    """
    recorders: list[TapRecorder] = []

    def forward(tap: Any) -> tuple[Tensor, Any]:
        recorder = TapRecorder(tap)
        recorders.append(recorder)
        with tapped(plan.rules, recorder):
            y_pred = call_discarding_state(model, batch.x, training)
        losses, increments = per_example_losses(
            model, batch.x, batch.y, y_pred, batch.sample_weight
        )
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


def call_discarding_state(model: keras.Model, x: Any, training: bool) -> Any:
    """Calls the model; of all that the call assigns, only random generators keep their new state.

    Whatever else a layer writes into a variable comes from the data, without clipping or noise.
    """
    seeds = keras_private.seed_generator_states(model)
    with keras.StatelessScope([(v, v.value) for v in model.variables]) as scope:
        y_pred = call_model(model, x, training)
        states = [scope.get_current_value(state) for state in seeds]
    for state, value in zip(seeds, states, strict=True):
        if value is not None:
            state.assign(value)
    return y_pred


def call_model(model: keras.Model, x: Any, training: bool) -> Any:
    """Calls the model, in training mode where its `call` knows of one."""
    # The class's `call`: that of the instance may be tapped, and takes anything.
    if "training" in inspect.signature(type(model).call).parameters:
        return model(x, training=training)
    return model(x)
