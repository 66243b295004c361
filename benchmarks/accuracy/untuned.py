"""Training without tuning beside what people do today, and beside the best of random settings.

    KERAS_BACKEND=jax python benchmarks/accuracy/untuned.py run --data FOLDER
    python benchmarks/accuracy/untuned.py table

`run` makes the runs that are missing in `benchmarks/utility/untuned.csv`; interrupt it at any time,
and start it again to go on. The folder holds `letter_recognition.npz`, `shuttle.npz`,
`mnist_10k.npz` (arrays `x`, `y`), `austen.npz` (novels as bytes), and `adult.data` and `adult.test`
of UCI's Adult; data sets whose file is not there are left out. Fashion-MNIST, digits and breast
cancer come from Keras and scikit-learn. *letter-a*, *letter-h* and *letter-q* tell one letter from
the others, 4% of the rows; *vowels* tells vowels from consonants by 600 rows.

Ways to train the same network to the same epsilon:

- *auto*: `AutoDPOptimizer`, nothing chosen, 20 epochs;
- *habit*: Adam 1e-3, norm 1, batches of 256, 20 epochs;
- *auto-fixed* (norm 1), *auto-psac*, *auto-quantile*, *auto-expected-error*, *auto-slaclip*,
  *auto-adam*: as *auto*, with another way to bound the contributions, or Adam 1e-2 for its step;
- *auto-raw*: as *auto*, without the temperature at the end;
- *oracle*: the best of 60 random settings (optimizer, learning rate, norm, batch, epochs), chosen
  by held-out accuracy, and nothing is paid for that. `untuned_oracle.py` makes these runs many at
  a time on an accelerator.
- *best*: the setting that *oracle* has found, with other seeds and all scores.

Scores of the test rows are accuracy, the area under the ROC curve (of one class against the others,
the mean over the classes), recall (of the rarer class, or the mean over the classes), log loss and
calibration error (15 bins of confidence).

Every way trains on the same 70% of the examples (Fashion-MNIST: 50,000), and 15% each are held out
for choosing and for the accuracy that counts (Fashion-MNIST: 10,000 each). Delta is
`num_examples ** -1.1`. Columns of shuttle and breast cancer are standardized by their own means,
and Adult's categories are those that occur, which epsilon does not cover.
"""

import argparse
import csv
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_ROOT = Path(__file__).resolve().parents[2]
_RESULTS = _ROOT / "benchmarks" / "utility" / "untuned.csv"
_SCORES = ("auc", "recall", "log_loss", "calibration_error")
_FIELDS = ("task", "epsilon", "way", "number", "settings", "held_out", "test", "seconds", "backend")
_FIELDS = (*_FIELDS, *_SCORES)
EPSILONS = (1.0, 3.0, 8.0)
NUM_SETTINGS, EPOCHS = 60, 20
# What each way plans with.
_AUTO: dict[str, Callable[[Any, Any], dict[str, Any]]] = {
    "auto": lambda ka, keras: {},
    "auto-raw": lambda ka, keras: {"plan": {"calibrate": False}},
    "auto-psac": lambda ka, keras: {"plan": {"clipping": ka.clipping.PSAC()}},
    "auto-quantile": lambda ka, keras: {"plan": {"clipping": "quantile"}},
    "auto-expected-error": lambda ka, keras: {
        "plan": {"clipping": ka.clipping.ExpectedErrorClipping()}
    },
    "auto-slaclip": lambda ka, keras: {"plan": {"clipping": ka.clipping.SlaClip()}},
    "auto-fixed": lambda ka, keras: {"plan": {"clipping": 1.0}},
    "auto-adam": lambda ka, keras: {"optimizer": keras.optimizers.Adam(1e-2)},
}
WAYS = (*_AUTO, "habit", "oracle", "best")
_FEWER_EPOCHS = {"fashion-tanh": 10, "fashion-relu": 10, "shuttle": 10, "austen": 10}

_LETTERS = "\n !\"'(),-.0123456789:;?_abcdefghijklmnopqrstuvwxyz"

Arrays = tuple[np.ndarray, np.ndarray]


def _file(name: str) -> Callable[[Path], Arrays]:
    def load(folder: Path) -> Arrays:
        with np.load(folder / f"{name}.npz") as found:
            return found["x"].astype("float32"), found["y"].astype("int32")

    return load


def _letters(folder: Path) -> Arrays:
    x, y = _file("letter_recognition")(folder)
    return (x - 7.5) / 4.0, y  # Features are from 0 to 15.


def _letter(letter: str) -> Callable[[Path], Arrays]:
    """One letter against the others."""

    def load(folder: Path) -> Arrays:
        x, y = _letters(folder)
        return x, (y == ord(letter) - ord("a")).astype("int32")

    return load


def _vowels(folder: Path) -> Arrays:
    x, y = _letters(folder)
    rows = np.random.default_rng(5).permutation(len(x))[:600]
    return x[rows], np.isin(y[rows], [ord(each) - ord("a") for each in "aeiou"]).astype("int32")


def _adult(folder: Path) -> Arrays:
    """Numbers over public bounds, and one column for each category."""
    import pandas as pd

    names = "age workclass weight education years marital occupation relationship race sex gain"
    names += " loss hours country income"
    parts = [
        pd.read_csv(folder / file, names=names.split(), skipinitialspace=True, skiprows=skipped)
        for file, skipped in (("adult.data", 0), ("adult.test", 1))
    ]
    rows = pd.concat(parts)
    logs = (np.log1p(rows.gain) / 12, np.log1p(rows.loss) / 8)
    numbers = np.stack([rows.age / 90, rows.years / 16, *logs, rows.hours / 99], axis=1)
    kinds = ("workclass", "marital", "occupation", "relationship", "race", "sex")
    columns = [pd.get_dummies(rows[kind]).to_numpy() for kind in kinds]
    y = rows.income.str.startswith(">50K").to_numpy().astype("int32")
    return np.concatenate([numbers, *columns], axis=1).astype("float32"), y


def _shuttle(folder: Path) -> Arrays:
    x, y = _file("shuttle")(folder)
    return np.clip(_standardized(x), -5.0, 5.0), y - y.min()


def _mnist(folder: Path) -> Arrays:
    x, y = _file("mnist_10k")(folder)
    return x[..., None] / 255.0, y


def _fashion(folder: Path) -> Arrays:
    import keras

    (x, y), (x_test, y_test) = keras.datasets.fashion_mnist.load_data()
    images = np.concatenate([x, x_test])[..., None].astype("float32") / 255.0
    return images, np.concatenate([y, y_test]).astype("int32")


def _digits(folder: Path) -> Arrays:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return x.astype("float32") / 16.0, y.astype("int32")


def _cancer(folder: Path) -> Arrays:
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return _standardized(x).astype("float32"), y.astype("int32")


def _novels(folder: Path) -> Arrays:
    """Pieces of 65 characters: 64 of them and the next ones."""
    codes = np.zeros(256, "int32")
    for code in range(256):
        codes[code] = max(_LETTERS.find(chr(code).lower()), 0)
    with np.load(folder / "austen.npz") as found:
        text = np.concatenate([codes[found[name]] for name in sorted(found.files)])
    pieces = text[: len(text) // 65 * 65].reshape(-1, 65)
    return pieces[:, :-1], pieces[:, 1:]


def _standardized(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-6)


def _mlp(num_features: int, num_classes: int, hidden: tuple[int, ...] = (64, 64)) -> Any:
    import keras

    layers = [keras.layers.Dense(units, activation="relu") for units in hidden]
    return [keras.Input((num_features,)), *layers, keras.layers.Dense(num_classes)]


def _cnn(activation: str) -> Any:
    """The network of table B1 of Lin et al. 2022."""
    import keras

    sys.path.insert(0, str(_ROOT))
    from benchmarks.accuracy.networks import table_b1

    return [keras.Input((28, 28, 1)), *table_b1(lambda: activation)]


def _gru() -> Any:
    import keras

    layers = keras.layers
    recurrent = [layers.Embedding(len(_LETTERS), 16), layers.GRU(64, return_sequences=True)]
    return [keras.Input((64,), dtype="int32"), *recurrent, layers.Dense(len(_LETTERS))]


TASKS: dict[str, tuple[Callable[[Path], Arrays], Callable[[], Any]]] = {
    "letters": (_letters, lambda: _mlp(16, 26)),
    "digits": (_digits, lambda: _mlp(64, 10)),
    "cancer": (_cancer, lambda: _mlp(30, 2, (32,))),
    "shuttle": (_shuttle, lambda: _mlp(9, 7)),
    "mnist-10k": (_mnist, lambda: _cnn("relu")),
    "fashion-tanh": (_fashion, lambda: _cnn("tanh")),
    "fashion-relu": (_fashion, lambda: _cnn("relu")),
    "austen": (_novels, _gru),
    "adult": (_adult, lambda: _mlp(49, 2, (32,))),
    **{f"letter-{each}": (_letter(each), lambda: _mlp(16, 2)) for each in "ahq"},
    "vowels": (_vowels, lambda: _mlp(16, 2, (32,))),
}


def random_setting(number: int, num_examples: int, epochs: int) -> dict[str, Any]:
    """One setting of the oracle."""
    rng = np.random.default_rng(number)
    optimizer = ("sgd", "adam")[rng.integers(2)]
    low, high = {"sgd": (0.03, 10.0), "adam": (3e-4, 1e-1)}[optimizer]
    sizes = [size for size in (64, 128, 256, 512, 1024, 2048, 4096) if size <= num_examples]
    return {
        "optimizer": optimizer,
        "learning_rate": float(f"{np.exp(rng.uniform(np.log(low), np.log(high))):.3g}"),
        "clip_norm": float(f"{np.exp(rng.uniform(np.log(0.05), np.log(3.0))):.3g}"),
        "batch_size": int(rng.choice(sizes)),
        "epochs": int(rng.choice([epochs // 2, epochs, 2 * epochs])),
    }


def split(x: np.ndarray, y: np.ndarray) -> list[Arrays]:
    """Examples to train on, to choose by, and to test on."""
    order = np.random.default_rng(0).permutation(len(x))
    ends = (50_000, 60_000) if len(x) == 70_000 else (int(0.7 * len(x)), int(0.85 * len(x)))
    return [(x[part], y[part]) for part in np.split(order, ends)]


def scores(logits: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Scores of predictions besides their accuracy."""
    from sklearn.metrics import log_loss, recall_score, roc_auc_score

    logits = logits.astype("float64")
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    guess, confidence, classes = shares.argmax(axis=1), shares.max(axis=1), range(shares.shape[1])
    is_binary = len(classes) == 2
    bins = np.minimum((15 * confidence).astype(int), 14)
    gaps = [
        (bins == each).mean()
        * abs((guess == y)[bins == each].mean() - confidence[bins == each].mean())
        for each in np.unique(bins)
    ]
    present = sorted(set(y.tolist()))
    aucs = [
        roc_auc_score(y == each, shares[:, each])
        for each in (present[1:] if is_binary else present)
    ]
    rarer = int(y.mean() < 0.5)
    recall = (
        recall_score(y == rarer, guess == rarer)
        if is_binary
        else recall_score(y, guess, average="macro")
    )
    found = (np.mean(aucs), recall, log_loss(y, shares, labels=classes), sum(gaps))
    return {name: round(float(each), 4) for name, each in zip(_SCORES, found, strict=True)}


def best_setting(path: Path, task: str, epsilon: float, num_settings: int) -> dict[str, Any]:
    """The setting of the oracle with the best held-out accuracy, among the first so many."""
    rows = [
        row
        for row in read(path)
        if (row["task"], float(row["epsilon"]), row["way"]) == (task, epsilon, "oracle")
        and int(row["number"]) < num_settings
    ]
    best = max(rows, key=lambda row: (float(row["held_out"]), float(row["test"])))
    found: dict[str, Any] = json.loads(best["settings"])
    return found


def train(
    task: str,
    parts: list[Arrays],
    epsilon: float,
    way: str,
    number: int,
    best: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Make one run, and return its row."""
    import keras

    import keras_adaclip as ka

    (x, y), *others = parts
    epochs = _FEWER_EPOCHS.get(task, EPOCHS)
    keras.utils.set_random_seed(number)
    settings: dict[str, Any] = {"epochs": epochs}
    batch_size = None
    if way in _AUTO:
        optimizer: Any = ka.optimizers.AutoDPOptimizer(epsilon, **_AUTO[way](ka, keras))
    else:
        settings = {"optimizer": "adam", "learning_rate": 1e-3, "clip_norm": 1.0}
        settings |= {"batch_size": min(256, len(x)), "epochs": epochs}
        if way == "oracle":
            settings = random_setting(number, len(x), epochs)
        settings = best or settings
        noise = ka.accounting.calibrate_noise_multiplier(
            epsilon, len(x) ** -1.1, len(x), settings["batch_size"], epochs=settings["epochs"]
        )
        inner: Any = keras.optimizers.Adam(settings["learning_rate"])
        if settings["optimizer"] == "sgd":
            inner = keras.optimizers.SGD(settings["learning_rate"], momentum=0.9)
        batch_size = settings["batch_size"]
        clip_norm = settings["clip_norm"]
        optimizer = ka.optimizers.DPOptimizer(inner, clip_norm, noise_multiplier=noise)
    model = ka.PrivateSequential(TASKS[task][1]())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    began = time.perf_counter()
    model.fit(x, y, batch_size=batch_size, epochs=settings["epochs"], verbose=0)
    seconds = time.perf_counter() - began
    spent = model.privacy_spent(len(x) ** -1.1).epsilon
    if not spent <= epsilon:
        raise RuntimeError(f"{task}: epsilon {spent} is above {epsilon}")
    accuracies = [model.evaluate(*each, batch_size=1000, verbose=0)[1] for each in others]
    x_test, y_test = others[-1]
    logits = model.predict(x_test, batch_size=1000, verbose=0)
    keras.utils.clear_session(free_memory=True)
    return {
        "task": task,
        "epsilon": epsilon,
        "way": way,
        "number": number,
        "settings": json.dumps(settings),
        "held_out": round(100 * accuracies[0], 2),
        "test": round(100 * accuracies[1], 2),
        "seconds": round(seconds, 1),
        "backend": keras.backend.backend(),
        **(scores(logits, y_test) if logits.ndim == 2 else {}),
    }


def read(path: Path) -> list[dict[str, str]]:
    """The rows of the results."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def run(options: argparse.Namespace) -> None:
    """Make the runs that are missing."""
    keys = ("task", "epsilon", "way", "number")
    done = {tuple(row[key] for key in keys) for row in read(options.output)}
    for task in options.tasks:
        try:
            parts = split(*TASKS[task][0](options.data))
        except FileNotFoundError as error:
            print(f"{task} is left out: {error}")
            continue
        for way in options.ways:
            for epsilon in options.epsilons:
                for number in range(options.settings if way == "oracle" else options.seeds):
                    if (task, str(epsilon), way, str(number)) in done:
                        continue
                    best = None
                    if way == "best":
                        best = best_setting(options.output, task, epsilon, options.settings)
                    row = train(task, parts, epsilon, way, number, best)
                    is_new = not options.output.exists()
                    with options.output.open("a", newline="") as file:
                        writer = csv.DictWriter(file, _FIELDS, lineterminator="\n")
                        if is_new:
                            writer.writeheader()
                        writer.writerow(row)
                    print(*row.values(), flush=True)


def table(options: argparse.Namespace) -> None:
    """Print the mean test accuracy of each way and the oracle's, and the least of *auto*."""
    found: dict[tuple[str, float], dict[str, list[tuple[float, float]]]] = {}
    for row in read(options.output):
        ways = found.setdefault((row["task"], float(row["epsilon"])), defaultdict(list))
        ways[row["way"]].append((float(row["held_out"]), float(row["test"])))
    shown = [way for way in options.ways if any(way in ways for ways in found.values())]
    print(f"| data, network | epsilon | {' | '.join(shown)} | least of auto |")
    print("| --- " * (3 + len(shown)) + "|")
    distances: dict[str, list[float]] = defaultdict(list)
    for (task, epsilon), ways in sorted(found.items(), key=lambda each: str(each[0])):
        values = {way: statistics.mean(t for _, t in scores) for way, scores in ways.items()}
        if "oracle" in ways:
            values["oracle"] = max(ways["oracle"])[1]
        cells = [f"{values[way]:.1f} ({len(ways[way])})" if way in values else "" for way in shown]
        least = min((test for _, test in ways.get("auto", ())), default=float("nan"))
        print(f"| {task} | {epsilon:g} | {' | '.join(cells)} | {least:.1f} |")
        plan = values.get("auto", values.get("auto-raw"))
        for way in set(values) - {"auto", "auto-raw"} if plan is not None else ():
            distances[way].append(plan - values[way])
    for way in shown:
        if way in distances:
            mean, worst = statistics.mean(distances[way]), min(distances[way])
            print(
                f"\nauto - {way}: {mean:+.2f}, least {worst:+.1f} ({len(distances[way])} pairs)",
                end="",
            )
    print()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("command", choices=("run", "table"))
    add("--data", type=Path, default=Path("."), help="folder of the .npz files")
    add("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    add("--ways", nargs="+", choices=WAYS, default=["auto", "habit", "oracle"])
    add("--settings", type=int, default=NUM_SETTINGS, help="of the oracle (%(default)s)")
    add("--epsilons", type=float, nargs="+", default=EPSILONS)
    add("--seeds", type=int, default=3, help="of every other way (%(default)s)")
    add("--output", type=Path, default=_RESULTS)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    {"run": run, "table": table}[options.command](options)


if __name__ == "__main__":
    main()
