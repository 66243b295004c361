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
    """The draws of `keras.random` in a pass that is compared with another one.

    In a pass over other rows of the same number, draws move along with the rows: what a seed
    generator draws, steps draw from a secret key, so that it may as well have been drawn for
    another place. Draws from a constant seed stay where they are.

    In a pass over fewer rows, a draw whose shape depends on the number of rows is made in the shape
    of the larger pass and cut to its own. So the first rows of both passes have the same numbers.

    Args:
        num_rows: Number of rows of the pass.
        larger: The draws of the pass over more rows, which runs first; None for that pass itself.

    Attributes:
        shapes: The shapes that the draws of the latest pass have or are given, by argument.
        others: The same in a pass over another number of rows, which shows the axis of the rows;
            None to guess it.
    """

    def __init__(self, num_rows: int, larger: "EqualDraws | None" = None) -> None:
        self._num_rows, self._larger = num_rows, larger
        self.shapes: list[dict[str, Shape]] = []
        self.others: list[dict[str, Shape]] | None = None
        self._order: Tensor | None = None

    @contextmanager
    def made(self, order: Tensor | None = None) -> Iterator[None]:
        """Make the draws of the pass that runs within the context.

        Args:
            order: The former number of each row, with which its draws move. None leaves them.
        """
        self.shapes.clear()
        self._order = order
        with keras_private.replaced_draws(self._replaced):
            yield

    def _replaced(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return a function of `keras.random` that draws for the rows of the other pass."""

        def drawn(*args: Any, **kwargs: Any) -> Tensor:
            """Draw in the larger shape or another order, and return what belongs to the rows."""
            given = signature(function).bind(*args, **kwargs).arguments
            found = {name: _shape_of(name, value) for name, value in given.items()}
            shapes = {name: shape for name, shape in found.items() if shape is not None}
            targets = self._targets(shapes)
            axis = None if isinstance(given.get("seed"), int) else self._axis(shapes)
            self.shapes.append(shapes)
            for name, target in targets.items():
                given[name] = _resized(name, given[name], shapes[name], target)
                if axis is not None and ops.is_tensor(given[name]):
                    given[name] = self._moved(given[name], axis, is_back=True)
            result = function(**given)
            # The first of these arguments is the shape of the result, or has its rows.
            for name in list(shapes)[:1]:
                pairs = zip(shapes[name], targets[name], strict=True)
                result = result[tuple(slice(None if own is new else own) for own, new in pairs)]
            return result if axis is None else self._moved(result, axis)

        return drawn

    def _axis(self, shapes: dict[str, Shape]) -> int | None:
        """Return the axis of the rows in the next draw, None if it does not move."""
        shape: Shape = next(iter(shapes.values()), ())
        if self._order is None or self._larger is not None or not shape:
            return None
        if self.others is not None:
            number = len(self.shapes)
            known = self.others[number] if number < len(self.others) else {}
            pairs = zip(shape, next(iter(known.values()), shape), strict=False)
            differing = (not isinstance(own, int) or own != other for own, other in pairs)
            return next((axis for axis, differs in enumerate(differing) if differs), None)
        if not isinstance(shape[0], int) or shape[0] % self._num_rows == 0:
            return 0
        of_rows = (isinstance(each, int) and each == self._num_rows for each in shape)
        return next((axis for axis, is_of_rows in enumerate(of_rows) if is_of_rows), None)

    def _moved(self, value: Tensor, axis: int, is_back: bool = False) -> Tensor:
        """Return entries in the order of the rows, each of which may have several in succession."""
        order = ops.argsort(self._order) if is_back else ops.convert_to_tensor(self._order)
        if axis >= len(value.shape):
            return value
        number = ops.shape(value)[axis] // self._num_rows
        places = ops.expand_dims(order * number, 1) + ops.arange(number, dtype=order.dtype)
        return ops.take(value, ops.reshape(places, (-1,)), axis=axis)

    def _targets(self, shapes: dict[str, Shape]) -> dict[str, Shape]:
        """Return the shapes of the arguments of the next draw in the larger pass."""
        if self._larger is None:
            return shapes
        number, larger = len(self.shapes), self._larger
        known = larger.shapes[number] if number < len(larger.shapes) else {}

        def length(own: Any, other: Any) -> Any:
            """Return the length of an axis in the larger pass."""
            if own is None or isinstance(own, int):
                return other if isinstance(other, int) and other != own else own
            is_multiple = own % self._num_rows == 0
            return ops.where(is_multiple, own // self._num_rows * larger._num_rows, own)

        targets = {}
        for name, shape in shapes.items():
            others = known.get(name, ())
            others = others if len(others) == len(shape) else shape
            targets[name] = tuple(length(*pair) for pair in zip(shape, others, strict=True))
        return targets


def _shape_of(name: str, value: Any) -> Shape | None:
    """Return the shape that an argument is or has, or None."""
    if name in ("shape", "noise_shape") and value is not None:
        lengths = ops.unstack(value) if ops.is_tensor(value) else value
        return tuple(int(each) if isinstance(each, np.integer) else each for each in lengths)
    if name == "seed" or not ops.is_tensor(value) or not len(value.shape):
        return None
    return tuple(ops.shape(value))


def _resized(name: str, value: Any, own: Shape, target: Shape) -> Any:
    """Return a shape, or a tensor with entries repeated, in the shape of the larger pass."""
    if name in ("shape", "noise_shape"):
        return target
    for axis, (length, new) in enumerate(zip(own, target, strict=True)):
        # The first axis always: PyTorch draws in the order of memory, which a gather sets.
        if axis == 0 or new is not length:
            places = ops.arange(new)
            value = ops.take(value, ops.where(places < length, places, 0), axis=axis)
    return value
