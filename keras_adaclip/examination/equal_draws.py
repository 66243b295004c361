"""Equal random numbers for equal rows, in passes over batches of two orders or sizes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import numpy as np
from keras import ops

from keras_adaclip.backend import keras_private

Tensor = Any
# Lengths of axes. TensorFlow may not know a length (a tensor), and a noise shape may leave it open.
Shape = tuple[Any, ...]


class EqualDraws:
    """The draws of `keras.random` in passes that are compared with each other.

    Every draw is made for the rows of the largest batch, in their first order; a pass takes what
    belongs to its own rows. So draws move along with the rows: what a seed generator draws, steps
    draw from a secret key, so that it may as well have been drawn for another place. Draws from a
    constant seed stay where they are.

    Args:
        num_rows: Number of rows of the largest batch.
    """

    def __init__(self, num_rows: int) -> None:
        self._most = num_rows
        # The shapes that the draws of a pass have or are given, by argument, by number of rows.
        self._shapes: dict[int | None, list[dict[str, Shape]]] = {}
        self._made: list[dict[str, Shape]] = []
        self._num_rows: Any = num_rows
        self._order: Tensor | None = None

    @contextmanager
    def made(self, row: Tensor, order: Tensor | None) -> Iterator[None]:
        """Make the draws of the pass that runs within the context.

        Args:
            row: A tensor of the pass whose first axis is that of the rows.
            order: The former numbers of all rows, with which their draws move. None leaves draws
                as they are, and notes their shapes.
        """
        self._made = self._shapes[row.shape[0]] = []
        self._num_rows, self._order = ops.shape(row)[0], order
        with keras_private.replaced_draws(self._replaced):
            yield

    def _replaced(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return a function of `keras.random` that draws for the rows of the largest batch."""

        def drawn(*args: Any, **kwargs: Any) -> Tensor:
            """Draw for all rows, and return what belongs to those of this pass."""
            given = signature(function).bind(*args, **kwargs).arguments
            found = {name: _shape_of(name, value) for name, value in given.items()}
            shapes = {name: shape for name, shape in found.items() if shape is not None}
            shape = next(iter(shapes.values()), ())
            axis = self._axis(shape)
            self._made.append(shapes)
            if axis is None or self._order is None:
                return function(**given)
            is_known = isinstance(shape[axis], int)
            is_constant = isinstance(given.get("seed"), int)
            order = ops.arange(self._most, dtype="int32") if is_constant else self._order
            # A row may have several entries in succession.
            number = shape[axis] // self._num_rows
            inverse = ops.argsort(order)
            rows = ops.where(inverse < self._num_rows, inverse, 0)
            for name, own in shapes.items():
                length = own[axis] if axis < len(own) else None
                if length is None or (length != shape[axis] if is_known else type(length) is int):
                    continue  # It is for all rows.
                if name in ("shape", "noise_shape"):
                    given[name] = (*own[:axis], number * self._most, *own[axis + 1 :])
                else:
                    given[name] = _taken(given[name], rows, number, axis)
            result = function(**given)
            order = order[: self._num_rows]
            return _taken(result, order, number, axis) if axis < len(result.shape) else result

        return drawn

    def _axis(self, shape: Shape) -> int | None:
        """Return the axis of the rows in the next draw, None if it has none."""
        number, num_rows = len(self._made), self._num_rows
        if not isinstance(num_rows, int):  # In a graph, other lengths are known.
            return next((n for n, each in enumerate(shape) if not isinstance(each, int)), None)
        for other, known in self._shapes.items():
            if other not in (num_rows, None) and number < len(known):
                pairs = zip(shape, next(iter(known[number].values()), shape), strict=False)
                return next((n for n, (one, two) in enumerate(pairs) if one != two), None)
        # Another pass may show that it is not.
        if shape and shape[0] % num_rows == 0:
            return 0
        return next((n for n, each in enumerate(shape) if each == num_rows), None)


def _taken(value: Tensor, rows: Tensor, number: Any, axis: int) -> Tensor:
    """Return the entries of some rows, each of which has a number of them in succession.

    PyTorch draws in the order of memory, which this sets.
    """
    places = ops.expand_dims(rows * number, 1) + ops.arange(number, dtype=rows.dtype)
    return ops.take(value, ops.reshape(places, (-1,)), axis=axis)


def _shape_of(name: str, value: Any) -> Shape | None:
    """Return the shape that an argument is or has, or None."""
    if name in ("shape", "noise_shape") and value is not None:
        lengths = ops.unstack(value) if ops.is_tensor(value) else value
        return tuple(int(each) if isinstance(each, np.integer) else each for each in lengths)
    if name == "seed" or not ops.is_tensor(value) or not len(value.shape):
        return None
    return tuple(ops.shape(value))
