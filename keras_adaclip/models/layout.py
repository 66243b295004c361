"""The shapes of a run's batches: as drawn, padded to a few sizes, or in chunks.

A Poisson draw has another size in every step, and XLA compiles once a shape. So a batch is padded
to one size that nearly every draw fits, and a loop runs over its chunks that hold an example. Where
draws are truncated, this is the largest batch.

XLA's convolutions on a CPU are several times slower inside a loop, and each chunk adds its sums to
as many numbers as there are weights. With convolutions, or with many more weights than numbers per
chunk, a batch is padded to one of two sizes instead and runs in one piece. So does a batch that is
divided among devices, since their sums are added up once a chunk.

Elsewhere a batch runs in chunks if it would fill much more than a cache.
"""

import math
from dataclasses import dataclass

import keras
import numpy as np

from keras_adaclip import backend
from keras_adaclip.accounting import Sampling
from keras_adaclip.backend import keras_private
from keras_adaclip.sampling import PoissonDataset
from keras_adaclip.training import CONVOLUTIONS, TrainingData

# Float32 numbers that a chunk writes for norms and sums. At most 128 MiB; on a CPU 64 MiB, since a
# round of the loop costs some milliseconds. In compiled loops, 8 MiB stay in the cache.
_MOST_NUMBERS = 1 << 25
_NUMBERS_IN_THE_CACHE = 1 << 21
_NUMBERS_OF_A_CHUNK = 1 << 24
# An accelerator idles in each round of the loop.
_NUMBERS_ON_AN_ACCELERATOR = 1 << 28
# Standard deviations above the mean that draws exceed once in fourteen times, and in a billion.
_USUAL, _ALMOST_ALL = 1.5, 6.0
_ROWS_AT_A_TIME = 8
# Weight-heavy above this ratio of weights to numbers written per chunk.
_MANY_WEIGHTS = 4


@dataclass(frozen=True)
class BatchLayout:
    """The shapes of a run's batches.

    Args:
        sizes: Rising numbers of rows; a batch is padded to the first that is large enough. Empty
            if batches stay as drawn.
        chunk_size: Rows that are processed at a time; None for all.
    """

    sizes: tuple[int, ...] = ()
    chunk_size: int | None = None


def batch_layout(model: keras.Model, data: TrainingData) -> BatchLayout:
    """Return the layout that is the least work for the backend.

    Args:
        model: A compiled private model with a plan.
        data: The training data.
    """
    dataset, num_shards = data.poisson, backend.num_batch_shards()
    chunk_size = model.optimizer.microbatch_size
    if chunk_size == "auto":
        most = math.ceil(_largest_batch(data) / num_shards)
        chunk_size = largest_microbatch(model, most)
    elif chunk_size is None:
        chunk_size = usual_chunk_size(model, math.ceil(data.expected_batch_size / num_shards))
    # The number of rows that one sum covers must be known, or that of each device.
    is_known = backend.needs_fixed_shapes(model) or backend.loops_in_python()
    if num_shards > 1 or not is_known:
        is_foreign = data.sampling in (Sampling.STREAM, Sampling.PASS)
        most_rows = model._private_state.plan.most_rows
        if _largest_batch(data) > most_rows or (is_foreign and not is_known):
            chunk_size = min(chunk_size or most_rows, max(most_rows // num_shards, 1))
    if chunk_size is not None:
        # So many rows on each device.
        chunk_size *= num_shards
    if dataset is None or not (backend.needs_fixed_shapes(model) or num_shards > 1):
        return BatchLayout((), chunk_size)
    # A batch has about eight such chunks, so that little of it is padding.
    eighth = max(dataset.expected_batch_size // 8, 1)
    small = min(max(1 << (eighth - 1).bit_length(), _ROWS_AT_A_TIME), 128)
    is_single = model.steps_per_execution == 1
    in_one_piece = (
        num_shards > 1
        or keras_private.is_own(model, "compute_metrics")
        or (is_single and (_has(model, *CONVOLUTIONS) or _is_weight_heavy(model, small)))
    )
    if chunk_size is None and in_one_piece:
        multiple = math.lcm(_ROWS_AT_A_TIME, num_shards)
        limits = (_USUAL, _ALMOST_ALL) if is_single else (_ALMOST_ALL,)
        sizes = {_padded_size(dataset, limit, multiple) for limit in limits}
        return BatchLayout(tuple(sorted(sizes)))
    chunk_size = chunk_size or small
    return BatchLayout((_padded_size(dataset, _ALMOST_ALL, chunk_size),), chunk_size)


def step_sizes(model: keras.Model, data: TrainingData, layout: BatchLayout) -> list[int]:
    """Return the numbers of rows that pass through the model at a time, typical ones if they vary.

    Args:
        model: A compiled private model.
        data: The training data.
        layout: The shapes of the batches.
    """
    if layout.chunk_size is not None:
        sizes = {layout.chunk_size}
    elif layout.sizes:
        sizes = set(layout.sizes)
    else:
        sizes = {data.expected_batch_size, _largest_batch(data)}
    return sorted(math.ceil(size / backend.num_replicas(model)) for size in sizes)


def usual_chunk_size(model: keras.Model, batch_size: int) -> int | None:
    """Return the rows at a time that are best for speed, None for all rows.

    Args:
        model: A compiled private model with a plan.
        batch_size: The expected number of rows of a batch.
    """
    plan = model._private_state.plan
    numbers = 0 if plan is None else plan.numbers_per_example
    is_compiled = backend.needs_fixed_shapes(model)
    if numbers == 0 or (is_compiled and _has(model, *CONVOLUTIONS)):
        return None
    # A loop cannot return the other entries of a user's own `compute_metrics`.
    if keras_private.is_own(model, "compute_metrics"):
        return None
    if not backend.computes_on_cpu():
        limit = _NUMBERS_ON_AN_ACCELERATOR
    elif is_compiled:
        # XLA allocates the outputs of layers in each step too, and each chunk adds to as many sums
        # as there are weights.
        limit = min(max(_NUMBERS_IN_THE_CACHE, _num_weights(model)), _NUMBERS_OF_A_CHUNK)
        numbers = max(numbers, plan.outputs_per_example)
    elif _has(model, keras.layers.RNN):
        # A recurrent layer goes through time again in each chunk.
        limit = _MOST_NUMBERS
    else:
        # Half as many numbers as the layers return for the whole batch are comparatively few.
        fewest = max(batch_size * plan.outputs_per_example // 2, _NUMBERS_OF_A_CHUNK)
        limit = min(fewest, _MOST_NUMBERS)
    most = max(limit // numbers, _ROWS_AT_A_TIME)
    num_chunks = math.ceil(batch_size / most)
    return None if num_chunks == 1 else math.ceil(batch_size / num_chunks)


def largest_microbatch(model: keras.Model, batch_size: int) -> int | None:
    """Return the largest number of examples that fit the optimizer's `memory_limit`.

    Args:
        model: A compiled private model with a plan.
        batch_size: The largest number of rows of a batch.

    Returns:
        The number of examples, None for whole batches.

    Raises:
        ValueError: If not even one example fits, or the free memory is not known.
    """
    limit, plan = model.optimizer.memory_limit, model._private_state.plan
    if limit is None:
        limit = min(backend.gathered(np.array(backend.free_memory())).tolist()) // 2
    # What layers return is held with its derivatives, and is copied in between.
    per_example = 4 * (plan.numbers_per_example + 3 * plan.outputs_per_example)
    fitting = limit // max(per_example, 1)
    if fitting == 0:
        raise ValueError(
            f"Not even one example fits `memory_limit`. Received: {limit:,} bytes, and an example "
            f"takes {per_example:,}"
        )
    return None if fitting >= batch_size else fitting


def _largest_batch(data: TrainingData) -> int:
    """Return a number of rows that next to no batch exceeds."""
    if data.poisson is None:
        return data.expected_batch_size
    return _padded_size(data.poisson, _ALMOST_ALL, 1)


def _padded_size(dataset: PoissonDataset, deviations: float, multiple: int) -> int:
    """Return rows for draws up to so many standard deviations above the mean.

    If draws are truncated, the number is that of the largest batch. If processes have shares of the
    rows, it is enough for the largest share in each.

    Args:
        dataset: The Poisson-sampled data set.
        deviations: Number of standard deviations.
        multiple: The result is a multiple of this.
    """
    if dataset.fixed_size is not None:
        return math.ceil(dataset.fixed_size / multiple) * multiple
    share, probability = dataset.largest_share, dataset.sampling_probability
    mean = dataset.expected_batch_size if dataset.num_shares == 1 else share * probability
    deviation = math.sqrt(mean * (1.0 - probability))
    largest = min(math.ceil(mean + deviations * deviation), share)
    return math.ceil(largest * dataset.num_shares / multiple) * multiple


def _is_weight_heavy(model: keras.Model, chunk_size: int) -> bool:
    """Return whether adding up the sums of chunks would cost more than rows of padding."""
    plan = model._private_state.plan
    if plan is None:
        return False
    numbers = max(plan.numbers_per_example, plan.outputs_per_example)
    return _num_weights(model) > _MANY_WEIGHTS * chunk_size * numbers


def _num_weights(model: keras.Model) -> int:
    """Return the number of trainable numbers."""
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def _has(model: keras.Model, *kinds: type[keras.Layer]) -> bool:
    """Return whether the model has a layer of one of these kinds."""
    return any(isinstance(layer, kinds) for layer in keras_private.flatten_layers(model))
