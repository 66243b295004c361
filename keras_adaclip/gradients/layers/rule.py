"""What a rule is, and which one a layer takes."""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import keras

from keras_adaclip.backend import keras_private
from keras_adaclip.gradients.forms import PerExampleGradient

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
        quicker_call: what does the same as the layer's `call` in less time, if anything.
    """

    layer: keras.layers.Layer
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    cotangents: list[Tensor] = field(default_factory=list)
    batched: frozenset[int] | None = None
    kept: list[Tensor] = field(default_factory=list)
    quicker_call: Callable[..., Any] | None = None

    @property
    def inputs(self) -> Tensor:
        """The first argument of the call."""
        return self.args[0] if self.args else next(iter(self.kwargs.values()))


class LayerRule(abc.ABC):
    """Per-example gradients of one kind of layer; `register` says which.

    A layer without a rule takes a general way that is exact but runs the layer once more for each
    example. A rule says what the gradients are in a form in which their norms and their weighted
    sum are cheap: `OuterProduct` for the weights of a matrix product, `Lookup` for a table,
    `Materialized` for small weights.

    Guarantees:
        A contribution is as large as its true gradient only where the rule is right. Before
        training, the norms and sums of a few examples are compared with plain gradients, and where
        they differ the whole model is differentiated one example after another. That is a check of
        a few rows, not a proof: test a rule of your own on more.

    Attributes:
        taps_activation: whether the cotangent is wanted by the input of `layer.activation`
            (which the layer calls exactly once, last), or else by the output of the layer.
        covers_low_rank: whether the rule is exact for a layer after `layer.enable_lora`.
    """

    taps_activation: ClassVar[bool] = False
    covers_low_rank: ClassVar[bool] = False

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
            call: the layer's own `call`, or what does the same in less time.
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
    ) -> Sequence[PerExampleGradient | None]:
        """The gradients of one call.

        Args:
            call: the call, its cotangents filled in.
            variables: the layer's own trainable variables.

        Returns:
            One gradient for each of `variables`, None where this call did not use it.
        """

    def covers(self, layer: keras.layers.Layer) -> bool:
        """Whether the rule is exact for this layer, options considered.

        Args:
            layer: a built layer of the rule's class.
        """
        return True


def is_differentiable(value: Any) -> bool:
    """Whether `value` is a tensor of floating-point numbers."""
    return bool(keras.ops.is_tensor(value)) and "float" in keras.backend.standardize_dtype(
        value.dtype
    )


RuleClass = TypeVar("RuleClass", bound=LayerRule)

_RULES: dict[type[keras.layers.Layer], LayerRule] = {}


def register(
    layer_class: type[keras.layers.Layer],
) -> Callable[[type[RuleClass]], type[RuleClass]]:
    """Class decorator: makes a `LayerRule` the rule of `layer_class`, in place of any other.

    The rule serves layers of this class, and of subclasses that leave `call` as it is.

    Args:
        layer_class: a class of Keras layers; its `call` is what the rule differentiates.

    Returns:
        A decorator for a class that is made without arguments.

    Raises:
        TypeError: where one of the two is not a class of the right kind.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_adaclip as ka
    >>> class Scale(keras.layers.Layer):
    ...     def build(self, input_shape):
    ...         self.scale = self.add_weight(shape=input_shape[1:], initializer="ones")
    ...
    ...     def call(self, inputs):
    ...         return inputs * self.scale
    >>> @ka.gradients.register(Scale)
    ... class ScaleRule(ka.gradients.LayerRule):
    ...     def gradients(self, call, variables):
    ...         return [ka.gradients.Materialized(call.inputs * call.cotangents[0])]

    From now on a plan names it, here for a model with a compiled loss:

    >>> model = keras.Sequential([keras.Input((3,)), Scale(name="scale")])
    >>> model.compile(loss="mse")
    >>> x, y = np.ones((2, 3), "float32"), np.zeros((2, 3), "float32")
    >>> ka.gradients.make_plan(model, ka.gradients.Batch(x, y)).describe()
    {'scale': 'ScaleRule'}
    """
    if not (isinstance(layer_class, type) and issubclass(layer_class, keras.layers.Layer)):
        raise TypeError(
            "Argument `layer_class` must be a class of Keras layers. "
            f"Received: layer_class={layer_class!r}"
        )

    def decorate(rule_class: type[RuleClass]) -> type[RuleClass]:
        if not (isinstance(rule_class, type) and issubclass(rule_class, LayerRule)):
            raise TypeError(
                "What is registered must be a subclass of `LayerRule`. "
                f"Received: {rule_class!r} for {layer_class.__name__}"
            )
        _RULES[layer_class] = rule_class()
        return rule_class

    return decorate


def rule_for(layer: keras.layers.Layer) -> LayerRule | None:
    """The registered rule that is exact for `layer`, None where there is none.

    The rule of the nearest class counts. A subclass takes its parent's rule only while it leaves
    `call` as it was; quantization changes what the weights mean, and so does LoRA where the rule
    does not know of it: such layers take the general way.
    """
    if getattr(layer, "quantization_mode", None):
        return None
    classes: tuple[Any, ...] = type(layer).__mro__
    for layer_class in classes:
        if layer_class in _RULES and type(layer).call is layer_class.call:
            rule = _RULES[layer_class]
            if getattr(layer, "lora_enabled", False) and not rule.covers_low_rank:
                return None
            return rule if rule.covers(layer) else None
    return None
