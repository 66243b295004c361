"""The way that the gradients of each layer take, and the memory that it takes."""

import math
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.gradients import layerwise
from keras_adaclip.gradients.batch import Batch, finite_rows, repeated
from keras_adaclip.gradients.forms import PerExampleGradient
from keras_adaclip.gradients.layers.rule import is_differentiable
from keras_adaclip.gradients.plan import GradientPlan, name_of_rule

Tensor = Any
_FLOAT32_BYTES = 4


@dataclass(frozen=True)
class LayerWay:
    """How the per-example gradients of one layer are taken.

    Args:
        layer: name of the layer.
        kind: name of its class, empty for the whole model.
        rule: what turns its inputs and cotangents into per-example gradients.
        norms: how the norm of its largest gradient is found.
        bytes_per_example: what is held of one example between norms and sums: its gradients where
            they are written out, else the two factors that they are made of; None where that
            depends on the length of a sequence.
    """

    layer: str
    kind: str
    rule: str
    norms: str
    bytes_per_example: int | None


def layer_ways(model: keras.Model, rows: Batch, plan: GradientPlan) -> list[LayerWay]:
    """The way of each layer with trainable weights.

    Args:
        model: a built model; it need not be compiled.
        rows: a few examples, for shapes; targets are not looked at.
        plan: the model's plan.
    """
    if not plan.is_layerwise:
        size = sum(math.prod(variable.shape) for variable in model.trainable_variables)
        way = "vectorized" if plan.is_vectorized else "one by one"
        held = _FLOAT32_BYTES * size if plan.is_vectorized else 0
        return [LayerWay("(whole model)", "", way, "written out", held)]
    parts = _parts(model, rows, plan)
    return [
        _way(layer, name_of_rule(rule), [parts[id(v)] for v in own if id(v) in parts])
        for (layer, rule), own in zip(plan.rules.items(), plan.variables.values(), strict=True)
    ]


def _parts(
    model: keras.Model, rows: Batch, plan: GradientPlan
) -> dict[int, tuple[int, PerExampleGradient]]:
    """For each trainable variable, by its id, its size and the form that its gradients have."""
    rows = repeated(finite_rows(Batch(rows.x)), 2)
    found: dict[int, tuple[int, PerExampleGradient]] = {}

    def sums_of_outputs(_: Batch, y_pred: Any) -> tuple[Tensor, list[Tensor]]:
        outputs = [value for value in keras.tree.flatten(y_pred) if is_differentiable(value)]
        each = [ops.sum(ops.reshape(value, (2, -1)), axis=1) for value in outputs]
        return sum(each[1:], each[0]), []

    def record() -> None:
        held = [*model.variables, *model.metrics_variables]
        with keras.StatelessScope([(variable, variable.value) for variable in held]):
            gradients, _ = layerwise.per_example_gradients(
                model, rows, plan, losses_of=sums_of_outputs
            )
        for variable, part in zip(gradients.variables, gradients.parts, strict=True):
            if part is not None:
                found[id(variable)] = (math.prod(variable.shape), part)

    backend.trace(record)
    return found


def _way(
    layer: keras.layers.Layer, rule: str, parts: list[tuple[int, PerExampleGradient]]
) -> LayerWay:
    kind = type(layer).__name__
    if not parts:
        return LayerWay(layer.name, kind, rule, "not used", 0)
    _, largest = max(parts, key=lambda pair: pair[0])
    numbers = [part.numbers_held for _, part in parts]
    held = None if None in numbers else _FLOAT32_BYTES * sum(n for n in numbers if n is not None)
    return LayerWay(layer.name, kind, rule, largest.form, held)
