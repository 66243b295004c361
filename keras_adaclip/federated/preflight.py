"""What would break the guarantee of a federated model, found before training starts."""

import keras

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.models.preflight import PrivacyIssue, compile_issues, metric_issues, refuse


def refuse_unsound_rounds(model: keras.Model) -> None:
    """Raises where training `model` over clients would not be private, or not what it seems.

    Examples of one client may meet each other: what must stay apart is clients, and each of them
    trains on its own.

    Args:
        model: a compiled and built federated model.

    Raises:
        ValueError: with every issue, one a line.
    """
    distribution = backend.active_distribution(model)
    if distribution is not None:
        raise ValueError(
            "Private training runs on one device so far; over several the noise would have to be "
            f"drawn once for all of them. Received: {distribution}"
        )
    unsupported = backend.unsupported_compilation(model)
    if unsupported is not None:
        raise ValueError(unsupported)
    if not model.trainable_variables:
        raise ValueError(f"Model {model.name!r} has no trainable weights, so nothing to train.")
    if not model.optimizer.is_built_for(model.trainable_variables):
        raise ValueError(
            "The `DPOptimizer` was built for other trainable weights than the model has now (a "
            "layer was frozen or unfrozen, or the optimizer belongs to another model). Compile "
            "with a new `DPOptimizer`; the privacy spent so far is carried over."
        )
    refuse(
        model,
        [
            *_layer_issues(model),
            *_loss_issues(model),
            *compile_issues(model),
            *metric_issues(model),
        ],
    )


def _layer_issues(model: keras.Model) -> list[PrivacyIssue]:
    return [
        PrivacyIssue(
            layer.name,
            "BatchNormalization keeps moving averages of the clients' data, which are no part of "
            "the clipped and noised contribution.",
            "Use `GroupNormalization`, as `privatize(model, replace_batch_normalization=True)` "
            "does, or freeze it with `layer.trainable = False`.",
        )
        for layer in keras_private.flatten_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    ]


def _loss_issues(model: keras.Model) -> list[PrivacyIssue]:
    if type(model).compute_loss is keras.Model.compute_loss:
        return []
    return [
        PrivacyIssue(
            "compute_loss",
            f"{type(model).__name__} overrides `compute_loss`, which would count the rows that "
            "pad the last batch of a client.",
            "Give the loss to `compile`.",
        )
    ]
