"""Poisson sampling of units: each step draws every unit independently with one probability.

draws      which units a step draws
dealing    which rows of a batch which device gets
checking   what the data and numbers given to a sampler must be
"""

from keras_adaclip.sampling.checking import (
    as_array,
    checked_batch_size,
    checked_seed,
    common_length,
    holds_strings,
    padding,
)
from keras_adaclip.sampling.dealing import dealt
from keras_adaclip.sampling.draws import generator_of_draw, poisson_draw, seed_of_run
from keras_adaclip.sampling.fixed_shape_batches import FixedShapeBatches
from keras_adaclip.sampling.host_share import HostShare
from keras_adaclip.sampling.poisson_dataset import PoissonDataset
from keras_adaclip.sampling.shared_batches import SharedBatches

__all__ = [
    "as_array",
    "checked_batch_size",
    "checked_seed",
    "common_length",
    "dealt",
    "generator_of_draw",
    "holds_strings",
    "padding",
    "poisson_draw",
    "seed_of_run",
    "FixedShapeBatches",
    "HostShare",
    "PoissonDataset",
    "SharedBatches",
]
