"""The interface of layer rules, the general rule, and the registry of all others."""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients.forms import Materialized, PerExampleGradient

Tensor = Any
Gradients = list[PerExampleGradient]
Call = Callable[..., Any]
Tap = Callable[[Tensor], Tensor]


@dataclass
class TappedCall:
    """One call of a layer during the forward pass.

    Args:
        layer: The layer.
        args: Positional arguments of `layer.call`.
        kwargs: Keyword arguments of `layer.call`.
        cotangents: Gradients of the summed loss with respect to the tapped tensors, in the order
            of the taps.
        batched: Positions of those of `tensors` that have a batch axis. None means every tensor.
        kept: The tensors that the rule's `tapped_call` kept.
    """

    layer: keras.Layer
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    cotangents: list[Tensor] = field(default_factory=list)
    batched: frozenset[int] | None = None
    kept: list[Tensor] = field(default_factory=list)

    @property
    def inputs(self) -> Tensor:
        """The first argument of the call."""
        return self.args[0] if self.args else next(iter(self.kwargs.values()))

    @property
    def tensors(self) -> list[Any]:
        """All arguments, in flattening order, and what was kept."""
        return [*keras.tree.flatten((self.args, self.kwargs)), *self.kept]


class LayerRule(abc.ABC):
    """Per-example gradients of one kind of layer. `register` assigns it to a layer class.

    Layers without a rule are handled by a general method, which is exact but runs the layer once
    more for each example. A rule returns the gradients in a form with cheap norms and weighted
    sums: `OuterProduct` for the weights of a matrix product, `Lookup` for a table, `Materialized`
    for small weights.

    Guarantees:
        Clipping bounds a contribution only if the rule is correct. Before training, the norms and
        sums of a few examples are compared with plain gradients. If they differ, the whole model
        is differentiated one example after another instead. This checks a few rows only: test
        your own rule on more.

    Attributes:
        taps_activation: Whether the rule needs the cotangent of the input of `layer.activation`
            (which the layer calls exactly once, last) instead of the layer's output.
        covers_low_rank: Whether the rule is exact for a layer after `layer.enable_lora`.
    """

    taps_activation: ClassVar[bool] = False
    covers_low_rank: ClassVar[bool] = False

    def tapped_call(
        self, layer: Any, call: Call, tap: Tap, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, list[Tensor]]:
        """Run the layer, and tap every tensor whose cotangent the rule needs.

        Args:
            layer: The layer.
            call: The layer's own `call`, or a faster equivalent.
            tap: Function that registers a tensor for differentiation and returns it.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.

        Returns:
            The outputs of `call`, and tensors to keep for `gradients`.
        """
        if self.taps_activation and layer.activation is not None:
            activation = layer.activation

            def tapped_activation(value: Tensor, *rest: Any, **options: Any) -> Tensor:
                """Return the activation of the tapped input."""
                return activation(tap(value), *rest, **options)

            changes = [(layer, "activation", tapped_activation)]
            with keras_private.replaced_attributes(changes):
                return call(*args, **kwargs), []
        outputs = call(*args, **kwargs)
        return keras.tree.map_structure(
            lambda value: tap(value) if is_differentiable(value) else value, outputs
        ), []

    @abc.abstractmethod
    def gradients(
        self, call: TappedCall, variables: list[keras.Variable]
    ) -> Sequence[PerExampleGradient | None]:
        """Return the gradients of one call.

        Args:
            call: The call, with its cotangents.
            variables: The layer's own trainable variables.

        Returns:
            One gradient for each of `variables`, None if this call did not use it.
        """

    def covers(self, layer: keras.Layer) -> bool:
        """Return whether the rule is exact for this layer and its options.

        Args:
            layer: A built layer of the rule's class.
        """
        return True


def is_differentiable(value: Any) -> bool:
    """Return whether `value` is a tensor of floating-point numbers."""
    return bool(ops.is_tensor(value)) and keras.backend.is_float_dtype(value.dtype)


class GeneralRule(LayerRule):
    """`vmap` of a layer's own vector-Jacobian product.

    It runs the layer once more on each example alone, with the random numbers that it drew, and
    differentiates it by its weights. It is exact for any layer that treats examples independently.
    """

    def tapped_call(
        self, layer: Any, call: Call, tap: Tap, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, list[Tensor]]:
        """Tap the outputs, and keep what the layer draws."""
        drawn: list[Tensor] = []
        with keras_private.kept_draws(drawn):
            outputs, _ = super().tapped_call(layer, call, tap, args, kwargs)
        return outputs, drawn

    def gradients(self, call: TappedCall, variables: list[keras.Variable]) -> Gradients:
        """Return the gradients of the layer's variables, written out."""
        layer, given = call.layer, call.tensors
        num_arguments = len(given) - len(call.kept)
        numbers = [
            number
            for number, value in enumerate(given)
            if ops.is_tensor(value) and (call.batched is None or number in call.batched)
        ]

        def run(values: Sequence[Tensor], examples: Sequence[Tensor]) -> list[Tensor]:
            """Return the layer's differentiable outputs with these weights and arguments."""
            own = list(given)
            for number, example in zip(numbers, examples, strict=True):
                own[number] = example
            arguments, drawn = own[:num_arguments], own[num_arguments:]
            args, kwargs = keras.tree.pack_sequence_as((call.args, call.kwargs), arguments)
            mapping = zip(variables, values, strict=True)
            again = keras_private.kept_draws(drawn, again=True)
            with keras.StatelessScope([*constants, *mapping]), again:
                outputs = layer(*args, **kwargs)
            return [value for value in keras.tree.flatten(outputs) if is_differentiable(value)]

        constants = [(variable, variable.value) for variable in layer.variables]
        gradients = backend.per_example_layer_gradients(
            run,
            [variable.value for variable in variables],
            [given[number] for number in numbers],
            call.cotangents,
        )
        return [Materialized(gradient) for gradient in gradients]


RuleClass = TypeVar("RuleClass", bound=LayerRule)

_RULES: dict[type[keras.Layer], LayerRule] = {}


def register(layer_class: type[keras.Layer]) -> Callable[[type[RuleClass]], type[RuleClass]]:
    """Return a class decorator that makes a `LayerRule` the only rule of `layer_class`.

    The rule applies to layers of this class, and of subclasses that do not override `call`.

    Args:
        layer_class: A class of Keras layers, whose `call` the rule differentiates.

    Returns:
        A decorator for a rule class that is constructed without arguments.

    Raises:
        TypeError: If `layer_class` is not a layer class, or the decorated class is not a
            `LayerRule`.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_adaclip as ka
    >>> class Scale(keras.Layer):
    ...     def build(self, input_shape):
    ...         self.scale = self.add_weight(shape=input_shape[1:], initializer="ones")
    ...
    ...     def call(self, inputs):
    ...         return inputs * self.scale
    >>> @ka.gradients.register(Scale)
    ... class ScaleRule(ka.gradients.LayerRule):
    ...     def gradients(self, call, variables):
    ...         return [ka.gradients.Materialized(call.inputs * call.cotangents[0])]

    Plans now use the rule, here for a model with a compiled loss:

    >>> model = keras.Sequential([keras.Input((3,)), Scale(name="scale")])
    >>> model.compile(loss="mse")
    >>> x, y = np.ones((2, 3), "float32"), np.zeros((2, 3), "float32")
    >>> plan = ka.gradients.make_plan(model, ka.gradients.Batch(x, y))
    >>> [(report.layer, report.rule) for report in ka.gradients.layer_reports(plan)]
    [('scale', 'ScaleRule')]
    """

    def decorate(rule_class: type[RuleClass]) -> type[RuleClass]:
        """Register one instance of the rule class."""
        for given, base in ((layer_class, keras.Layer), (rule_class, LayerRule)):
            if not (isinstance(given, type) and issubclass(given, base)):
                raise TypeError(
                    "`register` takes a class of Keras layers, and decorates a subclass of "
                    f"`LayerRule`. Received: {given!r}"
                )
        _RULES[layer_class] = rule_class()
        return rule_class

    return decorate


def rule_for(layer: keras.Layer) -> LayerRule | None:
    """Return the registered rule that is exact for `layer`, None if there is none.

    The rule of the nearest class is used. A subclass inherits a rule only if it does not override
    `call`. Quantization changes what the weights mean, and so does LoRA for rules that do not
    support it, so such layers have no rule.
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
