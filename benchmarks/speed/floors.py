"""What the parts of a private step that a plain one lacks take at the least.

    KERAS_BACKEND=torch python benchmarks/speed/floors.py

For each model: the noise (one number for each parameter, at the backend's own speed), the
per-example products (written once, read twice, at the speed of memory), and Gram matrices (at the
speed of matrix products). The floor is the plain step of `all_cores.json` and these three; the last
column is the measured private step. Prints Markdown.
"""

import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops
from suite import SUITE, Benchmark

import keras_adaclip as ka
from keras_adaclip import backend, noise

_MEASURED = Path(__file__).parent / "all_cores.json"
# More numbers than a cache holds.
_SIDE, _NUMBERS, _REPETITIONS = 2048, 1 << 26, 8


def seconds(run: Callable[[], Any]) -> float:
    """The median time of a call after the first."""
    times = []
    for _ in range(8):
        began = time.perf_counter()
        backend.array_of(ops.ravel(run())[:1])
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as the backend's steps run it."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function)
    return function


def _add_repeatedly(numbers: Any) -> Any:
    """Read and write the numbers again and again, in memory that is there already."""

    def body(_: Any, numbers: Any) -> Any:
        numbers += 1.0  # In place on PyTorch too.
        return numbers

    return ops.fori_loop(0, _REPETITIONS, body, numbers)


def rates() -> tuple[float, float, float]:
    """Noise in numbers a second, memory in bytes a second, products in operations a second."""
    num_drawn = 1 << 22
    zeros = ops.zeros((num_drawn,))
    key = ops.convert_to_tensor(np.array([1, 2], "int32"))
    draw = compiled(lambda: noise.add_noise([zeros], [1.0], key, ops.convert_to_tensor(0), 1)[0])
    long, square = ops.ones((_NUMBERS,)), ops.ones((_SIDE, _SIDE))
    add, multiply = compiled(_add_repeatedly), compiled(ops.matmul)
    return (
        num_drawn / seconds(draw),
        2 * 4 * _NUMBERS * _REPETITIONS / seconds(lambda: add(long)),
        2 * _SIDE**3 / seconds(lambda: multiply(square, square)),
    )


def extra_work(benchmark: Benchmark) -> tuple[int, int, int]:
    """Numbers of noise, numbers of per-example products and Gram operations of a step."""
    model = ka.PrivateModel(*benchmark.build(keras))
    check = ka.check(model)
    written = operations = 0
    layers = {layer.name: layer for layer in model._flatten_layers()}
    for report in check.ways:
        layer = layers[report.layer]
        if report.norms == "written out":
            written += (report.bytes_per_example or 0) // 4
        elif report.norms == "Gram matrices":
            # Parts of attention have no shape of their own; they run once for each token.
            shape = (
                layer.output.shape if hasattr(layer, "output") else (None, *model.inputs[0].shape)
            )
            kernel = layer.trainable_weights[0].shape
            widths = math.prod(kernel[:-1]) + kernel[-1]
            operations += 2 * math.prod(shape[1:-1]) ** 2 * widths
    rows = benchmark.batch_size
    return benchmark.num_trainable, rows * written, rows * operations


def main() -> None:
    """Prints the table of one backend."""
    name = keras.backend.backend()
    times: dict[str, dict[str, float]] = {}
    for record in json.loads(_MEASURED.read_text())["records"]:
        if record["framework"] == name and "times" in record:
            times[record["model"]] = {
                way: statistics.median(found["milliseconds"])
                for way, found in record["times"].items()
                if found.get("milliseconds")
            }
    drawn, moved, multiplied = rates()
    print(
        f"{name}: {drawn / 1e6:,.0f} million numbers of noise, {moved / 1e9:.1f} GB and "
        f"{multiplied / 1e9:,.0f} billion operations a second\n"
    )
    print("| model, batch | plain, ms | noise | products | Gram | floor | private |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for model, benchmark in SUITE.items():
        numbers, written, operations = extra_work(benchmark)
        parts = (numbers / drawn, 12 * written / moved, operations / multiplied)
        plain, private = times[model]["plain"], times[model]["shuffle"]
        floor = plain + 1e3 * sum(parts)
        cells = [f"{1e3 * part:.1f}" for part in parts]
        print(
            f"| {benchmark.title} | {plain:.0f} | {' | '.join(cells)} | {floor / plain:.2f} | "
            f"{private / plain:.2f} |"
        )


if __name__ == "__main__":
    main()
