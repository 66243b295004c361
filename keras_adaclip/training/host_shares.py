"""Arrays of which each of several processes has a share, as one Poisson-sampled data set."""

import hashlib
import os
from typing import Any

import keras
import numpy as np

from keras_adaclip import backend
from keras_adaclip.sampling import PoissonDataset, ProcessShare

_ROWS_TO_COMPARE = 64


def host_share(
    x: Any, y: Any, sample_weight: Any, expected_batch_size: int, seed: int | None
) -> PoissonDataset:
    """This process's share of the data; called in all processes together.

    Args:
        x: this process's inputs.
        y: this process's targets, or None.
        sample_weight: this process's weights, or None.
        expected_batch_size: expected number of rows in a draw of all processes.
        seed: of the draws, or None.

    Raises:
        TypeError: where the rows hold strings.
        ValueError: where two processes hold the same rows, or rows of another kind, or
            `expected_batch_size` is out of range.
    """
    share = _share_of_this_process(PoissonDataset(x, y, sample_weight, expected_batch_size=1))
    return PoissonDataset(
        x, y, sample_weight, expected_batch_size=expected_batch_size, seed=seed, share=share
    )


def _share_of_this_process(rows: PoissonDataset) -> ProcessShare:
    first = rows.first_rows
    if any(array.dtype == object for array in keras.tree.flatten(first)):
        raise TypeError(
            "Over several processes training data must be numbers: processes compare their rows, "
            "and strings cannot be compared. Look them up before training, and let the model begin "
            "with the integers. Received: arrays of strings"
        )
    kinds = [(array.shape[1:], str(array.dtype)) for array in keras.tree.flatten(first)]
    _refuse_other_kinds(kinds)
    _refuse_same_rows(rows)
    counts = backend.gathered(np.array(rows.num_rows))
    # Of one process, so that all examine the model with the same.
    most = int(backend.gathered(np.array(len(first["mask"]))).min())
    first = keras.tree.map_structure(lambda array: backend.gathered(array[:most])[0], first)
    bits = backend.gathered(np.frombuffer(os.urandom(16), np.uint32))[0]
    return ProcessShare(
        tuple(counts.tolist()), backend.process_number(), tuple(bits.tolist()), first
    )


def _digest(data: bytes) -> np.ndarray:
    return np.frombuffer(hashlib.blake2b(data, digest_size=16).digest(), np.uint32)


def _refuse_other_kinds(kinds: list[Any]) -> None:
    digests = backend.gathered(_digest(repr(kinds).encode()))
    if len(np.unique(digests, axis=0)) > 1:
        raise ValueError(
            "The processes hold arrays of different structures, shapes or dtypes; all must hold "
            f"shares of one data set. Received here: {kinds}"
        )


def _refuse_same_rows(rows: PoissonDataset) -> None:
    """Raises where two processes have the same data: each example would count twice."""
    places = np.unique(np.linspace(0, rows.num_rows - 1, _ROWS_TO_COMPARE).astype(np.int64))
    compared = keras.tree.flatten(rows.take(places))
    own = b"".join(np.ascontiguousarray(array).tobytes() for array in compared)
    digests = backend.gathered(_digest(own + str(rows.num_rows).encode()))
    if len(np.unique(digests, axis=0)) < len(digests):
        raise ValueError(
            "Two processes were given the same rows, so that an example would contribute twice to "
            "a step. Give each process its own share, for example "
            "`x[process_number::num_processes]`. Received in this process: "
            f"{rows.num_rows:,} rows, as in another one"
        )
