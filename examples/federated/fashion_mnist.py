"""Which norm to clip clients to: the experiment of Andrew et al. 2021 on real images.

    python examples/federated/fashion_mnist.py              # missing runs, then the report
    python examples/federated/fashion_mnist.py --seeds 1    # one seed
    python examples/federated/fashion_mnist.py --report-only
    python examples/federated/fashion_mnist.py --smoke    # into examples/output

The 60,000 training images of Fashion-MNIST are divided among 3,000 clients with different label
distributions (Dirichlet, 0.3). With four amounts of noise, five private quantiles of the clients'
norms are compared with five fixed norms, as in the paper's figures 5 and 6. `runs.csv` gets one row
for each run: an interrupted script continues when it is started again. A run takes about ten
seconds with JAX on one core.
"""

import argparse
import csv
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_adaclip as ka
from fashion_mnist_report import write_report

# `data` is in the folder above.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from data import load_fashion_mnist

_OUTPUT = Path(__file__).parents[2] / "benchmarks" / "utility" / "federated"
# A smoke run must not write among the results.
_SMOKE_OUTPUT = Path(__file__).parents[1] / "output" / "federated_smoke"

# ---- what is compared -------------------------------------------------------------------------
# Expected cohorts of 100, as in the paper. Epsilon of so little noise protects nobody: these runs
# tell how much noise each norm bears, and larger cohorts then bring epsilon down at the same noise
# in the mean.

NUM_CLIENTS, COHORT_SIZE, ROUNDS = 3_000, 100, 300
NOISE_MULTIPLIERS = (0.0, 0.01, 0.03, 0.1)
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
FIXED_NORMS = (0.1, 0.2, 0.4, 0.8, 1.6)
ROUNDS_PER_EPOCH = 10


@dataclass(frozen=True)
class Run:
    """The settings of a run.

    Args:
        kind: `"quantile"` or `"fixed"`.
        value: the quantile, or the norm.
        noise_multiplier: total noise multiplier of a round.
        seed: seed of the initial weights, the cohorts and the noise; the data are public.
        rounds: number of rounds.
    """

    kind: str
    value: float
    noise_multiplier: float
    seed: int
    rounds: int = ROUNDS

    def clipping(self) -> ka.clipping.ClippingStrategy:
        """From 0.1, with rate 0.2 and count noise of a 20th of the cohort (section 2.1)."""
        if self.kind == "fixed":
            return ka.clipping.FixedClipping(self.value)
        return ka.clipping.QuantileClipping(
            target_quantile=self.value,
            initial_clip_norm=0.1,
            learning_rate=0.2,
            count_noise_stddev=COHORT_SIZE / 20,
        )


def all_runs(seeds: range, rounds: int = ROUNDS) -> list[Run]:
    """Return every run, all of the first seed before those of the second."""
    choices = [("quantile", value) for value in QUANTILES] + [("fixed", v) for v in FIXED_NORMS]
    return [
        Run(kind, value, noise_multiplier, seed, rounds)
        for seed in seeds
        for noise_multiplier in NOISE_MULTIPLIERS
        for kind, value in choices
    ]


# ---- clients ----------------------------------------------------------------------------------


def load(num_clients: int, num_images: int | None) -> tuple[str, ka.federated.ClientData, Any]:
    """The data in words, the clients, and the test images with their labels."""
    data = load_fashion_mnist()
    x, y = data.x_train[:num_images], data.y_train[:num_images]
    ids = ka.federated.partition.dirichlet(y, num_clients=num_clients, alpha=0.3, seed=0)
    print(f"{data.source}: {len(y):,} images, {num_clients:,} clients", flush=True)
    clients = ka.federated.ClientData.from_arrays(
        x.reshape(len(x), -1), y, ids, population=range(num_clients)
    )
    about = f"{data.name}, {num_clients:,} clients"
    return about, clients, (data.x_test.reshape(len(data.x_test), -1), data.y_test)


# ---- model and training -----------------------------------------------------------------------
# One step of `fit` is a round, and an epoch is ten rounds, after which the test images are looked
# at. `ClippingMonitor(private_diagnostics=True)` also logs which share of the clients was clipped
# in truth: no private figure, and one to judge the estimate by.


def build_model() -> keras.Model:
    """784-200-100-10."""
    inputs = keras.Input((784,))
    x = keras.layers.Dense(200, activation="relu")(inputs)
    x = keras.layers.Dense(100, activation="relu")(x)
    return ka.FederatedModel(inputs, keras.layers.Dense(10)(x))


def train(run: Run, clients: ka.federated.ClientData, test: Any, cohort_size: int) -> dict:
    """Trains, and returns accuracy, norms and clipped shares by epoch."""
    started = time.perf_counter()
    keras.utils.clear_session()
    keras.utils.set_random_seed(run.seed)
    model = build_model()
    model.compile(
        optimizer=ka.optimizers.DPOptimizer(
            keras.optimizers.SGD(1.0, momentum=0.9),
            clipping=run.clipping(),
            noise_multiplier=run.noise_multiplier,
            seed=run.seed,
        ),
        client_optimizer=keras.optimizers.SGD(0.1),
        client_batch_size=10,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        clients,
        cohort_size=cohort_size,
        epochs=-(-run.rounds // ROUNDS_PER_EPOCH),
        steps_per_epoch=ROUNDS_PER_EPOCH,
        validation_data=test,
        validation_batch_size=2_000,
        callbacks=[ka.callbacks.ClippingMonitor(private_diagnostics=True)],
        verbose=0,
    ).history
    accuracies = history["val_accuracy"]
    return {
        # The paper takes the mean over the last hundred rounds.
        "accuracy": round(float(np.mean(accuracies[-10:])), 5),
        "accuracy_by_epoch": _rounded(accuracies),
        "norm_by_epoch": _rounded(history["clip_norm"]),
        "clipped_by_epoch": _rounded(history["clipped_fraction"]),
        "computed_on": keras.backend.backend(),
        "seconds": round(time.perf_counter() - started, 1),
    }


def _rounded(values: list[float]) -> str:
    return json.dumps([float(f"{value:.4g}") for value in values])


# ---- the command line -------------------------------------------------------------------------


def main() -> None:
    """Train the missing runs, then write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--output", type=Path, help=f"folder ({_OUTPUT}; with --smoke {_SMOKE_OUTPUT})"
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs of each kind (%(default)s)")
    parser.add_argument("--report-only", action="store_true", help="only tables and figures")
    parser.add_argument("--smoke", action="store_true", help="a few rounds on a few images")
    options = parser.parse_args()
    options.output = options.output or (_SMOKE_OUTPUT if options.smoke else _OUTPUT)
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "runs.csv"
    if not options.report_only:
        num_clients, num_images, cohort_size = NUM_CLIENTS, None, COHORT_SIZE
        runs = all_runs(range(1, options.seeds + 1))
        if options.smoke:
            num_clients, num_images, cohort_size = 60, 1_200, 10
            runs = [
                Run(kind, value, 0.01, 1, rounds=20)
                for kind, value in (("quantile", 0.5), ("fixed", 1.0))
            ]
        make_missing(runs, path, load(num_clients, num_images), cohort_size)
    for written in write_report(path, options.output):
        print(written)


def make_missing(runs: list[Run], path: Path, data: tuple[str, Any, Any], cohort_size: int) -> None:
    """Train the runs that the file lacks, and add a row for each."""
    about, clients, test = data
    known = set()
    if path.exists():
        with path.open(newline="") as file:
            names = list(asdict(runs[0]))
            known = {tuple(row[name] for name in names) for row in csv.DictReader(file)}
    missing = [run for run in runs if tuple(map(str, asdict(run).values())) not in known]
    for number, run in enumerate(missing, 1):
        row = asdict(run) | train(run, clients, test, cohort_size) | {"data": about}
        is_new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(row), lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(row)
        print(
            f"[{number}/{len(missing)}] {run.kind} {run.value:g}, noise {run.noise_multiplier:g}, "
            f"seed {run.seed}: {row['accuracy']:.2%} in {row['seconds']:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
