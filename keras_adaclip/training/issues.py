"""What an examination of a model finds, and what the user is told about it."""

from dataclasses import dataclass, field, replace
from typing import Any

import keras

from keras_adaclip.backend import keras_private

MIXES = "It mixes examples: its output for one row changes when only other rows change."
COUNTS = "Its output for one row depends on how many rows are in the batch."
ALONE = (
    "Replace it with a layer that treats each example alone (for normalization: "
    "LayerNormalization or GroupNormalization)."
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
    "Make it a weight of a layer of the model, or leave out the assignment. Pass metrics to "
    "`compile(metrics=...)`, or make them attributes of the model.",
)
ADDED = (
    "It adds a loss of its own (`add_loss`, `activity_regularizer`), which depends on the data and "
    "belongs to no single example.",
    "Move the term into the compiled loss, or make it a weight regularizer.",
)
OUTSIDE = (
    "A forward pass keeps state outside of Keras's variables (a buffer, an attribute, a global), "
    "which would carry data from one step to the next past clipping and noise; or it draws random "
    "numbers outside of the framework, which looks the same.",
    "Let its outputs depend on nothing but its inputs, its Keras weights and Keras's seed "
    "generators (`keras.random.SeedGenerator`).",
)


@dataclass(frozen=True)
class PrivacyIssue:
    """One thing that would break the guarantee.

    Args:
        layer: Name of the layer, variable, loss, metric or option.
        reason: Why it breaks the guarantee.
        fix: What to do about it.
    """

    layer: str
    reason: str
    fix: str

    def __str__(self) -> str:
        return f"{self.layer}: {self.reason} {self.fix}"


@dataclass(frozen=True)
class Finding:
    """The result of examining a model.

    Args:
        issues: Everything that a private step must not do.
        unrepeatable_layer: Name of the first layer in which two runs on the same rows differed;
            None if they agreed. Random numbers that do not come from Keras's seed generators make
            runs differ. Then mixing cannot be ruled out, and only the gradient plan that runs each
            example alone is sound.
        assigned: The variables that a forward pass assigns values that no row changes.
        dependent: The variables that it assigns values which depend on the rows.
        branches: Whether values decide what runs (see `backend.Effects`).
    """

    issues: list[PrivacyIssue]
    unrepeatable_layer: str | None = None
    assigned: list[keras.Variable] = field(default_factory=list)
    dependent: list[keras.Variable] = field(default_factory=list)
    branches: bool = False

    @property
    def is_repeatable(self) -> bool:
        """Whether two runs on the same rows agreed."""
        return self.unrepeatable_layer is None

    @property
    def issues_if_layerwise(self) -> list[PrivacyIssue]:
        """The issues of a model that takes all examples at once, whose runs must agree."""
        if self.unrepeatable_layer is None:
            return self.issues
        return [*self.issues, PrivacyIssue(self.unrepeatable_layer, *OUTSIDE)]


@dataclass(frozen=True)
class OwnLoss:
    """A loss written by the user, examined like a layer.

    Args:
        name: `compute_loss`, or the names of the loss functions.
    """

    name: str


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


def mixing_issue(model: keras.Model, part: keras.layers.Layer | OwnLoss) -> PrivacyIssue:
    """Return an issue with a layer or a loss that mixes examples."""
    reason, fix = MIXING_LOSS if isinstance(part, OwnLoss) else (MIXES, ALONE)
    return issue_with(model, part, reason, fix)


def issues_of_clients(finding: Finding) -> list[PrivacyIssue]:
    """Return the issues of a federated model, in which clients stay apart and not examples.

    State that a client's training changes never leaves it. Examples of one client could meet each
    other, but so would the rows that pad its batches. Only layers that repeat their outputs pass
    nothing on from one client to the next.
    """
    return [
        replace(issue, reason=PADDING_COUNTS) if issue.reason in (MIXES, COUNTS) else issue
        for issue in finding.issues_if_layerwise
        if issue.reason not in (ASSIGNED[0], ASSIGNED_OUTSIDE[0])
    ]


def batch_normalization_issue(model: keras.Model, layer: keras.layers.Layer) -> PrivacyIssue:
    """Return the issue with a batch normalization in training mode, somewhere in `model`."""
    holder = _holder(model, layer)
    if holder is None:
        caller = "federate" if getattr(model, "privacy_unit", "") == "client" else "privatize"
        fix = (
            f"Use `{caller}(model, replace_batch_normalization=True)`, which puts "
            "GroupNormalization in its place, or freeze it with `layer.trainable = False`. (A "
            "functional model overrides a `training=False` that it was built with.)"
        )
    else:
        fix = (
            f"It is created inside of {holder.name!r}, where `replace_batch_normalization=True` "
            f"cannot replace it. Edit the class {type(holder).__name__}: use GroupNormalization "
            "there, or call the layer with `training=False`. Or freeze it with "
            "`layer.trainable = False`."
        )
    return PrivacyIssue(
        layer.name,
        "BatchNormalization in training mode mixes the examples of a batch, so one example changes "
        "the gradients of the others, and keeps moving averages that are neither clipped nor "
        "noised.",
        fix,
    )


def _holder(holder: Any, layer: keras.layers.Layer) -> keras.layers.Layer | None:
    """Return the innermost layer around `layer` that is no plain model of layers, or None."""
    if not isinstance(holder, keras.Sequential) and not hasattr(holder, "operations"):
        return holder
    for inner in holder.layers:
        if inner is not layer and any(
            each is layer for each in keras_private.flatten_layers(inner)
        ):
            return _holder(inner, layer)
    return None
