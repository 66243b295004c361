"""The findings of an examination of a model, and their wording for the user."""

from dataclasses import dataclass, field, replace
from typing import Any

import keras

from keras_adaclip.backend import keras_losses, keras_private

_ALONE = (
    "Replace it with a layer that treats each example alone (for normalization: "
    "LayerNormalization or GroupNormalization)."
)
MIXING = ("It mixes examples: its output for one row changes when only other rows change.", _ALONE)
COUNTING = (
    "Its output for one row depends on how many rows are in the batch.",
    f"{_ALONE} If it draws random numbers, draw them with `keras.random`.",
)
PLACE = (
    "Its output for one row depends on the place of the row in the batch, or on a number drawn "
    "there from a constant seed: a removed row would change what those behind it contribute.",
    "Draw random numbers with a `keras.random.SeedGenerator`, never with a number as the seed.",
)
PADDING_COUNTS = (
    "Its output for one row depends on other rows of the batch, so the rows that pad the batches "
    "of a client would count."
)
MIXING_LOSS = (
    "It mixes examples: the loss of one row changes when only other rows change, for example "
    "through a tensor that `call` left in an attribute.",
    "Compute the loss from `x`, `y` and `y_pred` alone; let `call` return what else it needs.",
)
ASSIGNED = (
    "It is assigned in the forward pass, and would carry data past clipping and noise.",
    "Remove the layer, freeze it, or keep its state fixed during training.",
)
ASSIGNED_OUTSIDE = (
    "It is assigned in the forward pass or in the loss and is no weight of the model: private "
    "steps would leave it unchanged, where Keras changes it.",
    "Make it a weight of a layer. Update a metric in `compute_metrics`, or give it to `compile`; "
    "`compute_loss` of a `PrivateModel` may update a `Mean` or `Sum` that is its attribute.",
)
ADDED = (
    "It adds a loss of its own (`add_loss`, `activity_regularizer`), which depends on the data and "
    "belongs to no single example.",
    "Leave it out, and move the term into the compiled loss. If it needs the inputs, derive the "
    "class of the model from `PrivateModel` and override `compute_loss`, which gets them as `x`. "
    "Or make it a weight regularizer.",
)
OUTSIDE = (
    "A forward pass keeps state outside of Keras's variables (a buffer, an attribute, a global), "
    "which would carry data past clipping and noise; or it draws random numbers outside of Keras.",
    "Let its outputs depend on its inputs, Keras weights and `keras.random.SeedGenerator` alone. "
    "Build or adapt a `Normalization` before the model runs: Keras loses moments that it computes "
    "later.",
)


@dataclass(frozen=True)
class PrivacyIssue:
    """One thing that would break the guarantee.

    Args:
        layer: Name of the layer, variable, loss, metric or option.
        reason: Why it breaks the guarantee.
        fix: What to do about it.
        is_note: Whether it is something to know rather than to refuse: `fit` prints it.
    """

    layer: str
    reason: str
    fix: str
    is_note: bool = False

    def __str__(self) -> str:
        return f"{'Note on ' * self.is_note}{self.layer}: {self.reason} {self.fix}"


@dataclass(frozen=True)
class Finding:
    """The result of examining a model.

    Args:
        issues: Everything that a private step must not do.
        assigned: The variables that a forward pass assigns values that no row changes.
        branches: Whether values decide what runs (see `backend.Effects`).
    """

    issues: list[PrivacyIssue]
    assigned: list[keras.Variable] = field(default_factory=list)
    branches: bool = False


@dataclass(frozen=True)
class OwnLoss:
    """A loss written by the user, examined like a layer.

    Args:
        name: `compute_loss`, or the names of the loss functions.
    """

    name: str

    @classmethod
    def of(cls, model: keras.Model) -> "OwnLoss | None":
        """Return the loss of a compiled and built model if the user wrote it."""
        if keras_private.is_own(model, "compute_loss"):
            return cls("compute_loss")
        losses = keras_losses.compiled_losses(model)
        names = [loss.name for loss in losses if not keras_losses.is_of_keras(loss)]
        return cls(", ".join(names)) if names else None


def refuse(model: keras.Model, issues: list[PrivacyIssue]) -> None:
    """Raise a `ValueError` that lists the issues, one a line, if there are any."""
    if issues:
        listed = "\n".join(f"- {issue}" for issue in issues)
        raise ValueError(f"Model {model.name!r} cannot be trained privately:\n{listed}")


def issue_with(model: keras.Model, part: Any, reason: str, fix: str) -> PrivacyIssue:
    """Return an issue with a layer, a loss or a variable.

    An issue with a batch normalization, or with a variable of one, says what to do about it.
    """
    for layer in keras_private.flatten_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization) and (
            part is layer or any(part is variable for variable in layer.variables)
        ):
            return batch_normalization_issue(model, layer)
    return PrivacyIssue(part.path if isinstance(part, keras.Variable) else part.name, reason, fix)


def issues_of_clients(finding: Finding) -> list[PrivacyIssue]:
    """Return the issues of a federated model, in which clients stay apart and not examples.

    State that a client's training changes never leaves it. Examples of one client could meet each
    other, but so would the rows that pad its batches. Only layers that repeat their outputs pass
    nothing on from one client to the next.
    """
    return [
        replace(issue, reason=PADDING_COUNTS) if issue.reason in (MIXING[0], COUNTING[0]) else issue
        for issue in finding.issues
        if issue.reason not in (ASSIGNED[0], ASSIGNED_OUTSIDE[0], PLACE[0])
    ]


def batch_normalization_issue(model: keras.Model, layer: keras.Layer) -> PrivacyIssue:
    """Return the issue with a batch normalization in training mode, somewhere in `model`."""
    caller = "federate" if getattr(model, "privacy_unit", "") == "client" else "privatize"
    return PrivacyIssue(
        layer.name,
        "BatchNormalization in training mode mixes the examples of a batch, and keeps moving "
        "averages that are neither clipped nor noised.",
        f"Use `{caller}(model, replace_batch_normalization=True)` on the Keras model, which puts "
        "GroupNormalization in its place. A model class with methods of its own can be made from "
        "`input` and `output` of the result. If a layer class of your own creates it, use "
        "GroupNormalization there, or call it with `training=False`. Or freeze it with "
        "`layer.trainable = False`.",
    )
