"""The clients of one process, where several processes train one model.

Every process knows the sizes of all clients. So all of them draw the same clients without sending
anything, and know how long each process trains.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_adaclip import backend
from keras_adaclip.federated.clients import ClientData
from keras_adaclip.gradients import Batch
from keras_adaclip.sampling import as_arrays

_DIGEST_SIZE = 16


@dataclass(frozen=True)
class ClientShare:
    """One process's share of the clients.

    Args:
        sizes: The numbers of examples of the clients of all processes, in their order.
        first_numbers: The number of the first client of each process, and the number of all.
        process: The number of this process.
        shared_bits: Random bits that all processes know, and nobody else.
    """

    sizes: np.ndarray
    first_numbers: tuple[int, ...]
    process: int
    shared_bits: tuple[int, ...]

    @classmethod
    def alone(cls, clients: ClientData) -> "ClientShare":
        """Return the share of a single process, which reads the sizes when it needs them."""
        return cls(np.zeros(0, np.int64), (0, len(clients)), 0, ())

    @property
    def num_clients(self) -> int:
        """The number of clients of all processes."""
        return self.first_numbers[-1]

    @property
    def num_processes(self) -> int:
        """The number of processes."""
        return len(self.first_numbers) - 1

    def process_of(self, number: int) -> int:
        """Return the process that holds a client.

        Args:
            number: The number of the client.
        """
        return int(np.searchsorted(self.first_numbers, number, side="right")) - 1


def share_of_this_process(clients: ClientData, settings: dict[str, Any]) -> ClientShare:
    """Return this process's share of the clients; all processes call this together.

    Args:
        clients: The clients of this process.
        settings: What all processes must have alike, as plain values.

    Raises:
        ValueError: If two processes hold the same client, or have other settings.
    """
    if backend.num_processes() == 1:
        return ClientShare.alone(clients)
    digest = _digest(json.dumps(settings, sort_keys=True, default=repr).encode())
    if len(np.unique(backend.gathered(digest), axis=0)) > 1:
        raise ValueError(
            "The processes train clients differently. Give all the same arguments to `compile` and "
            f"`fit`. Received in this process: {settings}"
        )
    counts = backend.gathered(np.array(len(clients)))
    ids = _gathered_rows([_digest(str(each).encode()) for each in clients.client_ids], counts)
    if len(np.unique(ids, axis=0)) < len(ids):
        raise ValueError(
            "Two processes hold a client of the same id, which would take part twice in a round. "
            "Give each process its own clients, for example "
            "`clients.subset(clients.client_ids[process_number::num_processes])`. Received in this "
            f"process: {len(clients):,} clients"
        )
    sizes = [np.array([clients.num_examples_at(position)]) for position in range(len(clients))]
    return ClientShare(
        _gathered_rows(sizes, counts)[:, 0],
        (0, *np.cumsum(counts).tolist()),
        backend.process_number(),
        tuple(backend.gathered(np.frombuffer(os.urandom(16), np.uint32))[0].tolist()),
    )


def first_rows(clients: ClientData, share: ClientShare) -> Batch:
    """Return a few examples to examine the model with, the same in all processes.

    Args:
        clients: The clients of this process.
        share: Their share of all clients.

    Raises:
        ValueError: If the processes hold examples of different kinds.
    """
    x, y = clients.first_examples()
    if share.num_processes == 1:
        return Batch(x, y)
    parts = as_arrays({"x": x} if y is None else {"x": x, "y": y})
    arrays = keras.tree.flatten(parts)
    kinds = [(array.shape[1:], str(array.dtype)) for array in arrays]
    if len(np.unique(backend.gathered(_digest(repr(kinds).encode())), axis=0)) > 1:
        raise ValueError(
            "The processes hold clients with examples of different structures, shapes or dtypes. "
            f"Received in this process: {kinds}"
        )
    most = int(backend.gathered(np.array(len(arrays[0]))).min())
    parts = keras.tree.map_structure(lambda array: backend.gathered(array[:most])[0], parts)
    return Batch(parts["x"], parts.get("y"))


def _gathered_rows(rows: Sequence[np.ndarray], counts: np.ndarray) -> np.ndarray:
    """Return the rows of all processes, which hold as many of them as `counts` says."""
    padded = np.zeros((int(counts.max()), *rows[0].shape), rows[0].dtype)
    padded[: len(rows)] = rows
    found = backend.gathered(padded)
    return np.concatenate([part[:count] for part, count in zip(found, counts, strict=True)])


def _digest(data: bytes) -> np.ndarray:
    """Return bytes that depend on all of the data."""
    digest = hashlib.blake2b(data, digest_size=_DIGEST_SIZE).digest()
    return np.frombuffer(digest, np.uint8)
