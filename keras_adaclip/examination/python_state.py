"""Finds state that a forward pass keeps in Python.

Where a step runs eagerly, a layer can keep buffers, attributes or lists, and what it keeps of the
data reaches the next step past clipping and noise.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private

_DEPTH = 7
_OWN = ("keras", "keras_adaclip")
_LIBRARIES = (*_OWN, "tensorflow", "jax", "jaxlib", "builtins", "numpy", "torch")
_NOT_STATE = (keras.Variable, keras.Layer, keras.KerasTensor, type)
_NUMBERS = (int, float, complex, np.ndarray, np.generic)
_LISTS = (list, tuple, set, frozenset, deque)


class PythonState:
    """Compares the numbers that the layers of a model hold after each of several forward passes.

    Args:
        model: A built model.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._latest: dict[tuple[str, ...], np.ndarray] | None = None
        # Layers that hold a number which changed after the first pass, or in which a compiled pass
        # left a tensor, which has another value in each step.
        self._names: dict[str, None] = {}

    def note(self) -> None:
        """Note the numbers that are held now."""
        held: dict[tuple[str, ...], np.ndarray] = {}
        values = {id(each.value) for each in self._model.variables}  # PyTorch's modules hold them.
        for number, layer in enumerate(keras_private.flatten_layers(self._model)):
            # Keras empties what `add_loss` fills, and it is reported anyway. A class may hold a
            # default under the name of an attribute.
            own = {n: v for n, v in vars(layer).items() if n not in keras_private.ADDED_LOSSES}
            classes = [kind for kind in type(layer).__mro__ if not _is_of(kind, _LIBRARIES)]
            parts = {"": own, **{kind.__qualname__: dict(vars(kind)) for kind in classes}}
            for path, value in _numbers_in(parts, (str(number),), {id(layer), *values}):
                if value is None or self._is_changed(path, value):
                    self._names[layer.name] = None
                if value is not None:
                    held[path] = value
        self._latest = held

    def names(self) -> list[str]:
        """Return the layers that hold a number which changed after the first pass."""
        return list(self._names)

    def _is_changed(self, path: tuple[str, ...], value: np.ndarray) -> bool:
        """Return whether a number differs from that of the note before, if there was one."""
        if self._latest is None:
            return False
        before, is_number = self._latest.get(path), value.dtype.kind in "fc"
        return before is None or not np.array_equal(value, before, equal_nan=is_number)


def _is_of(kind: type, libraries: tuple[str, ...]) -> bool:
    """Return whether a class belongs to a library."""
    return kind.__module__.partition(".")[0] in libraries


def _numbers_in(
    value: Any, path: tuple[str, ...], seen: set[int]
) -> Iterator[tuple[tuple[str, ...], np.ndarray | None]]:
    """Yield the numbers and arrays in `value`, each with the names that lead to it.

    None stands for a tensor that is being traced.
    """
    if id(value) in seen:
        return
    is_traced = not isinstance(value, _NUMBERS) and backend.is_traced(value)
    array = None if is_traced or isinstance(value, _NOT_STATE) else _as_array(value)
    if array is not None or is_traced:
        yield path, array
    elif not isinstance(value, _NOT_STATE) and len(path) <= _DEPTH:
        seen.add(id(value))
        for key, child in list(_children(value)):
            yield from _numbers_in(child, (*path, repr(key)), seen)


def _children(value: Any) -> Any:
    """Return what a value holds, with names."""
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, _LISTS):
        return enumerate(value)
    is_module = any(each.__module__.startswith("torch.nn") for each in type(value).__mro__)
    if not hasattr(value, "__dict__") or (callable(value) and not is_module):
        return ()
    # Keras's own lists and dicts hold what a layer was given; its other objects do not. Nor do the
    # strategies of `tf.distribute`, which count what their workers send.
    is_strategy = type(value).__module__.startswith("tensorflow.python.distribute.")
    return () if is_strategy or _is_of(type(value), _OWN) else vars(value).items()


def _as_array(value: Any) -> np.ndarray | None:
    """Return the value as an array of numbers, or None if it is none."""
    is_number = isinstance(value, _NUMBERS)
    # A `tf.Variable` is no tensor, but has both attributes.
    is_tensor = hasattr(value, "dtype") and (hasattr(value, "numpy") or ops.is_tensor(value))
    if not (is_tensor or is_number):
        return None
    # Tensors without values, those that were deleted, and handles of tables cannot be converted.
    convert = np.array if is_number else ops.convert_to_numpy
    array, _ = backend.attempt(lambda: np.array(convert(value)))
    return array if array is not None and array.dtype.kind in "biufc" else None
