"""Answers before training: is a model or an augmentation sound, how are gradients computed?"""

import math
import warnings
from collections.abc import Sequence
from textwrap import fill
from typing import Any

import keras
import numpy as np

from keras_adaclip import examination, gradients
from keras_adaclip._checks import check_integer
from keras_adaclip.clipping import AutomaticClipping, ClippingStrategy
from keras_adaclip.examination import Examination, PrivacyIssue, SampleRows
from keras_adaclip.gradients import Augmentation, Batch, LayerReport
from keras_adaclip.sampling import padding

# Rows of a second, larger batch: a layer may do something else with many rows.
_MANY = 130
# Widths of the four columns of a table, and what is left of longer entries.
_ROW = "{:33.32}{:22.21}{:15.14}{:10.9}"


class PrivacyCheck(list[PrivacyIssue]):
    """The issues of a model, and how the gradients of each layer are computed.

    `print` shows both in words.

    Args:
        issues: What would break the guarantee.
        ways: How the gradients of each layer with trainable weights are computed; empty if unknown.
        slow_reason: Why a step takes one example after another; None if it takes all at once.
        failure: Why the model could not be run on random rows; None if it could.
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
        """Return the issues, one a line, a table of the layers, and why a step is slow if it is."""
        lines = [] if any(not issue.is_note for issue in self) else ["No issue was found."]
        parts = ["\n".join([*lines, *(f"- {issue}" for issue in self)])]
        if self.ways:
            parts.append(_as_table(self.ways))
        if self.slow_reason is not None:
            parts.append(_one_after_another(self.slow_reason))
        if self.failure is not None:
            parts.append(
                "The model could not be run on made-up rows, so `fit` may find more:\n"
                f"{self.failure}"
            )
        return "\n\n".join(parts)


def check(model: keras.Model) -> PrivacyCheck:
    """Return what would break the guarantee of `model`, and how its gradients would be computed.

    Looks at the layers and, if the input shapes are known, runs the model on a few random rows. A
    layer whose output for one row changes with the other rows mixes examples, and state that a
    forward pass changes would leave the step without noise.

    Args:
        model: Any Keras model; compiled ones are examined with their optimizer and metrics.

    Returns:
        The issues, each with layer name, reason and fix, and notes (`is_note`), which `fit` prints
        and does not refuse: tables made by `adapt`, losses of probabilities whose logits are not
        known. Empty if none was found. `print` also
        shows a table with one line a layer: the rule of its per-example gradients, how their norms
        are found, and the memory that one example takes between norms and sums. `slow_reason` says
        why a step would take one example after another; it is None if it takes all at once.

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
    found = _checked(model)
    sample = None if found.failure else _made_up_rows(model)
    found.extend(examination.notes(model, sample))
    return found


def _checked(model: keras.Model) -> PrivacyCheck:
    """Return the issues of a model, and how its gradients would be computed."""
    issues = examination.issues_of_parts(model)
    try:
        sample = None if issues else _made_up_rows(model)
        if sample is None:
            return PrivacyCheck(issues + examination.batch_normalization_issues(model), [])
        issues = Examination(model, sample).finding().issues
        issues = issues or Examination(model, sample, _MANY).finding().issues
        if issues:
            return PrivacyCheck(issues, [])
        rows = sample.batch()
        plan = gradients.suggested_plan(model, [rows])
        return PrivacyCheck(issues, gradients.layer_reports(plan), plan.looped_reason)
    # The model may not take random rows, and backends raise many kinds of exception then.
    except Exception as error:
        return PrivacyCheck(issues, [], failure=f"{type(error).__name__}: {error}")


def warn_of_lost_weights(clipping: ClippingStrategy, class_weight: Any, sample_weight: Any) -> None:
    """Warn of weights of examples that the clipping strategy divides out again.

    Args:
        clipping: The strategy.
        class_weight: The argument of `fit`.
        sample_weight: Weights of a few examples, None without.
    """
    is_each = sample_weight is not None and any(
        value is not None and math.prod(value.shape[1:]) == 1
        for value in keras.tree.flatten(sample_weight)
    )
    follows = isinstance(clipping, AutomaticClipping) or clipping.num_statistics(1) > 0
    if follows and (class_weight or is_each):
        warnings.warn(
            f"`{type(clipping).__name__}` bounds contributions by a norm of about the size that "
            "most of them have, whatever the weight of an example or its class: large weights have "
            "little effect, and the probabilities of a classifier are those of neither world. Stop "
            "here, and give a fixed norm, such as the largest weight where that is public: "
            "`clipping=10.0` (with `AutoDPOptimizer`, `plan={'clipping': 10.0}`).",
            stacklevel=4,
        )


def checked_augmentation(layer: Any, multiplicity: Any, rows: Batch) -> Augmentation | None:
    """Return the augmentation of each example by a layer, or None.

    Args:
        layer: A Keras layer, or None.
        multiplicity: Number of copies of each example.
        rows: A few examples, for the shape of the inputs.

    Raises:
        TypeError: If `layer` is not a Keras layer, or `multiplicity` is not an integer.
        ValueError: If the layer mixes examples, learns, or changes the inputs' shape, or there are
            several inputs.
    """
    multiplicity = check_integer("augmentation_multiplicity", multiplicity, minimum=1)
    if layer is None:
        if multiplicity > 1:
            raise ValueError(
                "Argument `augmentation_multiplicity` needs an `augmentation`: copies of an "
                "example that do not differ have the gradient of one. "
                f"Received: augmentation_multiplicity={multiplicity}, augmentation=None"
            )
        return None
    if not isinstance(layer, keras.Layer):
        raise TypeError(
            "Argument `augmentation` must be a Keras layer, such as `keras.layers.RandomFlip()` "
            f"or a `keras.Sequential` of such layers. Received: augmentation={layer!r}"
        )
    inputs = keras.tree.flatten(rows.x)
    if len(inputs) != 1:
        raise ValueError(
            "`augmentation` works on models with one input tensor. Put the augmentation into the "
            "model instead, as layers on the inputs that need it."
        )
    tensor = keras.ops.zeros_like(keras.ops.convert_to_tensor(inputs[0]))
    found = layer(tensor, training=False)
    if found.shape[1:] != tensor.shape[1:]:
        raise ValueError(
            f"The augmentation layer {layer.name!r} must keep the shape of its inputs. It makes "
            f"{tuple(found.shape[1:])} of {tuple(tensor.shape[1:])}."
        )
    if layer.trainable_variables:
        raise ValueError(
            f"The augmentation layer {layer.name!r} has trainable weights, which nothing would "
            "train. Put it into the model, or freeze it with `layer.trainable = False`."
        )
    augmentation = Augmentation(layer, multiplicity)
    model = augmentation.as_model(rows)
    examination.refuse(model, examination.layer_issues(model))
    return augmentation


def summary(model: keras.Model, x: Any, batch_size: int | None) -> str:
    """Return the table of the layers, and the memory that a step takes.

    Args:
        model: A private model.
        x: A few inputs, for models whose input shapes are not known.
        batch_size: The expected batch size; None if unknown.

    Raises:
        ValueError: If the input shapes are not known.
    """
    sample = _made_up_rows(model)
    if x is None and sample is None:
        raise ValueError(
            f"The input shapes of model {model.name!r} are not known. Call "
            "`private_summary(x=...)` with a few inputs."
        )
    rows = sample.batch() if sample and x is None else gradients.finite_rows(Batch(x))
    if not model.built:
        model(rows.x)
    plan = model.gradient_plan or gradients.suggested_plan(model, [rows])
    reports = gradients.layer_reports(plan)
    if not plan.is_layerwise:
        return f"{_as_table(reports)}\n\n{_one_after_another(plan.looped_reason)}"
    text = f"{_as_table(reports)}\n\nAll examples at once, layer by layer."
    sizes = [report.bytes_per_example for report in reports]
    if None in sizes:
        return text
    held = sum(size or 0 for size in sizes)
    text += f"\nNorms and sums take {_as_bytes(held)} per example"
    at_a_time = (model._private_state.chunk_size, batch_size)
    if at_a_time != (None, None):
        num_rows = min(size for size in at_a_time if size is not None)
        text += f", {_as_bytes(num_rows * held)} for {num_rows:,} at a time"
    return f"{text}."


def _made_up_rows(model: keras.Model) -> SampleRows | None:
    """Return made-up rows of the model's input shapes, or None if these are unknown."""
    if not model.built or not getattr(model, "inputs", None):
        return None

    def rows(tensor: Any) -> np.ndarray:
        """Return rows of the shape of an input."""
        shape = (1, *(8 if size is None else size for size in tensor.shape[1:]))
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        return padding(shape, np.dtype(object if dtype == "string" else dtype))

    structure = getattr(model, "input", None)
    inputs = model.inputs[0] if structure is None else structure
    return SampleRows(model, Batch(keras.tree.map_structure(rows, inputs)))


def _one_after_another(reason: str | None) -> str:
    """Return a sentence that says why each example is differentiated alone."""
    return fill(f"One example after another, which is slow: {reason}.", 80)


def _as_table(reports: Sequence[LayerReport]) -> str:
    """Return a table of how gradients are computed, one line a layer, 80 columns wide."""
    lines = [_ROW.format("Layer", "Rule", "Norms", "Memory")] + [
        _ROW.format(
            f"{report.layer} ({report.kind})" if report.kind else report.layer,
            report.rule.split(" (")[0].removesuffix("Rule"),
            report.norms,
            _as_bytes(report.bytes_per_example),
        )
        for report in reports
    ]
    return "\n".join(map(str.rstrip, lines))


def _as_bytes(number: int | None) -> str:
    """Return a number of bytes in the largest unit that makes it at least one."""
    if number is None:
        return "by length"
    power = min(max(number.bit_length() - 1, 0) // 10, 3)
    return f"{number / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB')[power]}"
