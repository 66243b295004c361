"""Accuracy of the class that a private model serves worst, by clipping strategy.

    KERAS_BACKEND=jax python benchmarks/accuracy/worst_class.py --seeds 3

trains a small convolutional network on Fashion-MNIST to epsilon 3, with all examples and with a
tenth of the coats. The plan is that of `AutoDPOptimizer`; only the clipping strategy differs. The
columns are the accuracy over all classes, of the worst class and of coats, and the last clipping
norm, each the mean over seeds.

Zhao et al. 2025 (arXiv:2506.01396) report that a norm that follows a quantile costs the worst class
ten points, and that a lower bound of the norm prevents this.
"""

import argparse
from typing import Any

import keras
import numpy as np

import keras_adaclip as ka

COAT = 4
Quantile = ka.clipping.QuantileClipping
STRATEGIES: dict[str, Any] = {
    "automatic": lambda: "automatic",
    "PSAC": ka.clipping.PSAC,
    "fixed, norm 1": lambda: 1.0,
    "quantile": Quantile,
    "quantile, at least 0.1": lambda: Quantile(min_clip_norm=0.1),
    "quantile, at least 1": lambda: Quantile(initial_clip_norm=1.0, min_clip_norm=1.0),
    "quantile 0.9": lambda: Quantile(0.9),
    "SlaClip": ka.clipping.SlaClip,
}


def network() -> list[Any]:
    """The network of the first example in the README."""
    return [
        keras.Input((28, 28, 1)),
        keras.layers.Conv2D(16, 5, strides=2, activation="tanh"),
        keras.layers.Conv2D(32, 3, strides=2, activation="tanh"),
        keras.layers.Flatten(),
        keras.layers.Dense(10, activation="softmax"),
    ]


def skewed(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The examples with every tenth coat only."""
    coats = np.flatnonzero(y == COAT)
    kept = np.setdiff1d(np.arange(len(y)), np.delete(coats, np.s_[::10]))
    return x[kept], y[kept]


DATA = {"all": lambda x, y: (x, y), "skewed": skewed}


def accuracies(
    strategy: Any,
    train: tuple[np.ndarray, np.ndarray],
    test: Any,
    seed: int,
    options: argparse.Namespace,
) -> tuple[np.ndarray, float]:
    """The accuracy in each class after a private run, and the last clipping norm."""
    keras.utils.set_random_seed(seed)
    model = ka.privatize(keras.Sequential(network()))
    optimizer = ka.optimizers.AutoDPOptimizer(
        options.epsilon, delta=1e-5, plan={"clipping": strategy}
    )
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(*train, epochs=options.epochs, verbose=0)
    found = np.argmax(model.predict(test[0], batch_size=1000, verbose=0), axis=-1)
    by_class = np.array([np.mean(found[test[1] == label] == label) for label in range(10)])
    return by_class, float(np.ravel(optimizer.clip_norm)[0])


def main() -> None:
    """Train, and print a row for each data set and strategy."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs of each (%(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--epsilon", type=float, default=3.0, help="(%(default)s)")
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    options = parser.parse_args()
    train, test = keras.datasets.fashion_mnist.load_data()
    (x, y), (x_test, y_test) = (
        (images[..., None].astype("float32") / 255.0, labels.astype("int32"))
        for images, labels in (train, test)
    )
    print("| data | clipping | all | worst class | coats | last norm |")
    print("| --- | --- | --- | --- | --- | --- |")
    for data in options.data:
        chosen = DATA[data](x, y)
        for name in options.strategies:
            runs = []
            for seed in range(options.seeds):
                by_class, norm = accuracies(
                    STRATEGIES[name](), chosen, (x_test, y_test), seed, options
                )
                runs.append((by_class.mean(), by_class.min(), by_class[COAT], norm))
            *shares, norm = np.mean(runs, axis=0)
            cells = " | ".join(f"{100 * share:.1f}" for share in shares)
            print(f"| {data} | {name} | {cells} | {norm:.3g} |", flush=True)


if __name__ == "__main__":
    main()
