"""Canaries: examples of which a coin decides whether training has them."""

from typing import Any

import keras
import numpy as np

from keras_adaclip._checks import check_integer
from keras_adaclip.gradients import example_losses
from keras_adaclip.sampling import PoissonDataset, as_array, common_length

CANARY_KINDS = ("random", "mislabeled", "unchanged")
"""What canaries can be made of; `Canaries.draw` says what each kind is."""


class Canaries:
    """A data set with canaries in it, each of which training sees or not by the toss of a coin.

    What training then knows of the canaries, beyond what the coins' tosser could have guessed,
    bounds epsilon from below. `dataset` keeps the law of all other examples, the number of steps
    and the divisor whatever the coins say, so that two outcomes differ as neighbouring data sets
    of the add-or-remove relation do. As many rows are taken to be present as the coins make it on
    average, so that thresholds, divisor and noise are those of ordinary training.

    Weights that were trained on canaries are for the audit: half of the canaries, made to be
    remembered, are in them.

    Args:
        x: arrays of shape `(num_examples, ...)`, canaries included.
        y: targets of the same length, or None.
        rows: numbers of the rows that are canaries, none twice.
        is_member: bool, of the shape of `rows`: independent fair coins, true where training has
            the canary.

    Raises:
        TypeError: where `is_member` is not made of truth values.
        ValueError: where lengths differ, or a row is out of range or there twice.

    Example:

    >>> canaries = Canaries.draw(np.random.rand(500, 4), np.zeros(500, int), num_canaries=100)
    >>> dataset = canaries.dataset(batch_size=50)
    >>> len(canaries), dataset.num_examples, round(dataset.sampling_probability, 3)
    (100, 450, 0.111)

    Reference:
        Steinke, Nasr & Jagielski 2023, "Privacy auditing with one (1) training run".
    """

    def __init__(self, x: Any, y: Any, rows: Any, is_member: Any) -> None:
        self.x, self.y = x, y
        self.rows, self.is_member = np.asarray(rows), np.asarray(is_member)
        self.num_examples = common_length({"x": x} if y is None else {"x": x, "y": y})
        if self.is_member.dtype != np.bool_:
            raise TypeError(
                "Argument `is_member` must be an array of truth values. "
                f"Received: dtype {self.is_member.dtype}"
            )
        if self.rows.ndim != 1 or self.rows.shape != self.is_member.shape:
            raise ValueError(
                "Arguments `rows` and `is_member` must have one entry a canary. "
                f"Received: shapes {self.rows.shape} and {self.is_member.shape}"
            )
        if len(np.unique(self.rows)) < len(self.rows) or not np.all(
            (self.rows >= 0) & (self.rows < self.num_examples)
        ):
            raise ValueError(
                f"Argument `rows` must hold numbers of the {self.num_examples} rows, none twice."
            )

    @classmethod
    def draw(
        cls,
        x: Any,
        y: Any = None,
        *,
        num_canaries: int = 1000,
        kind: str = "random",
        seed: int | None = None,
    ) -> "Canaries":
        """Makes canaries of rows drawn at random, and tosses their coins; copies the data.

        Args:
            x: array, or dict, list or tuple of arrays, of shape `(num_examples, ...)`.
            y: targets of the same length, or None.
            num_canaries: at most `num_examples`. Twice as many allow a bound that is higher by
                about log 2, as far as training remembers them all.
            kind: what a canary is. `"random"`: each number of its inputs is drawn between the
                least and the greatest that the data have at its place, and its targets are those
                of a row drawn at random. `"mislabeled"`: it keeps its inputs, and has the targets
                of another row, different ones where ten tries find some. `"unchanged"`: a row as
                it was, which bounds what training tells of ordinary examples.
            seed: None tosses coins of the operating system. A seed makes an audit repeatable; it
                must not be one that training knows.

        Returns:
            The canaries.

        Raises:
            TypeError: where an argument has the wrong type.
            ValueError: where an argument is out of range, or lengths differ.
        """
        if kind not in CANARY_KINDS:
            raise ValueError(
                f"Argument `kind` must be one of {', '.join(map(repr, CANARY_KINDS))}. "
                f"Received: kind={kind!r}"
            )
        x = keras.tree.map_structure(_copied, x)
        y = None if y is None else keras.tree.map_structure(_copied, y)
        if y is None and kind == "mislabeled":
            raise ValueError("Canaries of the kind 'mislabeled' need targets. Received: y=None")
        num_examples = common_length({"x": x} if y is None else {"x": x, "y": y})
        num_canaries = check_integer("num_canaries", num_canaries, minimum=2, maximum=num_examples)
        generator = np.random.default_rng(seed)
        rows = np.sort(generator.choice(num_examples, num_canaries, replace=False))
        if kind != "unchanged":
            others = _other_targets(y, rows, num_examples, generator, kind == "mislabeled")
            _assign(y, rows, _taken(y, others))
        if kind == "random":
            _assign(x, rows, _random_inputs(x, num_canaries, generator))
        return cls(x, y, rows, generator.random(num_canaries) < 0.5)

    def __len__(self) -> int:
        return len(self.rows)

    def dataset(self, batch_size: int, seed: int | None = None) -> PoissonDataset:
        """The data to train on: for `PrivateModel.fit`.

        Args:
            batch_size: expected number of examples in a step, before the coins are tossed; at
                most `num_examples` less half of the canaries.
            seed: None, or an integer that makes the draws repeatable.
        """
        present = np.ones(self.num_examples, bool)
        present[self.rows[~self.is_member]] = False
        return PoissonDataset(
            self.x,
            self.y,
            expected_batch_size=batch_size,
            seed=seed,
            present=present,
            num_present=self.num_examples - len(self) // 2,
        )

    def losses(self, model: keras.Model) -> np.ndarray:
        """The model's loss on each canary, of shape `(num_canaries,)`.

        Args:
            model: a compiled model.
        """
        return example_losses(model, _taken(self.x, self.rows), _taken(self.y, self.rows))


def _other_targets(
    y: Any, rows: np.ndarray, num_examples: int, generator: np.random.Generator, differ: bool
) -> np.ndarray:
    """For each row, the number of one whose targets it gets."""
    others = generator.integers(num_examples, size=len(rows))
    for _ in range(10 if differ and y is not None else 0):
        same = np.ones(len(rows), bool)
        for part in keras.tree.flatten(y):
            equal = part[rows] == part[others]
            same &= equal.reshape(len(rows), -1).all(axis=1)
        if not same.any():
            break
        others[same] = generator.integers(num_examples, size=int(same.sum()))
    return others


def _random_inputs(x: Any, num_canaries: int, generator: np.random.Generator) -> Any:
    """Inputs of canaries, each number between the least and the greatest of the data there."""

    def draw(array: np.ndarray) -> np.ndarray:
        shape = (num_canaries, *array.shape[1:])
        least, greatest = (
            (np.nanmin, np.nanmax) if np.issubdtype(array.dtype, np.floating) else (np.min, np.max)
        )
        low, high = least(array, axis=0), greatest(array, axis=0)
        if np.issubdtype(array.dtype, np.floating):
            return (low + (high - low) * generator.random(shape)).astype(array.dtype)
        if array.dtype == np.bool_:
            return generator.random(shape) < 0.5
        return generator.integers(low, high, size=shape, dtype=array.dtype, endpoint=True)

    return keras.tree.map_structure(draw, x)


def _copied(value: Any) -> np.ndarray:
    return np.array(as_array(value))


def _taken(part: Any, rows: np.ndarray) -> Any:
    return None if part is None else keras.tree.map_structure(lambda array: array[rows], part)


def _assign(part: Any, rows: np.ndarray, values: Any) -> None:
    if part is None:
        return
    for array, new in zip(keras.tree.flatten(part), keras.tree.flatten(values), strict=True):
        array[rows] = new
