"""A small GPT, trained privately from scratch: bits per character of Shakespeare or Austen.

The model writes one character after another. It is trained at epsilon 1, 3 and 8, and without
privacy, and the script compares how many bits each needs for a character of held-out text.

    python examples/language_model.py --plot language_model.png
    python examples/language_model.py --data FOLDER_OF_NOVELS

**What is protected**: one row, a piece of 256 characters. A play, a novel or an author is not: it
gives hundreds of rows, and what they share is learned. For texts by many people, give `fit` the
writer of each row (`unit_ids`), and epsilon is the writer's.

**Expected**: after 12 passes over Shakespeare, 3.46 bits at epsilon 1, 3.26 at 3, 3.17 at 8, and
2.52 without privacy; guessing by the frequency of characters needs 4.8. One seed each, 5 to 7
minutes a run on JAX and two cores.

**Data**: Keras downloads 1.1 million characters of Shakespeare; `--data` takes a text file, or a
folder of `.txt` files, of your own. `--smoke` runs seconds on made-up text.
"""

import argparse
import csv
import math
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

import keras_adaclip as ka
from data import load_texts
from imdb import SinePositions

"""
## Rows

The alphabet is public: the printable characters of ASCII and the end of a line. One that is made of
the text gives away that somebody used a rare character, and no epsilon covers it. Number 0 begins a
row and fills up the last one; the loss leaves the filling out.

The last tenth of each file is held out, and taken to be public. Each row is read on its own, so
that its first characters are guessed with little to go by.
"""

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
NUM_IDS, LENGTH, PADDING = len(ALPHABET) + 1, 256, 0
Rows = tuple[np.ndarray, np.ndarray]


def rows_of(text: str, length: int) -> Rows:
    """Inputs and targets of shape `(num_rows, length)`; each input is the target before it."""
    numbers = {character: number for number, character in enumerate(ALPHABET, 1)}
    ids = np.array([numbers.get(character, numbers["?"]) for character in text], np.int32)
    targets = np.pad(ids, (0, -len(ids) % length), constant_values=PADDING).reshape(-1, length)
    return np.pad(targets, ((0, 0), (1, 0)), constant_values=PADDING)[:, :-1], targets


def load(options: argparse.Namespace) -> tuple[Rows, Rows]:
    """Rows to train on, and held-out rows."""
    if options.smoke:
        words = np.random.default_rng(0).choice(__doc__.split(), 2_000)
        texts = {"made-up text": " ".join(words)}
    else:
        texts = load_texts(options.data)
    print(f"{', '.join(texts)}: {sum(map(len, texts.values())):,} characters")
    length = 32 if options.smoke else LENGTH
    sides = list(zip(*(rows_of(text, length) for text in texts.values()), strict=True))
    train = tuple(np.concatenate([x[: len(x) * 9 // 10] for x in side]) for side in sides)
    held_out = tuple(np.concatenate([x[len(x) * 9 // 10 :] for x in side]) for side in sides)
    return train, held_out


"""
## The network

Blocks of causal attention and a hidden layer, with normalization before each. The embedding of the
characters is also the last layer, and the positions are sines: noise goes to every weight, so few
are better. A convolution shows the network the last characters, where attention alone would first
have to learn to look.
"""


def build_gpt(num_ids: int, length: int, width: int, num_blocks: int = 1) -> keras.Model:
    """A language model: ids of shape `(batch_size, length)` to the logits of the next ones."""
    ids = keras.Input((length,), dtype="int32")
    first = keras.initializers.RandomNormal(stddev=width**-0.5)
    embedding = layers.ReversibleEmbedding(num_ids, width, embeddings_initializer=first)
    # As large as the positions; logits begin with a variance of one.
    x = SinePositions()(layers.Rescaling(width**0.5)(embedding(ids)))
    x = layers.Add()([x, layers.Conv1D(width, 4, padding="causal")(x)])
    for _ in range(num_blocks):
        attended = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(2, width // 2)
        x = layers.Add()([x, attention(attended, attended, use_causal_mask=True)])
        hidden = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(width)(hidden)])
    x = layers.LayerNormalization(name="hidden_states")(x)
    return keras.Model(ids, embedding(x, reverse=True), name="small_gpt")


"""
## Training

`AutoDPOptimizer` plans noise, batch size and step for the budget. Without privacy it is Adam.
"""


def train(model: Any, epsilon: float, rows: Rows, held_out: Rows, options: Any) -> list[list]:
    """Train, and return a row for each epoch: target, epoch, epsilon so far, bits per character."""
    optimizer, size = keras.optimizers.Adam(options.learning_rate), 32
    if math.isfinite(epsilon):
        optimizer, size = ka.optimizers.AutoDPOptimizer(epsilon, options.delta), None
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=PADDING)
    model.compile(optimizer, loss)
    started = time.perf_counter()
    logs = model.fit(*rows, size, options.epochs, 2, validation_data=held_out).history
    print(f"{time.perf_counter() - started:.0f} s of training")
    spent = logs.get("epsilon", [math.inf] * options.epochs)
    bits = np.array(logs["val_loss"]) / math.log(2.0)
    return [[epsilon, i + 1, spent[i], float(bits[i])] for i in range(options.epochs)]


def write_text(model: Any, num_characters: int, temperature: float = 0.8) -> str:
    """Text that the model continues character by character, from the beginning of a row."""
    length, rng, written = model.input_shape[1], np.random.default_rng(), []
    for _ in range(num_characters):
        recent = [PADDING, *written[1 - length :]]
        row = np.pad(recent, (0, length - len(recent)), constant_values=PADDING)[None]
        logits = keras.ops.convert_to_numpy(model.predict_on_batch(row))
        scores = logits[0, len(recent) - 1, 1:].astype("float64") / temperature
        chances = np.exp(scores - scores.max())
        written.append(1 + rng.choice(len(ALPHABET), p=chances / chances.sum()))
    return "".join(ALPHABET[number - 1] for number in written)


def draw(curves: dict[str, list], path: Path) -> None:
    """Bits per character by epoch, one curve for each epsilon."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(layout="constrained")
    for name, bits in curves.items():
        axes.plot(range(1, len(bits) + 1), bits, marker="o", ms=3, label=name)
    axes.set(xlabel="epoch", ylabel="bits per held-out character")
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Load, train at each epsilon, and report."""
    options = parse_options()
    try:
        rows, held_out = load(options)
    except FileNotFoundError as error:
        sys.exit(f"{error}\n`--smoke` runs without it, on made-up text.")
    print(f"{len(rows[0]):,} + {len(held_out[0]):,} rows of {rows[0].shape[1]} characters")
    table, curves = [["target", "epoch", "epsilon", "bits"]], {}
    for epsilon in options.epsilons:
        keras.utils.set_random_seed(options.seed)
        model = build_gpt(NUM_IDS, rows[0].shape[1], width=8 if options.smoke else 64)
        name = "without privacy"
        if math.isfinite(epsilon):
            model, name = ka.privatize(model), f"epsilon {epsilon:g}"
        print(f"\n# {name}: {model.count_params():,} weights")
        table += train(model, epsilon, rows, held_out, options)
        curves[name] = [row[-1] for row in table if row[0] == epsilon]
        print(write_text(model, 40 if options.smoke else 400))
        if math.isfinite(epsilon):
            print(model.privacy_spent(options.delta))
        # After each run, so that an interrupted one leaves those before it.
        with options.csv.open("w", newline="") as file:
            csv.writer(file).writerows(table)
        if options.plot is not None:
            draw(curves, options.plot)
    for name, bits in curves.items():
        print(f"{name}: {bits[-1]:.3f} bits per held-out character")


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add, usual = parser.add_argument, [1.0, 3.0, 8.0, math.inf]
    add("--data", type=Path, help="a text file, or a folder of .txt files")
    words = "privacy budgets, `inf` without privacy (1 3 8 inf)"
    add("--epsilons", "--epsilon", type=float, nargs="+", default=usual, help=words)
    add("--delta", type=float, default=1e-5, help="of the budgets (%(default)s)")
    add("--epochs", type=int, help="passes over the text (12)")
    add("--learning-rate", type=float, default=2e-3, help="without privacy (%(default)s)")
    add("--seed", type=int, default=1, help="of initial weights, never of noise (%(default)s)")
    add("--csv", type=Path, default=Path("language_model.csv"), help="bits by epoch (%(default)s)")
    add("--plot", type=Path, help="draws the curves to this file")
    add("--smoke", action="store_true", help="a few steps on made-up text")
    options = parser.parse_args()
    options.epochs = options.epochs or (2 if options.smoke else 12)
    return options


if __name__ == "__main__":
    main()
