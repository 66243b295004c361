"""Clipped sums over the chunks of a batch of units, inside of the compiled step."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.gradients import Batch, ClippedSum

Tensor = Any
# Layers whose kernels on a CPU take one set of weights.
CONVOLUTIONS = tuple(
    getattr(keras.layers, f"{kind}{rank}D{end}")
    for kind, ranks, end in (
        ("Conv", (1, 2, 3), ""),
        ("DepthwiseConv", (1, 2), ""),
        ("SeparableConv", (1, 2), ""),
        ("Conv", (1, 2, 3), "Transpose"),
    )
    for rank in ranks
)


def sum_over_chunks(
    model: keras.Model,
    batch: Batch,
    size: int,
    is_ragged: bool,
    sum_of_chunk: Callable[[Tensor, Batch], ClippedSum],
) -> ClippedSum:
    """Adds up the clipped sums of a batch's chunks; chunks of padding alone are left out.

    Args:
        model: a private model.
        batch: the units; padding stands at the end (of each shard).
        size: number of units in a chunk, a multiple of the number of shards.
        is_ragged: whether the last chunk may be smaller; otherwise it is padded.
        sum_of_chunk: takes the number of a chunk and the chunk; may assign the model's
            non-trainable variables and those of its metrics.

    Returns:
        The sum, without the part that does not touch the data.
    """
    clipping = model.optimizer.current_clipping

    def parts_of_chunk(index: Tensor, chunk: Batch) -> list[Tensor]:
        part = sum_of_chunk(index, chunk)
        return [part.statistics, *part.gradients]

    def added(totals: list[Tensor], parts: list[Tensor]) -> list[Tensor]:
        return [total + part for total, part in zip(totals, parts, strict=True)]

    start = [
        ops.zeros((clipping.num_statistics,), "float32"),
        *(ops.zeros(variable.shape, "float32") for variable in model.trainable_variables),
    ]
    statistics, *gradients = merge_over_chunks(
        model, batch, size, is_ragged, parts_of_chunk, start, added
    )
    return ClippedSum(gradients, statistics)


def merge_over_chunks(
    model: keras.Model,
    batch: Batch,
    size: int,
    is_ragged: bool,
    parts_of_chunk: Callable[[Tensor, Batch], list[Tensor]],
    start: list[Tensor],
    merged: Callable[[list[Tensor], list[Tensor]], list[Tensor]],
) -> list[Tensor]:
    """Merges what a batch's chunks make, one after another.

    Args:
        model: a private model.
        batch: the units; padding stands at the end (of each shard).
        size: number of units in a chunk, a multiple of the number of shards.
        is_ragged: whether the last chunk may be smaller; otherwise it is padded.
        parts_of_chunk: takes the number of a chunk and the chunk; may assign the model's
            non-trainable variables and those of its metrics.
        start: what no chunk at all makes, tensors of constant shape.
        merged: takes what some chunks have made and what another one makes.
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
