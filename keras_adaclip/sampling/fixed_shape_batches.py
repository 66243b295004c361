"""Poisson-sampled batches in a few shapes."""

import math
from collections.abc import Sequence
from typing import Any

import keras

from keras_adaclip.sampling.dealing import dealt
from keras_adaclip.sampling.poisson_dataset import PoissonDataset


class FixedShapeBatches(keras.utils.PyDataset):
    """A `PoissonDataset` whose batches have few shapes, for compilers that want that.

    A draw that is larger than the largest size gets the next multiple of it: nothing is dropped,
    and such a step is merely compiled anew.

    Args:
        dataset: where the draws come from.
        num_batches: steps an epoch.
        sizes: numbers of rows, rising; a batch is padded to the first that is enough. Empty
            leaves the draws as large as they are.
        num_shards: into how many parts devices divide a batch; rows are dealt to them.
    """

    def __init__(
        self,
        dataset: PoissonDataset,
        num_batches: int,
        sizes: Sequence[int],
        num_shards: int = 1,
    ) -> None:
        super().__init__()
        self.dataset = dataset
        self._num_batches = num_batches
        self.sizes = tuple(sizes)
        self._num_shards = num_shards

    @property
    def num_batches(self) -> int:
        """Steps an epoch."""
        return self._num_batches

    def __len__(self) -> int:
        return self._num_batches

    def __getitem__(self, index: int) -> dict[str, Any]:
        rows = self.dataset.draw()
        if not self.sizes:
            return self.dataset.take(rows)
        largest = self.sizes[-1]
        beyond = math.ceil(len(rows) / largest) * largest
        size = next((size for size in self.sizes if size >= len(rows)), beyond)
        return dealt(self.dataset.take(rows, size), self._num_shards)
