"""The rule that computes the gradients of each layer, and the memory that it takes."""

import math
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.gradients.batch import Batch, finite_rows, repeated
from keras_adaclip.gradients.forms import PerExampleGradient
from keras_adaclip.gradients.layers import is_differentiable
from keras_adaclip.gradients.layerwise import per_example_gradients
from keras_adaclip.gradients.plan import GradientPlan, name_of_rule

Tensor = Any
_FLOAT32_BYTES = 4


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
    parts = _parts(model, rows, plan)
    reports = []
    for (layer, rule), own in zip(plan.rules.items(), plan.variables.values(), strict=True):
        used = [variable for variable in own if id(variable) in parts]
        norms, held = "not used", []
        if used:
            largest = max(used, key=lambda variable: math.prod(variable.shape))
            norms = parts[id(largest)].form
            held = [parts[id(variable)].numbers_per_example for variable in used]
        size = None if None in held else _FLOAT32_BYTES * sum(n for n in held if n is not None)
        kind = type(layer).__name__
        reports.append(LayerReport(layer.name, kind, name_of_rule(rule), norms, size))
    return reports


def _parts(model: keras.Model, rows: Batch, plan: GradientPlan) -> dict[int, PerExampleGradient]:
    """Return the gradients of each trainable variable, by the variable's id."""
    rows = repeated(finite_rows(Batch(rows.x)), 2)
    found: dict[int, PerExampleGradient] = {}

    def sums_of_outputs(_: Batch, y_pred: Any) -> tuple[Tensor, list[Tensor]]:
        """Return the sum of each example's outputs in place of a loss."""
        outputs = [value for value in keras.tree.flatten(y_pred) if is_differentiable(value)]
        each = [ops.sum(ops.reshape(value, (2, -1)), axis=1) for value in outputs]
        return sum(each[1:], each[0]), []

    def record() -> None:
        """Compute the forms of all gradients."""
        held = [*model.variables, *model.metrics_variables]
        with keras.StatelessScope([(variable, variable.value) for variable in held]):
            gradients, _ = per_example_gradients(model, rows, plan, losses_of=sums_of_outputs)
        for variable, part in zip(gradients.variables, gradients.parts, strict=True):
            if part is not None:
                found[id(variable)] = part

    backend.trace(record)
    return found
