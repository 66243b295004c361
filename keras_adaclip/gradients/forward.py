"""The forward pass: calls a model so that no state keeps anything of the data."""

import inspect
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients.augmentation import drawing_for_each_example
from keras_adaclip.gradients.batch import Batch, mapped
from keras_adaclip.gradients.draws import Draws
from keras_adaclip.gradients.losses import compute_loss, per_example_losses
from keras_adaclip.sampling import as_arrays, common_length

Tensor = Any

_EVALUATED_ROWS = 256


@dataclass(frozen=True)
class Forward:
    """Predictions, losses of shape `(batch_size,)`, and increments of the loss trackers."""

    y_pred: Any
    losses: Tensor
    loss_increments: list[Tensor]

    def of_units(self, num_copies: int) -> "Forward":
        """Return the mean loss over each unit's copies, and predictions for its first copy."""
        if num_copies == 1:
            return self

        def mean(values: Tensor) -> Tensor:
            """Average over copies."""
            return ops.mean(ops.reshape(values, (-1, num_copies, *values.shape[1:])), axis=1)

        y_pred = sliced(self.y_pred, slice(None, None, num_copies))
        return Forward(y_pred, mean(self.losses), [mean(each) for each in self.loss_increments])


def sliced(part: Any, rows: slice) -> Any:
    """Return some rows of every tensor in a part of a batch, with their masks and logits.

    Args:
        part: Inputs, targets, weights or predictions.
        rows: The rows.
    """

    def of_value(value: Tensor) -> Tensor:
        """Return the rows of one tensor."""
        mask, logits = (
            None if attached is None else attached[rows]
            for attached in (keras_private.mask_of(value), keras_private.logits_of(value))
        )
        taken = keras_private.attach_mask(value[rows], mask)
        return keras_private.attach_logits(taken, logits)

    return mapped(of_value, part)


def stateless(
    model: keras.Model, draws: Draws | None = None
) -> AbstractContextManager[keras.StatelessScope]:
    """Return a scope with the model's variables as they are, which discards their changes.

    Metrics, which hold raw sums over earlier rows, read as zeros.

    Args:
        model: A built model.
        draws: The random numbers of layers; None leaves them to their seed generators.
    """
    values = [(each, ops.zeros(each.shape, each.dtype)) for each in model.metrics_variables]
    values += [(variable, variable.value) for variable in model.variables]
    return keras.StatelessScope(values) if draws is None else draws.made(values)


def forward_alone(
    model: keras.Model, batch: Batch, training: bool, draws: Draws | None = None
) -> Forward:
    """Return predictions and losses of the batch, and discard all changes of state.

    Args:
        model: A built model with a compiled loss.
        batch: The examples.
        training: The mode of the forward pass.
        draws: The random numbers of layers; None leaves them to their seed generators.
    """
    with stateless(model, draws):
        y_pred = call_model(model, batch.x, training)
        losses, increments = per_example_losses(model, batch, y_pred)
    return Forward(y_pred, losses, increments).of_units(batch.num_copies)


def call_model(model: keras.Model, x: Any, training: bool) -> Any:
    """Call the model, with `training` if its `call` accepts it.

    Args:
        model: The model.
        x: Its inputs, each of shape `(batch_size, ...)`.
        training: Whether to call it as in training.
    """
    # The class's `call`: the instance's may be tapped, and accepts anything.
    takes_training = "training" in inspect.signature(type(model).call).parameters
    with drawing_for_each_example(model) if training else nullcontext():
        return model(x, training=training) if takes_training else model(x)


def single_gradient(
    model: keras.Model, alone: Batch, training: bool = True, draws: Draws | None = None
) -> tuple[list[Tensor], Tensor]:
    """Return the gradient of one example's loss, float32 per trainable variable, and the loss.

    Args:
        model: A built model with a compiled loss.
        alone: A batch of one. The mean loss is used if it has several copies.
        training: The mode of the forward pass.
        draws: The random numbers of layers; None leaves them to their seed generators.
    """

    def loss() -> tuple[Tensor, Any]:
        """Return the mean loss over the copies, twice."""
        y_pred = call_model(model, alone.x, training)
        parts = (y_pred, alone.x, alone.y, alone.sample_weight)
        losses = [
            compute_loss(model, *(sliced(part, slice(row, row + 1)) for part in parts))
            for row in range(alone.num_copies)
        ]
        value = ops.mean(ops.stack(losses))
        return value, value

    variables = [*model.variables, *model.metrics_variables]
    with stateless(model, draws):
        loss_value, gradients = backend.gradients_of(loss, model.trainable_variables, variables)
    return [ops.cast(gradient, "float32") for gradient in gradients], loss_value


def example_losses(model: keras.Model, x: Any, y: Any = None) -> np.ndarray:
    """Return the compiled loss of each example, in inference mode, without changing the model.

    Args:
        model: A compiled model. It is built if necessary.
        x: Arrays of shape `(num_examples, ...)`.
        y: Targets of the same length, or None.

    Returns:
        Losses of shape `(num_examples,)`, without weight regularization, NaN for predictions that
        are not finite.

    Raises:
        TypeError: If the data are not arrays.
        ValueError: If lengths differ.
    """
    data = as_arrays((x, y))
    given = {name: part for name, part in zip("xy", data, strict=True) if part is not None}
    num_examples = common_length(given)

    def rows(indices: np.ndarray) -> Any:
        """Return some rows of inputs and targets."""
        return mapped(lambda array: array[indices], data)

    few_x, few_y = rows(np.arange(min(3, num_examples)))
    keras_private.build_for_training(model, few_x, few_y, None)

    def losses(piece: Any) -> Tensor:
        """Return the losses of one batch."""
        batch = Batch(*mapped(ops.convert_to_tensor, piece))
        return forward_alone(model, batch, training=False).losses

    # All pieces have one size, so that they compile once: the last one repeats its last row.
    size = min(_EVALUATED_ROWS, num_examples)
    pieces = [
        rows(np.minimum(np.arange(start, start + size), num_examples - 1))
        for start in range(0, num_examples, size)
    ]
    found = backend.evaluate_each(losses, [*model.variables, *model.metrics_variables], pieces)
    return np.concatenate(found)[:num_examples].astype(np.float64)
