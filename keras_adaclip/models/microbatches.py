"""`microbatch_size="auto"`: as many examples at a time as fit a memory bound, found by trying."""

from typing import Any

import keras

from keras_adaclip import backend
from keras_adaclip.gradients import Batch, clipped_sum, finite_rows, repeated

_FIRST_TRY = 8
# Of the memory that is free, for a user who gives no bound: the other half is for the weights of
# another model, the data, and whatever else the machine does.
_SHARE = 0.5


def largest_microbatch(model: keras.Model, rows: Batch, batch_size: int) -> int | None:
    """The most examples of which norms and sums fit the optimizer's `memory_limit`.

    Sizes are doubled as long as they fit.

    Args:
        model: a compiled and built private model with a plan.
        rows: a few training examples.
        batch_size: the largest number of rows of a batch.

    Returns:
        The number, None where a whole batch fits.

    Raises:
        ValueError: where not even one example fits, or the memory cannot be measured.
    """
    limit = model.optimizer.memory_limit
    if limit is None:
        limit = int(_SHARE * backend.free_memory())
    rows = finite_rows(rows)
    # Of before the first try: memory that a try has freed may not be returned to the system, and
    # would hide what the next one takes.
    before = backend.memory_in_use()

    def fits(size: int) -> bool:
        return _peak_bytes(model, repeated(rows, size)) - before <= limit

    size = min(_FIRST_TRY, batch_size)
    while not fits(size):
        if size == 1:
            raise ValueError(
                f"Not even one example at a time fits `memory_limit`. Received: {limit:,} bytes"
            )
        size //= 2
    if size < min(_FIRST_TRY, batch_size):
        return size
    while size < batch_size and fits(min(2 * size, batch_size)):
        size = min(2 * size, batch_size)
    return None if size == batch_size else size


def _peak_bytes(model: keras.Model, batch: Batch) -> int:
    """The most bytes in use during the clipped sum over a batch."""
    structure = (batch.x, batch.y, batch.sample_weight)
    flat = keras.tree.flatten(structure)
    numbers = [number for number, value in enumerate(flat) if value is not None]

    def sums(leaves: list[Any]) -> list[Any]:
        given = list(flat)
        for number, value in zip(numbers, leaves, strict=True):
            given[number] = value
        x, y, sample_weight = keras.tree.pack_sequence_as(structure, given)
        total, _ = clipped_sum(
            model,
            Batch(x, y, sample_weight),
            model.optimizer.current_clipping,
            model.gradient_plan,
        )
        return total.gradients

    variables = [*model.variables, *model.metrics_variables, *model.optimizer.variables]
    leaves = [flat[number] for number in numbers]
    return int(backend.peak_memory(sums, variables, leaves, bool(model.jit_compile)))
