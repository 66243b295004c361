"""The contribution of each row to a private step, recorded and replayed on neighbouring batches."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend, gradients
from keras_adaclip.backend import keras_private
from keras_adaclip.models import private_step
from keras_adaclip.sampling import as_arrays
from keras_adaclip.testing.comparing import array, require
from keras_adaclip.training import training_data

Tensor = Any
# The noise is wider than the ledger says by as much, for the rounding of float32.
_ROUNDING = 1e-3
# Where layers compute with 16 bits, the gradient of a row is rounded otherwise alone.
_OF_16_BITS = 5e-2
_HUGE = 1e6


def assert_isolated(model: keras.Model, x: Any, y: Any = None) -> None:
    """Assert that a private step clips each row alone, and that no row moves another one.

    The step runs on the batch, without each row, and with NaN and with numbers a million times as
    large in its place. Each row must contribute its own gradient, computed on that row alone and
    clipped in NumPy, and its statistics must not exceed their bound. Nothing is trained, and the
    ledger stays as it is.

    Where layers draw random numbers, the gradient of a row is not known; what the row contributes
    when all others are left out stands in its place, at the same draws.

    Args:
        model: A compiled private model. Steps run without compilation.
        x: A few rows, arrays of shape `(num_rows, ...)`; four are enough.
        y: Their targets, or None.

    Raises:
        AssertionError: If a row moves another one or contributes more than its clipping norm, or
            the model is one that `fit` refuses. The message names variable, row and figure.

    Example:

    >>> import keras, numpy as np, keras_adaclip as ka
    >>> model = ka.PrivateSequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> optimizer = ka.optimizers.DPOptimizer("sgd", clipping=0.1, noise_multiplier=1.0)
    >>> model.compile(optimizer, loss="mse")
    >>> x = np.random.default_rng(0).normal(size=(4, 3))
    >>> assert_isolated(model, x, x[:, :2])
    """
    x, y = as_arrays((x, y))
    num_rows = len(keras.tree.flatten(x)[0])
    draws = training_data.DrawsOfFit(model=model, batch_size=num_rows, steps_per_epoch=1)
    try:
        model._require_compiled()
        model._prepare(draws.from_arrays(x, y, None, model.optimizer))
    except ValueError as error:
        raise AssertionError(f"`fit` refuses the model: {error}") from error
    replay, everyone, order = _Replay(model), np.ones(num_rows, bool), np.arange(num_rows)
    if any(map(keras_private.is_seed_generator_state, model.variables)):
        alone = [replay.sums(x, y, order == row)[:-1] for row in order]
    else:
        alone = [replay.clipped(x, y, row) for row in range(num_rows)]
    total = replay.sums(x, y, everyone)
    sum_of_rows = [np.sum(parts, axis=0) for parts in zip(*alone, strict=True)]
    replay.compare("The batch adds", [*sum_of_rows, total[-1]], total)
    for row in order:
        without = replay.sums(x, y, order != row)
        of_row = [a - b for a, b in zip(total, without, strict=True)]
        replay.compare(f"Row {row} adds", [*alone[row], of_row[-1]], of_row)
        replay.bounded(f"Row {row}", of_row)
        for name, factor in (("NaN", np.nan), ("huge numbers", _HUGE)):
            found = replay.sums(_changed(x, int(row), factor), y, everyone)
            moved = [a - b for a, b in zip(found, without, strict=True)]
            replay.bounded(f"Row {row} with {name}", moved)


class _Replay:
    """A prepared private model whose steps are recorded in the place of being applied.

    Args:
        model: The model.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model, self._clipping = model, model.optimizer.current_clipping
        self._names = [*(variable.path for variable in model.trainable_variables), "statistics"]
        self._clip_norms = array(self._clipping.state["clip_norm"])
        whole, layers = float(np.linalg.norm(self._clip_norms)), keras_private.flatten_layers(model)
        is_half = any(each.compute_dtype in ("float16", "bfloat16") for each in layers)
        self._tolerance = _ROUNDING * whole
        self._gap = _OF_16_BITS * whole if is_half else self._tolerance
        self._step = backend.Evaluator(self._recorded, model)
        self._gradient = backend.Evaluator(self._differentiated, model)

    def sums(self, x: Any, y: Any, present: np.ndarray) -> list[np.ndarray]:
        """Return the sums of gradients, and of statistics last, that a step gives the optimizer."""
        self._batch = {"x": x, "mask": present} | ({} if y is None else {"y": y})
        sums, lost = self._step(keras.tree.flatten(self._batch), ())
        statistics, *others = (array(a) + array(b) for a, b in zip(sums, lost, strict=True))
        return [*others, statistics]

    def clipped(self, x: Any, y: Any, row: int) -> list[np.ndarray]:
        """Return the gradient of one row by each variable, clipped in NumPy."""
        clipping, data = self._clipping, (x,) if y is None else (x, y)
        self._row = gradients.mapped(lambda value: value[row : row + 1], data)
        parts = list(map(array, self._gradient(keras.tree.flatten(self._row), ())))
        if (pairs := clipping.coordinates) is not None:
            moves = [tuple(map(array, pair)) for pair in pairs]
            parts = [(part - a) / b for part, (a, b) in zip(parts, moves, strict=True)]
        norms = self._lengths(parts)
        if not np.isfinite(norms).all():
            return [np.zeros_like(part) for part in parts]
        given = ops.convert_to_tensor(norms[None].astype("float32"))
        factors = array(clipping.strategy.clip_factors(clipping.state, given))[0]
        most = self._clip_norms / np.maximum(norms, 1e-10)
        factors = np.clip(factors, -most, most)[list(clipping.groups.assignment)]
        return [factor * part for factor, part in zip(factors, parts, strict=True)]

    def compare(self, what: str, expected: list[np.ndarray], found: list[np.ndarray]) -> None:
        """Raise if two lists of sums differ by more than the noise allows for rounding."""
        for name, one, other in zip(self._names, expected, found, strict=True):
            gap = float(np.linalg.norm(one - other))
            require(
                gap <= self._gap,
                f"{what} another gradient to variable {name!r} than its rows alone: off by "
                f"{gap:.3g}, of which {self._gap:.3g} are rounding. A layer, loss or rule "
                "mixes rows, or computes another gradient.",
            )

    def bounded(self, what: str, moved: list[np.ndarray]) -> None:
        """Raise if two neighbouring sums differ by more than a contribution."""
        bound = self._clipping.strategy.statistic_bound
        sizes = [*self._lengths(moved[:-1]), *np.abs(moved[-1])]
        limits = [*self._clip_norms, *np.full(len(moved[-1]), 1.0 if bound is None else bound)]
        names = [f"group {name!r}" for name in self._clipping.groups.names]
        names += ["statistics"] * len(moved[-1])
        for name, size, most in zip(names, sizes, limits, strict=True):
            is_bounded = size <= most + self._tolerance
            require(is_bounded, f"{what} moves the sum of {name} by {size:.6g}, above {most:.6g}.")

    def _recorded(self, rows: list[Tensor], _: Any) -> list[list[Tensor]]:
        """Return the sums of a step, and what float32 has lost of them."""
        found: list[Any] = []
        record = (self._model.optimizer, "apply", lambda total, _: found.append(total.totals))
        with keras_private.replaced_attributes([record]), keras.StatelessScope():
            private_step(self._model, keras.tree.pack_sequence_as(self._batch, rows))
        (totals,) = found
        return [totals.sums, totals.remainders or [ops.zeros_like(each) for each in totals.sums]]

    def _differentiated(self, rows: list[Tensor], _: Any) -> list[Tensor]:
        """Return the gradient of the loss of one row by each variable."""
        model = self._model
        x, y = (*keras.tree.pack_sequence_as(self._row, rows), None)[:2]

        def loss() -> tuple[Tensor, Any]:
            """Return the loss of the row."""
            return gradients.compute_loss(model, gradients.call_model(model, x, True), x, y), ()

        with keras.StatelessScope():
            _, found = backend.gradients_of(loss, model.trainable_variables, model.variables)
        return list(found)

    def _lengths(self, parts: list[np.ndarray]) -> np.ndarray:
        """Return the norm of each group's part."""
        squares = [float(np.sum(np.square(part))) for part in parts]
        groups = self._clipping.groups
        return np.sqrt(np.bincount(groups.assignment, squares, groups.num_groups))


def _changed(x: Any, row: int, factor: float) -> Any:
    """Return inputs of which one row is multiplied, where they are floats."""

    def change(value: np.ndarray) -> np.ndarray:
        """Multiply the row of one array."""
        factors = np.where(np.arange(len(value)) == row, factor, 1.0)
        factors = factors.reshape(-1, *[1] * (value.ndim - 1))
        return (value * factors).astype(value.dtype) if value.dtype.kind == "f" else value

    return keras.tree.map_structure(change, x)
