"""How much a forward pass writes: the outputs of all layers that call no other layer."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

from keras_adaclip.backend import keras_private

# What runs inside of these is called once for all steps of a loop.
_LOOPS = (keras.layers.RNN, keras.layers.TimeDistributed)


@contextmanager
def counted_outputs(model: keras.Model) -> Iterator[list[int]]:
    """Counts the numbers that layers return for the time of the context.

    Args:
        model: a built model.

    Yields:
        A list to which the size of each output is added when its layer is called.
    """
    sizes: list[int] = []
    calls = {layer: _counted(layer.call, sizes) for layer in _innermost_layers(model)}
    with keras_private.replaced_calls(calls):
        yield sizes


def _counted(call: Callable[..., Any], sizes: list[int]) -> Callable[..., Any]:
    def counted_call(*args: Any, **kwargs: Any) -> Any:
        outputs = call(*args, **kwargs)
        sizes.extend(_size(value) for value in keras.tree.flatten(outputs))
        return outputs

    return counted_call


def _size(value: Any) -> int:
    """The numbers in a tensor, where an axis of unknown length counts as one."""
    if not keras.ops.is_tensor(value) or getattr(value.shape, "rank", 0) is None:
        return 0
    return math.prod(1 if length is None else int(length) for length in value.shape)


def _innermost_layers(model: keras.Model) -> list[keras.layers.Layer]:
    layers = keras_private.flatten_layers(model)
    inside_loops = {
        id(inner)
        for layer in layers
        if isinstance(layer, _LOOPS)
        for inner in keras_private.flatten_layers(layer)[1:]
    }
    return [
        layer
        for layer in layers
        if id(layer) not in inside_loops
        and (isinstance(layer, _LOOPS) or len(keras_private.flatten_layers(layer)) == 1)
    ]
