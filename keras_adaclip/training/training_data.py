"""The data given to `fit`, how it is sampled, and the facts of it that the ledger needs."""

import dataclasses
import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from keras_adaclip import backend
from keras_adaclip._checks import check_batch_size, check_choice, check_integer
from keras_adaclip.accounting import Sampling
from keras_adaclip.gradients import Batch
from keras_adaclip.optimizers import RunSettings
from keras_adaclip.sampling import FixedShapeBatches, PoissonDataset, ProcessShare
from keras_adaclip.training import arrays

_ROWS_TO_COMPARE = 64


@dataclass(frozen=True, kw_only=True)
class TrainingData(RunSettings):
    """Training data, ready for Keras's `fit`, on top of the facts of the run.

    Args:
        rows: A few examples, to build and examine the model.
        fit_arguments: Arguments of Keras's `fit` that come from the data.
        poisson: The Poisson-sampled data set of examples, or the rounds of a federated model;
            None for other data.
    """

    rows: Batch
    fit_arguments: dict[str, Any] = field(default_factory=dict)
    poisson: Any = None

    @property
    def settings(self) -> RunSettings:
        """The facts of the run alone, without the data."""
        names = [each.name for each in dataclasses.fields(RunSettings)]
        return RunSettings(**{name: getattr(self, name) for name in names})

    def epoch_ends_executions(self, model: keras.Model) -> bool:
        """Return whether the last execution of an epoch stops at the epoch's end.

        With `steps_per_execution` it does if the data end there too. If Keras cuts a longer stream
        into epochs, it runs on. Over several replicas it may, and is assumed to.
        """
        if self.steps_per_epoch is None or backend.num_replicas(model) > 1:
            return False
        return self.poisson is not None or self.fit_arguments.get("steps_per_epoch") is None

    def with_sizes(self, sizes: Sequence[int], model: keras.Model) -> dict[str, Any]:
        """Return the arguments for Keras's `fit`, with Poisson draws padded to one of `sizes`."""
        if self.poisson is None:
            return self.fit_arguments
        batches = FixedShapeBatches(
            self.poisson, self.steps_per_epoch or 1, sizes, backend.num_batch_shards()
        )
        arguments = backend.fit_arguments(batches, self.poisson.first_rows, model)
        return {**self.fit_arguments, **arguments}


def from_arrays(
    x: Any,
    y: Any,
    sample_weight: Any,
    *,
    class_weight: dict[int, float] | None,
    batch_size: int | None,
    sampling: str,
    steps_per_epoch: int | None,
    shuffle: Any,
    seed: int | None,
) -> TrainingData:
    """Return training data from arrays; the arguments are those of `PrivateModel.fit`.

    Raises:
        ValueError: If an argument is out of range, or numbers of rows differ.
    """
    check_choice("sampling", sampling, ("poisson", "shuffle"))
    num_examples = arrays.number_of_rows(x, y, sample_weight)
    batch_size = 32 if batch_size is None else batch_size
    is_shared = backend.num_processes() > 1 and sampling == "poisson"
    if not is_shared:
        batch_size = check_batch_size(batch_size, num_examples)
    if sampling == "shuffle":
        return TrainingData(
            sampling=Sampling.SHUFFLE,
            expected_batch_size=batch_size,
            num_examples=num_examples,
            steps_per_epoch=steps_per_epoch or math.ceil(num_examples / batch_size),
            rows=arrays.first_rows(x, y, sample_weight),
            fit_arguments={
                "x": arrays.strings_as_tensors(x),
                "y": y,
                "sample_weight": sample_weight,
                "class_weight": class_weight,
                "batch_size": batch_size,
                "shuffle": shuffle,
                "steps_per_epoch": steps_per_epoch,
            },
        )
    if class_weight is not None:
        sample_weight = arrays.weights_of_classes(y, class_weight, sample_weight)
    dataset = (
        host_share(x, y, sample_weight, batch_size, seed)
        if is_shared
        else PoissonDataset(x, y, sample_weight, expected_batch_size=batch_size, seed=seed)
    )
    return _from_poisson(dataset, steps_per_epoch)


def from_data_set(
    data: Any,
    *,
    class_weight: dict[int, float] | None,
    num_examples: int | None,
    once_per_pass: bool,
    sampling: str,
    steps_per_epoch: int | None,
    shuffle: Any,
    **of_arrays: Any,
) -> TrainingData:
    """Return training data from a data set or generator.

    A `PoissonDataset` is accounted with amplification by sampling, any other data set without.

    Args:
        data: A `PoissonDataset`, `tf.data.Dataset`, `PyDataset`, `DataLoader` or generator.
        class_weight: As for Keras's `fit`.
        num_examples: Number of examples, for the report and the default delta.
        once_per_pass: The user's word that a pass holds each example at most once.
        sampling: As for `PrivateModel.fit`.
        steps_per_epoch: As for Keras's `fit`.
        shuffle: As for Keras's `fit`.
        **of_arrays: Arguments of `fit` that go with arrays only.

    Raises:
        ValueError: If an argument does not go with the data, the number of examples is unknown, or
            there is no batch.
    """
    arrays.refuse_other_data(data)
    _refuse_given(of_arrays, f"a data set of type {type(data).__name__}, which has its own")
    if isinstance(data, PoissonDataset):
        chosen = {
            "class_weight": class_weight or None,
            "num_examples": None if num_examples == data.num_examples else num_examples,
            "once_per_pass": once_per_pass,
            "sampling": None if sampling == "poisson" else sampling,
        }
        _refuse_given(
            chosen,
            "a `PoissonDataset`, which draws its own batches from its own rows; weights go to "
            "`PoissonDataset(sample_weight=...)`",
        )
        return _from_poisson(data, steps_per_epoch)
    first, data = arrays.peek(data)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(first)
    batch_size = arrays.number_of_rows(x, y, sample_weight)
    num_batches = arrays.known_length(data)
    if num_examples is None:
        num_examples = arrays.known_num_examples(data, num_batches, batch_size)
    if num_examples is None:
        raise ValueError(
            "The number of training examples cannot be known from an object of type "
            f"{type(data).__name__}, and the privacy report needs it. Pass "
            "`fit(..., num_examples=...)`, the number of distinct examples (it is treated as "
            "public)."
        )
    if once_per_pass and steps_per_epoch is not None and num_batches is None:
        raise ValueError(
            "With `once_per_pass=True` and `steps_per_epoch`, the length of the data set must be "
            "known, or a pass has no end. Leave `steps_per_epoch` out, or give a data set with a "
            f"length. Received: steps_per_epoch={steps_per_epoch}"
        )
    return TrainingData(
        sampling=Sampling.PASS if once_per_pass else Sampling.STREAM,
        expected_batch_size=batch_size,
        num_examples=int(num_examples),
        steps_per_release=num_batches if once_per_pass else None,
        steps_per_epoch=steps_per_epoch or num_batches,
        rows=arrays.first_rows(x, y, sample_weight),
        fit_arguments={
            "x": data,
            "class_weight": class_weight,
            # Keras shuffles no other kind of data set, and warns if asked to.
            "shuffle": shuffle and isinstance(data, keras.utils.PyDataset),
            "steps_per_epoch": steps_per_epoch,
        },
    )


def _from_poisson(dataset: PoissonDataset, steps_per_epoch: int | None) -> TrainingData:
    if steps_per_epoch is not None:
        steps_per_epoch = check_integer("steps_per_epoch", steps_per_epoch, minimum=1)
    rows = dataset.first_rows
    return TrainingData(
        sampling=Sampling.POISSON,
        expected_batch_size=dataset.expected_batch_size,
        num_examples=dataset.num_examples,
        steps_per_epoch=steps_per_epoch or dataset.num_batches,
        rows=Batch(rows["x"], rows.get("y"), rows.get("sample_weight")),
        fit_arguments={"shuffle": False},
        poisson=dataset,
    )


def _refuse_given(arguments: dict[str, Any], data: str) -> None:
    """Raise if an argument was given that the data decide, and that would be ignored."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise ValueError(
                f"Argument `{name}` cannot be combined with {data}. "
                f"Received: {name} of type {type(value).__name__}"
            )


def host_share(
    x: Any, y: Any, sample_weight: Any, expected_batch_size: int, seed: int | None
) -> PoissonDataset:
    """Return this process's share of the data; all processes call this together.

    Args:
        x: This process's inputs.
        y: This process's targets, or None.
        sample_weight: This process's weights, or None.
        expected_batch_size: Expected number of rows in a draw of all processes.
        seed: Seed of the draws, or None.

    Raises:
        TypeError: If the rows hold strings.
        ValueError: If two processes hold the same rows, or rows of different kinds, or
            `expected_batch_size` is out of range.
    """
    share = _share_of_this_process(PoissonDataset(x, y, sample_weight, expected_batch_size=1))
    return PoissonDataset(
        x, y, sample_weight, expected_batch_size=expected_batch_size, seed=seed, share=share
    )


def _share_of_this_process(rows: PoissonDataset) -> ProcessShare:
    """Return what this process knows of the rows of all, which it compares with its own."""
    first = rows.first_rows
    if any(array.dtype == object for array in keras.tree.flatten(first)):
        raise TypeError(
            "Over several processes, training data must be numbers: processes compare their rows, "
            "and strings cannot be compared. Look them up before training, and let the model begin "
            "with the integers. Received: arrays of strings"
        )
    kinds = [(array.shape[1:], str(array.dtype)) for array in keras.tree.flatten(first)]
    if _num_different(repr(kinds).encode()) > 1:
        raise ValueError(
            "The processes hold arrays of different structures, shapes or dtypes; all must hold "
            f"shares of one data set. Received here: {kinds}"
        )
    places = np.unique(np.linspace(0, rows.num_rows - 1, _ROWS_TO_COMPARE).astype(np.int64))
    compared = keras.tree.flatten(rows.take(places))
    own = b"".join(np.ascontiguousarray(array).tobytes() for array in compared)
    if _num_different(own + str(rows.num_rows).encode()) < backend.num_processes():
        raise ValueError(
            "Two processes were given the same rows, so that an example would contribute twice to "
            "a step. Give each process its own share, for example "
            "`x[process_number::num_processes]`. Received in this process: "
            f"{rows.num_rows:,} rows, as in another one"
        )
    counts = backend.gathered(np.array(rows.num_rows))
    # The rows of one process, so that all examine the model with the same.
    most = int(backend.gathered(np.array(len(first["mask"]))).min())
    first = keras.tree.map_structure(lambda array: backend.gathered(array[:most])[0], first)
    bits = backend.gathered(np.frombuffer(os.urandom(16), np.uint32))[0]
    return ProcessShare(
        tuple(counts.tolist()), backend.process_number(), tuple(bits.tolist()), first
    )


def _num_different(data: bytes) -> int:
    """Return how many different data the processes hold, by their digests."""
    digest = np.frombuffer(hashlib.blake2b(data, digest_size=16).digest(), np.uint32)
    return len(np.unique(backend.gathered(digest), axis=0))
