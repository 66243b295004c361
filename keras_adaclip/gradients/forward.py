"""The forward pass: calling a model so that nothing of the data stays in it."""

import inspect
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_adaclip.backend import keras_private
from keras_adaclip.gradients.batch import Batch
from keras_adaclip.gradients.example_draws import drawing_for_each_example
from keras_adaclip.gradients.losses import per_example_losses

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

        y_pred = first_copies(self.y_pred, num_copies)
        return Forward(y_pred, mean(self.losses), [mean(each) for each in self.loss_increments])


def first_copies(y_pred: Any, num_copies: int) -> Any:
    """The predictions for the first of every `num_copies` rows."""
    return y_pred if num_copies == 1 else sliced(y_pred, slice(None, None, num_copies))


def sliced(part: Any, rows: slice) -> Any:
    """Some rows of every tensor in a part of a batch, with their masks and logits.

    Args:
        part: inputs, targets, weights or predictions; None stays None.
        rows: which rows.
    """

    def of_value(value: Tensor | None) -> Tensor | None:
        if value is None:
            return None
        mask, logits = (
            None if attached is None else attached[rows]
            for attached in (keras_private.mask_of(value), keras_private.logits_of(value))
        )
        taken = keras_private.attach_mask(value[rows], mask)
        return keras_private.attach_logits(taken, logits)

    return keras.tree.map_structure(of_value, part)


def forward_alone(model: keras.Model, batch: Batch, training: bool) -> Forward:
    """Predictions and losses of the batch; the state that this pass changes is discarded."""
    variables = [*model.variables, *model.metrics_variables]
    with keras.StatelessScope([(variable, variable.value) for variable in variables]):
        y_pred = call_model(model, batch.x, training)
        losses, increments = per_example_losses(
            model, batch.x, batch.y, y_pred, batch.sample_weight
        )
    return Forward(y_pred, losses, increments).of_units(batch.num_copies)


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
    """Calls the model, in training mode where its `call` knows of one.

    Args:
        model: the model.
        x: its inputs, of shape `(batch_size, ...)` each.
        training: whether it is called as in training.
    """
    # The class's `call`: that of the instance may be tapped, and takes anything.
    takes_training = "training" in inspect.signature(type(model).call).parameters
    with drawing_for_each_example(model):
        return model(x, training=training) if takes_training else model(x)
