"""Poisson sampling of units: each step draws every unit independently, with one probability.

poisson   rows as Poisson-sampled batches, held by one process or by several
batches   these batches padded to a few shapes
rows      arrays in memory, and examples read from a source
sources   images in folders, and examples written to a file, as sources
draws     the distribution of a draw and its random numbers
arrays    conversion and checks of arrays
"""

from keras_adaclip.sampling.arrays import (
    SparseRows,
    as_array,
    as_arrays,
    common_length,
    filled,
    from_frames,
    holds_strings,
    most_copies,
    num_rows_not_finite,
    padding,
    written_out,
)
from keras_adaclip.sampling.batches import FixedShapeBatches, SourceBatches, split_among_devices
from keras_adaclip.sampling.draws import (
    DrawStream,
    ProcessShare,
    poisson_draw,
    rows_of_units,
    uniform_draw,
)
from keras_adaclip.sampling.poisson import PoissonDataset
from keras_adaclip.sampling.rows import reading
from keras_adaclip.sampling.sources import WrittenSource, from_folder, write_source

__all__ = ["PoissonDataset", "WrittenSource", "from_folder", "write_source"]
