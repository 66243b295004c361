"""Finds state that a forward pass keeps in Python.

Where a step runs eagerly, a layer can keep buffers, attributes or lists, and what it keeps of the
data reaches the next step past clipping and noise.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private

_DEPTH = 7
_LIBRARIES = ("keras", "keras_adaclip", "tensorflow", "jax", "jaxlib", "builtins", "numpy", "torch")


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
        for number, layer in enumerate(keras_private.flatten_layers(self._model)):
            seen = {id(layer)}
            # Keras empties what `add_loss` fills, and the probe reports it.
            own = {
                name: part
                for name, part in vars(layer).items()
                if name not in keras_private.ADDED_LOSSES
            }
            # A class may hold a default under the name of an attribute.
            classes = {
                kind.__qualname__: vars(kind)
                for kind in type(layer).__mro__
                if not _is_of_library(kind)
            }
            for name, part in {"": own, **classes}.items():
                for path, value in _numbers_in(part, (str(number), name), seen):
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


def _is_of_library(kind: type, libraries: tuple[str, ...] = _LIBRARIES) -> bool:
    """Return whether a class belongs to a library and not to the user."""
    return kind.__module__.partition(".")[0] in libraries


def _numbers_in(
    value: Any, path: tuple[str, ...], seen: set[int]
) -> Iterator[tuple[tuple[str, ...], np.ndarray | None]]:
    """Yield the numbers and arrays in `value`, each with the names that lead to it.

    None stands for a tensor that is being traced.
    """
    if isinstance(value, (keras.Variable, keras.Layer, keras.KerasTensor, type)):
        return
    if isinstance(value, (int, float, complex)):
        yield path, np.asarray(value)
        return
    if backend.is_traced(value):
        yield path, None
        return
    array = _as_array(value)
    if array is not None:
        yield path, array
        return
    if id(value) in seen or len(path) > _DEPTH:
        return
    seen.add(id(value))
    children: Any = ()
    if isinstance(value, Mapping):
        children = value.items()
    elif isinstance(value, (list, tuple, set, frozenset)) or type(value).__name__ == "deque":
        children = enumerate(value)
    elif hasattr(value, "__dict__") and (_is_module(value) or not callable(value)):
        # Keras's own lists and dicts hold what a layer was given; its other objects do not. Nor do
        # the strategies of `tf.distribute`, which count what their workers send.
        is_strategy = type(value).__module__.startswith("tensorflow.python.distribute.")
        is_of_keras = is_strategy or _is_of_library(type(value), ("keras", "keras_adaclip"))
        children = () if is_of_keras else vars(value).items()
    for key, child in list(children):
        yield from _numbers_in(child, (*path, repr(key)), seen)


def _is_module(value: Any) -> bool:
    """Return whether the value is a module of PyTorch."""
    return any(each.__module__.startswith("torch.nn") for each in type(value).__mro__)


def _as_array(value: Any) -> np.ndarray | None:
    """Return the value as an array of numbers, or None if it is none."""
    # A `tf.Variable` is no tensor, but has both attributes.
    is_tensor = ops.is_tensor(value) or (hasattr(value, "numpy") and hasattr(value, "dtype"))
    if not (is_tensor or isinstance(value, (np.ndarray, np.generic))):
        return None
    try:
        array = np.array(ops.convert_to_numpy(value))
    except Exception:
        return None
    return array if array.dtype.kind in "biufc" else None
