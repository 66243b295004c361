"""What must be so where several devices or processes train one model, before they train."""

import functools
import hashlib
import json
from collections.abc import Callable
from typing import Any, TypeVar

import keras
import numpy as np

from keras_adaclip import backend
from keras_adaclip.training.training_data import TrainingData

_Method = TypeVar("_Method", bound=Callable[..., Any])


def on_all_devices(method: _Method) -> _Method:
    """A model's method, run where its variables are made and assigned on every device.

    Args:
        method: takes the model first.
    """

    @functools.wraps(method)
    def within(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        with backend.scope_of_devices(model):
            return method(model, *args, **kwargs)

    return within  # type: ignore[return-value]


def refuse_data_of_one_process(data: TrainingData) -> None:
    """Raises where several processes train, and no one knows which examples the others hold.

    An example that two processes hold would contribute twice to a step.

    Args:
        data: what this process was given.

    Raises:
        ValueError: unless the data are shares of one Poisson-sampled data set.
    """
    if backend.num_processes() > 1 and getattr(data.poisson, "num_shares", 1) == 1:
        raise ValueError(
            "Over several processes, `PrivateModel.fit` takes arrays, of which each process gives "
            "its own share, with `sampling='poisson'`: only so it is known that an example "
            "contributes once to a step. Received: data sampled as "
            f"{data.sampling.name.lower()!r}, in {backend.num_processes()} processes"
        )


def refuse_batch_of_every_replica(model: keras.Model) -> None:
    """Raises where Keras would hand one batch, whole, to every replica.

    Args:
        model: a compiled private model.

    Raises:
        ValueError: with what to do about it.
    """
    num_replicas = backend.num_replicas(model)
    if num_replicas > 1:
        raise ValueError(
            f"`train_on_batch` hands the whole batch to each of the {num_replicas} replicas, so "
            "that each example would contribute as often to the step. Call `fit`, which divides "
            "its batches among them."
        )


def refuse_joined_batches(model: keras.Model, data: Any) -> None:
    """Raises where TensorFlow may join the end of one batch with the next, to divide them evenly.

    A step could then hold the end of one pass and the beginning of another, and an example twice.

    Args:
        model: a compiled private model.
        data: a data set.

    Raises:
        ValueError: with what to do about it.
    """
    if backend.may_join_batches(model, data):
        raise ValueError(
            "Over several replicas TensorFlow may fill up the smaller batches of a "
            "`tf.data.Dataset` with rows of the next one, which may be those of another pass. Give "
            "a data set whose batches have one size: `dataset.batch(batch_size, "
            "drop_remainder=True)`."
        )


def refuse_clients_of_one_process() -> None:
    """Raises where several processes train on clients.

    Raises:
        ValueError: with what to do about it.
    """
    if backend.num_processes() > 1:
        raise ValueError(
            "A federated model trains in one process, over its devices: clients that two processes "
            "hold would take part twice in a round. Received: "
            f"{backend.num_processes()} processes"
        )


def refuse_other_settings(model: keras.Model) -> None:
    """Raises where processes were given different optimizers; called in all of them.

    Args:
        model: a compiled private model, built or not.

    Raises:
        ValueError: with the settings of this process.
    """
    if backend.num_processes() == 1:
        return
    config = json.dumps(model.optimizer.get_config(), sort_keys=True, default=repr)
    config = config.replace(json.dumps(model.optimizer.name), '""')
    digests = backend.gathered(_digest(config.encode()))
    if len(np.unique(digests, axis=0)) > 1:
        raise ValueError(
            "The processes have compiled the model with different optimizers, so that one would "
            "clip or noise otherwise than another. Give all the same arguments and the same seed. "
            f"Received in this process: {config}"
        )


def refuse_disagreement(model: keras.Model, data: TrainingData) -> None:
    """Raises where processes would clip, noise or count differently; called in all of them.

    Args:
        model: a private model whose run was configured.
        data: what it is trained on.

    Raises:
        ValueError: with the names of what differs.
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
    everywhere = backend.gathered(np.stack([_digest(value) for value in state.values()]))
    differs = np.any(everywhere != everywhere[:1], axis=(0, 2))
    names = [name for name, each in zip(state, differs, strict=True) if each]
    if names:
        raise ValueError(
            "The processes do not hold the same private state, so that one would clip or noise "
            "otherwise than another. Load the same files, give the same arguments and call "
            "`keras.utils.set_random_seed` with the same seed everywhere. "
            f"Received different values of: {', '.join(names)}"
        )


def _digest(data: bytes) -> np.ndarray:
    return np.frombuffer(hashlib.blake2b(data, digest_size=16).digest(), np.uint32)
