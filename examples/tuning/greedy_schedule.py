"""The best clipping norm of each epoch on public images, transferred to private ones.

Lin et al. 2022, algorithm 1: in every epoch, norms of an increasing sequence are tried from the
same weights, until the accuracy falls well below the best. A schedule found on public data costs no
privacy.

    python examples/tuning/greedy_schedule.py                      # on Fashion-MNIST itself
    python examples/tuning/greedy_schedule.py --public digits.npz  # trains Fashion-MNIST too

`digits.npz` holds arrays `x`, of shape `(number, 28, 28)` and type uint8, and `y`, of shape
`(number,)`. Its last fifth scores the trials. Prints the thresholds of the epochs and the power law
that is closest; then the test accuracy on Fashion-MNIST at epsilon 2.7 with the schedule found,
with the decay `first norm / sqrt(epoch)`, and with the first norm throughout. Writes the schedule,
all trials, and a plot. An interrupted search continues when the script is started again.
"""

import argparse
import dataclasses
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from matplotlib.figure import Figure

import keras_adaclip as ka

# `data` and `fashion_mnist` are in the folder above.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from data import LabelledData, load_fashion_mnist
from fashion_mnist import build_model

DELTA = 1e-5


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--public", type=Path, help="file of public images; without, Fashion-MNIST is searched on")
    add("--start", type=float, default=0.05, help="the first norm (%(default)s)")
    add("--step", type=float, default=0.05, help="from one norm to the next (%(default)s)")
    add("--max-drop", type=float, default=0.02, help="of the accuracy (%(default)s)")
    add("--epochs", type=int, default=10, help="(%(default)s)")
    add("--batch-size", type=int, default=1024, help="expected (%(default)s)")
    add("--learning-rate", type=float, default=4.0, help="of plain SGD (%(default)s)")
    add("--activation", default="tanh", help="of the network of table B1 (%(default)s)")
    add("--epsilon", type=float, default=2.7, help="of the private runs (%(default)s)")
    add("--seeds", type=int, nargs="*", default=[1, 2, 3], help="of the private runs")
    add("--output", type=Path, default=Path("tuning/greedy"), help="folder (%(default)s)")
    add("--smoke", action="store_true", help="two epochs of three norms on a little data")
    options = parser.parse_args()
    if options.smoke:
        options.epochs, options.batch_size, options.seeds = 2, 64, [1]
    return options


def compiled(options: argparse.Namespace, noise_multiplier: float, clipping: Any) -> keras.Model:
    """The network of table B1, compiled for private training."""
    model = build_model(activation=options.activation)
    model.compile(
        optimizer=ka.optimizers.DPOptimizer(
            keras.optimizers.SGD(options.learning_rate),
            clipping=clipping,
            noise_multiplier=noise_multiplier,
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def found_schedule(
    options: argparse.Namespace, public: LabelledData, noise_multiplier: float, num_steps: int
) -> ka.schedules.PiecewiseConstant:
    """Search, or read the result of an earlier search.

    Args:
        options: the command line.
        public: images that need no protection; the test images score the trials.
        noise_multiplier: of the private runs.
        num_steps: of an epoch of theirs. What a norm does depends on the signal and the noise of
            a step, and on their number.
    """
    tuner = ka.tuners.GreedyClipTuner(
        lambda hp: compiled(options, noise_multiplier, 1.0),
        start=options.start,
        step=options.step,
        max_drop=options.max_drop,
        epochs=options.epochs,
        max_trials_per_epoch=3 if options.smoke else 200,
        directory=options.output,
        project_name="search",
    )
    tuner.search(
        public.x_train,
        public.y_train,
        batch_size=options.batch_size,
        steps_per_epoch=num_steps,
        validation_data=(public.x_test, public.y_test),
        validation_batch_size=1000,
    )
    tuner.results_summary()
    schedule = tuner.best_schedule()
    schedule.save(options.output / "schedule.json")
    tried = [dataclasses.asdict(epoch) for epoch in tuner.searched_epochs()]
    (options.output / "tried.json").write_text("[\n" + ",\n".join(map(json.dumps, tried)) + "\n]\n")
    plot_search(tuner, options.output / "search.png", f"Greedy search on {public.name}")
    return schedule


def plot_search(tuner: ka.tuners.GreedyClipTuner, path: Path, title: str) -> None:
    """Plots the norms tried in each epoch and their scores, with the best ones."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    norms, scores = figure.subplots(1, 2)
    for number, epoch in enumerate(tuner.searched_epochs(), 1):
        for axes, tried, best in (
            (norms, epoch.thresholds, epoch.threshold),
            (scores, epoch.scores, epoch.score),
        ):
            axes.plot([number] * len(tried), tried, "o", color="grey", markersize=3)
            axes.plot(number, best, "o", color="C0")
    norms.set(xlabel="epoch", ylabel="clipping norm (L2)")
    scores.set(xlabel="epoch", ylabel=tuner.oracle.objective.name.replace("_", " "))
    figure.suptitle(title)
    figure.savefig(path)


def accuracies(
    options: argparse.Namespace, data: LabelledData, noise_multiplier: float, clipping: Any
) -> list[float]:
    """Test accuracies of private runs, one for each seed, with a clipping norm or schedule."""
    found = []
    for seed in options.seeds:
        keras.utils.clear_session()
        keras.utils.set_random_seed(seed)
        model = compiled(options, noise_multiplier, clipping)
        model.fit(
            data.x_train,
            data.y_train,
            batch_size=options.batch_size,
            epochs=options.epochs,
            verbose=0,
        )
        spent = model.privacy_spent(DELTA).epsilon
        if spent > options.epsilon:
            raise RuntimeError(f"A run has spent epsilon {spent}.")
        scores = model.evaluate(
            data.x_test, data.y_test, batch_size=1000, verbose=0, return_dict=True
        )
        found.append(scores["accuracy"])
    return found


def report(name: str, found: Sequence[float]) -> dict[str, Any]:
    """Prints a line of the comparison, and returns it."""
    spread = f" +- {statistics.stdev(found):.2%}" if len(found) > 1 else ""
    print(f"{name:<40} {statistics.fmean(found):.2%}{spread}", flush=True)
    return {"clipping": name, "accuracies": list(found)}


def load_public(path: Path | None, private: LabelledData) -> LabelledData:
    """Load the public images, or without any, the private ones as if they were public."""
    if path is None:
        return private
    with np.load(path) as arrays:
        x = arrays["x"].astype(np.float32)[..., None] / 255.0
        y = arrays["y"].astype(np.int32)
    num_train = 4 * len(x) // 5
    return LabelledData(x[:num_train], y[:num_train], x[num_train:], y[num_train:], path.name)


def main() -> None:
    """Search, and train with the schedule found."""
    options = parse_options()
    private = load_fashion_mnist()
    if options.smoke:
        private = private.first(768, 256)
    public = load_public(options.public, private)
    print(f"Public: {public.source}. Private: {private.source}.")
    noise_multiplier = ka.accounting.calibrate_noise_multiplier(
        options.epsilon, DELTA, len(private.x_train), options.batch_size, epochs=options.epochs
    )
    print(f"Noise multiplier {noise_multiplier:.4g}: epsilon {options.epsilon} at delta {DELTA}.")
    num_steps = math.ceil(len(private.x_train) / options.batch_size)
    schedule = found_schedule(options, public, noise_multiplier, num_steps)
    if options.public is None and not options.smoke:
        return
    first = schedule.values[0]
    rivals = {
        "found on public data, epoch by epoch": ka.clipping.ScheduledClipping(schedule),
        f"{first:g} / sqrt(epoch)": ka.clipping.ScheduledClipping(
            ka.schedules.PowerDecay(first, 0.5)
        ),
        f"{first:g} throughout": first,
    }
    print(f"\nFashion-MNIST at epsilon {options.epsilon}, test accuracy, seeds {options.seeds}:")
    lines = [
        report(name, accuracies(options, private, noise_multiplier, clipping))
        for name, clipping in rivals.items()
    ]
    (options.output / "transfer.json").write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
