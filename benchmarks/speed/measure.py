"""Times one model on one backend: plain Keras beside private training, in turns.

    KERAS_BACKEND=jax python benchmarks/speed/measure.py cnn-256 --pin

prints one JSON object. The time of a step is the difference of two calls of `fit` of different
lengths, so that what a call costs once does not count. It is taken in processor seconds on one
pinned core: two threads that wait for each other, or for other programs, make wall time jump.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

WAYS = ("plain", "private", "poisson")
_THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
_ONE_XLA_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", help="a key of `SUITE`")
    add("--ways", nargs="+", choices=WAYS, default=WAYS)
    add("--repeats", type=int, default=5, help="measurements of each way (%(default)s)")
    add("--seconds", type=float, default=3.0, help="of plain training a measurement (%(default)s)")
    add("--steps", type=int, default=60, help="the most steps a measurement (%(default)s)")
    add("--pin", action="store_true", help="one core, one thread, processor time")
    add("--jit", choices=("auto", "yes", "no"), default="auto", help="Keras's `jit_compile`")
    return parser.parse_args()


def pin() -> None:
    """One core and one thread, before a framework is imported."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_ONE_XLA_THREAD}".strip()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The times of every way, and what they were taken with."""
    import keras
    from suite import SUITE

    import keras_adaclip as ka

    benchmark = SUITE[options.model]
    clock = time.process_time if options.pin else time.perf_counter
    if options.pin and keras.backend.backend() == "torch":
        import torch

        torch.set_num_threads(1)

    def model_for(way: str) -> keras.Model:
        optimizer: Any = keras.optimizers.SGD(0.01)
        make: Callable[..., keras.Model] = keras.Model
        if way != "plain":
            make = ka.PrivateModel
            optimizer = ka.optimizers.DPOptimizer(optimizer, clipping=1.0, noise_multiplier=1.0)
        model = make(*benchmark.build())
        model.compile(
            optimizer=optimizer,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            jit_compile={"auto": "auto", "yes": True, "no": False}[options.jit],
        )
        return model

    def seconds(model: keras.Model, way: str, num_steps: int) -> float:
        x, y = benchmark.data(benchmark.batch_size * num_steps)
        sampling = {"private": "shuffle", "poisson": "poisson"}.get(way)
        arguments = {} if sampling is None else {"sampling": sampling}
        start = clock()
        model.fit(x, y, batch_size=benchmark.batch_size, verbose=0, **arguments)
        return clock() - start

    models = {way: model_for(way) for way in options.ways}
    first = {way: seconds(model, way, 2) for way, model in models.items()}
    slowest = max(seconds(model, way, 2) / 2 for way, model in models.items())
    num_steps = max(4, min(options.steps, round(options.seconds / slowest)))
    times: dict[str, list[float]] = {way: [] for way in models}
    for _ in range(options.repeats):
        for way, model in models.items():
            short, long = seconds(model, way, 2), seconds(model, way, 2 + num_steps)
            times[way].append((long - short) / num_steps)
    private = next((model for way, model in models.items() if way != "plain"), None)
    return {
        "model": options.model,
        "title": benchmark.title,
        "batch_size": benchmark.batch_size,
        "backend": keras.backend.backend(),
        "jit": options.jit,
        "clock": "processor, one core" if options.pin else "wall",
        "milliseconds": {way: 1e3 * statistics.median(each) for way, each in times.items()},
        "all_milliseconds": {way: [1e3 * value for value in each] for way, each in times.items()},
        "seconds_of_first_call": first,
        "steps_a_measurement": num_steps,
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "ways": None if private is None else sorted(set(private.gradient_plan.describe().values())),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {
            name: version(name)
            for name in (
                "keras",
                {"tensorflow": "tensorflow", "jax": "jax", "torch": "torch"}[
                    keras.backend.backend()
                ],
            )
        },
    }


if __name__ == "__main__":
    given = parse_options()
    if given.pin:
        pin()
    print(json.dumps(measure(given)))
