"""Several processes: their shares of examples and clients, and what they must agree on."""

import functools
import hashlib
import json
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import keras
import numpy as np

from keras_adaclip import backend
from keras_adaclip.accounting import Sampling
from keras_adaclip.sampling import PoissonDataset, ProcessShare

if TYPE_CHECKING:
    from keras_adaclip.training.training_data import TrainingData

_ROWS_TO_COMPARE = 64
_Method = TypeVar("_Method", bound=Callable[..., Any])


def on_all_devices(method: _Method) -> _Method:
    """Return a method of a model that makes and assigns its variables on every device.

    TensorFlow's error about strings that should be numbers is explained.
    """

    @functools.wraps(method)
    def within(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        """Call the method in the scope of the devices."""
        try:
            with backend.scope_of_devices(model):
                return method(model, *args, **kwargs)
        except Exception as error:
            if "Cast string to" not in str(error):
                raise
            raise TypeError(
                "The data hold strings where the model or its loss takes numbers. Turn them into "
                "numbers first, for example with `pandas.get_dummies`, `pandas.factorize` or a "
                "`keras.layers.StringLookup`, or let the model begin with such a layer."
            ) from error

    return within  # type: ignore[return-value]


def refuse_uneven_batches(data: "TrainingData") -> None:
    """Raise a `ValueError` if devices cannot divide batches evenly that are not ours to pad."""
    num_shards = backend.num_batch_shards()
    if data.poisson is not None or num_shards == 1:
        return
    sizes = {data.expected_batch_size}
    if data.sampling is Sampling.SHUFFLE:
        sizes.add(data.num_examples % data.expected_batch_size)
    if uneven := [size for size in sizes if size % num_shards != 0]:
        raise ValueError(
            f"{num_shards} devices divide each batch evenly among them. Choose a `batch_size` with "
            "which every batch, the last one too, is a multiple of that, or `sampling='poisson'`, "
            f"whose batches are padded. Received: a batch of {uneven[0]:,} examples"
        )


def refuse_data_of_one_process(data: "TrainingData") -> None:
    """Raise a `ValueError` if several processes may hold the same example.

    It would contribute twice to a step.
    """
    if backend.num_processes() > 1 and getattr(data.poisson, "num_shares", 1) == 1:
        raise ValueError(
            "Over several processes, `PrivateModel.fit` takes arrays with `sampling='poisson'` or "
            "a `PoissonDataset`, and each process gives its own share: only then is it known that "
            "an example contributes once to a step. Received: data sampled as "
            f"{data.sampling.name.lower()!r}, in {backend.num_processes()} processes"
        )


def refuse_batch_of_every_replica(model: keras.Model) -> None:
    """Raise a `ValueError` if Keras would hand one batch, whole, to every replica."""
    num_replicas = backend.num_replicas(model)
    if num_replicas > 1:
        raise ValueError(
            f"`train_on_batch` hands the whole batch to each of the {num_replicas} replicas, so "
            "that each example would contribute as often to the step. Call `fit`, which divides "
            "its batches among them."
        )


def refuse_joined_batches(model: keras.Model, data: Any) -> None:
    """Raise a `ValueError` if TensorFlow may join the end of one batch with the next one.

    A step could then hold the end of one pass and the beginning of another, and an example twice.
    """
    if backend.may_join_batches(model, data):
        raise ValueError(
            "Over several replicas TensorFlow may fill up the smaller batches of a "
            "`tf.data.Dataset` with rows of the next one, which may be those of another pass. Give "
            "a data set whose batches have one size: `dataset.batch(batch_size, "
            "drop_remainder=True)`."
        )


def refuse_different(**values: Any) -> None:
    """Raise a `ValueError` if a value is not the same in all processes; call it in all of them.

    Args:
        **values: Arrays as bytes, which the message does not show, and plain values, by name.
    """
    if backend.num_processes() == 1:
        return
    # Keras numbers the names.
    texts = {
        name: re.sub(r'"name": "[^"]*"', "", json.dumps(value, sort_keys=True, default=repr))
        for name, value in values.items()
    }
    if differing := [name for name, text in texts.items() if num_different(text.encode()) > 1]:
        here = {name: values[name] for name in differing if not isinstance(values[name], bytes)}
        raise ValueError(
            "The processes differ, so that one would draw, clip, add noise or count differently "
            "from another. Give all the same arguments, seeds, kinds of data and files, and call "
            "`keras.utils.set_random_seed` with the same seed everywhere. "
            f"Received different values of: {', '.join(differing)}; in this process: {here}"
        )


def refuse_other_settings(model: keras.Model, **others: Any) -> None:
    """Raise a `ValueError` if processes train differently; call it in all of them.

    Args:
        model: A compiled model, whose optimizers are compared.
        **others: What else all processes must have alike.
    """
    if backend.num_processes() > 1:
        refuse_different(optimizer=model.optimizer.get_config(), **others)


def refuse_disagreement(model: keras.Model, data: "TrainingData") -> None:
    """Raise a `ValueError` if processes would clip, noise or count differently.

    Call it in all of them, once the run is configured.
    """
    if backend.num_processes() == 1:
        return
    own = {each.name: backend.array_of(each).tobytes() for each in model.optimizer.own_variables}
    whole = [v for v in model.weights if backend.is_whole_in_each_process(v)]
    weights = b"".join(digest(backend.array_of(v).tobytes()).tobytes() for v in whole)
    layers = [variable.path for variable in model.trainable_variables]
    refuse_different(**own, steps_per_epoch=data.steps_per_epoch, weights=weights, layers=layers)


def as_share(dataset: PoissonDataset, expected_batch_size: int | None = None) -> PoissonDataset:
    """Return a data set as this process's share of the rows of all; all call this together.

    Args:
        dataset: The rows of this process. With one process, it is returned as it is.
        expected_batch_size: Expected number of rows in a draw of all processes; None for that of
            the data set.

    Raises:
        TypeError: If the rows hold strings.
        ValueError: If two processes hold the same rows, or rows of different kinds, or other
            arguments than another process; or if `expected_batch_size` is out of range.
    """
    if backend.num_processes() == 1 or dataset.num_shares > 1:
        return dataset
    refuse_different(
        expected_batch_size=expected_batch_size or dataset.expected_batch_size,
        seed=dataset.seed,
        max_batch_size=dataset.max_batch_size,
    )
    num_rows = dataset.num_rows
    share = share_of_this_process(num_rows, dataset.first_rows)
    places = np.unique(np.linspace(0, num_rows - 1, _ROWS_TO_COMPARE).astype(np.int64))
    compared = keras.tree.flatten(dataset.take(places))
    own = b"".join(np.ascontiguousarray(array).tobytes() for array in compared)
    if num_different(own + str(num_rows).encode()) < backend.num_processes():
        raise ValueError(
            "Two processes were given the same rows, so that an example would contribute twice to "
            "a step. Give each process its own share, for example "
            "`x[process_number::num_processes]`. Received in this process: "
            f"{num_rows:,} rows, as in another one"
        )
    return dataset.shared(share, expected_batch_size)


def share_of_this_process(num_units: int, first: dict[str, Any]) -> ProcessShare:
    """Return this process's share of the units of all; all processes call this together.

    Args:
        num_units: The number of examples or clients of this process.
        first: A few examples of this process, by name.

    Raises:
        TypeError: If several processes hold strings.
        ValueError: If the processes hold examples of different kinds.
    """
    arrays = keras.tree.flatten(first)
    if backend.num_processes() > 1 and any(array.dtype == object for array in arrays):
        raise TypeError(
            "Over several processes, training data must be numbers: processes compare their rows, "
            "and strings cannot be compared. Look them up before training, and let the model begin "
            "with the integers. Received: arrays of strings"
        )
    refuse_different(kinds_of_data=[(array.shape[1:], str(array.dtype)) for array in arrays])
    counts = backend.gathered(np.array(num_units))
    # The rows of one process, so that all examine the model with the same.
    most = int(backend.gathered(np.array(len(arrays[0]))).min())
    first = keras.tree.map_structure(lambda array: backend.gathered(array[:most])[0], first)
    bits = backend.gathered(np.frombuffer(os.urandom(16), np.uint32))[0].tolist()
    return ProcessShare(tuple(counts.tolist()), backend.process_number(), tuple(bits), first)


def gathered_rows(rows: np.ndarray) -> np.ndarray:
    """Return the rows of all processes one after another; all processes call this together.

    Args:
        rows: Of shape `(num_rows, ...)`; processes may differ in the number of rows.
    """
    counts = backend.gathered(np.array(len(rows)))
    padded = np.zeros((int(counts.max()), *rows.shape[1:]), rows.dtype)
    padded[: len(rows)] = rows
    found = backend.gathered(padded)
    return np.concatenate([part[:count] for part, count in zip(found, counts, strict=True)])


def num_different(data: bytes) -> int:
    """Return how many different data the processes hold, by their digests."""
    return len(np.unique(backend.gathered(digest(data)), axis=0))


def digest(data: bytes) -> np.ndarray:
    """Return four 32-bit words that depend on all of the data."""
    return np.frombuffer(hashlib.blake2b(data, digest_size=16).digest(), np.uint32)
