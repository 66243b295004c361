"""Taps: what each layer got and made during one forward pass, without changing the layer's code.

For the time of a forward pass the instance attribute `call` of a layer is replaced by a recording
one, in which the layer's rule places the taps; afterwards the layer is what it was.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras

from keras_adaclip.backend import keras_private
from keras_adaclip.gradients.layers import LayerRule, TappedCall

Tensor = Any


class TapRecorder:
    """Collects the calls of tapped layers during one forward pass.

    Args:
        tap: function that registers a tensor for differentiation and returns it.
    """

    def __init__(self, tap: Callable[[Tensor], Tensor]) -> None:
        self._tap = tap
        self._skeletons: list[tuple[keras.layers.Layer, list[Any], Any, list[int]]] = []
        self._tensors: list[list[Tensor]] = []
        self.num_taps = 0

    def tapped_call(
        self,
        layer: keras.layers.Layer,
        rule: LayerRule,
        quicker_call: Callable[..., Any] | None = None,
    ) -> Callable[..., Any]:
        """A replacement of `layer.call` that records and taps.

        Args:
            layer: the layer.
            rule: the layer's rule.
            quicker_call: what is called in the place of `layer.call`.
        """
        original = quicker_call or layer.call

        def call(*args: Any, **kwargs: Any) -> Any:
            numbers: list[int] = []
            outputs, kept = rule.tapped_call(
                layer, original, lambda value: self._add_tap(value, numbers), args, kwargs
            )
            flat = keras.tree.flatten((args, kwargs))
            is_tensor = [bool(keras.ops.is_tensor(value)) for value in flat]
            statics = [
                None if tensor else value for value, tensor in zip(flat, is_tensor, strict=True)
            ]
            self._skeletons.append((layer, is_tensor, ((args, kwargs), statics), numbers))
            arguments = [value for value, tensor in zip(flat, is_tensor, strict=True) if tensor]
            self._tensors.append([*arguments, *kept])
            return outputs

        return call

    @property
    def tensors(self) -> list[list[Tensor]]:
        """The tensors among the arguments of each call, and those that its rule kept.

        They are to be returned from a pure function.
        """
        return self._tensors

    def calls(self, tensors: list[list[Tensor]], cotangents: list[Tensor]) -> list[TappedCall]:
        """The recorded calls.

        Args:
            tensors: what `tensors` held, after it was returned from the pure function.
            cotangents: the gradients by the taps, in the order of the taps.
        """
        calls = []
        for (layer, is_tensor, (structure, statics), numbers), values in zip(
            self._skeletons, tensors, strict=True
        ):
            remaining = iter(values)
            flat = [
                next(remaining) if tensor else static
                for static, tensor in zip(statics, is_tensor, strict=True)
            ]
            args, kwargs = keras.tree.pack_sequence_as(structure, flat)
            of_taps = [cotangents[number] for number in numbers]
            calls.append(TappedCall(layer, args, kwargs, of_taps, kept=list(remaining)))
        return calls

    def _add_tap(self, value: Tensor, numbers: list[int]) -> Tensor:
        numbers.append(self.num_taps)
        self.num_taps += 1
        mask = keras_private.mask_of(value)
        return keras_private.attach_mask(self._tap(value), mask)


@contextmanager
def tapped(
    rules: Mapping[keras.layers.Layer, LayerRule],
    recorder: TapRecorder,
    quicker_calls: Mapping[keras.layers.Layer, Callable[..., Any]] | None = None,
) -> Iterator[None]:
    """Taps the layers for the time of the context.

    Args:
        rules: the layers to tap and the rule of each.
        recorder: where the calls are recorded.
        quicker_calls: what is called in the place of some layers' own `call`.
    """
    calls = dict(quicker_calls or {})
    for layer, rule in rules.items():
        calls[layer] = recorder.tapped_call(layer, rule, calls.get(layer))
    with keras_private.replaced_calls(calls):
        yield
