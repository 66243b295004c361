"""Command line, optimizer, training and report of the examples of private classification.

A script has the data, the network and the settings of one task. `main` does the rest.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras

import keras_adaclip as ka
from data import LabelledData

Settings = dict[str, Any]
_SMOKE_EPOCHS, _SMOKE_BATCH_SIZE = 2, 64


def _scheduled(schedule: Any) -> ka.clipping.ClippingStrategy:
    return ka.clipping.ScheduledClipping(schedule)


# From the settings of a method and the number of steps of the whole run to the clipping strategy.
CLIPPINGS: dict[str, Callable[[Settings, int], ka.clipping.ClippingStrategy]] = {
    "fixed": lambda settings, _: ka.clipping.FixedClipping(**settings),
    "quantile": lambda settings, _: ka.clipping.QuantileClipping(**settings),
    "linear": lambda settings, steps: _scheduled(
        ka.schedules.LinearDecay(**settings, total_steps=steps)
    ),
    "exponential": lambda settings, steps: _scheduled(
        ka.schedules.ExponentialDecay(**settings, total_steps=steps)
    ),
    "power": lambda settings, _: _scheduled(ka.schedules.PowerDecay(**settings)),
    "transfer": lambda settings, _: _scheduled(
        ka.schedules.PiecewiseConstant([settings["scale"] * v for v in settings["values"]])
    ),
    "automatic": lambda settings, _: ka.clipping.AutomaticClipping(**settings),
    "adaclip": lambda settings, _: ka.clipping.AdaClip(**settings),
}
# `AutoDPOptimizer` plans everything but the number of epochs.
PLANNED = "planned"
# The settings of each method, unless the task or the command line changes them. The exponential
# decay ends where the linear one does, at half of the first norm.
SETTINGS: dict[str, Settings] = {
    PLANNED: {},
    "fixed": {"clip_norm": 1.0},
    "quantile": {"target_quantile": 0.5, "initial_clip_norm": 0.1, "learning_rate": 0.2},
    "linear": {"initial_value": 1.0},
    "exponential": {"initial_value": 1.0, "decay_rate": 2.0},
    "power": {"initial_value": 1.0, "power": 0.5},
    "transfer": {"values": (), "scale": 1.0},
    "automatic": {"clip_norm": 1.0, "stabilizer": 0.01},
    "adaclip": {"beta1": 0.9, "beta2": 0.99, "min_variance": 1e-5, "max_variance": 1e-3},
}
# The settings that an option of the command line changes.
_OPTIONS = {
    "clip_norm": ("clip_norm", "initial_clip_norm", "initial_value"),
    "quantile": ("target_quantile",),
    "power": ("power",),
    "schedule": ("values",),
}


@dataclass(frozen=True)
class Training:
    """How to train with one clipping method.

    Args:
        learning_rate: learning rate of the inner optimizer.
        epochs: number of epochs.
        momentum: momentum of SGD; None trains with Adam.
        settings: settings of the clipping method that differ from `SETTINGS`.
    """

    learning_rate: float
    epochs: int
    momentum: float | None = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)


def planned_or_adam(learning_rate: float, epochs: int) -> dict[str, Training]:
    """The plan, or Adam with the same learning rate for every clipping method.

    Args:
        learning_rate: learning rate of Adam.
        epochs: number of epochs.
    """
    adam = Training(learning_rate, epochs, momentum=None)
    return {PLANNED: adam, **dict.fromkeys(CLIPPINGS, adam)}


@dataclass(frozen=True)
class Task:
    """A data set and the defaults of its script.

    Args:
        title: name of the data set, or of the method; the figure's file is named after it.
        epsilon: privacy budget.
        delta: delta of the budget.
        batch_size: expected number of examples a step.
        trainings: how to train with each of `CLIPPINGS`, the default first.
        networks: names of the networks to choose from, the default first.
    """

    title: str
    epsilon: float
    delta: float
    batch_size: int
    trainings: Mapping[str, Training]
    networks: tuple[str, ...] = ()


# Networks B1 and B3 of Lin et al. 2022. Each method was tuned for B1 on Fashion-MNIST by the search
# of `docs/accuracy.md` (plain SGD, the last weights); quantile clipping is as in the demo.
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


def main(
    description: str,
    task: Task,
    load: Callable[[bool], LabelledData],
    build_model: Callable[[argparse.Namespace], keras.Model],
    arguments: Sequence[str] | None = None,
) -> None:
    """Loads, trains and reports, as the command line says.

    Args:
        description: docstring of the script.
        task: the task.
        load: function that returns the data; its argument `smoke` asks for small data.
        build_model: function of the options (`parse_options`) that returns a private model.
        arguments: arguments to parse; None takes the command line.
    """
    options = parse_options(description, task, arguments)
    data = _loaded(load, options)

    started = time.perf_counter()
    model = build_model(options)
    model.compile(
        optimizer=private_optimizer(options, num_examples=len(data.y_train)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        data.x_train,
        data.y_train,
        batch_size=options.batch_size,
        epochs=options.epochs,
        validation_data=(data.x_test, data.y_test),
        callbacks=[
            # Adds epsilon to the logs, and stops before the step that would pass the budget.
            ka.callbacks.PrivacyCallback(delta=options.delta, target_epsilon=options.epsilon),
            # Adds the clipping norm.
            ka.callbacks.ClippingMonitor(),
        ],
        verbose=options.verbose,
    )
    seconds = time.perf_counter() - started

    result = model.evaluate(data.x_test, data.y_test, verbose=0, return_dict=True)
    print(f"\nTest accuracy {result['accuracy']:.2%} after {seconds:.0f} s of training.")
    print(model.privacy_spent(options.delta))
    ka.plots.history(history, options.output, title=f"Private training on {data.name}")
    print(f"Figure: {options.output}")


def _loaded(load: Callable[[bool], LabelledData], options: argparse.Namespace) -> LabelledData:
    """Load the data and print a line about them, or end the program with a message."""
    try:
        data = load(options.smoke)
    except FileNotFoundError as error:
        sys.exit(f"{error}\n`--smoke` runs without it, on data made up on the spot.")
    print(f"Data: {data.source}; backend: {keras.backend.backend()}")
    return data


def private_optimizer(options: argparse.Namespace, num_examples: int) -> ka.optimizers.DPOptimizer:
    """Return the optimizer, with the noise for which the whole run costs epsilon.

    Args:
        options: options of `parse_options`; a batch size of more than a quarter of the examples is
            made smaller.
        num_examples: number of training examples.
    """
    if options.clipping == PLANNED:
        return ka.optimizers.AutoDPOptimizer(options.epsilon, options.delta)
    options.batch_size = min(options.batch_size, num_examples // 4)
    noise_multiplier = ka.accounting.calibrate_noise_multiplier(
        options.epsilon, options.delta, num_examples, options.batch_size, epochs=options.epochs
    )
    print(
        f"Noise multiplier {noise_multiplier:.3f} for epsilon {options.epsilon:g} at delta "
        f"{options.delta:.4g}: {options.epochs} epochs, expected batch {options.batch_size}"
    )
    if options.momentum is None:
        inner = keras.optimizers.Adam(options.learning_rate)
    else:
        inner = keras.optimizers.SGD(options.learning_rate, momentum=options.momentum)
    num_steps = options.epochs * -(-num_examples // options.batch_size)
    return ka.optimizers.DPOptimizer(
        inner,
        clipping=CLIPPINGS[options.clipping](options.settings, num_steps),
        noise_multiplier=noise_multiplier,
    )


def parse_options(
    description: str, task: Task, arguments: Sequence[str] | None = None
) -> argparse.Namespace:
    """Parse the command line; the task has the defaults.

    Sets Keras's seed if the command line has one.

    Args:
        description: docstring of the script.
        task: the task.
        arguments: arguments to parse; None takes the command line.

    Returns:
        The options, each with a value; `settings` holds those of the clipping method.
    """
    first, usual = next(iter(task.trainings.items()))
    parser = argparse.ArgumentParser(
        description=description.splitlines()[0],
        epilog=f"Defaults in brackets are those of --clipping {first}.",
    )
    add = parser.add_argument
    add(
        "--clipping",
        choices=task.trainings,
        default=first,
        help="how gradients are clipped; `planned`: by `AutoDPOptimizer` (%(default)s)",
    )
    add("--clip-norm", type=float, help="the norm, or the one that it begins with")
    add("--quantile", type=float, help="of the norms, for --clipping quantile")
    add("--power", type=float, help="of the epoch, for --clipping power")
    add("--schedule", type=Path, help="of `PiecewiseConstant.save`, for --clipping transfer")
    add("--epsilon", type=float, default=task.epsilon, help="privacy budget (%(default)s)")
    add("--delta", type=float, default=task.delta, help="its delta (%(default).3g)")
    add("--epochs", type=int, help=f"({usual.epochs})")
    plans = first == PLANNED
    add("--batch-size", type=int, help=f"expected ({PLANNED if plans else task.batch_size})")
    usual_rate = f"{usual.learning_rate:g}, of Adam" if plans else f"{usual.learning_rate:g}"
    add("--learning-rate", type=float, help=f"({usual_rate})")
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
    """The settings of the clipping method; an option that it does not have is refused."""
    settings = {**SETTINGS[options.clipping], **training.settings}
    if options.clipping == PLANNED and options.learning_rate is not None:
        raise ValueError(f"--clipping {PLANNED} has no --learning-rate")
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
    if options.clipping == PLANNED:
        values["batch_size"] = None
    if options.smoke:
        values |= {"epochs": _SMOKE_EPOCHS, "batch_size": _SMOKE_BATCH_SIZE}
    for name, value in values.items():
        if getattr(options, name, None) is None:
            setattr(options, name, value)
