"""What dividing a step over devices costs, private and plain, on virtual devices of one CPU.

    python benchmarks/scaling/devices.py                       # JAX, TensorFlow; 1, 2, 4 devices
    python benchmarks/scaling/devices.py --backends jax --devices 1 4

Virtual devices share the cores, so that nothing can become faster: what a step takes on several,
beside one, is the overhead of dividing it. Each number of devices is a process of its own. A step's
time is the difference of two runs of `fit` by the difference of their steps; medians of repeats.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

_HERE = Path(__file__)
_MODELS = ("dense", "convolution")
_SHORT, _LONG, _REPEATS, _BATCH_SIZE = 8, 72, 5, 512


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backends", nargs="+", default=["jax", "tensorflow"])
    parser.add_argument("--devices", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--models", nargs="+", choices=_MODELS, default=_MODELS)
    parser.add_argument("--worker", nargs=2, metavar=("BACKEND", "DEVICES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measured(options.worker[0], int(options.worker[1]), options.models)))
        return
    found = {
        (backend, devices): _in_a_process(backend, devices, options.models)
        for backend in options.backends
        for devices in options.devices
    }
    names = ("plain, ms", "private, ms", "private / plain", "plain / one", "private / one")
    print(f"| backend, model | devices | {' | '.join(names)} |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (backend, devices), times in found.items():
        for model, (plain, private) in times.items():
            first = found[backend, options.devices[0]][model]
            cells = [
                f"{backend}, {model}",
                str(devices),
                f"{plain:.1f}",
                f"{private:.1f}",
                *(
                    f"{each:.2f}"
                    for each in (private / plain, plain / first[0], private / first[1])
                ),
            ]
            print(f"| {' | '.join(cells)} |", flush=True)


def measured(backend: str, devices: int, models: list[str]) -> dict[str, tuple[float, float]]:
    """Milliseconds a step, plain and private, by model.

    Args:
        backend: of Keras.
        devices: virtual devices.
        models: what to train.
    """
    scope = _started(backend, devices)
    import keras
    import numpy as np

    import keras_adaclip as ka

    generator = np.random.default_rng(0)
    x = generator.normal(size=(_LONG * _BATCH_SIZE, 28, 28, 1)).astype("float32")
    y = generator.integers(0, 10, len(x))

    def compiled(kind: str, is_private: bool) -> keras.Model:
        with scope():
            layers = _layers(keras, kind)
            model = keras.Sequential([keras.Input((28, 28, 1)), *layers])
            optimizer = keras.optimizers.SGD(0.1)
            if is_private:
                model = ka.privatize(model)
                optimizer = ka.optimizers.DPOptimizer(optimizer, clipping=1.0, noise_multiplier=1.0)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer=optimizer, loss=loss)
        return model

    def seconds(model: keras.Model, steps: int, **options: str) -> float:
        num_rows = steps * _BATCH_SIZE
        start = time.perf_counter()
        model.fit(x[:num_rows], y[:num_rows], batch_size=_BATCH_SIZE, verbose=0, **options)
        return time.perf_counter() - start

    found = {}
    for kind in models:
        ways = [(compiled(kind, False), {}), (compiled(kind, True), {"sampling": "shuffle"})]
        times: list[list[float]] = [[], []]
        for model, further in ways:
            seconds(model, 2, **further)
        for _ in range(_REPEATS):
            for each, (model, further) in zip(times, ways, strict=True):
                longer = seconds(model, _LONG, **further) - seconds(model, _SHORT, **further)
                each.append(1000.0 * longer / (_LONG - _SHORT))
        found[kind] = tuple(statistics.median(each) for each in times)
    return found


def _layers(keras, kind: str) -> list:
    layers = keras.layers
    if kind == "dense":
        return [layers.Flatten(), layers.Dense(512, activation="relu"), layers.Dense(10)]
    return [
        layers.Conv2D(16, 5, strides=2, activation="relu"),
        layers.Conv2D(32, 3, strides=2, activation="relu"),
        layers.Flatten(),
        layers.Dense(10),
    ]


def _started(backend: str, devices: int):
    """Starts the backend with its devices; returns the scope in which models are made."""
    import contextlib

    os.environ["KERAS_BACKEND"] = backend
    if backend == "jax":
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
        import keras

        if devices > 1:
            distribution = keras.distribution.DataParallel(
                devices=keras.distribution.list_devices()
            )
            keras.distribution.set_distribution(distribution)
        return contextlib.nullcontext
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    configuration = [tf.config.LogicalDeviceConfiguration()] * devices
    tf.config.set_logical_device_configuration(cpu, configuration)
    if devices == 1:
        return contextlib.nullcontext
    return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(devices)]).scope


def _in_a_process(backend: str, devices: int, models: list[str]) -> dict[str, tuple[float, float]]:
    line = [sys.executable, _HERE, "--models", *models, "--worker", backend, str(devices)]
    root = _HERE.resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "TF_CPP_MIN_LOG_LEVEL": "3"}
    output = subprocess.run(
        list(map(str, line)), env=environment, check=True, capture_output=True, text=True
    )
    return json.loads(output.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
