"""Finds the way that each layer takes, and proves it on a few rows before training starts.

A layer-wise plan is used only after its per-example norms and sums were compared with the plain
gradients of the same rows, one row at a time. That catches what no table of layers can know:
weights that are used outside the layer that owns them, layers that merge axes into the batch.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients.activations import counted_outputs
from keras_adaclip.gradients.batch import Batch, finite_rows, repeated
from keras_adaclip.gradients.forward import call_model
from keras_adaclip.gradients.layers import GeneralRule, LayerRule, rule_for
from keras_adaclip.gradients.plan import GradientPlan, whole_model_plan
from keras_adaclip.gradients.proof import agreeing
from keras_adaclip.gradients.taps import TapRecorder, tapped

Tensor = Any

# Layers that call the layers inside them in a loop, from which no tap can be taken out.
_UNITS = (keras.layers.RNN, keras.layers.TimeDistributed)


@dataclass
class _Seen:
    """What a forward pass has shown.

    Attributes:
        reason: why no layer-wise plan will do; None where it may.
        batched: the numbers of the batched arguments of each layer.
        is_random: whether training draws random numbers.
        outputs_per_example: how many numbers the layers return for one example.
    """

    reason: str | None = None
    batched: dict[keras.layers.Layer, frozenset[int]] = field(default_factory=dict)
    is_random: bool = False
    outputs_per_example: int = 0


def make_plan(
    model: keras.Model, rows: Batch, method: str = "auto", is_repeatable: bool = True
) -> GradientPlan:
    """The fastest plan that is exact for `model`.

    Args:
        model: a built model with a compiled loss.
        rows: two or three examples, as NumPy arrays or tensors, for shapes and the comparison.
        method: `"layerwise"` or `"vectorized"` insists on that way; `"auto"` goes layer by layer
            where that is exact, else one example after another.
        is_repeatable: whether the model does the same on the same rows, so that trying it tells
            something.

    Raises:
        ValueError: where the way that `method` asks for is not exact for this model.
    """
    if not is_repeatable:
        plan = whole_model_plan("the model draws random numbers without a Keras seed generator")
    elif method == "vectorized":
        plan = _vectorized_plan(model, finite_rows(rows))
    else:
        plan = _layerwise_plan(model, finite_rows(rows))
    if method != "auto" and plan.is_one_by_one:
        raise ValueError(
            f"Model {model.name!r} cannot be differentiated with gradient_method={method!r}: "
            f'{plan.whole_model_reason}. Use gradient_method="auto", which finds a way that is '
            "exact for this model."
        )
    return plan


def unproven_plan(model: keras.Model, rows: Batch) -> tuple[GradientPlan, bool]:
    """The plan that the calls of the layers suggest, compared with nothing; needs no loss.

    Args:
        model: a built model.
        rows: two or three examples, as tensors.

    Returns:
        The plan, and whether training draws random numbers.
    """
    rules, variables = _assign_rules(model)
    seen = _examine_calls(model, rows, rules)
    if seen.reason is not None:
        return whole_model_plan(seen.reason), seen.is_random
    plan = GradientPlan(
        rules,
        variables,
        batched=seen.batched,
        quicker_calls=quicker_calls_of(model),
        outputs_per_example=seen.outputs_per_example,
    )
    return plan, seen.is_random


def _layerwise_plan(model: keras.Model, rows: Batch) -> GradientPlan:
    try:
        plan, is_random = unproven_plan(model, rows)
        if not plan.is_layerwise:
            return plan
        proven = agreeing(model, rows, plan, training=not is_random)
        reason = "layer-wise gradients differ from plain ones on a few rows"
    except Exception as error:  # Whatever a backend raises, the last resort is still exact.
        return whole_model_plan(f"a layer-wise trial failed with {_in_a_line(error)}")
    return proven or whole_model_plan(reason)


def _vectorized_plan(model: keras.Model, rows: Batch) -> GradientPlan:
    plan = GradientPlan({}, {}, "as `gradient_method` says", is_vectorized=True)
    try:
        if _examine_calls(model, rows, {}).is_random:
            return whole_model_plan("it draws random numbers, which all examples would share")
        proven = agreeing(model, rows, plan, training=True)
        reason = "vectorized gradients differ from plain ones on a few rows"
    except Exception as error:
        return whole_model_plan(f"a vectorized trial failed with {_in_a_line(error)}")
    return proven or whole_model_plan(reason)


def _assign_rules(
    model: keras.Model,
) -> tuple[dict[keras.layers.Layer, LayerRule], dict[keras.layers.Layer, list[keras.Variable]]]:
    """The rule of each layer with trainable weights, and the weights that it answers for."""
    rules: dict[keras.layers.Layer, LayerRule] = {}
    variables: dict[keras.layers.Layer, list[keras.Variable]] = {}
    inside_units: set[int] = set()
    for layer in keras_private.flatten_layers(model):
        if id(layer) in inside_units:
            continue
        if isinstance(layer, _UNITS):
            inside_units.update(id(inner) for inner in keras_private.flatten_layers(layer))
            own = list(layer.trainable_variables)
        else:
            own = keras_private.own_trainable_variables(layer)
        if own:
            rules[layer] = rule_for(layer) or GeneralRule()
            variables[layer] = own
    return rules, variables


def quicker_calls_of(
    model: keras.Model, in_loop: bool = False
) -> dict[keras.layers.Layer, Callable[..., Any]]:
    """What stands in for the calls of layers, in the step itself or in a loop inside of it.

    Args:
        model: the model, built.
        in_loop: whether the calls happen in a loop inside of the step.
    """
    find = backend.fast_call_in_loop if in_loop else backend.fast_call
    calls = {layer: find(layer) for layer in keras_private.flatten_layers(model)}
    return {layer: call for layer, call in calls.items() if call is not None}


def _examine_calls(
    model: keras.Model, rows: Batch, rules: dict[keras.layers.Layer, LayerRule]
) -> _Seen:
    """Calls the model on two rows and on three, without computing anything."""
    seen = _Seen()
    sizes = (2, 3)
    leading: dict[int, list[list[int | None]]] = {}
    called: list[keras.layers.Layer] = []
    random: set[keras.layers.Layer | None] = set()
    states = keras_private.seed_generator_states(model)
    held = [*model.variables, *model.metrics_variables]

    def forward(size: int) -> None:
        batch = repeated(rows, size)
        with keras.StatelessScope([(variable, variable.value) for variable in held]) as scope:

            def random_state() -> list[Any]:
                seeds = [scope.get_current_value(state) for state in states]
                return [backend.outside_random_state(), *seeds]

            recorder = _RandomnessRecorder(random_state)
            before = random_state()
            with counted_outputs(model) as outputs, tapped(rules, recorder):
                call_model(model, batch.x, training=True)
            if _differ(before, random_state()):
                random.add(None)
        seen.outputs_per_example = sum(outputs) // size
        random.update(recorder.random)
        calls = recorder.calls(recorder.tensors, [None] * recorder.num_taps)
        called[:] = [call.layer for call in calls]
        leading[size] = [
            [_leading(value) for value in keras.tree.flatten((call.args, call.kwargs))]
            for call in calls
        ]

    for size in sizes:
        backend.trace(functools.partial(forward, size))

    seen.is_random = bool(random)
    if len(leading[2]) != len(leading[3]):
        seen.reason = "the calls of its layers depend on the batch size"
        return seen
    for layer, small, large in zip(called, leading[2], leading[3], strict=True):
        pairs = list(enumerate(zip(small, large, strict=True)))
        follows = frozenset(number for number, pair in pairs if pair == sizes)
        changes = {number for number, (few, more) in pairs if few != more}
        if changes - follows or not follows:
            seen.reason = f"layer {layer.name!r} is called on something without the batch axis"
        elif seen.batched.setdefault(layer, follows) != follows:
            seen.reason = f"layer {layer.name!r} is called in different ways"
        elif isinstance(rules[layer], GeneralRule) and layer in random:
            seen.reason = f"layer {layer.name!r} has weights and draws random numbers"
        if seen.reason is not None:
            break
    return seen


def _in_a_line(error: Exception) -> str:
    """The kind of an error and the last line that it says, which is the telling one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


class _RandomnessRecorder(TapRecorder):
    """Also notes in `random` which layers draw random numbers while they are called.

    Args:
        random_state: function that returns the state of every random generator.
    """

    def __init__(self, random_state: Callable[[], list[Any]]) -> None:
        super().__init__(lambda value: value)
        self._random_state = random_state
        self.random: set[keras.layers.Layer] = set()

    def tapped_call(
        self,
        layer: keras.layers.Layer,
        rule: LayerRule,
        quicker_call: Callable[..., Any] | None = None,
    ) -> Callable[..., Any]:
        """A replacement of `layer.call` that records, taps and watches."""
        tapped_call = super().tapped_call(layer, rule, quicker_call)

        def call(*args: Any, **kwargs: Any) -> Any:
            before = self._random_state()
            outputs = tapped_call(*args, **kwargs)
            if _differ(before, self._random_state()):
                self.random.add(layer)
            return outputs

        return call


def _differ(before: list[Any], after: list[Any]) -> bool:
    """Whether a generator has moved; an assigned seed is a new tensor, traced or not."""
    return before[0] != after[0] or any(
        old is not new for old, new in zip(before[1:], after[1:], strict=True)
    )


def _leading(value: Any) -> int | None:
    if not ops.is_tensor(value) or len(value.shape) == 0:
        return None
    return int(value.shape[0])
