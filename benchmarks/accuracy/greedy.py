"""Thresholds found by a greedy search on public data (Lin et al. 2022, algorithm 1).

In each epoch, every norm of an increasing sequence is tried for one epoch from the same weights,
until the accuracy falls well below the best; the best norm is the epoch's, and its weights are
where the next epoch begins. The search is coarser than the paper's: the norms grow by a factor,
from 0.1 by 30% instead of from 0.05 by 0.01, which takes a tenth of the runs. Several searches can
be averaged, epoch by epoch; it did not help.
"""

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras

import keras_adaclip as ka
from examples.data import LabelledData

from . import networks
from .context import PAPER_EPOCHS, PAPER_LEARNING_RATE
from .data_sets import DATA_SETS
from .methods import Transferred
from .runs import Scale, calibrated_noise, compiled

# The seeds of one search lie below those of the next.
_SEEDS_OF_A_SEARCH = 1_000


@dataclass(frozen=True)
class Search:
    """Settings of a search.

    The noise multiplier, the batch size and the steps of an epoch are those of the private runs,
    though the public data are fewer: what a norm does depends on the signal and the noise of a
    step.

    Args:
        network: a key of `NETWORKS`.
        epsilon: the budget of the private runs, which decides the noise.
        epochs: number of epochs for which thresholds are sought.
        first_norm: the smallest norm tried.
        factor: from one norm to the next.
        num_norms: at most so many.
        tolerance: how far the accuracy may fall below the best before the search stops.
        num_first_epochs: over how many searches of the first epoch the initial norm is averaged.
        num_searches: over how many whole searches the thresholds are averaged.
        learning_rate: of plain SGD.
        activation: a key of `ACTIVATIONS`.
    """

    network: str = "b1"
    epsilon: float = 2.7
    epochs: int = 24
    first_norm: float = 0.1
    factor: float = 1.3
    num_norms: int = 16
    tolerance: float = 0.02
    num_first_epochs: int = 5
    num_searches: int = 1
    learning_rate: float = PAPER_LEARNING_RATE
    activation: str = "relu"

    @property
    def norms(self) -> list[float]:
        """The norms to try, in increasing order."""
        return [float(f"{self.first_norm * self.factor**k:.3g}") for k in range(self.num_norms)]


def schedule_path(folder: Path, network: str) -> Path:
    """Where the thresholds of a network are kept."""
    suffix = "" if network == "b1" else f"_{network}"
    return folder / f"transferred_schedule{suffix}.json"


def search(
    settings: Search, public: LabelledData, folder: Path, scale: Scale, data_set: str
) -> None:
    """Makes the searches that are missing, each a file, and writes their mean.

    Args:
        settings: of the searches.
        public: data that need no protection.
        folder: where the files go.
        scale: the batch size.
        data_set: the private data set, whose delta decides the noise.
    """
    noise_multiplier = calibrated_noise(
        settings.epsilon,
        DATA_SETS[data_set].delta,
        len(public.x_train),
        scale.batch_size,
        PAPER_EPOCHS,
        "pld",
    )
    print(f"{public.source}; noise multiplier {noise_multiplier:.3f}", flush=True)
    paths = [_search_path(folder, settings.network, k) for k in range(settings.num_searches)]
    for number, path in enumerate(paths):
        if not path.exists():
            log = _one_search(settings, public, scale, noise_multiplier, number)
            report = {
                "search": asdict(settings),
                "noise_multiplier": noise_multiplier,
                "batch_size": scale.batch_size,
                "public_data": public.source,
                "log": log,
            }
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(report, indent=1) + "\n")
    _write_mean(settings, folder)


def load(folder: Path) -> dict[str, Transferred]:
    """What earlier searches found, for each network.

    Args:
        folder: where `search` has put it.
    """
    found = {}
    for network in networks.NETWORKS:
        path = schedule_path(folder, network)
        if path.exists():
            values = ka.schedules.PiecewiseConstant.load(path).values
            firsts = _norms_of_first_epochs(_search_path(folder, network, 0))
            found[network] = Transferred(tuple(values), float(f"{statistics.fmean(firsts):.4g}"))
    return found


def _search_path(folder: Path, network: str, number: int) -> Path:
    return folder / "searches" / f"{network}_{number}.json"


def _write_mean(settings: Search, folder: Path) -> None:
    """The geometric mean of each epoch's norms."""
    searches = [
        _norms_by_epoch(_search_path(folder, settings.network, number))
        for number in range(settings.num_searches)
    ]
    means = [
        float(f"{statistics.geometric_mean(norms):.4g}") for norms in zip(*searches, strict=True)
    ]
    ka.schedules.PiecewiseConstant(means).save(schedule_path(folder, settings.network))


def _norms_of_first_epochs(path: Path) -> list[float]:
    log = json.loads(path.read_text())["log"]
    return [entry["norm"] for entry in log if entry["epoch"] == 1]


def _norms_by_epoch(path: Path) -> list[float]:
    """Of the search that goes on from the first of its first epochs."""
    log = json.loads(path.read_text())["log"]
    return [_norms_of_first_epochs(path)[0]] + [e["norm"] for e in log if e["epoch"] > 1]


def _one_search(
    settings: Search, public: LabelledData, scale: Scale, noise_multiplier: float, number: int
) -> list[dict[str, Any]]:
    """A whole search; the first also begins anew with other seeds, for the initial norm."""
    started = time.perf_counter()
    log: list[dict[str, Any]] = []

    def one_epoch(epoch: int, seed: int, weights: Any = None) -> Any:
        tries = _try_norms(settings, public, scale, noise_multiplier, seed, weights)
        log.append({"epoch": epoch, "seed": seed, "tried": tries.accuracies, "norm": tries.norm})
        print(
            f"[search {number}, epoch {epoch}/{settings.epochs}] {tries.norm:g} gives "
            f"{tries.accuracy:.2%}, {len(tries.accuracies)} norms tried; "
            f"{time.perf_counter() - started:.0f} s so far",
            flush=True,
        )
        return tries.weights

    first_seed = _SEEDS_OF_A_SEARCH * number
    weights = one_epoch(1, first_seed)
    for other in range(1, settings.num_first_epochs if number == 0 else 1):
        one_epoch(1, first_seed + other)
    for epoch in range(2, settings.epochs + 1):
        weights = one_epoch(epoch, first_seed + 100 + epoch, weights)
    return log


class _Tries(keras.callbacks.Callback):
    """Makes every epoch of a `fit` begin with the same weights, and keeps the best end."""

    def __init__(self, norms: Sequence[float], tolerance: float, weights: Any) -> None:
        super().__init__()
        self._norms = norms
        self._tolerance = tolerance
        self._begin = weights
        self.accuracies: list[tuple[float, float]] = []
        self.accuracy = -1.0
        self.norm = norms[0]
        self.weights: Any = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Goes back to the beginning."""
        if self._begin is None:
            self._begin = self.model.get_weights()
        self.model.set_weights(self._begin)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Keeps the best; stops where the accuracy has fallen far below it."""
        accuracy = float((logs or {})["val_accuracy"])
        self.accuracies.append((self._norms[epoch], round(accuracy, 4)))
        if accuracy > self.accuracy:
            self.accuracy, self.norm = accuracy, self._norms[epoch]
            self.weights = self.model.get_weights()
        elif self.accuracy - accuracy > self._tolerance:
            self.model.stop_training = True


def _try_norms(
    settings: Search,
    public: LabelledData,
    scale: Scale,
    noise_multiplier: float,
    seed: int,
    weights: Any,
) -> _Tries:
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    model = compiled(
        networks.build(settings.network, settings.activation),
        ka.clipping.ScheduledClipping(ka.schedules.PiecewiseConstant(settings.norms)),
        settings.learning_rate,
        noise_multiplier,
        seed,
    )
    tries = _Tries(settings.norms, settings.tolerance, weights)
    model.fit(
        public.x_train,
        public.y_train,
        batch_size=scale.batch_size,
        epochs=settings.num_norms,
        validation_data=(public.x_test, public.y_test),
        validation_batch_size=2_000,
        callbacks=[tries],
        verbose=0,
    )
    return tries
