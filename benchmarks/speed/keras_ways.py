"""Keras 3: plain `fit`, and this package with shuffled and with Poisson batches."""

import math
from collections.abc import Callable
from typing import Any

import keras
from framework import CLOCKS, Framework, Train
from suite import Benchmark

import keras_adaclip as ka

_XLA = "-xla"


def framework(name: str) -> Framework:
    """What the measurements need.

    Args:
        name: the backend that this process runs.
    """
    if keras.backend.backend() != name:
        raise ValueError(f"Set KERAS_BACKEND. Received: {name=} on {keras.backend.backend()}")
    return Framework(
        build=build,
        packages=("keras-adaclip", "keras", "numpy", name, *(("jaxlib",) * (name == "jax"))),
        limit_threads=_limit_threads,
        memory=_device_memory(),
    )


def build(benchmark: Benchmark, way: str) -> Train:
    """A compiled model and how to train it.

    Args:
        benchmark: the model.
        way: "plain", "shuffle" or "poisson", with "-xla" for `jit_compile=True`. Without, Keras
            decides ("auto"): JAX compiles always, TensorFlow not where it has a CPU only, PyTorch
            never.
    """
    kind = way.removesuffix(_XLA)
    optimizer: Any = keras.optimizers.SGD(0.01)
    make: Callable[..., keras.Model] = keras.Model
    if kind != "plain":
        make = ka.PrivateModel
        optimizer = ka.optimizers.DPOptimizer(optimizer, clipping=1.0, noise_multiplier=1.0)
    model = make(*benchmark.build(keras))
    benchmark.check_size(sum(math.prod(weight.shape) for weight in model.trainable_weights))
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=True if way.endswith(_XLA) else "auto",
    )
    arguments = {} if kind == "plain" else {"sampling": kind}

    def train(num_steps: int) -> Callable[[], Any]:
        x, y = benchmark.data(benchmark.batch_size * num_steps)

        def run() -> dict[Callable[[], float], float]:
            times = _Times(num_steps)
            model.fit(
                x, y, batch_size=benchmark.batch_size, verbose=0, callbacks=[times], **arguments
            )
            return times.seconds

        return run

    return train


class _Times(keras.callbacks.Callback):
    """Takes the time from the end of the second step to the end of the last."""

    def __init__(self, num_steps: int) -> None:
        super().__init__()
        self.seconds: dict[Callable[[], float], float] = {}
        self._steps = (1, num_steps - 1)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch in self._steps:
            float(logs["loss"])  # waits for the step
            self.seconds = {each: each() - self.seconds.get(each, 0.0) for each in CLOCKS}


def _limit_threads() -> None:
    if keras.backend.backend() == "torch":
        import torch

        torch.set_num_threads(1)


def _device_memory() -> Callable[[], int] | None:
    if keras.backend.backend() == "jax":
        import jax

        device = jax.local_devices()[0]
        if device.platform != "cpu":
            return lambda: device.memory_stats()["peak_bytes_in_use"]
    if keras.backend.backend() == "torch":
        import torch

        if torch.cuda.is_available():
            return torch.cuda.max_memory_allocated
    return None
