"""How the examples of a step lie before the compiler: as drawn, in a few shapes, or in chunks.

A Poisson draw has another size in every step, and XLA compiles once a shape. So a batch is padded
to one shape that nearly every draw fits into, and a loop runs over the chunks of it that hold an
example. XLA's convolutions on CPU are several times slower inside of a loop than outside, and each
chunk adds its sums to as many numbers as there are weights: with convolutions, or where weights are
much more than what the examples need, a batch is padded to one of two shapes instead, and runs in
one piece.

Where a batch is divided among devices it runs in one piece as well, since their sums are added up
once for each chunk.

Elsewhere a batch runs in chunks as soon as it would fill much more than a cache: what norms and
sums need of a few examples stays near the cache, and the step takes less memory.
"""

import math
from dataclasses import dataclass

import keras
import numpy as np

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.models.microbatches import largest_microbatch
from keras_adaclip.sampling import PoissonDataset
from keras_adaclip.training import CONVOLUTIONS, TrainingData

# Numbers that a chunk writes for norms and sums, 128 MiB at most: more are written to memory and
# read back. On a CPU they had better stay near the cache, and below the 32 MiB from which on the C
# library gives memory back to the system after each use and asks for it anew; in 64 MiB where a
# round of the loop is interpreted and costs more. But half as many as the layers return for the
# whole batch are little beside what the step takes anyway. Where a round costs nothing, they had
# better stay in the cache: 8 MiB.
_MOST_NUMBERS = 1 << 25
_NUMBERS_IN_THE_CACHE = 1 << 21
_NUMBERS_NEAR_THE_CACHE, _THE_SAME_IN_PYTHON = 1 << 23, 1 << 24
# An accelerator has memory of its own, and each round of the loop leaves it idle for a while.
_NUMBERS_ON_AN_ACCELERATOR = 1 << 28
# Draws are larger than that many standard deviations above the mean once in fourteen, and once in
# a billion.
_USUAL, _ALMOST_ALL = 1.5, 6.0
_ROWS_AT_A_TIME = 8
# How many times as many weights as a chunk writes numbers are many weights.
_MANY_WEIGHTS = 4


@dataclass(frozen=True)
class BatchLayout:
    """The shapes of a run's batches.

    Args:
        sizes: numbers of rows, rising, to the first of which that is enough a batch is padded;
            empty where batches stay as they are drawn.
        chunk_size: rows that are processed at a time; None for all.
    """

    sizes: tuple[int, ...] = ()
    chunk_size: int | None = None


def batch_layout(model: keras.Model, data: TrainingData) -> BatchLayout:
    """The layout that is the least work for the backend.

    Args:
        model: a compiled private model.
        data: what it is trained on.
    """
    dataset, num_shards = data.poisson, backend.num_batch_shards()
    chunk_size = model.optimizer.microbatch_size
    if chunk_size == "auto":
        chunk_size = _fitting_chunk_size(model, data)
    elif chunk_size is None:
        chunk_size = usual_chunk_size(model, math.ceil(data.expected_batch_size / num_shards))
    if chunk_size is not None:
        # So many rows on each device.
        chunk_size *= num_shards
    if dataset is None or not (backend.needs_fixed_shapes(model) or num_shards > 1):
        return BatchLayout((), chunk_size)
    small = _small_chunk_size(dataset)
    in_one_piece = (
        num_shards > 1
        or keras_private.is_own(model, "compute_metrics")
        or (
            model.steps_per_execution == 1
            and (_has(model, CONVOLUTIONS) or _weighs_more_than(model, small))
        )
    )
    if chunk_size is None and in_one_piece:
        multiple = math.lcm(_ROWS_AT_A_TIME, num_shards)
        limits = (_USUAL, _ALMOST_ALL) if model.steps_per_execution == 1 else (_ALMOST_ALL,)
        sizes = {_size(dataset, limit, multiple) for limit in limits}
        return BatchLayout(tuple(sorted(sizes)))
    if chunk_size is None:
        chunk_size = small
    return BatchLayout((_size(dataset, _ALMOST_ALL, chunk_size),), chunk_size)


def step_sizes(model: keras.Model, data: TrainingData, layout: BatchLayout) -> list[int]:
    """Numbers of rows that pass through the model at a time; typical ones where any will do.

    Args:
        model: a compiled private model.
        data: what it is trained on.
        layout: the shapes of the batches.
    """
    if layout.chunk_size is not None:
        sizes = {layout.chunk_size}
    elif layout.sizes:
        sizes = set(layout.sizes)
    else:
        sizes = {data.expected_batch_size}
        if data.poisson is not None:
            sizes.add(_size(data.poisson, _ALMOST_ALL, 1))
    return sorted(math.ceil(size / backend.num_replicas(model)) for size in sizes)


def usual_chunk_size(model: keras.Model, batch_size: int) -> int | None:
    """Rows at a time that stay within a memory that is good for speed, None for all rows.

    Args:
        model: a compiled private model with a plan.
        batch_size: the expected number of rows of a batch.
    """
    plan = model.gradient_plan
    numbers = 0 if plan is None else plan.numbers_per_example
    # What an own `compute_metrics` returns besides the metrics does not leave a loop.
    if keras_private.is_own(model, "compute_metrics"):
        return None
    is_compiled = backend.needs_fixed_shapes(model)
    if numbers == 0 or (is_compiled and _has(model, CONVOLUTIONS)):
        return None
    if is_compiled and backend.computes_on_cpu():
        # XLA asks for memory anew in each step, for what the layers return too.
        # Each chunk adds to sums that are as many as the weights: less would be little beside.
        limit = min(max(_NUMBERS_IN_THE_CACHE, _num_weights(model)), _NUMBERS_NEAR_THE_CACHE)
        numbers = max(numbers, plan.outputs_per_example)
    else:
        limit = _interpreted_limit(model, batch_size * plan.outputs_per_example)
    most = max(limit // numbers, _ROWS_AT_A_TIME)
    num_chunks = math.ceil(batch_size / most)
    return None if num_chunks == 1 else math.ceil(batch_size / num_chunks)


def _interpreted_limit(model: keras.Model, outputs: int) -> int:
    """How many numbers a chunk may write where each operation runs on its own.

    Args:
        model: a compiled private model.
        outputs: how many numbers the layers return for the whole batch.
    """
    if not backend.computes_on_cpu():
        return _NUMBERS_ON_AN_ACCELERATOR
    # A recurrent layer goes through time again in each chunk.
    if _has(model, (keras.layers.RNN,)):
        return _MOST_NUMBERS
    least = _THE_SAME_IN_PYTHON if backend.loops_in_python() else _NUMBERS_NEAR_THE_CACHE
    return min(max(outputs // 2, least), _MOST_NUMBERS)


def _fitting_chunk_size(model: keras.Model, data: TrainingData) -> int | None:
    """What `largest_microbatch` finds, once for each batch size."""
    dataset = data.poisson
    most = data.expected_batch_size if dataset is None else _size(dataset, _ALMOST_ALL, 1)
    most = math.ceil(most / backend.num_batch_shards())
    known = model.fitting_chunk_sizes
    if most not in known:
        found = largest_microbatch(model, data.rows, most)
        fitting = min(backend.gathered(np.array(found or most)).tolist())
        known[most] = None if fitting == most else fitting
    return known[most]


def _size(dataset: PoissonDataset, deviations: float, multiple: int) -> int:
    """Rows for draws up to so many standard deviations above the mean, a multiple of `multiple`.

    Where processes have shares of the rows, enough for the largest share in each of them.
    """
    share, probability = dataset.largest_share, dataset.sampling_probability
    mean = dataset.expected_batch_size if dataset.num_shares == 1 else share * probability
    deviation = math.sqrt(mean * (1.0 - probability))
    largest = min(math.ceil(mean + deviations * deviation), share)
    return math.ceil(largest * dataset.num_shares / multiple) * multiple


def _small_chunk_size(dataset: PoissonDataset) -> int:
    """Rows of a chunk of which a batch has about eight, so that few are there in vain."""
    eighth = max(dataset.expected_batch_size // 8, 1)
    return min(max(1 << (eighth - 1).bit_length(), _ROWS_AT_A_TIME), 128)


def _weighs_more_than(model: keras.Model, chunk_size: int) -> bool:
    """Whether adding up the sums of chunks would cost more than the rows that are padded."""
    plan = model.gradient_plan
    if plan is None:
        return False
    numbers = max(plan.numbers_per_example, plan.outputs_per_example)
    return _num_weights(model) > _MANY_WEIGHTS * chunk_size * numbers


def _num_weights(model: keras.Model) -> int:
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def _has(model: keras.Model, kinds: tuple[type[keras.layers.Layer], ...]) -> bool:
    return any(isinstance(layer, kinds) for layer in keras_private.flatten_layers(model))
