"""What one local step shows, and predictions in which padding is masked."""

from dataclasses import dataclass
from typing import Any

from keras import ops

from keras_adaclip.backend import keras_private
from keras_adaclip.federated.client_batch import LocalBatch

Tensor = Any


@dataclass(frozen=True)
class LocalStep:
    """What one local step of a chunk of clients showed. Not private.

    Args:
        batch: the batches.
        losses: float32 of shape `(num_clients,)`, the mean loss of each batch.
        increments: what each batch adds to the trackers of single outputs' losses.
        y_pred: predictions of shape `(num_clients, batch_size, ...)`.
        masks: Keras's masks of the predictions, padding left out.
    """

    batch: LocalBatch
    losses: Tensor
    increments: list[Tensor]
    y_pred: Any
    masks: list[Tensor]


def with_rows_masked(value: Tensor, present: Tensor) -> Tensor:
    """Predictions whose mask leaves out the rows that hold no example.

    The mask has the shape of what a loss gives for them: all axes but the last.

    Args:
        value: predictions of shape `(batch_size, ...)`.
        present: bool of shape `(batch_size,)`.
    """
    mask = keras_private.mask_of(value)
    if mask is None:
        mask = ops.ones_like(value[..., 0] if len(value.shape) > 1 else value, dtype="bool")
    trailing = (1,) * (len(mask.shape) - 1)
    present = ops.reshape(present, (-1, *trailing))
    return keras_private.attach_mask(value, ops.logical_and(mask, present))
