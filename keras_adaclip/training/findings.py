"""What an examination of a model finds, and how the user is told."""

from dataclasses import dataclass, field
from typing import Any

import keras

from keras_adaclip.backend import keras_private
from keras_adaclip.training.batch_normalizations import batch_normalization_issue

MIXES = "It mixes examples: its output for one row changes when only other rows change."
COUNTS = "Its output for one row depends on how many rows are in the batch."
ALONE = (
    "Replace it with a layer that treats each example alone (for normalization: "
    "LayerNormalization or GroupNormalization)."
)
ASSIGNED = (
    "It is assigned in the forward pass, and would carry data past clipping and noise.",
    "Remove the layer, freeze it, or keep its state fixed during training.",
)
ASSIGNED_OUTSIDE = (
    "It is assigned in the forward pass or in the loss and is no weight of the model: private "
    "steps would leave it as it is, where Keras changes it.",
    "Make it a weight of a layer of the model, or leave out the assignment. A metric is given to "
    "`compile(metrics=...)`, or is an attribute of the model.",
)
ADDED = (
    "It adds a loss in its `call` (`add_loss`), which depends on the data and belongs to no single "
    "example.",
    "Move the term into the compiled loss, or make it a weight regularizer.",
)
_MIXING_LOSS = (
    "It mixes examples: the loss of one row changes when only other rows change, such as through "
    "what `call` left in an attribute.",
    "Compute the loss from `x`, `y` and `y_pred` alone; let `call` return what else it needs.",
)
OUTSIDE = (
    "A forward pass keeps state outside of Keras's variables (a buffer, an attribute, a global), "
    "which would carry data from one step to the next past clipping and noise; or it draws random "
    "numbers outside of the framework, which looks the same.",
    "Let its outputs depend on nothing but its inputs, its Keras weights and Keras's seed "
    "generators.",
)


@dataclass(frozen=True)
class Finding:
    """What a probe found.

    Args:
        issues: `(layer name, reason, fix)` for each thing that a private step must not do.
        is_repeatable: whether two runs on the same rows agreed. Random numbers that do not come
            from Keras's seed generators make runs differ; then mixing cannot be ruled out, and
            only the whole-model gradient plan, which runs each example alone, is sound.
        unrepeatable_layer: name of the first layer in which two runs differed.
        assigned: the variables that a forward pass assigns, whatever the rows are.
        dependent: those that it assigns what depends on the rows.
        branches: whether a pass decides by values what runs (`backend.Effects`).
    """

    issues: list[tuple[str, str, str]]
    is_repeatable: bool = True
    unrepeatable_layer: str | None = None
    assigned: list[keras.Variable] = field(default_factory=list)
    dependent: list[keras.Variable] = field(default_factory=list)
    branches: bool = False


@dataclass(frozen=True)
class OwnLoss:
    """Stands beside the layers for a loss that is the user's.

    Args:
        name: of `compute_loss`, or of the loss functions.
    """

    name: str


def issue_with(model: keras.Model, part: Any, reason: str, fix: str) -> tuple[str, str, str]:
    """An issue with a layer or a variable; of a batch normalization, what is known of those."""
    for layer in keras_private.flatten_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization) and (
            part is layer or any(part is variable for variable in layer.variables)
        ):
            return batch_normalization_issue(model, layer)
    return (part.path if isinstance(part, keras.Variable) else part.name, reason, fix)


def mixing_issue(model: keras.Model, part: keras.layers.Layer | OwnLoss) -> tuple[str, str, str]:
    """An issue with a layer, or a loss of the user's own, that mixes examples."""
    if isinstance(part, OwnLoss):
        return (part.name, *_MIXING_LOSS)
    return issue_with(model, part, MIXES, ALONE)
