"""Chooses a rule for each layer, and proves the choice on a few rows before training starts.

A layer-wise plan is used only after its per-example norms and sums were compared with the plain
gradients of the same rows, one row at a time. This finds what no table of layers can know: weights
that are used outside the layer that owns them, layers that merge axes into the batch.
"""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import keras

from keras_adaclip import backend
from keras_adaclip.gradients import layerwise
from keras_adaclip.gradients.batch import Batch, finite_rows, repeated
from keras_adaclip.gradients.examination import unproven_plan
from keras_adaclip.gradients.forms import PerExampleGradient
from keras_adaclip.gradients.forward import call_model, stateless
from keras_adaclip.gradients.layers import GeneralRule
from keras_adaclip.gradients.layerwise import GradientPlan, TapRecorder
from keras_adaclip.gradients.proof import ShowsNothingError, objection, runs_alone


def make_plan(
    model: keras.Model,
    rows: Batch | Sequence[Batch],
    method: str = "auto",
    of_data: Batch | None = None,
) -> GradientPlan:
    """Return the fastest plan that is exact for `model`.

    Args:
        model: A built model with a compiled loss.
        rows: Two or three examples, as NumPy arrays or tensors, for shapes and the comparison; or
            several batches of them, of which the first that shows something decides. For training
            that is private they must be made up, without a look at the data.
        method: `"layerwise"` requires a layer-wise plan. `"auto"` allows one example after
            another if no layer-wise plan is exact.
        of_data: Examples within the ranges of private data, which must prove a layer-wise plan
            too, or alone where the others show nothing. They never lead to another one.

    Raises:
        ValueError: If `method` is `"layerwise"` and no layer-wise plan is exact, or if `of_data`
            would have to decide.
    """
    plan = None
    for each in [rows] if isinstance(rows, Batch) else rows:
        plan = plan or _proven_plan(model, finite_rows(each), may_choose=True)
    if of_data is not None and (plan is None or plan.is_layerwise):
        is_last = plan is None
        of_ranges = _proven_plan(model, finite_rows(of_data), may_choose=False, is_last=is_last)
        # Where the made-up rows prove a plan, ranges that show nothing are no objection.
        if (of_ranges or plan or layerwise.looped_plan("")).is_layerwise:
            plan = plan or of_ranges
        else:
            reason = "gradients are zero or not finite"
            reason = of_ranges.looped_reason or reason if of_ranges else reason
            raise ValueError(
                f"A layer-wise gradient plan of model {model.name!r} is not proved on rows within "
                f"the range of each column of the data: {reason}. These ranges are private and "
                "must not choose another plan, and small made-up numbers do not show that it is "
                "needed. Give public ranges of the inputs with `fit(..., input_ranges=)`."
            )
    plan = plan or layerwise.looped_plan("on made-up rows gradients are zero or not finite")
    if method != "auto" and not plan.is_layerwise:
        raise ValueError(
            f"Model {model.name!r} cannot be differentiated with gradient_method={method!r}: "
            f'{plan.looped_reason}. Use gradient_method="auto", which is exact for every model.'
        )
    return plan


def suggested_plan(model: keras.Model, batches: Sequence[Batch]) -> GradientPlan:
    """Return the plan that the first batch suggests with which the model runs, without a proof.

    Args:
        model: A built model.
        batches: Batches of two or three examples.
    """
    for rows in map(finite_rows, batches):
        with contextlib.suppress(Exception):  # The examination names what does not run.
            return _sized(model, rows, unproven_plan(model, rows)[0])
    return layerwise.looped_plan("the model does not run on made-up rows")


def _sized(model: keras.Model, rows: Batch, plan: GradientPlan) -> GradientPlan:
    """Return the plan with the numbers that one example takes."""
    parts = _forms(model, rows, plan) if plan.is_layerwise else {}
    numbers = sum(part.numbers_per_example or 0 for part in parts.values())
    return replace(plan, numbers_per_example=numbers)


def _proven_plan(
    model: keras.Model, rows: Batch, may_choose: bool, is_last: bool = False
) -> GradientPlan | None:
    """Return a layer-wise plan if it is exact on a few rows, else the last resort.

    None if the rows show nothing, or too little where they `may_choose` no other plan. If they are
    the last ones to try, an error with which no example runs is raised.
    """
    try:
        plan, is_random = unproven_plan(model, rows)
        if not plan.is_layerwise:
            return plan
        parts = _forms(model, rows, plan)
        of_rules = {
            id(variable)
            for layer, rule in plan.rules.items()
            for variable in ([] if isinstance(rule, GeneralRule) else plan.variables[layer])
        }
        reason = objection(model, rows, plan, not is_random, of_rules & parts.keys())
    except ShowsNothingError as error:
        return layerwise.looped_plan(str(error)) if error.args and may_choose else None
    except Exception as error:  # Whatever a backend raises, the last resort is exact.
        if not runs_alone(model, rows):
            if is_last:
                raise
            return None
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        message = f"{type(error).__name__}: {lines[-1] if lines else ''}"
        return layerwise.looped_plan(f"a layer-wise trial failed with {message}")
    if reason is not None:
        return layerwise.looped_plan(reason)
    return _sized(model, rows, plan)


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
