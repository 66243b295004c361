"""Chooses a rule for each layer, and proves the choice on a few rows before training starts.

A layer-wise plan is used only after its per-example norms and sums were compared with the plain
gradients of the same rows, one row at a time. This finds what no table of layers can know: weights
that are used outside the layer that owns them, layers that merge axes into the batch.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import keras

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients.batch import Batch, finite_rows, repeated
from keras_adaclip.gradients.examination import LOOPS, examine_calls, layers_outside_loops
from keras_adaclip.gradients.forms import PerExampleGradient
from keras_adaclip.gradients.forward import call_model
from keras_adaclip.gradients.layers import GeneralRule, LayerRule, rule_for
from keras_adaclip.gradients.layerwise import TapRecorder, gradients_of_calls
from keras_adaclip.gradients.proof import numbers_per_example_if_exact


@dataclass(frozen=True)
class GradientPlan:
    """The rule of each layer, or the reason for differentiating one example after another.

    Args:
        rules: The rule of each layer with trainable weights. Empty if `looped_reason` is set.
        variables: The trainable variables of each of these layers.
        looped_reason: Why examples are differentiated one after another, None if the plan is
            layer-wise.
        batched: For layers with the general rule, the positions of the arguments that have a
            batch axis.
        fast_calls: Faster equivalents of the `call` of some layers.
        numbers_per_example: Float32 numbers written for the norms and sums of one example, beyond
            those of forward and backward pass. 0 if not known.
        outputs_per_example: Numbers that the layers return for one example. 0 if not known.
    """

    rules: Mapping[keras.layers.Layer, LayerRule]
    variables: Mapping[keras.layers.Layer, list[keras.Variable]]
    looped_reason: str | None = None
    batched: Mapping[keras.layers.Layer, frozenset[int]] = field(default_factory=dict)
    fast_calls: Mapping[keras.layers.Layer, Callable[..., Any]] = field(default_factory=dict)
    numbers_per_example: int = 0
    outputs_per_example: int = 0

    @property
    def is_layerwise(self) -> bool:
        """Whether all examples are differentiated at once, not one after another."""
        return self.looped_reason is None

    def describe(self) -> dict[str, str]:
        """Return the rule of each layer with trainable weights, by the layer's name."""
        if not self.is_layerwise:
            return {"(whole model)": f"one example after another: {self.looped_reason}"}
        return {layer.name: name_of_rule(rule) for layer, rule in self.rules.items()}


def looped_plan(reason: str) -> GradientPlan:
    """Return the plan of last resort.

    Args:
        reason: Why nothing faster is possible, for `check` and `private_summary`.
    """
    return GradientPlan({}, {}, reason)


def name_of_rule(rule: LayerRule) -> str:
    """Return the name of a rule for users."""
    if isinstance(rule, GeneralRule):
        return "general (vmap of this layer's vector-Jacobian product)"
    return type(rule).__name__


def make_plan(
    model: keras.Model, rows: Batch, method: str = "auto", is_repeatable: bool = True
) -> GradientPlan:
    """Return the fastest plan that is exact for `model`.

    Args:
        model: A built model with a compiled loss.
        rows: Two or three examples, as NumPy arrays or tensors, for shapes and the comparison.
        method: `"layerwise"` requires a layer-wise plan. `"auto"` allows one example after
            another if no layer-wise plan is exact.
        is_repeatable: Whether the model does the same on the same rows, so that a comparison is
            meaningful.

    Raises:
        ValueError: If `method` is `"layerwise"` and no layer-wise plan is exact.
    """
    if is_repeatable:
        plan = _proven_plan(model, finite_rows(rows))
    else:
        plan = looped_plan("the model draws random numbers without a Keras seed generator")
    if method != "auto" and not plan.is_layerwise:
        raise ValueError(
            f"Model {model.name!r} cannot be differentiated with gradient_method={method!r}: "
            f'{plan.looped_reason}. Use gradient_method="auto", which is exact for every model.'
        )
    return plan


def unproven_plan(model: keras.Model, rows: Batch) -> tuple[GradientPlan, bool]:
    """Return the plan that an examination suggests, without a proof. No loss is needed.

    Args:
        model: A built model.
        rows: Two or three examples, as tensors.

    Returns:
        The plan, and whether training draws random numbers.
    """
    rules, variables = assign_rules(model)
    found = examine_calls(model, rows, rules)
    if found.reason is not None:
        return looped_plan(found.reason), found.is_random
    plan = GradientPlan(
        rules,
        variables,
        batched=found.batched,
        fast_calls=fast_calls_of(model),
        outputs_per_example=found.outputs_per_example,
    )
    return plan, found.is_random


def _proven_plan(model: keras.Model, rows: Batch) -> GradientPlan:
    """Return a layer-wise plan if it is exact on a few rows, else the last resort."""
    try:
        plan, is_random = unproven_plan(model, rows)
        if not plan.is_layerwise:
            return plan
        numbers = numbers_per_example_if_exact(model, rows, plan, training=not is_random)
    except Exception as error:  # Whatever a backend raises, the last resort is exact.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        message = f"{type(error).__name__}: {lines[-1] if lines else ''}"
        return looped_plan(f"a layer-wise trial failed with {message}")
    if numbers is None:
        return looped_plan("layer-wise gradients differ from plain ones on a few rows")
    return replace(plan, numbers_per_example=numbers)


def assign_rules(
    model: keras.Model,
) -> tuple[dict[keras.layers.Layer, LayerRule], dict[keras.layers.Layer, list[keras.Variable]]]:
    """Return the rule and the trainable weights of each layer that has any."""
    rules: dict[keras.layers.Layer, LayerRule] = {}
    variables: dict[keras.layers.Layer, list[keras.Variable]] = {}
    for layer in layers_outside_loops(model):
        if isinstance(layer, LOOPS):
            own = list(layer.trainable_variables)
        else:
            own = keras_private.own_trainable_variables(layer)
        if own:
            rules[layer] = rule_for(layer) or GeneralRule()
            variables[layer] = own
    return rules, variables


def fast_calls_of(
    model: keras.Model, in_loop: bool = False
) -> dict[keras.layers.Layer, Callable[..., Any]]:
    """Return faster equivalents of the `call` of a model's layers.

    Args:
        model: A built model.
        in_loop: Whether the calls happen in a loop inside the step.
    """
    find = backend.fast_call_in_loop if in_loop else backend.fast_call
    calls = {layer: find(layer) for layer in keras_private.flatten_layers(model)}
    return {layer: call for layer, call in calls.items() if call is not None}


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


def layer_reports(model: keras.Model, rows: Batch, plan: GradientPlan) -> list[LayerReport]:
    """Return a report on each layer with trainable weights.

    Args:
        model: A built model. It need not be compiled.
        rows: A few examples, for shapes. Targets are not used.
        plan: The model's plan.
    """
    if not plan.is_layerwise:
        return [LayerReport("(whole model)", "", "one by one", "written out", 0)]
    rows = repeated(finite_rows(Batch(rows.x)), 2)
    parts: dict[int, PerExampleGradient] = {}

    def record() -> None:
        """Call the model, and take the tapped tensors themselves for their cotangents."""
        recorder = TapRecorder()
        held = [*model.variables, *model.metrics_variables]
        with (
            keras.StatelessScope([(variable, variable.value) for variable in held]),
            recorder.tapped(plan.rules, plan.fast_calls),
        ):
            call_model(model, rows.x, training=True)
            calls = recorder.calls(recorder.tensors, recorder.taps)
            parts.update(gradients_of_calls(plan, calls))

    backend.trace(record)
    reports = []
    for (layer, rule), own in zip(plan.rules.items(), plan.variables.values(), strict=True):
        used = [variable for variable in own if id(variable) in parts]
        norms, held = "not used", []
        if used:
            largest = max(used, key=lambda variable: math.prod(variable.shape))
            norms = parts[id(largest)].form
            held = [parts[id(variable)].numbers_per_example for variable in used]
        size = None if None in held else 4 * sum(n for n in held if n is not None)
        kind = type(layer).__name__
        reports.append(LayerReport(layer.name, kind, name_of_rule(rule), norms, size))
    return reports
