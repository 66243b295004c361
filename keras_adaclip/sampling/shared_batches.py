"""Batches of which each process prepares its share, in shapes that all processes agree on."""

import math
from collections.abc import Sequence
from typing import Any

import keras

from keras_adaclip.sampling.dealing import dealt
from keras_adaclip.sampling.host_share import HostShare


class SharedBatches(keras.utils.PyDataset):
    """A `HostShare` as the batches of this process.

    Args:
        dataset: where the draws come from.
        num_batches: steps an epoch.
        sizes: numbers of rows of the whole batch, rising, multiples of the number of processes; all
            pad to their part of the first that is enough for each of them. Empty leaves the draws
            as large as they are.
        num_shards: into how many parts the devices of all processes divide a batch.
    """

    def __init__(
        self, dataset: HostShare, num_batches: int, sizes: Sequence[int], num_shards: int = 1
    ) -> None:
        super().__init__()
        self.dataset = dataset
        self._num_batches = num_batches
        self.sizes = tuple(size // dataset.num_shares for size in sizes)
        self._num_shards = max(num_shards // dataset.num_shares, 1)

    @property
    def num_batches(self) -> int:
        """Steps an epoch."""
        return self._num_batches

    def __len__(self) -> int:
        return self._num_batches

    def __getitem__(self, index: int) -> dict[str, Any]:
        rows, most = self.dataset.draw()
        if not self.sizes:
            return self.dataset.take(rows)
        beyond = math.ceil(most / self.sizes[-1]) * self.sizes[-1]
        size = next((size for size in self.sizes if size >= most), beyond)
        return dealt(self.dataset.take(rows, size), self._num_shards)
