"""Fine-tuning weights that were trained on other data, beside training from scratch.

    KERAS_BACKEND=jax python benchmarks/accuracy/pretrained.py --data FOLDER
    KERAS_BACKEND=jax python benchmarks/accuracy/pretrained.py --data FOLDER --tasks gpt --ways plan

The folder holds the files of `untuned.py`, and `shakespeare.txt`. Each line that is printed has a
task, a way, the accuracy in percent on held-out rows, and seconds. Ways, all but *plain* at epsilon
3 (`--epsilon`):

- *scratch*: `AutoDPOptimizer`, weights that begin at random;
- *plan*: `AutoDPOptimizer`, pretrained weights;
- *pretrained*: `AutoDPOptimizer(pretrained=True)`, pretrained weights; *pretrained-0.3* and other
  numbers take that share of the size of the weights;
- *plain*: pretrained weights and Adam 1e-3 without privacy.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import untuned
from keras import layers

import keras_adaclip as ka
from keras_adaclip.optimizers import planned_momentum

Arrays = tuple[np.ndarray, np.ndarray]
WAYS = ("scratch", "plan", "pretrained", "plain")
SHARE_OF_SIZE = planned_momentum._SHARE_OF_SIZE


def some(arrays: Arrays, number: int) -> Arrays:
    """Return random rows."""
    rows = np.random.default_rng(1).permutation(len(arrays[0]))[:number]
    return arrays[0][rows], arrays[1][rows]


def letters(folder: Path, first: int) -> Arrays:
    """Return the rows of thirteen letters."""
    x, y = untuned._letters(folder)
    rows = (y >= first) & (y < first + 13)
    return x[rows], (y[rows] - first).astype("int32")


def shakespeare(folder: Path) -> Arrays:
    """Return pieces of 64 characters, and the characters that follow."""
    text = (folder / "shakespeare.txt").read_text(encoding="utf-8").lower()
    codes = np.array([max(untuned._LETTERS.find(each), 0) for each in text], np.int32)
    pieces = codes[: len(codes) // 65 * 65].reshape(-1, 65)
    return pieces[:, :-1], pieces[:, 1:]


@keras.saving.register_keras_serializable("benchmarks")
class Positions(layers.Layer):
    """Adds a learned vector for each position."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        """Create the vectors."""
        normal = keras.initializers.RandomNormal(stddev=0.02)
        self.table = self.add_weight(shape=shape[1:], initializer=normal, name="table")

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Return the sums."""
        return x + self.table


def gpt(width: int = 64, num_blocks: int = 2, length: int = 64) -> keras.Model:
    """Return a small GPT of characters."""
    ids = keras.Input((length,), dtype="int32")
    x = Positions()(layers.Embedding(len(untuned._LETTERS), width)(ids))
    for _ in range(num_blocks):
        attended = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(4, width // 4)
        x = x + attention(attended, attended, use_causal_mask=True)
        hidden = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(width)(hidden)
    return keras.Model(ids, layers.Dense(len(untuned._LETTERS))(layers.LayerNormalization()(x)))


@dataclass(frozen=True)
class Task:
    """Data to train on first, data to fine-tune on, and a network.

    Args:
        make: Makes the network.
        public: Reads what it is trained on first.
        private: Reads what it is fine-tuned on.
        public_epochs: Passes over the former.
        epochs: Passes over the latter.
        has_new_layer: Whether the last layer begins anew.
        rank: Of LoRA; None trains all weights.
    """

    make: Callable[[], keras.Model]
    public: Callable[[Path], Arrays]
    private: Callable[[Path], Arrays]
    public_epochs: int
    epochs: int = 10
    has_new_layer: bool = False
    rank: int | None = None


def austen(folder: Path) -> Arrays:
    """Return 12,000 pieces of novels."""
    return some(untuned._novels(folder), 12_000)


def cnn() -> keras.Model:
    """Return a network for grey images."""
    return keras.Sequential(untuned._cnn("relu"))


def mlp() -> keras.Model:
    """Return a network for thirteen letters."""
    return keras.Sequential(untuned._mlp(16, 13))


TASKS = {
    "letters": Task(mlp, lambda at: letters(at, 0), lambda at: letters(at, 13), 30, 20, True),
    "images": Task(cnn, untuned._fashion, untuned._mnist, 4, has_new_layer=True),
    "gru": Task(lambda: keras.Sequential(untuned._gru()), shakespeare, austen, 12),
    "gpt": Task(gpt, shakespeare, austen, 12),
    "gpt-lora": Task(gpt, shakespeare, austen, 12, rank=4),
}


def trained(model: keras.Model, optimizer: keras.Optimizer, rows: Arrays, **options: int) -> None:
    """Train a model."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    model.fit(*rows, verbose=0, **options)


def pretrained_model(task: Task, folder: Path) -> keras.Model:
    """Return the network as it is before fine-tuning."""
    model = task.make()
    adam = keras.optimizers.Adam(2e-3)
    trained(model, adam, task.public(folder), batch_size=128, epochs=task.public_epochs)
    if task.has_new_layer:
        last = model.layers[-1]
        last.kernel.assign(last.kernel_initializer(last.kernel.shape))
        last.bias.assign(np.zeros(last.bias.shape))
    if task.rank is not None:
        for layer in model._flatten_layers():
            if isinstance(layer, (layers.Dense, layers.EinsumDense)):
                layer.enable_lora(task.rank)
            elif not layer._layers:
                layer.trainable = False
    return model


def measured(task: Task, way: str, model: keras.Model, rows: list[Arrays], epsilon: float) -> float:
    """Return the accuracy on held-out rows, in percent."""
    name, _, share = way.partition("-")
    options: dict[str, int] = {"epochs": task.epochs}
    optimizer: keras.Optimizer = keras.optimizers.Adam(1e-3)
    if name == "plain":
        options["batch_size"] = 128
    else:
        planned_momentum._SHARE_OF_SIZE = float(share or SHARE_OF_SIZE)
        is_pretrained = name == "pretrained"
        plan = {"calibrate": False}  # Changes no prediction.
        optimizer = ka.optimizers.AutoDPOptimizer(epsilon, plan=plan, pretrained=is_pretrained)
        model = ka.privatize(model)
    trained(model, optimizer, rows[0], **options)
    return 100 * model.evaluate(*rows[2], batch_size=1000, verbose=0, return_dict=True)["accuracy"]


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--ways", nargs="+", default=WAYS)
    parser.add_argument("--epsilon", type=float, default=3.0)
    options = parser.parse_args()
    for name in options.tasks:
        task = TASKS[name]
        rows = untuned.split(*task.private(options.data))
        for way in options.ways:
            keras.utils.set_random_seed(0)
            started = time.perf_counter()
            model = task.make() if way == "scratch" else pretrained_model(task, options.data)
            accuracy = measured(task, way, model, rows, options.epsilon)
            print(f"{name} {way} {accuracy:.2f} {time.perf_counter() - started:.0f}", flush=True)


if __name__ == "__main__":
    main()
