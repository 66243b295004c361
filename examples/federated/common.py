"""The command line, training and report of the six tasks of Andrew et al. 2021.

Andrew, Thakkar, McMahan, Ramaswamy, "Differentially private learning with adaptive clipping",
NeurIPS 2021. Models and local training are those of Reddi et al. 2020, "Adaptive federated
optimization".
"""

import argparse
import atexit
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

import keras_adaclip as ka
from tff_files import Archive, find_files

MOMENTUM = 0.9
_SMOKE_ROUNDS, _SMOKE_COHORT = 2, 4
_ROUNDS_PER_REPORT = 50
_TEST_BATCH = 100
_LARGE_POPULATION = 1_000_000


@dataclass(frozen=True)
class Task:
    """A task and the choices of the paper.

    The learning rates of table 1 were found without clipping. With clipping, the paper multiplies
    that of the server by 1, 10^(1/4), ..., 10, without stating the best: `--server-learning-rate`.

    Args:
        rounds: table 1, T.
        noise_multiplier: z* of figure 7: more noise costs over 5% of the metric.
        client_learning_rate: table 1.
        server_learning_rate: table 1; with momentum as Keras has it, which is what ran.
        client_batch_size: of Reddi et al., as the next two.
        client_examples_limit: largest number of examples of a client in a round, or None.
        num_test_examples: number of examples for evaluation, or None for all.
        large_cohort: table 1, m: cohorts that reduce epsilon with a million clients.
        large_noise_multiplier: table 1, z: with `large_cohort`, the same noise in the mean.
        metric: the metric to show.
        cohort_size: section 3.
    """

    rounds: int
    noise_multiplier: float
    client_learning_rate: float
    server_learning_rate: float
    client_batch_size: int
    large_cohort: int
    large_noise_multiplier: float
    metric: str = "accuracy"
    client_examples_limit: int | None = None
    num_test_examples: int | None = None
    cohort_size: int = 100


def parse_options(description: str, task: Task) -> argparse.Namespace:
    """Parse the command line; the defaults are the paper's choices.

    Args:
        description: docstring of the script.
        task: the task.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--rounds", type=int, help=f"({task.rounds:,})")
    parser.add_argument("--cohort-size", type=int, help=f"expected clients ({task.cohort_size})")
    parser.add_argument(
        "--noise-multiplier", type=float, default=task.noise_multiplier, help="(%(default)s)"
    )
    parser.add_argument("--target-quantile", type=float, default=0.5, help="(%(default)s)")
    parser.add_argument("--fixed-norm", type=float, help="clip to this norm, not to a quantile")
    for whose in ("client", "server"):
        rate = getattr(task, f"{whose}_learning_rate")
        parser.add_argument(
            f"--{whose}-learning-rate", type=float, default=rate, help="(%(default)s)"
        )
    parser.add_argument("--seed", type=int, help="of the initial weights; noise is never seeded")
    parser.add_argument("--data", type=Path, help="folder of the files (Keras's own)")
    parser.add_argument(
        "--smoke", action="store_true", help="two rounds of a narrow model on made-up data"
    )
    options = parser.parse_args()
    options.rounds = options.rounds or (_SMOKE_ROUNDS if options.smoke else task.rounds)
    options.cohort_size = options.cohort_size or (
        _SMOKE_COHORT if options.smoke else task.cohort_size
    )
    if options.seed is not None:
        keras.utils.set_random_seed(options.seed)
    return options


def data_files(
    options: argparse.Namespace, archives: Mapping[str, Archive], make_up: Callable[[Path], None]
) -> list[Path]:
    """Find the files of a task, or end the program with a message.

    Args:
        options: of `parse_options`.
        archives: the archive of each file, by the name of the file.
        make_up: writes files of the same names and layout into a folder, for `--smoke`.
    """
    if options.smoke:
        folder = Path(tempfile.mkdtemp(prefix="made-up-clients-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        make_up(folder)
        print("Data: made up, in the layout of the published files")
        return [folder / name for name in archives]
    try:
        return find_files(archives, options.data)
    except FileNotFoundError as error:
        sys.exit(str(error))


def train(
    task: Task,
    options: argparse.Namespace,
    model: keras.Model,
    data: tuple[ka.federated.ClientData, ka.federated.ClientData],
    loss: Any,
    metrics: list[Any],
) -> None:
    """Compiles, trains, and prints metric, clipping norm and epsilon as it goes.

    Args:
        task: the task.
        options: of `parse_options`.
        model: any functional or sequential Keras model.
        data: clients to train on, and clients (or later examples of the same) to evaluate on.
        loss: as for Keras.
        metrics: as for Keras.
    """
    clients, held_out = data
    clipping: Any = options.fixed_norm
    if clipping is None:
        # Section 2.1: geometric updates with rate 0.2 from 0.1, count noise a 20th of the cohort.
        clipping = ka.clipping.QuantileClipping(
            target_quantile=options.target_quantile,
            initial_clip_norm=0.1,
            learning_rate=0.2,
            count_noise_stddev=options.cohort_size / 20,
            update="geometric",
        )
    model = ka.federate(model)
    model.compile(
        optimizer=ka.optimizers.DPOptimizer(
            keras.optimizers.SGD(options.server_learning_rate, momentum=MOMENTUM),
            clipping=clipping,
            noise_multiplier=options.noise_multiplier,
        ),
        client_optimizer=keras.optimizers.SGD(options.client_learning_rate),
        client_batch_size=task.client_batch_size,
        client_examples_limit=task.client_examples_limit,
        loss=loss,
        metrics=metrics,
    )
    delta = len(clients) ** -1.1
    rounds_per_report = math.gcd(options.rounds, _ROUNDS_PER_REPORT)
    print(
        f"{len(clients):,} clients, {options.cohort_size} a round, {model.count_params():,} "
        f"parameters; noise multiplier {options.noise_multiplier:g}; {keras.backend.backend()}"
    )
    if task.num_test_examples is None:
        x_test, y_test = held_out.all_examples()
    else:
        x_test, y_test = held_out.first_examples(task.num_test_examples)
    model.fit(
        clients,
        cohort_size=options.cohort_size,
        epochs=options.rounds // rounds_per_report,
        steps_per_epoch=rounds_per_report,
        validation_data=(x_test, y_test),
        validation_batch_size=_TEST_BATCH,
        callbacks=[
            ka.callbacks.PrivacyCallback(delta=delta),
            ka.callbacks.ClippingMonitor(),
            RoundReport(task.metric, rounds_per_report),
        ],
        verbose=0,
    )
    print(model.privacy_spent(delta))
    if is_as_in_the_paper(task, options):
        print(large_cohorts(task))


class RoundReport(keras.callbacks.Callback):
    """Prints a line for each epoch: rounds so far, held-out metric, clipping norm and epsilon.

    Args:
        metric: name of the metric.
        rounds_per_epoch: rounds in an epoch.
    """

    def __init__(self, metric: str, rounds_per_epoch: int) -> None:
        super().__init__()
        self.metric = metric
        self.rounds_per_epoch = rounds_per_epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Prints the line."""
        rounds = (epoch + 1) * self.rounds_per_epoch
        print(
            f"round {rounds:5,}  {self.metric} {logs['val_' + self.metric]:.4f}  "
            f"clip norm {logs['clip_norm']:.4f}  epsilon {logs['epsilon']:,.2f}",
            flush=True,
        )


def is_as_in_the_paper(task: Task, options: argparse.Namespace) -> bool:
    """Whether rounds, cohorts and noise are the paper's."""
    ran = (options.rounds, options.cohort_size, options.noise_multiplier)
    return ran == (task.rounds, task.cohort_size, task.noise_multiplier)


def large_cohorts(task: Task) -> str:
    """Report the epsilon of the same training with a million clients and large cohorts.

    Cohorts of 100 show how much noise a task tolerates, and their epsilon protects nobody. Section
    3 of the paper increases cohort and noise multiplier by one factor, until epsilon is 5.
    """
    delta = _LARGE_POPULATION**-1.1
    epsilon = ka.accounting.compute_epsilon(
        noise_multiplier=task.large_noise_multiplier,
        num_examples=_LARGE_POPULATION,
        batch_size=task.large_cohort,
        steps=task.rounds,
        delta=delta,
    )
    return (
        f"As noisy in the mean: cohorts of {task.large_cohort:,} among {_LARGE_POPULATION:,} "
        f"clients with noise multiplier {task.large_noise_multiplier:g}, epsilon {epsilon:.2f} "
        f"at delta {delta:.2g}."
    )
