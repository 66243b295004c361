"""How the clients of a round lie before the compiler: side by side, or one after another.

Small models spend their time on overhead, and clients that train side by side share it, as long as
all their weights stay in the processor's cache. The convolutions of clients with different weights
have no fast kernel on a CPU, and recurrent layers loop on their own: there one client trains after
another, as fast as the arithmetic allows.
"""

import math
from dataclasses import dataclass

import keras

from keras_adaclip import backend
from keras_adaclip.accounting import Sampling
from keras_adaclip.backend import keras_private
from keras_adaclip.federated.cohort_batches import CohortBatches
from keras_adaclip.training import CONVOLUTIONS

_ONE_AFTER_ANOTHER = (keras.layers.RNN, *CONVOLUTIONS)
# Numbers that the clients of a chunk hold as weights, gradients and optimizers' states: 256 MiB.
_MOST_NUMBERS = 1 << 26
# Of clients that train one after another, what they contribute is to stay in the cache: 4 MiB.
_MOST_IN_CACHE = 1 << 20
_LEAST_CHUNK, _LARGEST_CHUNK = 8, 128
_DEVIATIONS = 6.0


@dataclass(frozen=True)
class CohortLayout:
    """The shape of a round.

    Args:
        chunk_size: clients that are processed at a time.
        is_vectorized: whether they train side by side.
        num_padded_clients: of which number every batch holds a multiple; None leaves cohorts as
            they are drawn.
    """

    chunk_size: int
    is_vectorized: bool
    num_padded_clients: int | None


def cohort_layout(
    model: keras.Model, cohorts: CohortBatches, branches: bool = False
) -> CohortLayout:
    """The layout that is the least work for the backend.

    Args:
        model: a compiled and built federated model.
        cohorts: the rounds.
        branches: whether the model decides by values what runs, so that clients do not train side
            by side.

    Raises:
        ValueError: where the optimizer's `microbatch_size` is `"auto"`.
    """
    chunk_size = model.optimizer.microbatch_size
    if chunk_size == "auto":
        raise ValueError(
            "With `microbatch_size='auto'` the memory of single examples is measured, which says "
            "nothing of clients. Give `DPOptimizer` a number of clients, or leave it out. "
            "Received: microbatch_size='auto'"
        )
    num_shards = backend.num_batch_shards()
    cohort_size = math.ceil(cohorts.cohort_size / num_shards)
    is_vectorized = chunk_size != 1 and not branches and _are_side_by_side(model)
    if not is_vectorized and not backend.loops_in_python():
        chunk_size = 1
    elif chunk_size is None:
        quarter = max(cohort_size // 4, 1)
        most = _MOST_NUMBERS // 4 if is_vectorized else _MOST_IN_CACHE
        most //= max(model.count_params(), 1)
        wanted = min(1 << (quarter - 1).bit_length(), _LARGEST_CHUNK, most)
        chunk_size = max(wanted, min(_LEAST_CHUNK, max(most, 1)))
        # Chunks of one size, with as few clients of padding as that allows.
        chunk_size = math.ceil(cohort_size / math.ceil(cohort_size / chunk_size))
        is_vectorized = is_vectorized and chunk_size > 1
    if num_shards > 1:
        # So many clients on each device, side by side with those on the others.
        chunk_size, is_vectorized = chunk_size * num_shards, True
    if not backend.needs_fixed_shapes(model):
        return CohortLayout(chunk_size, is_vectorized, None)
    largest = cohorts.cohort_size
    if cohorts.sampling is Sampling.POISSON:
        deviation = math.sqrt(largest * (1.0 - cohorts.sampling_probability))
        largest = min(math.ceil(largest + _DEVIATIONS * deviation), len(cohorts.clients))
    return CohortLayout(chunk_size, is_vectorized, math.ceil(largest / chunk_size) * chunk_size)


def _are_side_by_side(model: keras.Model) -> bool:
    layers = keras_private.flatten_layers(model)
    if backend.computes_on_cpu() and (
        not backend.trains_faster_side_by_side(model.count_params())
        or any(isinstance(layer, _ONE_AFTER_ANOTHER) for layer in layers)
    ):
        return False
    # Keras seeds a generator of PyTorch with a number, which clients side by side do not have.
    return not (backend.loops_in_python() and keras_private.seed_generator_states(model))
