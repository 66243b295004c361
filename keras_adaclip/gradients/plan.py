"""Chooses a rule for each layer, and proves the choice on a few rows before training starts.

A layer-wise plan is used only after its per-example norms and sums were compared with the plain
gradients of the same rows, one row at a time. This finds what no table of layers can know: weights
that are used outside the layer that owns them, layers that merge axes into the batch.
"""

import math
from dataclasses import dataclass, replace

import keras

from keras_adaclip import backend
from keras_adaclip.gradients import layerwise
from keras_adaclip.gradients.batch import Batch, finite_rows, repeated
from keras_adaclip.gradients.examination import unproven_plan
from keras_adaclip.gradients.forms import PerExampleGradient
from keras_adaclip.gradients.forward import call_model, stateless
from keras_adaclip.gradients.layerwise import GradientPlan, TapRecorder
from keras_adaclip.gradients.proof import is_exact


def make_plan(model: keras.Model, rows: Batch, method: str = "auto") -> GradientPlan:
    """Return the fastest plan that is exact for `model`.

    Args:
        model: A built model with a compiled loss.
        rows: Two or three examples, as NumPy arrays or tensors, for shapes and the comparison.
        method: `"layerwise"` requires a layer-wise plan. `"auto"` allows one example after
            another if no layer-wise plan is exact.

    Raises:
        ValueError: If `method` is `"layerwise"` and no layer-wise plan is exact.
    """
    plan = _proven_plan(model, finite_rows(rows))
    if method != "auto" and not plan.is_layerwise:
        raise ValueError(
            f"Model {model.name!r} cannot be differentiated with gradient_method={method!r}: "
            f'{plan.looped_reason}. Use gradient_method="auto", which is exact for every model.'
        )
    return plan


def _proven_plan(model: keras.Model, rows: Batch) -> GradientPlan:
    """Return a layer-wise plan if it is exact on a few rows, else the last resort."""
    try:
        plan, is_random = unproven_plan(model, rows)
        if not plan.is_layerwise:
            return plan
        agrees = is_exact(model, rows, plan, training=not is_random)
        parts = _forms(model, rows, plan) if agrees else {}
    except Exception as error:  # Whatever a backend raises, the last resort is exact.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        message = f"{type(error).__name__}: {lines[-1] if lines else ''}"
        return layerwise.looped_plan(f"a layer-wise trial failed with {message}")
    if not agrees:
        return layerwise.looped_plan("layer-wise gradients differ from plain ones on a few rows")
    numbers = sum(part.numbers_per_example or 0 for part in parts.values())
    return replace(plan, numbers_per_example=numbers)


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
    parts = _forms(model, finite_rows(Batch(rows.x)), plan)
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
        reports.append(LayerReport(layer.name, kind, layerwise.name_of_rule(rule), norms, size))
    return reports


def _forms(model: keras.Model, rows: Batch, plan: GradientPlan) -> dict[int, PerExampleGradient]:
    """Return the forms of the gradients of the variables that are used, by the variable's id."""
    parts: dict[int, PerExampleGradient] = {}
    rows = repeated(rows, 2)

    def record() -> None:
        """Call the model, and take the tapped tensors themselves for their cotangents."""
        recorder = TapRecorder()
        with stateless(model):
            with recorder.tapped(plan.rules, plan.fast_calls):
                call_model(model, rows.x, training=True)
            calls = recorder.calls(recorder.tensors, recorder.taps)
            parts.update(layerwise.gradients_of_calls(plan, calls))

    backend.trace(record)
    return parts
