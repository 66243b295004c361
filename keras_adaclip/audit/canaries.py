"""Canaries: examples that training sees or does not see by the toss of a coin."""

from typing import Any

import keras
import numpy as np
from numpy.random import Generator

from keras_adaclip._checks import check_choice, check_integer
from keras_adaclip.gradients import example_losses, mapped
from keras_adaclip.sampling import PoissonDataset, as_arrays, common_length

CANARY_KINDS = ("random", "mislabeled", "unchanged")
"""Kinds of canaries; `Canaries.draw` describes each of them."""


class Canaries:
    """A data set with canaries: a coin decides for each canary whether training sees it.

    The better the trained model tells which canaries it saw, the higher the lower bound on epsilon.
    The coins change neither the sampling of the other examples nor the number of steps nor the
    divisor of `dataset`, so data sets that differ in one coin are neighbours of the add-or-remove
    relation. The data set counts as many rows as are present on average, so clipping norms, divisor
    and noise are those of ordinary training.

    Use weights that were trained on canaries for the audit only: the model has learned half of the
    canaries, which are made to be remembered.

    Args:
        x: Arrays of shape `(num_examples, ...)`, canaries included.
        y: Targets of the same length, or None.
        rows: Numbers of the rows that are canaries, each once.
        is_member: A bool array of the shape of `rows`, independent fair coins: true if training has
            the canary.

    Raises:
        ValueError: If lengths differ, `is_member` does not hold bools, or a row is out of range or
            given twice.

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
        is_row_once = np.bincount(self.rows, minlength=self.num_examples) <= 1
        if (
            self.is_member.dtype != np.bool_
            or self.rows.shape != self.is_member.shape
            or len(is_row_once) != self.num_examples
            or not is_row_once.all()
        ):
            raise ValueError(
                f"Argument `rows` must hold numbers of the {self.num_examples} rows, none twice, "
                "and `is_member` a bool for each. Received: "
                f"shapes {self.rows.shape} and {self.is_member.shape}, dtype {self.is_member.dtype}"
            )

    def __repr__(self) -> str:
        return f"Canaries(num_canaries={len(self)}, num_examples={self.num_examples})"

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
        """Make canaries of rows drawn at random, and toss their coins. The data are copied.

        Args:
            x: An array, or a dict, list or tuple of arrays, of shape `(num_examples, ...)`.
            y: Targets of the same length, or None.
            num_canaries: From 2 to `num_examples`. Twice as many allow a bound that is higher by
                about log 2, if training remembers them all.
            kind: What a canary is. `"random"`: each number of its inputs is uniform between the
                least and the greatest value of the data at its place, and its targets are those
                of a row drawn at random. `"mislabeled"`: it keeps its inputs, and has the targets
                of another row, different ones if ten tries find some. `"unchanged"`: a row as it
                was, to bound what training tells of ordinary examples.
            seed: None tosses coins of the operating system. A seed makes an audit repeatable;
                training must not know it.

        Returns:
            The canaries.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If an argument is out of range, or lengths differ.
        """
        check_choice("kind", kind, CANARY_KINDS)
        x, y = mapped(np.array, as_arrays((x, y)))
        if y is None and kind == "mislabeled":
            raise ValueError("Canaries of the kind 'mislabeled' need targets. Received: y=None")
        num_examples = common_length({"x": x} if y is None else {"x": x, "y": y})
        num_canaries = check_integer("num_canaries", num_canaries, minimum=2, maximum=num_examples)
        generator = np.random.default_rng(seed)
        rows = np.sort(generator.choice(num_examples, num_canaries, replace=False))

        if kind != "unchanged":
            num_tries = 10 if kind == "mislabeled" else 0
            others = _other_rows(y, rows, num_examples, generator, num_tries)
            for array in [] if y is None else keras.tree.flatten(y):
                array[rows] = array[others]
        if kind == "random":
            for array in keras.tree.flatten(x):
                array[rows] = _random_inputs(array, num_canaries, generator)
        return cls(x, y, rows, generator.random(num_canaries) < 0.5)

    def __len__(self) -> int:
        return len(self.rows)

    def dataset(self, batch_size: int, seed: int | None = None) -> PoissonDataset:
        """Return the data to train on, for `PrivateModel.fit`.

        Args:
            batch_size: Expected number of examples in a step, before the coins are tossed; at
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
        """Return the model's loss on each canary, of shape `(num_canaries,)`.

        Args:
            model: A compiled model.
        """
        return example_losses(model, *mapped(lambda array: array[self.rows], (self.x, self.y)))


def _other_rows(
    y: Any, rows: np.ndarray, num_examples: int, generator: Generator, num_tries: int
) -> np.ndarray:
    """Return for each row the number of a random one, with other targets if some try finds them."""
    others = generator.integers(num_examples, size=len(rows))
    for _ in range(num_tries):
        parts = (part[rows] == part[others] for part in keras.tree.flatten(y))
        same = np.all([part.reshape(len(rows), -1).all(axis=1) for part in parts], axis=0)
        others[same] = generator.integers(num_examples, size=int(same.sum()))
    return others


def _random_inputs(array: np.ndarray, num_canaries: int, generator: Generator) -> np.ndarray:
    """Return inputs of canaries, uniform between the least and the greatest value at each place."""
    shape = (num_canaries, *array.shape[1:])
    if array.dtype == np.bool_:
        return generator.random(shape) < 0.5
    low, high = np.nanmin(array, axis=0), np.nanmax(array, axis=0)
    if np.issubdtype(array.dtype, np.floating):
        return np.asarray(low + (high - low) * generator.random(shape))
    return generator.integers(low, high, size=shape, dtype=array.dtype, endpoint=True)
