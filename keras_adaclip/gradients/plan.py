"""Chooses a rule for each layer; `proof` compares the choice with plain gradients.

The model is traced on three rows and on two, and nothing is computed. This shows which arguments of
a layer have a batch axis, which layers draw random numbers, and how many numbers a pass writes.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients import layerwise
from keras_adaclip.gradients.batch import Batch, finite_rows
from keras_adaclip.gradients.forward import call_model, stateless
from keras_adaclip.gradients.layers import GeneralRule, LayerRule, TappedCall, rule_for
from keras_adaclip.gradients.layerwise import Calls, GradientPlan, TapRecorder, looped_plan

# Layers that call the layers inside them in a loop, so that taps cannot leave these calls.
LOOPS = (keras.layers.RNN, keras.layers.TimeDistributed)
Tensor = Any
_SIZES = (3, 2)


def suggested_plan(
    model: keras.Model, batches: Sequence[Batch], of_data: Batch | None = None
) -> GradientPlan:
    """Return the plan that the first batch suggests with which the model runs, without a proof.

    No loss is needed.

    Args:
        model: A built model.
        batches: Batches of examples, as NumPy arrays or tensors.
        of_data: Examples within the ranges of private data, where no other batch runs.

    Raises:
        ValueError: If `of_data` would lead to another plan than a layer-wise one.
    """
    reason = ""
    for rows in [*batches, *([] if of_data is None else [of_data])]:
        plan, error = backend.attempt(_traced_plan, model, rows)
        if error is not None:
            reason = reason or failure_of(error)
            continue
        if rows is of_data and not plan.is_layerwise:
            raise refused_ranges(model, plan.looped_reason)
        return plan
    return looped_plan(reason)


def refused_ranges(model: keras.Model, reason: str | None) -> ValueError:
    """Return the error for ranges of the data that would choose a plan."""
    return ValueError(
        f"A layer-wise gradient plan of model {model.name!r} is not proved on rows within the "
        f"range of each column of the data: {reason}. These ranges are private and must not choose "
        "another plan. Give public ranges of the inputs with `fit(..., input_ranges=)`."
    )


def failure_of(error: Exception) -> str:
    """Return why an error leads to the last resort."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"a layer-wise trial failed with {type(error).__name__}: {lines[-1] if lines else ''}"


def _traced_plan(
    model: keras.Model, rows: Batch, repeated: frozenset[keras.Layer] = frozenset()
) -> GradientPlan:
    """Return the plan that a trace of the model suggests.

    Args:
        model: A built model.
        rows: Examples.
        repeated: As in `GradientPlan`; found by a first trace.
    """
    rules, variables = assign_rules(model)
    fast_calls = fast_calls_of(model)
    plan = GradientPlan(rules, variables, repeated=repeated, fast_calls=fast_calls)
    running: list[keras.Layer] = []
    drawing: set[keras.Layer] = set()
    draws: set[str] = set()
    num_outputs: list[int] = []
    traces: list[list[TappedCall]] = []

    def record(layer: keras.Layer, outputs: Any) -> Any:
        """Note the numbers that single layers return."""
        if isinstance(layer, LOOPS) or len(keras_private.flatten_layers(layer)) == 1:
            num_outputs.extend(map(_size, keras.tree.flatten(outputs)))
        return outputs

    def watched_draw(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return a function of `keras.random` that notes the layers in which it is called."""

        def noted(*args: Any, **kwargs: Any) -> Tensor:
            """Draw random numbers."""
            draws.add(draw.__name__)
            # What is kept has no derivative by the parameters of its law.
            parameters = [*args[1:], *(kwargs[key] for key in kwargs if key != "inputs")]
            is_kept = draw.__name__ in keras_private.KEPT_DRAWS and not any(
                "float" in str(getattr(each, "dtype", "")) for each in parameters
            )
            drawing.update(() if is_kept else running)
            return draw(*args, **kwargs)

        return noted

    def forward(size: int) -> None:
        """Call the model on `size` rows; once the rules are known, apply them."""
        nonlocal plan
        recorder, batch = (
            TapRecorder(repeated=repeated, num_rows=size),
            finite_rows(Batch(rows.x), size),
        )
        num_outputs.clear()
        with stateless(model):
            calls = watched_calls(model, fast_calls, record, running)
            with recorder.tapped(rules, calls), keras_private.replaced_draws(watched_draw):
                call_model(model, batch.x, training=True)
            traces.append(recorder.calls(recorder.tensors, recorder.taps))
            if len(traces) == len(_SIZES):
                # The taps stand for their cotangents.
                plan = _with_forms(_with_arguments(plan, drawing, *traces), traces[-1])

    for size in _SIZES:
        backend.trace(functools.partial(forward, size))
    if plan.repeated != repeated:
        again, _ = backend.attempt(_traced_plan, model, rows, plan.repeated)
        return again if again is not None and again.is_layerwise else plan
    if not plan.is_layerwise:
        return plan
    num_numbers = sum(num_outputs) // _SIZES[-1]
    return replace(plan, draws=bool(draws), outputs_per_example=num_numbers)


def _with_arguments(
    plan: GradientPlan, drawing: set[keras.Layer], more: list[TappedCall], few: list[TappedCall]
) -> GradientPlan:
    """Return the plan with the arguments that have a batch axis, or the last resort.

    Args:
        plan: A layer-wise plan.
        drawing: The layers that draw something else than numbers of a given shape.
        more: The calls on more rows.
        few: The same on fewer rows.
    """
    if len(few) != len(more):
        return looped_plan("the calls of its layers depend on the batch size")
    batched: dict[keras.Layer, frozenset[int]] = {}
    constant: list[keras.Layer] = []
    for one, other in zip(more, few, strict=True):
        layer, reason = one.layer, None
        is_general = isinstance(plan.rules[layer], GeneralRule)
        num_given = len(one.tensors if is_general else keras.tree.flatten((one.args, one.kwargs)))
        sizes = [map(_leading, call.tensors[:num_given]) for call in (one, other)]
        pairs = list(enumerate(zip(*sizes, strict=True)))
        changes = {number for number, (large, small) in pairs if large != small}
        follows = frozenset(number for number, pair in pairs if pair == _SIZES)
        if changes - follows or not follows:
            reason = "is called on something without the batch axis"
            shapes = [
                [value.shape for value in keras.tree.flatten((c.args, c.kwargs)) if _leading(value)]
                for c in (one, other)
            ]
            if shapes[0] == shapes[1] and layer not in plan.repeated:
                constant.append(layer)
                continue
        elif batched.setdefault(layer, follows) != follows:
            reason = "is called with batches in different arguments"
        elif is_general and layer in drawing:
            reason = "has weights and draws random numbers"
        elif is_general and _further(one) != _further(other):
            reason = "is called on or draws something whose batch axis is not the first"
        if reason is not None:
            return looped_plan(f"layer {layer.name!r} {reason}")
    if constant:
        first = constant[0]
        looped = looped_plan(f"layer {first.name!r} is called on something without the batch axis")
        # Another trace, with its arguments repeated, shows which layers follow it.
        return looped if first in batched else replace(looped, repeated=plan.repeated | {first})
    return replace(plan, batched=batched)


def _with_forms(plan: GradientPlan, calls: list[TappedCall]) -> GradientPlan:
    """Return the plan with the forms of the gradients of the variables that are used."""
    if not plan.is_layerwise:
        return plan
    parts = layerwise.gradients_of_calls(plan, calls)
    forms = {key: (part.form, part.numbers_per_example) for key, part in parts.items()}
    return replace(
        plan, forms=forms, numbers_per_example=sum(size or 0 for _, size in forms.values())
    )


def assign_rules(
    model: keras.Model,
) -> tuple[dict[keras.Layer, LayerRule], dict[keras.Layer, list[keras.Variable]]]:
    """Return the rule and the trainable weights of each layer that has any."""
    rules: dict[keras.Layer, LayerRule] = {}
    variables: dict[keras.Layer, list[keras.Variable]] = {}
    for layer in layers_outside_loops(model):
        if isinstance(layer, LOOPS):
            own = list(layer.trainable_variables)
        else:
            own = keras_private.own_trainable_variables(layer)
        if own:
            rules[layer] = rule_for(layer) or GeneralRule()
            variables[layer] = own
    return rules, variables


def fast_calls_of(model: keras.Model, in_loop: bool = False) -> Calls:
    """Return faster equivalents of the `call` of a model's layers.

    Args:
        model: A built model.
        in_loop: Whether the calls happen in a loop inside the step.
    """
    calls = {each: backend.fast_call(each, in_loop) for each in keras_private.flatten_layers(model)}
    return {layer: call for layer, call in calls.items() if call is not None}


def watched_calls(
    model: keras.Model,
    fast_calls: Calls,
    record: Callable[[keras.Layer, Any], Any],
    running: list[keras.Layer],
) -> Calls:
    """Return a `call` for each layer outside of loops, which `record` sees.

    Args:
        model: A built model.
        fast_calls: Replacements of the `call` of some layers.
        record: Takes a layer and its result, and returns what becomes the result.
        running: Gets the layers whose calls have not returned, the innermost one last.
    """

    def watched(layer: keras.Layer) -> Callable[..., Any]:
        """Return a `call` that records the layer's result."""
        original = fast_calls.get(layer) or layer.call

        def call(*args: Any, **kwargs: Any) -> Any:
            """Call the layer and record its result."""
            running.append(layer)
            result = record(layer, original(*args, **kwargs))
            running.pop()
            return result

        return call

    return {layer: watched(layer) for layer in layers_outside_loops(model)}


def layers_outside_loops(model: keras.Model) -> Iterator[keras.Layer]:
    """Yield the layers of a model, but of a loop only the loop itself."""
    inside: set[int] = set()
    for layer in keras_private.flatten_layers(model):
        if id(layer) not in inside:
            yield layer
            if isinstance(layer, LOOPS):
                inside.update(map(id, keras_private.flatten_layers(layer)))


@dataclass(frozen=True)
class LayerReport:
    """How the per-example gradients of one layer are computed.

    Args:
        layer: Name of the layer.
        kind: Name of its class, empty for the whole model.
        rule: Name of the rule that turns inputs and cotangents into per-example gradients.
        norms: How the norm of its largest gradient is computed.
        bytes_per_example: Bytes written per example for norms and sums. None if they depend on the
            length of a sequence.
    """

    layer: str
    kind: str
    rule: str
    norms: str
    bytes_per_example: int | None


def layer_reports(plan: GradientPlan) -> list[LayerReport]:
    """Return a report on each layer with trainable weights."""
    if not plan.is_layerwise:
        return [LayerReport("(whole model)", "", "one by one", "written out", 0)]
    general = "general (vmap of this layer's vector-Jacobian product)"
    reports = []
    for (layer, rule), own in zip(plan.rules.items(), plan.variables.values(), strict=True):
        used = [variable for variable in own if id(variable) in plan.forms]
        norms, held = "not used", []
        if used:
            largest = max(used, key=lambda variable: math.prod(variable.shape))
            norms = plan.forms[id(largest)][0]
            held = [plan.forms[id(variable)][1] for variable in used]
        size = None if None in held else 4 * sum(n for n in held if n is not None)
        kind = type(layer).__name__
        name = general if isinstance(rule, GeneralRule) else type(rule).__name__
        reports.append(LayerReport(layer.name, kind, name, norms, size))
    return reports


def _size(value: Any) -> int:
    """Return the number of elements of a tensor, counting an axis of unknown length as one."""
    if not ops.is_tensor(value) or getattr(value.shape, "rank", 0) is None:
        return 0
    return math.prod(1 if length is None else int(length) for length in value.shape)


def _further(call: TappedCall) -> list[Any]:
    """Return the sizes of the tensors of a call, without the first."""
    return [value.shape[1:] for value in call.tensors if ops.is_tensor(value)]


def _leading(value: Any) -> int | None:
    """Return the first size of a tensor, None for anything else."""
    if not ops.is_tensor(value) or len(value.shape) == 0:
        return None
    return int(value.shape[0])
