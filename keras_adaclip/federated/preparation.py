"""The preparation of a federated `fit`: what would break the guarantee, and the size of chunks."""

import functools
import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend, examination, training
from keras_adaclip.backend import keras_private
from keras_adaclip.examination import Finding, PrivacyIssue, SampleRows
from keras_adaclip.federated.cohorts import CohortBatches
from keras_adaclip.federated.local_training import refuse_lost_updates, with_rows_masked
from keras_adaclip.gradients import Batch, call_model, mapped

_COUNTING_LOSS = (
    "It counts the rows that pad the last batch of a client: it ignores Keras's mask of the "
    "predictions.",
    "Give `compile` a Keras loss, or a function of `(y_true, y_pred)` that returns one value for "
    "each entry of all axes but the last.",
)
_UNKNOWN_LOSS = (
    "It has no finite value for made-up rows, or two for the same, as if it drew random numbers: "
    "it is not known whether it counts the rows that pad the last batch of a client.",
    "Use a function of `(y_true, y_pred)` alone, finite within the range of each column of data.",
)
_NUM_LOSS_ROWS, _FINE = 3, ("", "")
# On a CPU, convolutions with a different kernel for each client have no fast implementation, and
# recurrent layers loop on their own.
_SLOW_SIDE_BY_SIDE = (keras.layers.RNN, *training.CONVOLUTIONS)
# Weights of all clients of a chunk. Side by side, with gradients and optimizer states, they take
# 256 MiB. One by one, their contributions alone are kept, 8 MiB.
_MOST_WEIGHTS, _WEIGHTS_IN_A_CACHE = 1 << 24, 1 << 21
_SMALLEST_CHUNK, _LARGEST_CHUNK = 8, 128


def refuse_unsound_rounds(model: keras.Model, sample: SampleRows, row_counts: list[int]) -> Finding:
    """Raise if training `model` over clients would not be private, or not what it seems.

    Args:
        model: A compiled and built federated model.
        sample: Makes rows up to run the model on.
        row_counts: The numbers of rows that local batches have.

    Returns:
        What was found of the state of a model without issues.

    Raises:
        ValueError: With every issue, one a line.
    """
    examination.refuse_unsupported(model)
    examination.refuse_other_weights(model)
    known = model._private_state.examined
    # In batches of one size, padding depends on the client alone.
    others_decide = model.federated_settings.client_batch_size is None
    sizes = [examination.NUM_ROWS, *(row_counts if others_decide else [])]
    examination.examine(model, sample, sizes, known, counts_rows=True)
    found = _loss_issues(model, sample, row_counts)
    found += examination.masked_metric_issues(model, sample)
    examination.refuse(model, found + examination.compile_issues(model))
    model._set_in_steps("handles_missing", examination.handled_missing(model, sample))
    finding: Finding = next(iter(known.values()))
    return finding


def lanes_of(model: keras.Model, cohorts: CohortBatches, branches: bool) -> tuple[int, bool]:
    """Choose how many clients train at a time, and set the shapes of the batches.

    Small models spend their time on overhead, which clients that train side by side share. Where
    that is not faster, one client trains after another.

    Args:
        model: A compiled and built federated model.
        cohorts: The rounds.
        branches: Whether the model branches on values, so that clients cannot train side by side.

    Returns:
        The largest number of clients whose contributions are clipped at a time, and whether
        clients train side by side.

    Raises:
        ValueError: If the optimizer's `microbatch_size` is `"auto"`.
    """
    chunk_size = model.optimizer.microbatch_size
    if chunk_size == "auto":
        raise ValueError(
            "Argument `microbatch_size` of a federated model must be a number of clients or None. "
            "Received: microbatch_size='auto'"
        )
    cohort_size = cohorts.data.expected_batch_size
    cohorts.has_seeds = bool(keras_private.seed_generator_states(model))
    cohorts.most_lanes = 1
    if branches or chunk_size == 1 or not _is_fast_side_by_side(model):
        most = 1
        if backend.loops_in_python():
            # A Python loop clips several at once, since each operation is slow to call.
            most = min(_WEIGHTS_IN_A_CACHE // model.count_params(), _LARGEST_CHUNK, cohort_size)
        # Each device trains one client, all devices side by side.
        return max(min(most, chunk_size or most), 1), backend.num_batch_shards() > 1
    if chunk_size is None:
        size = math.ceil(cohort_size / (cohorts.num_shards * cohorts.num_processes))
        most = min(max(_MOST_WEIGHTS // model.count_params(), 1), _LARGEST_CHUNK)
        # About four clients a lane.
        num_turns = math.ceil(size / min(max(size // 4, _SMALLEST_CHUNK), most))
        chunk_size = math.ceil(size / num_turns)
    cohorts.most_lanes = int(chunk_size)
    return cohorts.most_lanes, True


def _is_fast_side_by_side(model: keras.Model) -> bool:
    """Return whether clients train faster side by side than one after another."""
    layers = keras_private.flatten_layers(model)
    if backend.computes_on_cpu() and (
        not backend.trains_faster_side_by_side(model.count_params())
        or any(isinstance(layer, _SLOW_SIDE_BY_SIDE) for layer in layers)
    ):
        return False
    # On PyTorch, Keras seeds a generator with a number, which clients side by side do not have.
    return not (backend.loops_in_python() and keras_private.seed_generator_states(model))


def _loss_issues(
    model: keras.Model, sample: SampleRows, row_counts: list[int]
) -> list[PrivacyIssue]:
    """Return the loss if it counts the rows that pad a batch, or if that is not known."""
    judge = functools.partial(_told_of_loss, model, row_counts)
    told = sample.first_shown([judge], _NUM_LOSS_ROWS) or _UNKNOWN_LOSS
    return [PrivacyIssue("loss", *told)] if told != _FINE else []


def _told_of_loss(model: keras.Model, row_counts: list[int], rows: Batch) -> tuple[str, str] | None:
    """Return what there is to say of the loss of some rows; None if they show nothing."""
    num_rows = rows.num_rows
    missing = [2, 3, *(count - num_rows for count in row_counts if count > num_rows + 3)]

    def losses(_: Any) -> list[Any]:
        """Return the loss without padding, twice, and with padding."""
        before = [(each, each.value) for each in model.metrics_variables]
        # Once for all: another call may draw other random numbers.
        y_pred = call_model(model, rows.x, training=False)
        # Where all predictions are alike, padding would not show.
        predictions = y_pred, keras.tree.map_structure(_made_different, y_pred)
        loss = functools.partial(_loss_with_padding, model, rows)
        found = [loss(each, count) for each in predictions for count in (0, 0, *missing)]
        refuse_lost_updates(model, before)
        return found

    variables = [*model.variables, *model.metrics_variables]
    (found,) = backend.evaluate_each(losses, variables, [()])
    told = None
    for alone, again, *padded in np.reshape([*map(float, found)], (2, -1)):
        if math.isfinite(alone):
            told = _FINE
            if not np.isclose(again, alone, rtol=1e-3, atol=1e-5):
                return _UNKNOWN_LOSS
            if not np.allclose(padded, alone, rtol=1e-3, atol=1e-5):
                return _COUNTING_LOSS
    return told


def _made_different(value: Any) -> Any:
    """Return predictions with small positive numbers added, other ones for each row."""
    noise = np.random.default_rng(0).uniform(0.01, 0.3, value.shape)
    return keras_private.attach_mask(
        value + ops.cast(noise, value.dtype), keras_private.mask_of(value)
    )


def _loss_with_padding(model: keras.Model, rows: Batch, y_pred: Any, missing: int) -> Any:
    """Return the loss of some rows beside masked copies of the first, as in a client's batch."""

    def padded(value: Any) -> Any:
        """Append the copies."""
        return ops.concatenate([value, ops.repeat(value[:1], missing, axis=0)], axis=0)

    def padded_prediction(value: Any) -> Any:
        """Append the copies, and mask them."""
        mask = keras_private.mask_of(value)
        value = keras_private.attach_mask(padded(value), None if mask is None else padded(mask))
        return with_rows_masked(
            value, ops.arange(value.shape[0], dtype="int32") < value.shape[0] - missing
        )

    x, y = mapped(padded, rows.x), mapped(padded, rows.y)
    y_pred = keras.tree.map_structure(padded_prediction, y_pred)
    with keras_private.without_regularizers(model):
        return ops.sum(model.compute_loss(x=x, y=y, y_pred=y_pred, training=True))
