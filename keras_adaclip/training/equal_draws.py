"""Equal random numbers in passes over batches of two sizes."""

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
    """The draws of `keras.random` in a pass: those of a pass over more rows, as far as they go.

    A draw whose shape depends on the number of rows is made in the shape of the larger pass and cut
    to its own. So the first rows of both passes have the same random numbers.

    Args:
        num_rows: Number of rows of the pass.
        larger: The draws of the pass over more rows, which runs first; None for that pass itself.
    """

    def __init__(self, num_rows: int, larger: "EqualDraws | None" = None) -> None:
        self._num_rows, self._larger = num_rows, larger
        # By draw and name of an argument.
        self._shapes: list[dict[str, Shape]] = []

    @contextmanager
    def made(self) -> Iterator[None]:
        """Make the draws of the pass that runs within the context."""
        self._shapes.clear()
        with keras_private.replaced_draws(self._replaced):
            yield

    def _replaced(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return a function of `keras.random` that draws in the shape of the larger pass."""

        def drawn(*args: Any, **kwargs: Any) -> Tensor:
            """Draw in the larger shape and return what belongs to the own one."""
            given = signature(function).bind(*args, **kwargs).arguments
            found = {name: _shape_of(name, value) for name, value in given.items()}
            shapes = {name: shape for name, shape in found.items() if shape is not None}
            targets = self._targets(shapes)
            self._shapes.append(shapes)
            for name, target in targets.items():
                given[name] = _resized(name, given[name], shapes[name], target)
            result = function(**given)
            # The first of these arguments is the shape of the result, or has its rows.
            for name in list(shapes)[:1]:
                pairs = zip(shapes[name], targets[name], strict=True)
                result = result[tuple(slice(None if own is new else own) for own, new in pairs)]
            return result

        return drawn

    def _targets(self, shapes: dict[str, Shape]) -> dict[str, Shape]:
        """Return the shapes of the arguments of the next draw in the larger pass."""
        if self._larger is None:
            return shapes
        number, larger = len(self._shapes), self._larger
        known = larger._shapes[number] if number < len(larger._shapes) else {}

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
