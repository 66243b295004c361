"""Poisson sampling of units: each step draws every unit independently, with one probability.

poisson    arrays as Poisson-sampled batches, held by one process or by several
batches    these batches padded to a few shapes
draws      the distribution of a draw and its random numbers
arrays     conversion and checks of arrays
"""

from keras_adaclip.sampling.arrays import (
    as_array,
    as_arrays,
    common_length,
    from_frames,
    holds_strings,
    num_rows_not_finite,
    padding,
)
from keras_adaclip.sampling.batches import FixedShapeBatches, split_among_devices
from keras_adaclip.sampling.draws import ProcessShare, draw_generator, poisson_draw, uniform_draw
from keras_adaclip.sampling.poisson import PoissonDataset

__all__ = ["PoissonDataset"]
