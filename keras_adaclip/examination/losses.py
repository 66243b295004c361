"""Tests of the loss: does training with one example at a time do what the user means?

A private step evaluates the loss on each example alone. A loss that compares examples would then
train something else, or nothing.
"""

import functools
import inspect
import itertools
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend, gradients
from keras_adaclip.backend import keras_losses, keras_private
from keras_adaclip.examination.issues import OwnLoss, PrivacyIssue, refuse
from keras_adaclip.examination.rows import SampleRows
from keras_adaclip.gradients import Batch, GradientPlan, is_differentiable
from keras_adaclip.sampling import as_array

Tensor = Any
# Enough for several rows of one class, which losses that compare rows tell apart.
_NUM_ROWS = 6
# Further labels are not looked at.
_MOST_LABELS = 1 << 28
_TOLERANCE = 1e-3
_FINE = ("", "")
_MIXING_LOSS = (
    "The loss of a batch is neither a mean nor a sum of the losses of its examples, so it compares "
    "examples with each other; private training evaluates it on each example alone.",
    "Use a loss that is defined for one example, such as those of `keras.losses`.",
)
_CONSTANT_LOSS = (
    "The loss of one example alone does not depend on its predictions: it compares examples with "
    "each other, and private training evaluates it on each example alone.",
    _MIXING_LOSS[1],
)
_UNEXAMINED_LOSS = (
    "The loss is zero or not finite on all made-up rows, so it is not known whether it compares "
    "examples with each other.",
    "Use a loss that is finite for targets within the range of each column of the data.",
)
_WEIGHTS_WITHOUT_EFFECT = (
    "The loss of one example is the same whatever its weight is, so `sample_weight` and "
    "`class_weight` would change nothing.",
    "Leave the weights out, or let the loss use them: not "
    '`reduction="mean_with_sample_weight"`, which divides by their sum.',
)
_OTHER_OBJECTIVE = (
    "The loss of a batch is not the plain mean of the losses of its examples. Private training "
    "evaluates it on each example alone and averages the gradients, which is another objective."
)

_NO_GRADIENT = (
    "No made-up example has a gradient: for one example alone, the loss does not depend on any "
    "trainable weight, so that training would add noise and nothing else.",
    "Use a loss that is defined for one example, and layers that are written with Keras; give "
    "`input_ranges` if the layers need other inputs than the made-up ones.",
)


@dataclass(frozen=True)
class LossFinding:
    """What is known of a compiled loss.

    Args:
        issues: Why it cannot be trained privately.
        remark: What `fit` says of it before the first step, "" for nothing.
        handles_missing: Whether it has a use of its own for targets that are not finite, by target.
    """

    issues: list[PrivacyIssue]
    remark: str = ""
    handles_missing: tuple[bool, ...] = ()


def examine_loss(model: keras.Model, sample: SampleRows, is_weighted: bool) -> LossFinding:
    """Return what made-up rows show of the loss.

    Losses of Keras are examined where they may compare the rows of a batch. Those that do not have
    no use for targets that are not finite.

    Args:
        model: A compiled and built model.
        sample: Makes the rows up, with targets.
        is_weighted: Whether examples or classes have weights.
    """
    own = OwnLoss.of(model)
    losses = keras_losses.compiled_losses(model)
    if own is None and not is_weighted and not any(map(_is_over_batch, losses)):
        return LossFinding([])
    # Where predictions are zero, so may be the loss.
    judges = [functools.partial(_judged, model, spread, is_weighted) for spread in (0.0, 0.3)]
    told, remark = sample.first_shown(judges, _NUM_ROWS) or (_UNEXAMINED_LOSS, "")
    if told != _FINE and not (told == _UNEXAMINED_LOSS and own is None):
        name = ", ".join(loss.name for loss in losses) if own is None else own.name
        return LossFinding([PrivacyIssue(name, *told)])
    return LossFinding([], remark, handled_missing(model, sample))


def refuse_labels(model: keras.Model, rows: Batch, known: Batch) -> None:
    """Raise if labels lie outside of what a cross-entropy of Keras is defined for.

    Labels that are not finite, that `ignore_class` names or whose weight is 0 are left alone.

    Args:
        model: A compiled and built model.
        rows: A few examples.
        known: The examples whose labels may be read.

    Raises:
        ValueError: With the range of the labels, which is not private.
    """
    if keras_private.is_own(model, "compute_loss"):
        return
    parts = (rows.x, known.y, known.sample_weight)
    # Where the model does not run, its examination says why.
    given, _ = backend.attempt(keras_losses.given_to_losses, model, *parts)
    for loss, targets, outputs, weights in given or ():
        name, options = keras_losses.kind_of_loss(loss)
        labels = as_array(targets)
        if "crossentropy" not in name or labels.dtype.kind == "O":  # Strings fail elsewhere.
            continue
        most, allowed, advice = 1, "between 0 and 1", "Write 0 for -1, or take a hinge loss"
        if is_sparse := name.startswith("sparse"):
            most = outputs.shape[options.get("axis", -1)] - 1
            allowed = f"from 0 to {most}, as the output has {most + 1} units"
            advice = "Number the classes from 0, and name a label to leave out by `ignore_class`"
        if is_sparse and most == 0:
            raise ValueError(
                f"Loss {loss.name!r} takes one unit for each class, and the output has one unit, "
                "which would predict the same class always. Give two classes two units, or train "
                "one unit with a sigmoid and `binary_crossentropy`. Nothing was trained."
            )
        labels = labels[: max(_MOST_LABELS // max(labels[:1].size, 1), 1)]
        wrong = ~((labels >= 0) & (labels <= most)) & np.isfinite(labels)
        wrong &= labels != options.get("ignore_class")
        if weights is not None:
            weights = as_array(weights)[: len(labels)]
            shape = (*weights.shape, *[1] * labels.ndim)[: labels.ndim]
            wrong &= weights.reshape(shape) != 0
        if wrong.any():
            found = labels[np.isfinite(labels)]
            raise ValueError(
                f"Loss {loss.name!r} takes labels {allowed}. Received labels from "
                f"{found.min():g} to {found.max():g} (which is not private). {advice}. Nothing was "
                "trained."
            )


def handled_missing(model: keras.Model, sample: SampleRows) -> tuple[bool, ...]:
    """Return by target whether the loss has a use of its own for numbers that are not finite.

    This decides what rows contribute, so that no made-up row may follow the data.

    Args:
        model: A compiled and built model.
        sample: Makes the rows up, with targets.
    """
    if OwnLoss.of(model) is None:
        return ()
    targets = keras.tree.flatten(sample.structure[1].get("y"))
    batch = sample.batches()[0][0]
    return tuple(_handles_missing(model, batch, number) for number in range(len(targets)))


def remark_on_unreached(model: keras.Model, plan: GradientPlan) -> str:
    """Return what to say of weights that would be trained by noise alone, "" if there are none.

    Args:
        model: A built model.
        plan: The plan of its gradients.

    Raises:
        ValueError: If these are all trainable weights.
    """
    if not plan.unreached:
        return ""
    if len(plan.unreached) == len(model.trainable_variables):
        refuse(model, [PrivacyIssue("loss", *_NO_GRADIENT)])
    paths = ", ".join(variable.path for variable in plan.unreached)
    return (
        f"The gradient of every made-up example is zero for {paths}: noise alone would train these "
        "weights. Freeze them (`layer.trainable = False`) if that holds for your data too."
    )


def _is_over_batch(loss: Any) -> bool:
    """Return whether a loss of Keras may compare the rows of a batch, by its name or its axis."""
    function = getattr(loss, "fn", loss.call)
    axis = inspect.signature(function).parameters.get("axis")
    given = getattr(loss, "_fn_kwargs", {}).get("axis", -1 if axis is None else axis.default)
    return given != -1 or "circle" in function.__name__


def _scaled(value: Tensor) -> Tensor:
    """Return predictions of the same signs and other sizes."""
    factors = np.random.default_rng(1).uniform(0.6, 1.4, tuple(value.shape))
    return value * ops.cast(factors, value.dtype)


def _loss(model: keras.Model, part: Batch) -> Tensor:
    """Return the loss of some rows, with Keras's reduction; `part.x` holds predictions too."""
    named = {"y": part.y, "sample_weight": part.sample_weight}
    named = {name: value for name, value in named.items() if value is not None}
    return ops.cast(gradients.compute_loss(model, **part.x, **named), "float32")


def _predicted(model: keras.Model, batch: Batch, spread: float) -> Batch:
    """Return the rows with other predictions, without their mask, which would rescale the loss."""

    def moved(value: Tensor) -> Tensor:
        """Return other predictions."""
        noise = np.random.default_rng(0).uniform(0.0, spread, tuple(value.shape))
        return value + ops.cast(noise, value.dtype)

    y_pred = gradients.call_model(model, batch.x, training=False)
    y_pred = keras.tree.map_structure(moved, y_pred)
    return Batch({"x": batch.x, "y_pred": y_pred}, batch.y, batch.sample_weight)


def _evaluated(model: keras.Model, losses: Any) -> list[np.ndarray]:
    """Return the tensors of a function without arguments as arrays."""
    variables = [*model.variables, *model.metrics_variables]
    (found,) = backend.evaluate_each(lambda _: losses(), variables, [()])
    return list(found)


def _judged(
    model: keras.Model, spread: float, is_weighted: bool, batch: Batch
) -> tuple[tuple[str, str], str] | None:
    """Return what is wrong with the loss and what is to be said of it; None if rows show nothing.

    Args:
        model: A compiled and built model.
        spread: What is added to the predictions at most.
        is_weighted: Whether examples or classes have weights.
        batch: The rows.
    """
    weights = batch.sample_weight
    if not is_weighted:
        weights = None
    elif weights is None:
        weights = ops.ones((_NUM_ROWS,), "float32")

    def others(number: int) -> Any:
        """Return weights of which one part is another."""
        flat = keras.tree.flatten(weights)
        drawn = np.random.default_rng(0).uniform(0.2, 0.8, tuple(flat[number].shape))
        flat[number] = ops.convert_to_tensor(drawn, "float32")  # Weights may be bits.
        return keras.tree.pack_sequence_as(weights, flat)

    given = [n for n, each in enumerate(keras.tree.flatten(weights)) if each is not None]

    def losses() -> list[Tensor]:
        """Return the loss of the batch, twice, and losses of its rows, of other ones too."""
        rows = _predicted(model, Batch(batch.x, batch.y), spread)
        y_pred = keras.tree.map_structure(_scaled, rows.x["y_pred"])
        parts = [(rows.x, weights), ({**rows.x, "y_pred": y_pred}, weights)]
        parts += [(rows.x, others(number)) for number in given]
        singles = [
            ops.stack([_loss(model, Batch(x, rows.y, part).rows(n, 1)) for n in range(_NUM_ROWS)])
            for x, part in parts
        ]
        return [_loss(model, rows), _loss(model, rows), *singles]

    value, again, singles, *further = _evaluated(model, losses)
    if not (np.isfinite(value) and (value or again or singles.any())):
        return None
    if not np.isclose(value, again, rtol=1e-5):
        return _FINE, ""  # It draws random numbers, and cannot be judged.
    if not np.isfinite(singles).all():
        return _MIXING_LOSS, ""
    # A weighted mean lies between the least and the largest, a sum may be anything else.
    slack = _TOLERANCE * max(float(np.abs(singles).max()), 1e-2)
    is_plain = abs(value - singles.mean()) <= slack
    is_plain |= abs(value - singles.sum()) <= _NUM_ROWS * slack
    if not (is_plain or singles.min() - slack <= value <= singles.max() + slack):
        return _MIXING_LOSS, ""
    is_constant, *without_effect = (_are_close(each, singles) for each in further)
    if is_constant:  # As where all predictions are zero.
        return (_CONSTANT_LOSS, "") if spread else None
    if any(without_effect):
        return _WEIGHTS_WITHOUT_EFFECT, ""
    return _FINE, "" if is_plain else _OTHER_OBJECTIVE


def _are_close(one: np.ndarray, two: np.ndarray) -> bool:
    """Return whether losses differ by rounding alone."""
    return bool(np.abs(one - two).max() <= 1e-5 * max(np.abs(one).max(), np.abs(two).max()))


def _handles_missing(model: keras.Model, batch: Batch, number: int) -> bool:
    """Return whether the loss has a use of its own for a target with numbers that are missing.

    It is finite then, and not that of a target of zeros, which is what integers make of NaN.

    Args:
        model: A compiled and built model.
        batch: Made-up rows.
        number: The number of the target.
    """
    target = keras.tree.flatten(batch.y)[number]
    if target is None or not is_differentiable(target):
        return False
    # All numbers of the rows, or the first ones.
    missing = [np.full(tuple(target.shape), is_whole) for is_whole in (True, False)]
    missing[1].reshape(len(missing[1]), -1)[:, 0] = True

    def losses() -> list[Tensor]:
        """Return the losses of rows with missing numbers, and with zeros in their place."""
        rows = _predicted(model, batch, 0.3)
        found = []
        for places, value in itertools.product(missing, (float("nan"), 0.0)):
            flat = keras.tree.flatten(batch.y)
            flat[number] = ops.where(places, ops.cast(value, target.dtype), target)
            other = Batch(rows.x, keras.tree.pack_sequence_as(batch.y, flat))
            found.append(ops.stack([_loss(model, other.rows(n, 1)) for n in range(2)]))
        return found

    found, _ = backend.attempt(_evaluated, model, losses)
    pairs = zip(found[::2], found[1::2], strict=True) if found else ()
    return any(np.isfinite(one).all() and not _are_close(one, zeros) for one, zeros in pairs)
