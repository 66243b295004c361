"""The data sets of the comparison, each one entry in `DATA_SETS`."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from examples.data import LabelledData, load_fashion_mnist

_PAPER = Path(__file__).with_name("lin2022.json")


@dataclass(frozen=True)
class DataSet:
    """A data set, and the privacy budgets at which it is compared.

    Args:
        load: returns the images.
        delta: the delta of every run, `1 / num_train` in the paper. The runs on a training set
            from which a validation set is held out keep it.
        num_train: number of training images.
        epsilons: the budgets of the paper's table 2, the one that matters most first.
        num_held_out: number of training images held out for choosing hyperparameters.
    """

    load: Callable[[], LabelledData]
    delta: float
    num_train: int
    epsilons: tuple[float, ...]
    num_held_out: int


DATA_SETS = {
    "fashion_mnist": DataSet(
        load=load_fashion_mnist,
        delta=1 / 60_000,
        num_train=60_000,
        epsilons=(2.7, 1.5, 4.5),
        num_held_out=10_000,
    )
}


@cache
def images(name: str, scored_on: str, limit: int | None = None) -> LabelledData:
    """The images to train on, and as test images those that a run is scored on.

    Args:
        name: a key of `DATA_SETS`.
        scored_on: `"test"` trains on all training images; `"validation"` trains on all but the
            last `num_held_out`, and is scored on these.
        limit: largest number of training images; None takes all of them.

    Raises:
        ValueError: if the data set is not available and another was loaded instead.
    """
    data = _loaded(name)
    if limit is None and len(data.x_train) != DATA_SETS[name].num_train:
        raise ValueError(f"The images of {name!r} are not available here. Found: {data.source}")
    num_held_out = DATA_SETS[name].num_held_out
    if limit is not None:
        num_held_out = limit // 4
        data = data.first(limit, limit // 2)
    if scored_on == "test":
        return data
    split = len(data.x_train) - num_held_out
    return LabelledData(
        data.x_train[:split],
        data.y_train[:split],
        data.x_train[split:],
        data.y_train[split:],
        f"{data.source}, the last {num_held_out:,} training images held out",
    )


@cache
def _loaded(name: str) -> LabelledData:
    return DATA_SETS[name].load()


def public_images(path: Path, num_train: int, split: float = 0.8) -> LabelledData:
    """Public digits for finding thresholds that are then used on private data.

    Args:
        path: an `.npz` file with `x`, bytes of shape `(num_images, 28, 28)`, and `y`.
        num_train: number of training rows to make of the images by repeating them. What a
            threshold does depends on the signal and the noise of a step; with as many rows as the
            private data have, batch size, steps an epoch and noise are the same there and here.
        split: the share of the images that are trained on; the others score the thresholds.
    """
    with np.load(path) as arrays:
        x = (arrays["x"].astype(np.float32) / np.float32(255.0))[..., None]
        y = arrays["y"].astype(np.int32)
    num_distinct = int(split * len(x))
    rows = np.resize(np.arange(num_distinct), num_train)
    source = (
        f"{path.name}: {num_distinct:,} public images repeated to {num_train:,}, "
        f"{len(x) - num_distinct:,} others to score on"
    )
    return LabelledData(x[rows], y[rows], x[num_distinct:], y[num_distinct:], source)


@cache
def paper() -> dict[str, Any]:
    """The paper's tables and hyperparameters, by data set."""
    contents: dict[str, Any] = json.loads(_PAPER.read_text())
    return contents
