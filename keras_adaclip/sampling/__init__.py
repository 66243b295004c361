"""Poisson sampling of units: each step draws every unit independently, with one probability.

poisson        rows as Poisson-sampled batches, held by one process or by several
poisson_draws  which rows each batch draws
rows           arrays in memory, and examples read from a source
reader         single examples of a source, read and stacked
folder         images in folders as a source
written        examples written to a file as a source
batches        these batches padded to a few shapes
draws          the distribution of a draw and its random numbers
arrays         conversion and checks of arrays
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
from keras_adaclip.sampling.folder import from_folder
from keras_adaclip.sampling.poisson import PoissonDataset
from keras_adaclip.sampling.written import WrittenSource, write_source

__all__ = ["PoissonDataset", "WrittenSource", "from_folder", "write_source"]
