"""Time and memory of a step of a language model, and of a model with a large table.

    python benchmarks/scaling/large_models.py                           # both, every backend
    python benchmarks/scaling/large_models.py --models gpt --backends jax --batch-size 8

*gpt* has 25 million weights: a table of 32,000 tokens by 384, tied to the outputs, 256 learned
positions, seven pre-norm blocks with six heads; rows of 256 tokens, batches of 32. *recommender*
has a table of a million ids by 32 for rows of 20 ids, then `Dense(64)` and `Dense(1)`; batches of
1,024. SGD, float32, norm 1, noise 1.

Each way is a process of its own. Memory is the peak of the process during training beyond what it
held before, weights included. A step's time is the median of the steps after the first two.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY, WIDTH, LENGTH, BLOCKS, HEADS = 32_000, 384, 256, 7, 6
IDS, ID_WIDTH, IDS_PER_ROW = 1_000_000, 32, 20
BATCH_SIZES = {"gpt": 32, "recommender": 1024}
BACKENDS, WAYS = ("jax", "tensorflow", "torch"), ("plain", "private")


def gpt() -> tuple[Any, Any]:
    """Return inputs and logits of the language model."""
    import keras
    from keras import layers, ops

    class Positions(layers.Layer):
        """Adds the embedding of the place of each token."""

        def __init__(self) -> None:
            super().__init__()
            self.table = layers.Embedding(LENGTH, WIDTH)

        def build(self, shape: Any) -> None:
            """Build the table."""
            self.table.build((LENGTH,))

        def call(self, x: Any) -> Any:
            """Return tokens and places."""
            return x + self.table(ops.arange(LENGTH))

    tokens = keras.Input((LENGTH,), dtype="int32")
    embedding = layers.ReversibleEmbedding(VOCABULARY, WIDTH)
    x = Positions()(embedding(tokens))
    for _ in range(BLOCKS):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(y, y, use_causal_mask=True)
        y = layers.Dense(4 * WIDTH, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(WIDTH)(y)
    return tokens, embedding(layers.LayerNormalization()(x), reverse=True)


def recommender() -> tuple[Any, Any]:
    """Return inputs and the logit of the model with a large table."""
    import keras
    from keras import layers

    ids = keras.Input((IDS_PER_ROW,), dtype="int32")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(IDS, ID_WIDTH)(ids))
    return ids, layers.Dense(1)(layers.Dense(64, activation="relu")(x))


def rows_of(model: str, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random inputs and targets."""
    rng = np.random.default_rng(0)
    if model == "gpt":
        text = rng.integers(0, VOCABULARY, (num_rows, LENGTH + 1)).astype("int32")
        return text[:, :-1], text[:, 1:]
    ids = rng.integers(0, IDS, (num_rows, IDS_PER_ROW)).astype("int32")
    return ids, rng.integers(0, 2, (num_rows, 1)).astype("float32")


def measured(name: str, way: str, batch_size: int, num_steps: int) -> dict[str, float]:
    """Return seconds and megabytes of the steps of one way.

    Args:
        name: of the model.
        way: "plain" or "private".
        batch_size: rows a step.
        num_steps: steps, the first two of which do not count.
    """
    import keras

    class Times(keras.callbacks.Callback):
        """Takes the time of each step."""

        def on_train_begin(self, logs: Any = None) -> None:
            """Begin."""
            self.ends = [time.perf_counter()]

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """End a step."""
            self.ends.append(time.perf_counter())

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    inputs, outputs = {"gpt": gpt, "recommender": recommender}[name]()
    model, optimizer, options = keras.Model(inputs, outputs), keras.optimizers.SGD(0.01), {}
    loss: Any = keras.losses.BinaryCrossentropy(from_logits=True)
    if name == "gpt":
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if way == "private":
        import keras_adaclip as ka

        model, options = ka.privatize(model), {"sampling": "shuffle"}
        optimizer = ka.optimizers.DPOptimizer(optimizer, clipping=1.0, noise_multiplier=1.0)
    model.compile(optimizer, loss)
    times = Times()
    x, y = rows_of(name, batch_size * num_steps)
    model.fit(x, y, batch_size=batch_size, verbose=0, callbacks=[times], **options)
    seconds = np.diff(times.ends)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {
        "weights": model.count_params(),
        "first": float(seconds[0]),
        "step": statistics.median(seconds[2:]),
        "peak": peak / 1024,
    }


def main() -> None:
    """Run each way in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=BATCH_SIZES, default=list(BATCH_SIZES))
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--batch-size", type=int, help="default: that of the model")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--worker", nargs=2, metavar=("MODEL", "WAY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, way = options.worker
        print(json.dumps(measured(name, way, options.batch_size, options.steps)))
        return
    print("| model, backend | way | weights | first step, s | step, s | peak, MiB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in options.models:
        size = options.batch_size or BATCH_SIZES[name]
        for backend in options.backends:
            for way in options.ways:
                line = [sys.executable, __file__, "--worker", name, way, "--steps"]
                line += [str(options.steps), "--batch-size", str(size)]
                paths = f"{Path(__file__).parents[2]}:{os.environ.get('PYTHONPATH', '')}"
                environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": paths}
                done = subprocess.run(line, env=environment, capture_output=True, text=True)
                if done.returncode:
                    raise SystemExit(f"{name}, {backend}, {way} failed: {done.stderr[-2000:]}")
                found = json.loads(done.stdout.splitlines()[-1])
                cells = [f"{found['weights']:,}", f"{found['first']:.1f}"]
                cells += [f"{found['step']:.3f}", f"{found['peak']:,.0f}"]
                print(f"| {name}, {backend} | {way} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
