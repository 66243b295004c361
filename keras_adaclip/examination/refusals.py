"""What would break the guarantee, found before training starts.

`fit` refuses a model with an issue and leaves it as it was.
"""

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from keras_adaclip import backend, gradients
from keras_adaclip.backend import keras_losses, keras_private
from keras_adaclip.examination.issues import PrivacyIssue, batch_normalization_issue, refuse
from keras_adaclip.examination.rows import SampleRows
from keras_adaclip.optimizers import FORBIDDEN_OPTIONS, AccountedOptimizer

_MASKED_METRIC = (
    "Batches are padded, and the metric does not take the mask of their rows as `sample_weight`.",
    "Let it return a number for each example or each position, and not one for the batch.",
)
_ADAPTED = (
    "`adapt` has made its tables or moments from data, and epsilon does not cover that.",
    "Give the vocabulary, boundaries or moments as arguments, or say that the data were public: "
    "`privatize(model, public_preprocessing=True)`.",
)
_NO_LOGITS = (
    "It takes probabilities that are not the result of a sigmoid or softmax, and has no gradient "
    "where they saturate.",
    "End the model with one of these activations, or with logits and `from_logits=True`.",
)
# The methods of Keras's trainers (the third is that of JAX) that train.
_STEPS = ("train_step", "make_train_function", "compute_loss_and_updates")


def issues_of_parts(model: keras.Model) -> list[PrivacyIssue]:
    """Return the issues that layers, methods, optimizer and metrics show without a run."""
    return layer_issues(model) + compile_issues(model) + metric_issues(model)


def notes(model: keras.Model, sample: SampleRows | None) -> list[PrivacyIssue]:
    """Return what a user should know of a model, and is no reason to refuse it.

    Args:
        model: A model, compiled or not.
        sample: Makes rows up, to see what the loss is given; None for a model of unknown inputs.
    """
    adapted = keras_private.adapted_layers(model)
    found = [PrivacyIssue(layer.name, *_ADAPTED, is_note=True) for layer in adapted]
    found = [] if getattr(model, "public_preprocessing", False) else found
    has_loss = getattr(model, "loss", None) and not keras_private.is_own(model, "compute_loss")
    if sample is None or not has_loss:
        return found

    def names() -> list[str]:
        """Return the losses that see probabilities alone."""
        with keras.StatelessScope([(each, each.value) for each in model.variables]):
            y_pred = gradients.call_model(model, sample.batch().x, training=False)
            return keras_losses.losses_without_logits(model, y_pred)

    # A model that does not run has other issues.
    named, _ = backend.attempt(names)
    return found + [PrivacyIssue(name, *_NO_LOGITS, is_note=True) for name in named or ()]


def refuse_unsupported(model: keras.Model) -> None:
    """Raise a `ValueError` if devices would not share one noise, or compiling would fix it."""
    for find in (backend.unsupported_distribution, backend.unsupported_compilation):
        if (unsupported := find(model)) is not None:
            raise ValueError(unsupported)


def refuse_other_weights(model: keras.Model) -> None:
    """Raise a `ValueError` if nothing can be trained, or the optimizer has other weights."""
    if not model.trainable_variables:
        raise ValueError(f"Model {model.name!r} has no trainable weights, so nothing to train.")
    if not model.optimizer.is_built_for(model.trainable_variables):
        raise ValueError(
            f"The `{type(model.optimizer).__name__}` was built for other trainable weights than "
            "the model has now (a layer was frozen or unfrozen, or the optimizer belongs to "
            "another model). Compile with a new one; the privacy spent so far is carried over."
        )


def layer_issues(model: keras.Model) -> list[PrivacyIssue]:
    """Return the issues with the layers of `model` that their kind and options show."""
    issues = []
    for layer in keras_private.flatten_layers(model):
        own = keras_private.own_trainable_variables(layer)
        if isinstance(layer, gradients.MIXING_LAYERS):
            told = (
                f"{type(layer).__name__} mixes the examples of a batch.",
                "Remove it; augmentations of single examples are fine.",
            )
        elif any(getattr(variable, "overwrite_with_gradient", False) for variable in own):
            told = (
                "Quantization to float8 replaces weights of its own by their gradients, which "
                "are noise in private training.",
                "Leave out `quantize('float8')`.",
            )
        elif isinstance(layer, keras.layers.TorchModuleWrapper) and own:
            told = (
                "Private steps differentiate Keras weights, and the weights of a PyTorch module "
                "would get noise and no gradient.",
                "Freeze it (`layer.trainable = False`), or write the module as a Keras layer.",
            )
        elif isinstance(layer, keras.layers.RNN) and layer.stateful:
            told = (
                "A stateful recurrent layer carries data from one batch to the next, past "
                "clipping and noise.",
                "Build it with `stateful=False`.",
            )
        elif getattr(layer, "activity_regularizer", None) is not None:
            told = (
                "Activity regularization adds a loss that depends on the data and belongs to "
                "no single example.",
                "Remove `activity_regularizer`; weight regularizers are fine.",
            )
        else:
            continue
        issues.append(PrivacyIssue(layer.name, *told))
    return issues


def batch_normalization_issues(model: keras.Model) -> list[PrivacyIssue]:
    """Return an issue with each batch normalization that is not frozen."""
    return [
        batch_normalization_issue(model, layer)
        for layer in keras_private.flatten_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    ]


@contextmanager
def refusing_batch_statistics(model: keras.Model) -> Iterator[None]:
    """Within the context, raise if a batch normalization is called in training mode.

    Raises:
        ValueError: With the name of the layer.
    """

    def watching(layer: keras.Layer) -> Any:
        """Return a `call` that refuses training mode."""
        original = layer.call

        def call(*args: Any, **kwargs: Any) -> Any:
            """Call the layer, unless in training mode."""
            training = inspect.signature(original).bind(*args, **kwargs).arguments.get("training")
            # A tensor may be true when the step runs.
            if layer.trainable and training is not None and training is not False:
                refuse(model, [batch_normalization_issue(model, layer)])
            return original(*args, **kwargs)

        return call

    layers = keras_private.flatten_layers(model)
    watched = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
    with keras_private.replaced_calls({layer: watching(layer) for layer in watched}):
        yield


def compile_issues(model: keras.Model) -> list[PrivacyIssue]:
    """Return the issues with the methods of a model and the options of its optimizer."""
    is_private = hasattr(model, "gradient_plan")
    issues = [
        PrivacyIssue(
            name,
            f"{type(model).__name__} overrides `{name}`, and the effect of that step on the "
            "weights cannot be accounted for.",
            "Remove the override; `compute_loss` and `compute_metrics` may be overridden.",
        )
        for name in (keras_private.own_methods(model, _STEPS) if is_private else ())
    ]
    optimizer = getattr(model, "optimizer", None)
    inner = optimizer.inner_optimizer if isinstance(optimizer, AccountedOptimizer) else optimizer
    return issues + [
        PrivacyIssue(
            option,
            f"The optimizer's `{option}` works on the noised mean, of parts that are clipped.",
            f"Remove `{option}`; `DPOptimizer(clipping=...)` bounds what each example or client "
            "adds, `microbatch_size` saves memory.",
        )
        for option in FORBIDDEN_OPTIONS
        if getattr(inner, option, None) is not None
    ]


def masked_metric_issues(model: keras.Model, sample: SampleRows) -> list[PrivacyIssue]:
    """Return the compiled metrics that fail on made-up rows with the mask of the rows as weights.

    Args:
        model: A compiled model whose metrics are built.
        sample: Makes the rows up.
    """
    batch, found = sample.batch(-1), list[PrivacyIssue]()

    def update() -> None:
        """Update each metric."""
        found.clear()
        variables = [*model.variables, *model.metrics_variables]
        with keras.StatelessScope([(each, each.value) for each in variables]):
            y_pred = gradients.call_model(model, batch.x, training=False)
            given = keras_losses.masked_metrics(
                model, batch.y, y_pred, batch.sample_weight, batch.present
            )
            for metric, *parts, weights in given:
                updated = functools.partial(metric.update_state, sample_weight=weights)
                _, error = backend.attempt(updated, *parts)
                if error is not None or keras_losses.returns_one_number(metric, *parts):
                    found.append(PrivacyIssue(metric.name, *_MASKED_METRIC))

    if keras_losses.compiled_metrics(model):
        backend.trace(update)
    return found


def metric_issues(model: keras.Model) -> list[PrivacyIssue]:
    """Return the metrics that cannot leave out padding."""

    def takes_weights(metric: keras.metrics.Metric) -> bool:
        """Return whether `update_state` has an argument for weights."""
        parameters = inspect.signature(metric.update_state).parameters
        return "sample_weight" in parameters or any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
        )

    return [
        PrivacyIssue(
            metric.name,
            "The metric takes no `sample_weight`, so it would count rows of padding.",
            "Give its `update_state` a `sample_weight` argument.",
        )
        for metric in keras_losses.compiled_metrics(model)
        if not takes_weights(metric)
    ]
