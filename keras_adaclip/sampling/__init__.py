"""Poisson sampling of units: each step draws every unit independently, with one probability.

poisson    arrays as Poisson-sampled batches, held by one process or by several
batches    these batches padded to a few shapes
draws      the distribution of a draw and its random numbers
arrays     conversion and checks of arrays
"""

from keras_adaclip.sampling.arrays import as_array as as_array
from keras_adaclip.sampling.arrays import common_length as common_length
from keras_adaclip.sampling.arrays import holds_strings as holds_strings
from keras_adaclip.sampling.arrays import padding as padding
from keras_adaclip.sampling.batches import FixedShapeBatches as FixedShapeBatches
from keras_adaclip.sampling.batches import split_among_devices as split_among_devices
from keras_adaclip.sampling.draws import ProcessShare as ProcessShare
from keras_adaclip.sampling.draws import draw_generator as draw_generator
from keras_adaclip.sampling.draws import poisson_draw as poisson_draw
from keras_adaclip.sampling.draws import uniform_draw as uniform_draw
from keras_adaclip.sampling.poisson import PoissonDataset

__all__ = ["PoissonDataset"]
