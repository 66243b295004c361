"""What users ask about a model before they train it: is it sound, and why is it slow?"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_adaclip.gradients import (
    Batch,
    GradientPlan,
    LayerReport,
    finite_rows,
    layer_reports,
    looped_plan,
    unproven_plan,
)
from keras_adaclip.models.summary import as_table, one_after_another, summary
from keras_adaclip.sampling import as_array
from keras_adaclip.training import (
    Finding,
    PrivacyIssue,
    Probe,
    batch_normalization_issues,
    compile_issues,
    known_words,
    layer_issues,
    metric_issues,
    probe,
)

# Rows of a batch beside the few that tell most: a layer may do something else with so many.
_MANY = 130


class PrivacyCheck(list[PrivacyIssue]):
    """The issues of a model, and the way that the gradients of each layer take.

    Printed, it says both in words.

    Args:
        issues: what would break the guarantee.
        ways: the way of each layer with trainable weights; empty where they are not known.
        slow_reason: why a step takes one example after another; None where it takes all at once.
        failure: why the model could not be run on made-up rows; None where it was.
    """

    def __init__(
        self,
        issues: list[PrivacyIssue],
        ways: list[LayerReport],
        slow_reason: str | None = None,
        failure: str | None = None,
    ) -> None:
        super().__init__(issues)
        self.ways = ways
        self.slow_reason = slow_reason
        self.failure = failure

    def __str__(self) -> str:
        """Issues, one a line, a table of the layers, and why a step is slow where it is."""
        parts = ["\n".join(f"- {issue}" for issue in self) or "No issue was found."]
        if self.ways:
            parts.append(as_table(self.ways))
        if self.slow_reason is not None:
            parts.append(one_after_another(self.slow_reason))
        if self.failure is not None:
            parts.append(
                "The model could not be run on made-up rows, so that `fit` may find more:\n"
                f"{self.failure}"
            )
        return "\n\n".join(parts)


def check(model: keras.Model) -> PrivacyCheck:
    """What would break the guarantee if `model` were trained privately, and what it would cost.

    Looks at the layers and, where the input shapes are known, runs the model on a few made-up
    rows: a layer whose output for one row changes with the other rows mixes examples, and state
    that a forward pass changes would leave the step without noise.

    Args:
        model: any Keras model; compiled ones are examined with their optimizer and metrics.

    Returns:
        The issues, each with layer name, reason and fix; empty where none was found. Printed, also
        a table that says for each layer how its per-example gradients are taken: its rule, how its
        norms are found, and what is held of one example between norms and sums. `slow_reason`
        says why a step would take one example after another, which is slow; None where it
        takes all at once.

    Example:

    >>> import keras
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization()])
    >>> [issue.layer for issue in check(model)] == [model.layers[0].name]
    True
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="head")])
    >>> print(check(model))
    No issue was found.
    <BLANKLINE>
    Layer                            Rule                  Norms          Memory
    head (Dense)                     Dense                 two norms      40 B
    """
    issues = layer_issues(model) + compile_issues(model) + metric_issues(model)
    rows = None if issues else made_up_rows(model)
    if rows is None:
        return PrivacyCheck(issues + batch_normalization_issues(model), [])
    try:
        finding = probe(model, rows)
        found = finding.issues or Probe(model, rows, _MANY).examined(True).issues
        issues = [PrivacyIssue(*issue) for issue in found]
        if issues:
            return PrivacyCheck(issues, [])
        plan = _planned(model, rows, finding)
        return PrivacyCheck(issues, layer_reports(model, rows, plan), plan.looped_reason)
    # Made-up rows need not be what the model takes; what a backend then raises is its own affair.
    except Exception as error:
        return PrivacyCheck(issues, [], failure=f"{type(error).__name__}: {error}")


def private_summary(
    model: keras.Model,
    x: Any = None,
    batch_size: int | None = None,
    print_fn: Callable[[str], Any] = print,
) -> None:
    """Prints which way the per-example gradients of each layer take; `PrivateModel` has it too.

    Args:
        model: a Keras model, compiled or not.
        x: a few inputs, for models whose input shapes are not known.
        batch_size: the expected batch size, for the memory of a step.
        print_fn: function that takes the text.

    Raises:
        ValueError: where the input shapes are not known.
    """
    rows = made_up_rows(model) if x is None else finite_rows(Batch(x))
    if rows is None:
        raise ValueError(
            f"The input shapes of model {model.name!r} are not known. Call "
            "`private_summary(x=...)` with a few inputs."
        )
    if not model.built:
        model(rows.x)
    plan = getattr(model, "gradient_plan", None) or _planned(model, rows, probe(model, rows))
    chunk_size = getattr(model, "private_chunk_size", None)
    sizes = [size for size in (chunk_size, batch_size) if size is not None]
    print_fn(summary(model, rows, plan, min(sizes, default=None)))


def _planned(model: keras.Model, rows: Batch, finding: Finding) -> GradientPlan:
    """The plan that the layers suggest, compared with nothing."""
    if not finding.is_repeatable:
        return looped_plan(
            f"layer {finding.unrepeatable_layer!r} draws random numbers without a Keras seed "
            "generator"
        )
    return unproven_plan(model, rows)[0]


def made_up_rows(model: keras.Model) -> Batch | None:
    """Three random rows of the model's input shapes, None where these are unknown."""
    if not model.built or not getattr(model, "inputs", None):
        return None
    generator = np.random.default_rng(0)

    def rows(tensor: Any) -> np.ndarray:
        shape = (3, *(8 if size is None else size for size in tensor.shape[1:]))
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        if dtype == "string":
            return as_array(generator.choice(known_words(model), shape))
        if "float" in dtype:
            return generator.normal(size=shape).astype(dtype)
        return generator.integers(0, 2, size=shape).astype(dtype)

    structure = getattr(model, "input", None)
    inputs = model.inputs[0] if structure is None else structure
    return finite_rows(Batch(keras.tree.map_structure(rows, inputs)))
