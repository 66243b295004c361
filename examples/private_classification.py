"""What the examples of private classification share: the command line, clipping, noise, report.

The scripts show what a user writes: data, network, `compile`, `fit`. Here is what is the same in
all of them. The clipping methods are those of the comparison (`comparison/methods.py`).
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras

import keras_adaclip as ka
from comparison.methods import METHODS

CLIPPINGS = (
    "fixed",
    "quantile",
    "linear",
    "exponential",
    "power",
    "transfer",
    "automatic",
    "adaclip",
)
_SMOKE_EPOCHS, _SMOKE_BATCH_SIZE = 2, 64


@dataclass(frozen=True)
class Training:
    """How to train with one clipping method.

    Args:
        learning_rate: of the inner optimizer.
        epochs: number of epochs.
        momentum: of SGD; None where the optimizer has none.
        settings: of the clipping method, by the names of `comparison/methods.py`; what is not
            there is as in `SETTINGS`.
    """

    learning_rate: float
    epochs: int
    momentum: float | None = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """A data set, and what its script does where the command line says nothing.

    Args:
        title: the data set.
        epsilon: the privacy budget.
        delta: its delta.
        batch_size: expected examples a step.
        trainings: how to train with each of `CLIPPINGS`, the default first.
        networks: names of the networks to choose from, the default first.
    """

    title: str
    epsilon: float
    delta: float
    batch_size: int
    trainings: Mapping[str, Training]
    networks: tuple[str, ...] = ()


# Where neither the task nor the command line says more. The rate of the exponential decay and the
# quantile's learning rate are explained in `comparison/methods.py`.
SETTINGS: dict[str, dict[str, Any]] = {
    "fixed": {"clip_norm": 1.0},
    "quantile": {"target_quantile": 0.5, "initial_clip_norm": 0.1, "learning_rate": 0.2},
    "linear": {"initial_value": 1.0},
    "exponential": {"initial_value": 1.0, "decay_rate": 2.0},
    "power": {"initial_value": 1.0, "power": 0.5},
    "transfer": {"values": (), "scale": 1.0},
    "automatic": {"clip_norm": 1.0, "stabilizer": 0.01},
    "adaclip": {"beta1": 0.9, "beta2": 0.99, "min_variance": 1e-5, "max_variance": 1e-3},
}
# Which of these an option of the command line sets.
_OPTIONS = {
    "clip_norm": ("clip_norm", "initial_clip_norm", "initial_value"),
    "quantile": ("target_quantile",),
    "power": ("power",),
    "schedule": ("values",),
}

# Networks B1 and B3 of Lin et al. 2022, as the search of `docs/accuracy.md` tuned each method for
# table B1 on Fashion-MNIST (plain SGD, the last weights); quantile clipping as in the demo.
TUNED_FOR_TABLE_B1 = {
    "quantile": Training(0.2, 12, momentum=0.9, settings={"target_quantile": 0.7}),
    "fixed": Training(4.0, 40, settings={"clip_norm": 0.6}),
    "linear": Training(4.0, 40),
    "exponential": Training(4.0, 40),
    "power": Training(2.0, 40, settings={"initial_value": 2.598, "power": 0.3}),
    "transfer": Training(4.0, 40, settings={"scale": 2.0}),
    "automatic": Training(4.0, 20, settings={"clip_norm": 1.2}),
    "adaclip": Training(1.0, 40),
}


def parse_options(
    description: str, task: Task, arguments: Sequence[str] | None = None
) -> argparse.Namespace:
    """The command line; what it leaves open is as the task says. Seeds Keras where asked to.

    Args:
        description: docstring of the script.
        task: the task.
        arguments: what to parse; None takes the command line.

    Returns:
        The options, each with a value; `settings` has those of the clipping method.
    """
    first, usual = next(iter(task.trainings.items()))
    parser = argparse.ArgumentParser(
        description=description.splitlines()[0],
        epilog=f"Defaults in brackets are those of --clipping {first}.",
    )
    add = parser.add_argument
    add(
        "--clipping",
        choices=CLIPPINGS,
        default=first,
        help="how gradients are clipped (%(default)s)",
    )
    add("--clip-norm", type=float, help="the norm, or the one that it begins with")
    add("--quantile", type=float, help="of the norms, for --clipping quantile")
    add("--power", type=float, help="of the epoch, for --clipping power")
    add("--schedule", type=Path, help="of `PiecewiseConstant.save`, for --clipping transfer")
    add("--epsilon", type=float, default=task.epsilon, help="privacy budget (%(default)s)")
    add("--delta", type=float, default=task.delta, help="its delta (%(default).3g)")
    add("--epochs", type=int, help=f"({usual.epochs})")
    add("--batch-size", type=int, help=f"expected ({task.batch_size})")
    add("--learning-rate", type=float, help=f"({usual.learning_rate:g})")
    if usual.momentum is not None:
        add("--momentum", type=float, help=f"({usual.momentum:g})")
    if task.networks:
        add("--network", choices=task.networks, default=task.networks[0], help="(%(default)s)")
    add("--seed", type=int, help="of the initial weights; noise is never seeded")
    figure = Path(task.title.lower().replace("-", "_")).with_suffix(".png")
    add("--output", type=Path, default=figure, help="the figure (%(default)s)")
    add("--verbose", default="auto", help="as in Keras's `fit` (%(default)s)")
    add("--smoke", action="store_true", help="a few steps on a little data")
    options = parser.parse_args(arguments)
    options.title = task.title
    options.verbose = int(options.verbose) if options.verbose.isdigit() else options.verbose
    try:
        options.settings = _clipping_settings(options, task.trainings[options.clipping])
    except (OSError, ValueError) as error:
        parser.error(str(error))
    _fill_in(options, task)
    if options.seed is not None:
        keras.utils.set_random_seed(options.seed)
    return options


def _clipping_settings(options: argparse.Namespace, training: Training) -> dict[str, Any]:
    """The settings of the clipping method; an option that it does not know is refused."""
    settings = {**SETTINGS[options.clipping], **training.settings}
    for option, names in _OPTIONS.items():
        value = getattr(options, option)
        known = [name for name in names if name in settings]
        if value is None:
            continue
        if not known:
            raise ValueError(f"--clipping {options.clipping} has no --{option.replace('_', '-')}")
        if option == "schedule":
            value = ka.schedules.PiecewiseConstant.load(value).values
        settings[known[0]] = value
    if options.clipping == "transfer" and options.schedule is None:
        raise ValueError(
            "--clipping transfer needs --schedule PATH: clipping norms that were found on public "
            "data, as `examples/tuning/greedy_schedule.py` writes them"
        )
    return settings


def _fill_in(options: argparse.Namespace, task: Task) -> None:
    training = task.trainings[options.clipping]
    values: dict[str, Any] = {
        "epochs": training.epochs,
        "batch_size": task.batch_size,
        "learning_rate": training.learning_rate,
        "momentum": training.momentum,
    }
    if options.smoke:
        values |= {"epochs": _SMOKE_EPOCHS, "batch_size": _SMOKE_BATCH_SIZE}
    for name, value in values.items():
        if getattr(options, name, None) is None:
            setattr(options, name, value)


def loaded(load: Callable[[bool], Any], options: argparse.Namespace) -> Any:
    """The data, and a line about them; ends the program with a message where there are none.

    Args:
        load: from whether it is a smoke run to the data.
        options: of `parse_options`.
    """
    try:
        data = load(options.smoke)
    except FileNotFoundError as error:
        sys.exit(f"{error}\n`--smoke` runs without it, on data made up on the spot.")
    print(f"Data: {data.source}; backend: {keras.backend.backend()}")
    return data


def private_optimizer(
    optimizer: keras.optimizers.Optimizer, options: argparse.Namespace, num_examples: int
) -> ka.optimizers.DPOptimizer:
    """Clips as the command line says, with the noise at which the whole run costs epsilon.

    Args:
        optimizer: what the noised mean of the clipped gradients is given to.
        options: of `parse_options`; its batch size is made smaller where there are few examples.
        num_examples: number of training examples.
    """
    options.batch_size = min(options.batch_size, num_examples // 4)
    noise_multiplier = ka.accounting.calibrate_noise_multiplier(
        options.epsilon,
        options.delta,
        num_examples,
        options.batch_size,
        epochs=options.epochs,
    )
    print(
        f"Noise multiplier {noise_multiplier:.3f} for epsilon {options.epsilon:g} at delta "
        f"{options.delta:.4g}: {options.epochs} epochs, expected batch {options.batch_size}"
    )
    num_steps = options.epochs * -(-num_examples // options.batch_size)
    return ka.optimizers.DPOptimizer(
        optimizer,
        clipping=METHODS[options.clipping].build(options.settings, num_steps),
        noise_multiplier=noise_multiplier,
    )


def callbacks(options: argparse.Namespace) -> list[keras.callbacks.Callback]:
    """Epsilon and clipping norm beside the loss, and a stop before the budget is passed.

    Args:
        options: of `parse_options`.
    """
    return [
        ka.callbacks.PrivacyCallback(delta=options.delta, target_epsilon=options.epsilon),
        ka.callbacks.ClippingMonitor(),
    ]


def report(
    model: keras.Model,
    history: keras.callbacks.History,
    test_data: tuple[Any, Any],
    options: argparse.Namespace,
    seconds: float,
) -> None:
    """Prints test accuracy and what was spent, and draws the run.

    Args:
        model: the trained model.
        history: of `fit`.
        test_data: inputs and labels.
        options: of `parse_options`.
        seconds: how long training took.
    """
    accuracy = model.evaluate(*test_data, verbose=0, return_dict=True)["accuracy"]
    print(f"\nTest accuracy {accuracy:.2%} after {seconds:.0f} s of training.")
    print(model.privacy_spent(options.delta))
    ka.plots.history(history, options.output, title=f"Private training on {options.title}")
    print(f"Figure: {options.output}")
