"""`TimeDistributed`: one layer on every time step, which makes time steps part of the batch.

The rule of the layer inside gives the gradient of each time step of each example; those of one
example stand next to each other and add up.
"""

import inspect
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_adaclip.backend import keras_private
from keras_adaclip.gradients.forms import PerExampleGradient
from keras_adaclip.gradients.layers.rule import LayerRule, TappedCall, register, rule_for

Tensor = Any


@register(keras.layers.TimeDistributed)
class TimeDistributedRule(LayerRule):
    """The rule of the layer inside, summed over time."""

    def covers(self, layer: keras.layers.Layer) -> bool:
        """The layer inside must have a rule that answers for all the weights."""
        inner = layer.layer
        if rule_for(inner) is None:
            return False
        if isinstance(inner, (keras.layers.RNN, keras.layers.TimeDistributed)):
            return True
        own = keras_private.own_trainable_variables(inner)
        return len(own) == len(layer.trainable_variables)

    def tapped_call(
        self,
        layer: keras.layers.Layer,
        call: Callable[..., Any],
        tap: Callable[[Tensor], Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Any, list[Tensor]]:
        """Runs the layer inside once, on all time steps of all examples."""
        inputs, training, mask = _arguments(*args, **kwargs)
        inner = layer.layer
        options: dict[str, Any] = {}
        accepted = inspect.signature(inner.call).parameters
        if "training" in accepted:
            options["training"] = training
        if "mask" in accepted and mask is not None:
            options["mask"] = _merged(mask)
        outputs, kept = _rule(layer).tapped_call(
            inner, inner.call, tap, (_merged(inputs),), options
        )
        time = ops.shape(inputs)[1]
        outputs = keras.tree.map_structure(
            lambda value: ops.reshape(value, (-1, time, *ops.shape(value)[1:])), outputs
        )
        return outputs, kept

    def gradients(
        self, call: TappedCall, variables: list[keras.Variable]
    ) -> list[PerExampleGradient | None]:
        """The gradients of the variables of the layer inside."""
        inner_call = TappedCall(
            call.layer.layer, (_merged(call.inputs),), {}, call.cotangents, kept=call.kept
        )
        time = ops.shape(call.inputs)[1]
        parts = _rule(call.layer).gradients(inner_call, variables)
        return [None if part is None else part.merged(time) for part in parts]


def _rule(layer: keras.layers.Layer) -> LayerRule:
    rule = rule_for(layer.layer)
    assert rule is not None  # `covers` has seen to it.
    return rule


def _arguments(
    inputs: Tensor, training: Any = None, mask: Tensor | None = None
) -> tuple[Tensor, Any, Tensor | None]:
    """The arguments of `TimeDistributed.call`, however they were passed."""
    return inputs, training, mask


def _merged(value: Tensor) -> Tensor:
    """From `(batch_size, time, ...)` to `(batch_size * time, ...)`."""
    return ops.reshape(value, (-1, *ops.shape(value)[2:]))
