"""Refuses devices and processes that cannot train one model together, before they train."""

import functools
import hashlib
import json
from collections.abc import Callable
from typing import Any, TypeVar

import keras
import numpy as np

from keras_adaclip import backend
from keras_adaclip.accounting import Sampling
from keras_adaclip.training.training_data import TrainingData

_Method = TypeVar("_Method", bound=Callable[..., Any])


def on_all_devices(method: _Method) -> _Method:
    """Return a method of a model that makes and assigns its variables on every device."""

    @functools.wraps(method)
    def within(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        with backend.scope_of_devices(model):
            return method(model, *args, **kwargs)

    return within  # type: ignore[return-value]


def refuse_uneven_batches(data: TrainingData) -> None:
    """Raise a `ValueError` if devices cannot divide batches evenly that are not ours to pad."""
    num_shards = backend.num_batch_shards()
    if data.poisson is not None or num_shards == 1:
        return
    sizes = {data.expected_batch_size}
    if data.sampling is Sampling.SHUFFLE:
        sizes.add(data.num_examples % data.expected_batch_size)
    uneven = [size for size in sizes if size % num_shards != 0]
    if uneven:
        raise ValueError(
            f"{num_shards} devices divide each batch evenly among them. Choose a `batch_size` that "
            "is a multiple and leaves no other rest of the examples, or `sampling='poisson'`, "
            f"whose batches are padded. Received: a batch of {uneven[0]:,} examples"
        )


def refuse_data_of_one_process(data: TrainingData) -> None:
    """Raise a `ValueError` if several processes may hold the same example.

    It would contribute twice to a step.
    """
    if backend.num_processes() > 1 and getattr(data.poisson, "num_shares", 1) == 1:
        raise ValueError(
            "Over several processes, `PrivateModel.fit` takes arrays, of which each process gives "
            "its own share, with `sampling='poisson'`: only then is it known that an example "
            "contributes once to a step. Received: data sampled as "
            f"{data.sampling.name.lower()!r}, in {backend.num_processes()} processes"
        )


def refuse_clients_of_one_process() -> None:
    """Raise a `ValueError` if several processes train on clients."""
    if backend.num_processes() > 1:
        raise ValueError(
            "A federated model trains in one process, over its devices: clients that two processes "
            "hold would take part twice in a round. Received: "
            f"{backend.num_processes()} processes"
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


def refuse_other_settings(model: keras.Model) -> None:
    """Raise a `ValueError` if processes have different optimizers; call it in all of them."""
    if backend.num_processes() == 1:
        return
    config = json.dumps(model.optimizer.get_config(), sort_keys=True, default=repr)
    config = config.replace(json.dumps(model.optimizer.name), '""')
    if _differing({"optimizer": config.encode()}):
        raise ValueError(
            "The processes have compiled the model with different optimizers, so that one would "
            "clip or noise otherwise than another. Give all the same arguments and the same seed. "
            f"Received in this process: {config}"
        )


def refuse_disagreement(model: keras.Model, data: TrainingData) -> None:
    """Raise a `ValueError` if processes would clip, noise or count differently.

    Call it in all of them, once the run is configured.
    """
    if backend.num_processes() == 1:
        return
    state = {
        variable.name: backend.array_of(variable).tobytes()
        for variable in model.optimizer.own_variables
    }
    state["steps_per_epoch"] = repr(data.steps_per_epoch).encode()
    whole = [v for v in model.weights if backend.is_whole_in_each_process(v)]
    state["weights"] = b"".join(_digest(backend.array_of(v).tobytes()).tobytes() for v in whole)
    state["layers"] = repr([variable.path for variable in model.trainable_variables]).encode()
    names = _differing(state)
    if names:
        raise ValueError(
            "The processes do not hold the same private state, so that one would clip or noise "
            "otherwise than another. Load the same files, give the same arguments and call "
            "`keras.utils.set_random_seed` with the same seed everywhere. "
            f"Received different values of: {', '.join(names)}"
        )


def _differing(state: dict[str, bytes]) -> list[str]:
    """Return the names of the values that are not the same in all processes."""
    everywhere = backend.gathered(np.stack([_digest(value) for value in state.values()]))
    differs = np.any(everywhere != everywhere[:1], axis=(0, 2))
    return [name for name, each in zip(state, differs, strict=True) if each]


def _digest(data: bytes) -> np.ndarray:
    """Return four 32-bit words that depend on all of the data."""
    return np.frombuffer(hashlib.blake2b(data, digest_size=16).digest(), np.uint32)
