"""How the examples of a step lie before the compiler: as drawn, in a few shapes, or in chunks.

A Poisson draw has another size in every step, and XLA compiles once a shape. So a batch is padded
to one shape that nearly every draw fits into, and a loop runs over the chunks of it that hold an
example. XLA's convolutions on CPU are several times slower inside of a loop than outside: for
models that have some, a batch is padded to one of two shapes instead, and runs in one piece.
"""

import math
from dataclasses import dataclass

import keras

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.models.training_data import TrainingData
from keras_adaclip.sampling import PoissonDataset

# Draws are larger than that many standard deviations above the mean once in fourteen, and once in
# a billion.
_USUAL, _ALMOST_ALL = 1.5, 6.0
_ROWS_AT_A_TIME = 8
_CONVOLUTIONS = tuple(
    getattr(keras.layers, f"{kind}{rank}D{end}")
    for kind, ranks, end in (
        ("Conv", (1, 2, 3), ""),
        ("DepthwiseConv", (1, 2), ""),
        ("SeparableConv", (1, 2), ""),
        ("Conv", (1, 2, 3), "Transpose"),
    )
    for rank in ranks
)


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
    chunk_size = model.optimizer.microbatch_size
    dataset = data.poisson
    if dataset is None or not backend.needs_fixed_shapes(model):
        return BatchLayout((), chunk_size)
    if chunk_size is None and model.steps_per_execution == 1 and _has_convolutions(model):
        sizes = {_size(dataset, limit, _ROWS_AT_A_TIME) for limit in (_USUAL, _ALMOST_ALL)}
        return BatchLayout(tuple(sorted(sizes)))
    if chunk_size is None:
        eighth = max(dataset.expected_batch_size // 8, 1)
        chunk_size = min(max(1 << (eighth - 1).bit_length(), _ROWS_AT_A_TIME), 128)
    return BatchLayout((_size(dataset, _ALMOST_ALL, chunk_size),), chunk_size)


def _size(dataset: PoissonDataset, deviations: float, multiple: int) -> int:
    """Rows for draws up to so many standard deviations above the mean, a multiple of `multiple`."""
    mean = dataset.expected_batch_size
    deviation = math.sqrt(mean * (1.0 - dataset.sampling_probability))
    largest = min(math.ceil(mean + deviations * deviation), dataset.num_examples)
    return math.ceil(largest / multiple) * multiple


def _has_convolutions(model: keras.Model) -> bool:
    return any(isinstance(layer, _CONVOLUTIONS) for layer in keras_private.flatten_layers(model))
