"""What a rule is, and which one a layer takes."""

import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import keras

from keras_adaclip.backend import keras_private
from keras_adaclip.gradients.factored import PerExampleGradient

Tensor = Any


@dataclass
class TappedCall:
    """One call of a layer during the forward pass.

    Args:
        layer: the layer.
        args: positional arguments of `layer.call`.
        kwargs: keyword arguments of `layer.call`.
        cotangents: gradients of the summed loss by the tapped tensors, in the order of the taps.
        batched: the numbers (in flattening order) of the arguments that have a batch axis; None
            means every tensor.
        kept: the tensors that the rule's `tapped_call` kept.
    """

    layer: keras.layers.Layer
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    cotangents: list[Tensor] = field(default_factory=list)
    batched: frozenset[int] | None = None
    kept: list[Tensor] = field(default_factory=list)

    @property
    def inputs(self) -> Tensor:
        """The first argument of the call."""
        return self.args[0] if self.args else next(iter(self.kwargs.values()))


class LayerRule(abc.ABC):
    """Per-example gradients of one kind of layer.

    Attributes:
        taps_activation: whether the cotangent is wanted by the input of `layer.activation`
            (which the layer calls exactly once, last), or else by the output of the layer.
    """

    taps_activation: ClassVar[bool] = False

    def tapped_call(
        self,
        layer: keras.layers.Layer,
        call: Callable[..., Any],
        tap: Callable[[Tensor], Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Any, list[Tensor]]:
        """Runs the layer, with a tap on every tensor by which the rule wants cotangents.

        Args:
            layer: the layer.
            call: the layer's own `call`.
            tap: function that registers a tensor for differentiation and returns it.
            args: positional arguments of the call.
            kwargs: keyword arguments of the call.

        Returns:
            What `call` returns, and tensors to keep for `gradients`.
        """
        if self.taps_activation and layer.activation is not None:
            activation = layer.activation

            def tapped_activation(value: Tensor, *rest: Any, **options: Any) -> Tensor:
                return activation(tap(value), *rest, **options)

            keras_private.set_attribute(layer, "activation", tapped_activation)
            try:
                return call(*args, **kwargs), []
            finally:
                keras_private.set_attribute(layer, "activation", activation)
        outputs = call(*args, **kwargs)
        return keras.tree.map_structure(
            lambda value: tap(value) if is_differentiable(value) else value, outputs
        ), []

    @abc.abstractmethod
    def gradients(
        self, call: TappedCall, variables: list[keras.Variable]
    ) -> list[PerExampleGradient]:
        """The gradients of one call.

        Args:
            call: the call, its cotangents filled in.
            variables: the layer's own trainable variables.

        Returns:
            One gradient for each of `variables`.
        """

    def covers(self, layer: keras.layers.Layer) -> bool:
        """Whether the rule is exact for this layer, options considered."""
        return True


def is_differentiable(value: Any) -> bool:
    """Whether `value` is a tensor of floating-point numbers."""
    return bool(keras.ops.is_tensor(value)) and "float" in keras.backend.standardize_dtype(
        value.dtype
    )


_RULES: dict[type[keras.layers.Layer], LayerRule] = {}


def register(layer_class: type[keras.layers.Layer]) -> Any:
    """Class decorator: makes a `LayerRule` the rule of `layer_class`."""

    def decorate(rule_class: type[LayerRule]) -> type[LayerRule]:
        _RULES[layer_class] = rule_class()
        return rule_class

    return decorate


def rule_for(layer: keras.layers.Layer) -> LayerRule | None:
    """The registered rule that is exact for `layer`, None where there is none.

    A subclass takes its parent's rule only while it leaves `call` as it was; LoRA and
    quantization change what the weights mean, so such layers take the general way.
    """
    if getattr(layer, "lora_enabled", False) or getattr(layer, "quantization_mode", None):
        return None
    for layer_class, rule in _RULES.items():
        if isinstance(layer, layer_class) and type(layer).call is layer_class.call:
            return rule if rule.covers(layer) else None
    return None
