"""The parts of a compiled step that examples and clients share: chunks, state and metrics."""

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_losses, keras_private
from keras_adaclip.examination import PrivacyIssue, refuse
from keras_adaclip.gradients import Batch, ClippedSum, Totals, call_model

Tensor = Any
_ASSIGNED_BY_METRICS = (
    "`compute_metrics` or a metric assigns it, and would carry data past clipping and noise.",
    "Assign nothing but the variables of metrics: those of `compile(metrics=...)`, or attributes "
    "of the model.",
)
# Layers whose kernels on a CPU take one set of weights.
CONVOLUTIONS = tuple(
    getattr(keras.layers, name)
    for name in dir(keras.layers)
    if re.fullmatch(r"(Depthwise|Separable)?Conv\dD(Transpose)?", name)
)


def assign_state(model: keras.Model) -> None:
    """Assign the variables to which a forward pass assigns the same value whatever the rows are.

    The values come from a row of zeros, so that nothing of the data is in them.

    Args:
        model: A private or federated model.
    """
    state = model._private_state
    if not state.assigned_by_forward:
        return
    with keras.StatelessScope([(each, each.value) for each in model.variables]) as scope:
        call_model(model, state.row_of_zeros, training=True)
        values = [scope.get_current_value(each) for each in state.assigned_by_forward]
    for variable, value in zip(state.assigned_by_forward, values, strict=True):
        variable.assign(value)


def sum_of_replicas(total: ClippedSum) -> ClippedSum:
    """Return the clipped sum over the units of all replicas, from that of one replica's units."""
    own = total.totals
    number, tensors = len(own.sums), [*own.sums, *(own.remainders or [])]
    of_all = [Totals(each[:number], each[number:] or None) for each in backend.of_replicas(tensors)]
    return ClippedSum.of(functools.reduce(Totals.plus, of_all))


def observe_norms(
    model: keras.Model, present: Tensor, norms: Tensor, finite: Tensor, clip_norms: Tensor
) -> None:
    """Record raw norms and the true fraction of clipped units, if the user asked for them.

    Args:
        model: A private or federated model.
        present: Bool of shape `(num_units,)`, false for padding.
        norms: The norms of the contributions, of shape `(num_units, num_groups)`.
        finite: Bool of shape `(num_units,)`.
        clip_norms: Of shape `(num_groups,)`.
    """
    metrics = model._private_state.diagnostics
    if metrics is None:
        return
    weights = ops.cast(present, "float32")
    metrics["gradient_norm"].update_state(ops.sqrt(ops.sum(ops.square(norms), axis=1)), weights)
    is_clipped = ops.logical_or(ops.any(norms > clip_norms, axis=1), ops.logical_not(finite))
    metrics["clipped_fraction"].update_state(ops.cast(is_clipped, "float32"), weights)


class _NotingScope(keras_private.NestedScope):
    """A scope that notes the variables that are assigned in it."""

    def __init__(self) -> None:
        super().__init__()
        self.assigned: dict[int, keras.Variable] = {}

    def add_update(self, update: tuple[keras.Variable, Tensor]) -> None:
        """Note an update and its variable."""
        self.assigned[id(update[0])] = update[0]
        super().add_update(update)


@contextmanager
def keeping_metrics_only(model: keras.Model) -> Iterator[None]:
    """Let metrics, which see raw examples, assign the variables of the model's metrics alone.

    Args:
        model: A compiled private or federated model.

    Raises:
        ValueError: If a metric or `compute_metrics` assigns another variable, with its name.
    """
    with _NotingScope() as scope:
        yield
    if not scope.assigned:
        return
    own = {id(variable) for variable in model.metrics_variables}
    # A metric that was given a weight has it among its variables.
    layers = keras_private.flatten_layers(model)
    own -= {id(each) for layer in layers for each in keras_private.own_variables(layer)}
    own -= {id(variable) for variable in model.optimizer.variables}
    # Random numbers tell nothing of the data.
    foreign = [
        variable
        for number, variable in scope.assigned.items()
        if number not in own and not keras_private.is_seed_generator_state(variable)
    ]
    refuse(model, [PrivacyIssue(each.path, *_ASSIGNED_BY_METRICS) for each in foreign])
    for number, variable in scope.assigned.items():
        if number in own:
            variable.assign(scope.get_current_value(variable))


def update_metrics(model: keras.Model, batch: Batch, y_pred: Any) -> dict[str, Tensor]:
    """Update the metrics with the rows of a batch that its mask keeps.

    Args:
        model: A compiled model whose metrics are built.
        batch: Inputs, targets and weights.
        y_pred: Predictions of shape `(batch_size, ...)`.

    Returns:
        The metrics so far, by name, or what the model's own `compute_metrics` returns.
    """
    weights, mask = batch.sample_weight, batch.mask
    if mask is None:
        return dict(model.compute_metrics(batch.x, batch.y, y_pred, weights))
    if keras_private.is_own(model, "compute_metrics"):
        present = ops.cast(mask, "float32")
        masked = functools.partial(keras_losses.masked_weight, present=present)
        weights = present if weights is None else keras.tree.map_structure(masked, weights)

    def update(y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Update the compiled metrics with the rows of the mask."""
        given = keras_losses.masked_metrics(model, y, y_pred, sample_weight, mask)
        for metric, target, output, weights in given:
            metric.update_state(target, output, sample_weight=weights)

    with keras_losses.updating_metrics_with(model, update):
        return dict(model.compute_metrics(batch.x, batch.y, y_pred, weights))


def refuse_lost_metrics(model: keras.Model, logs: dict[str, Tensor], because_of: str) -> None:
    """Raise if an own `compute_metrics` returns something that does not leave a loop in the step.

    Args:
        model: A compiled model.
        logs: The result of `update_metrics`.
        because_of: The cause of the loop.

    Raises:
        ValueError: With the names.
    """
    if not keras_private.is_own(model, "compute_metrics"):
        return
    lost = sorted(set(logs) - set(model.get_metrics_result()))
    if lost:
        raise ValueError(
            f"`compute_metrics` of model {model.name!r} returns {', '.join(map(repr, lost))}, "
            f"which is no metric of the model and would be lost: with {because_of} a step "
            "loops over parts of its batch. Update a `keras.metrics.Metric` that is an attribute "
            "of the model, such as a `Mean`, and return its result."
        )


def sum_over_chunks(
    model: keras.Model,
    batch: Batch,
    size: int,
    is_ragged: bool,
    sum_of_chunk: Callable[[Tensor, Batch], ClippedSum],
) -> ClippedSum:
    """Return the sum of the clipped sums of a batch's chunks, without regularization.

    Args:
        model: A private model.
        batch: See `merge_over_chunks`.
        size: See `merge_over_chunks`.
        is_ragged: See `merge_over_chunks`.
        sum_of_chunk: Takes the number of a chunk and the chunk; may assign the model's
            non-trainable variables and those of its metrics.
    """
    plan, num_rows = model.gradient_plan, batch.num_rows
    # So few rows may stand in one float32 sum.
    is_plain = plan.is_layerwise and isinstance(num_rows, int) and num_rows <= plan.most_rows

    def added(total: list[Tensor], part: ClippedSum) -> list[Tensor]:
        """Return a total with the sum of a chunk."""
        if is_plain:
            return [one + other for one, other in zip(total, part.totals.sums, strict=True)]
        return Totals.of_flat(total).plus(part.totals).flat

    shapes = [(model.optimizer.current_clipping.num_statistics,)]
    shapes += [variable.shape for variable in model.trainable_variables]
    start = Totals.zeros(shapes)
    total = merge_over_chunks(
        model, batch, size, is_ragged, sum_of_chunk, start.sums if is_plain else start.flat, added
    )
    return ClippedSum.of(Totals(total) if is_plain else Totals.of_flat(total))


def merge_over_chunks(
    model: keras.Model,
    batch: Batch,
    size: int,
    is_ragged: bool,
    parts_of_chunk: Callable[[Tensor, Batch], Any],
    start: list[Tensor],
    merged: Callable[[list[Tensor], Any], list[Tensor]],
) -> list[Tensor]:
    """Merge the results of a batch's chunks, one after another; skip chunks of padding alone.

    Args:
        model: A private model.
        batch: The units; padding stands at the end (of each shard).
        size: Number of units in a chunk, a multiple of the number of shards.
        is_ragged: Whether the last chunk may be smaller; otherwise it is padded.
        parts_of_chunk: Takes the number of a chunk and the chunk; may assign the model's
            non-trainable variables and those of its metrics.
        start: The result of no chunk at all, tensors of constant shape.
        merged: Takes the results of some chunks and that of another one.
    """
    num_shards = backend.num_batch_shards()
    if num_shards > 1:
        # A chunk is so many rows of every shard.
        batch, size = batch.in_shards(num_shards), size // num_shards
    if is_ragged:
        num_rows = batch.num_rows
    else:
        batch = batch.padded_to_multiple(size)
        present = ops.reshape(batch.present, (batch.num_rows, num_shards))
        # Padding stands at the end, so the chunks that hold a unit are the first ones.
        num_rows = ops.sum(ops.cast(ops.any(present, axis=1), "int32"))
    num_chunks = (num_rows + size - 1) // size

    def merge_chunk(index: Tensor, carry: list[Tensor]) -> list[Tensor]:
        """Merge the result of a chunk into that of the chunks before it."""
        left = num_rows - index * size
        of_chunk = (min if isinstance(left, int) else ops.minimum)(left, size)
        chunk = batch.rows(index * size, of_chunk if is_ragged else size)
        if num_shards > 1:
            chunk = chunk.out_of_shards()
        return merged(carry, parts_of_chunk(index, chunk))

    changing = [*model.non_trainable_variables, *model.metrics_variables]
    return backend.loop_over_chunks(
        merge_chunk, start, num_chunks, changing, model.trainable_variables
    )
