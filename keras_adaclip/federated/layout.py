"""The layout of a round: how many clients the compiled step processes at a time.

Small models spend their time on overhead, which clients that train side by side share, as long as
all their weights stay in the processor's cache. On a CPU, convolutions with a different kernel for
each client have no fast implementation, and recurrent layers loop on their own; there one client
trains after the other.
"""

import math

import keras

from keras_adaclip import backend
from keras_adaclip.accounting import Sampling
from keras_adaclip.backend import keras_private
from keras_adaclip.federated.cohorts import CohortBatches
from keras_adaclip.training import CONVOLUTIONS

_SLOW_SIDE_BY_SIDE = (keras.layers.RNN, *CONVOLUTIONS)
# Numbers that a chunk of clients holds as weights, gradients and optimizer states: 256 MiB.
_MOST_NUMBERS = 1 << 26
# Numbers that clients contribute who train one after another: 4 MiB, to stay in the cache.
_MOST_IN_CACHE = 1 << 20
_SMALLEST_CHUNK, _LARGEST_CHUNK = 8, 128
_DEVIATIONS = 6.0


def lay_out(model: keras.Model, cohorts: CohortBatches, branches: bool) -> tuple[int, bool]:
    """Choose the layout that is least work for the backend, and set the shapes of the batches.

    Args:
        model: A compiled and built federated model.
        cohorts: The rounds.
        branches: Whether the model branches on values, so that clients cannot train side by side.

    Returns:
        The number of clients that are processed at a time, and whether they train side by side.

    Raises:
        ValueError: If the optimizer's `microbatch_size` is `"auto"`.
    """
    chunk_size = model.optimizer.microbatch_size
    if chunk_size == "auto":
        raise ValueError(
            "Argument `microbatch_size` of a federated model must be a number of clients or None. "
            "Received: microbatch_size='auto'"
        )
    num_shards = backend.num_batch_shards()
    cohort_size = math.ceil(cohorts.cohort_size / num_shards)
    is_vectorized = chunk_size != 1 and not branches and _is_fast_side_by_side(model)
    if not is_vectorized and not backend.loops_in_python():
        chunk_size = 1
    elif chunk_size is None:
        chunk_size = _usual_chunk_size(cohort_size, model.count_params(), is_vectorized)
        is_vectorized = is_vectorized and chunk_size > 1
    if num_shards > 1:
        # That many clients on each device, side by side with those on the others.
        chunk_size, is_vectorized = chunk_size * num_shards, True
    cohorts.num_shards = num_shards
    cohorts.num_seeds = len(keras_private.seed_generator_states(model))
    if backend.needs_fixed_shapes(model):
        largest = cohorts.cohort_size
        if cohorts.sampling is Sampling.POISSON:
            deviation = math.sqrt(largest * (1.0 - cohorts.sampling_probability))
            largest = min(math.ceil(largest + _DEVIATIONS * deviation), len(cohorts.clients))
        cohorts.num_padded_clients = math.ceil(largest / chunk_size) * chunk_size
    return chunk_size, is_vectorized


def _usual_chunk_size(cohort_size: int, num_weights: int, is_vectorized: bool) -> int:
    """Return the size of equal chunks, about four a round if memory allows."""
    quarter = max(cohort_size // 4, 1)
    most = (_MOST_NUMBERS // 4 if is_vectorized else _MOST_IN_CACHE) // max(num_weights, 1)
    wanted = min(1 << (quarter - 1).bit_length(), _LARGEST_CHUNK, most)
    wanted = max(wanted, min(_SMALLEST_CHUNK, max(most, 1)))
    return math.ceil(cohort_size / math.ceil(cohort_size / wanted))


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
