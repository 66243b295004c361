"""Taps: records the inputs and outputs of layers during one forward pass.

During a forward pass the instance attribute `call` of a layer is replaced by a recording function,
in which the layer's rule places the taps. The layer's code is not changed.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras

from keras_adaclip.backend import keras_private
from keras_adaclip.gradients.layers import LayerRule, TappedCall

Tensor = Any
Calls = Mapping[keras.layers.Layer, Callable[..., Any]]


class TapRecorder:
    """Collects the calls of tapped layers during one forward pass.

    Args:
        tap: Function that registers a tensor for differentiation and returns it.

    Attributes:
        tensors: For each call, the tensors among its arguments and those that its rule kept. They
            have to be returned from a pure function.
        num_taps: The number of taps so far.
    """

    def __init__(self, tap: Callable[[Tensor], Tensor]) -> None:
        self.tensors: list[list[Tensor]] = []
        self.num_taps = 0
        self._tap = tap
        # For each call: the layer, its arguments, which of them are tensors, and its taps.
        self._calls: list[tuple[keras.layers.Layer, Any, list[bool], list[int]]] = []

    def tapped_call(
        self,
        layer: keras.layers.Layer,
        rule: LayerRule,
        fast_call: Callable[..., Any] | None = None,
    ) -> Callable[..., Any]:
        """Return a replacement of `layer.call` that records and taps.

        Args:
            layer: The layer.
            rule: The layer's rule.
            fast_call: A faster equivalent of `layer.call`, if there is one.
        """
        original = fast_call or layer.call

        def call(*args: Any, **kwargs: Any) -> Any:
            """Call the layer through its rule, and record arguments and kept tensors."""
            numbers: list[int] = []
            outputs, kept = rule.tapped_call(
                layer, original, lambda value: self._add_tap(value, numbers), args, kwargs
            )
            flat = keras.tree.flatten((args, kwargs))
            is_tensor = [bool(keras.ops.is_tensor(value)) for value in flat]
            tensors = [value for value, tensor in zip(flat, is_tensor, strict=True) if tensor]
            self._calls.append((layer, (args, kwargs), is_tensor, numbers))
            self.tensors.append([*tensors, *kept])
            return outputs

        return call

    def calls(self, tensors: list[list[Tensor]], cotangents: list[Tensor]) -> list[TappedCall]:
        """Return the recorded calls.

        Args:
            tensors: The value of `tensors` after it was returned from the pure function.
            cotangents: The gradients with respect to the taps, in their order.
        """
        calls = []
        for (layer, structure, is_tensor, numbers), values in zip(
            self._calls, tensors, strict=True
        ):
            remaining = iter(values)
            flat = [
                next(remaining) if tensor else recorded
                for recorded, tensor in zip(keras.tree.flatten(structure), is_tensor, strict=True)
            ]
            args, kwargs = keras.tree.pack_sequence_as(structure, flat)
            own = [cotangents[number] for number in numbers]
            calls.append(TappedCall(layer, args, kwargs, own, kept=list(remaining)))
        return calls

    def _add_tap(self, value: Tensor, numbers: list[int]) -> Tensor:
        """Tap one tensor, and note the number of the tap."""
        numbers.append(self.num_taps)
        self.num_taps += 1
        mask = keras_private.mask_of(value)
        return keras_private.attach_mask(self._tap(value), mask)


@contextmanager
def tapped(
    rules: Mapping[keras.layers.Layer, LayerRule],
    recorder: TapRecorder,
    fast_calls: Calls | None = None,
) -> Iterator[None]:
    """Tap layers within the context.

    Args:
        rules: The layers to tap, with their rules.
        recorder: The recorder of the calls.
        fast_calls: Faster equivalents of the `call` of some layers.
    """
    calls = dict(fast_calls or {})
    for layer, rule in rules.items():
        calls[layer] = recorder.tapped_call(layer, rule, calls.get(layer))
    with keras_private.replaced_calls(calls):
        yield
