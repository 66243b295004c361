"""The command line, the search and its price, for both searches."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import keras_tuner

import keras_adaclip as ka
from keras_adaclip.tuners import ClippingHyperModel

# `data` and `fashion_mnist` are in the folder above.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from data import LabelledData, load_fashion_mnist
from fashion_mnist import build_model

_TUNERS = {"random": keras_tuner.RandomSearch, "bayesian": keras_tuner.BayesianOptimization}


def parse_options(description: str) -> argparse.Namespace:
    """The command line, the same for both searches."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--epsilon", type=float, default=2.7, help="budget of one trial (%(default)s)"
    )
    parser.add_argument("--delta", type=float, default=1e-5, help="its delta (%(default)s)")
    parser.add_argument("--trials", type=int, default=10, help="(%(default)s)")
    parser.add_argument("--tuner", choices=tuple(_TUNERS), default="random", help="(%(default)s)")
    parser.add_argument("--epochs", type=int, default=8, help="of each trial (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=1024, help="expected (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.2, help="(%(default)s)")
    parser.add_argument("--momentum", type=float, default=0.9, help="(%(default)s)")
    parser.add_argument("--seed", type=int, help="of the search; noise is never seeded")
    parser.add_argument(
        "--output", type=Path, default=Path("tuning"), help="folder of the trials (%(default)s)"
    )
    parser.add_argument(
        "--tensorboard", type=Path, help="folder for TensorBoard; HParams with TensorFlow"
    )
    parser.add_argument("--verbose", type=int, default=2, help="as in `fit` (%(default)s)")
    parser.add_argument("--smoke", action="store_true", help="two short trials on a little data")
    options = parser.parse_args()
    if options.smoke:
        options.trials, options.epochs, options.batch_size = 2, 2, 64
    return options


def search(
    options: argparse.Namespace, name: str, strategy: str, ranges: dict[str, tuple[float, float]]
) -> None:
    """Search over the `ranges` of one clipping strategy, and report.

    Args:
        options: the command line.
        name: of the project, a folder in `options.output`.
        strategy: as of `clipping_choices`.
        ranges: as of `clipping_choices`.
    """
    data = load_fashion_mnist()
    if options.smoke:
        data = data.first(768, 256)
    print(f"Data: {data.source}; backend: {keras.backend.backend()}")
    holdout = len(data.x_train) // 6
    x, y = data.x_train[:-holdout], data.y_train[:-holdout]
    hypermodel = ClippingHyperModel(
        build_model,
        num_examples=len(x),
        epochs=options.epochs,
        target_epsilon=options.epsilon,
        delta=options.delta,
        batch_sizes=[options.batch_size],
        learning_rates=[options.learning_rate],
        strategies=[strategy],
        ranges=ranges,
        optimizer=keras.optimizers.SGD(momentum=options.momentum),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    tuner = _TUNERS[options.tuner](
        hypermodel,
        objective="val_accuracy",
        max_trials=options.trials,
        seed=options.seed,
        directory=options.output,
        project_name=name,
    )
    callbacks: list[keras.callbacks.Callback] = [
        ka.callbacks.PrivacyCallback(delta=options.delta),
        ka.callbacks.ClippingMonitor(),
    ]
    if options.tensorboard is not None:
        callbacks.append(keras.callbacks.TensorBoard(options.tensorboard))
    tuner.search(
        x,
        y,
        validation_data=(data.x_train[-holdout:], data.y_train[-holdout:]),
        callbacks=callbacks,
        verbose=options.verbose,
    )
    _report(tuner, hypermodel, data, options)


def _report(
    tuner: Any, hypermodel: ClippingHyperModel, data: LabelledData, options: argparse.Namespace
) -> None:
    """Report the trials, the best one on the test data, and the cost of the search."""
    tuner.results_summary(num_trials=5)
    (best,) = tuner.get_best_hyperparameters(1)
    values = ", ".join(f"{name} {value:.3g}" for name, value in _numbers(best))
    (model,) = tuner.get_best_models(1)
    result = model.evaluate(data.x_test, data.y_test, batch_size=1000, verbose=0, return_dict=True)
    print(f"\nBest of {len(tuner.oracle.trials)} trials: {values}")
    print(f"Its test accuracy: {result['accuracy']:.2%}")
    plans = [
        hypermodel.privacy_plan(trial.hyperparameters) for trial in tuner.oracle.trials.values()
    ]
    print(price(plans, options.delta))


def price(plans: Sequence[ka.accounting.Ledger], delta: float) -> str:
    """Return the cost of a search if its training data are private.

    Args:
        plans: what each trial spends, the same for all.
        delta: delta of each of the epsilons.
    """
    alone = ka.accounting.ledger_epsilon(plans[0], delta)
    rows = [row for plan in plans for row in plan]
    together = ka.accounting.ledger_epsilon(rows, delta)
    # A number that is drawn has a mean above one.
    selection = ka.accounting.RandomSelection(mean_trials=max(2, len(plans)))
    return (
        f"On private data, at delta {delta:g}:\n"
        f"  epsilon {alone:.3g}  one trial, had there been no other\n"
        f"  epsilon {together:.3g}  this search: {len(plans)} trials, all of them looked at\n"
        f"  epsilon {selection.epsilon(plans[0], delta):.3g}  {selection}, nothing else being "
        "released (`tuners.PrivateSearch`)\n"
        "The held-out images that trials are compared by are covered by none of these."
    )


def _numbers(hyperparameters: Any) -> list[tuple[str, float]]:
    values = hyperparameters.values
    return [(name, value) for name, value in values.items() if not isinstance(value, str)]
