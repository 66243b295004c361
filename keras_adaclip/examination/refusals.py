"""What would break the guarantee, found before training starts.

`fit` refuses a model with an issue and leaves it as it was.
"""

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend, gradients
from keras_adaclip.backend import keras_private
from keras_adaclip.examination.issues import (
    OwnLoss,
    PrivacyIssue,
    batch_normalization_issue,
    refuse,
)
from keras_adaclip.examination.rows import SampleRows
from keras_adaclip.gradients import Batch
from keras_adaclip.optimizers import FORBIDDEN_OPTIONS, AccountedOptimizer

Tensor = Any
# The methods of Keras's trainers (the third is that of JAX) that train.
_STEPS = ("train_step", "make_train_function", "compute_loss_and_updates")
# Enough for several rows of one class, which losses that compare rows tell apart.
_NUM_LOSS_ROWS = 6
_MIXING_LOSS = (
    "The loss of a batch is neither a mean nor a sum of the losses of its examples, so it compares "
    "examples with each other; private training evaluates it on each example alone.",
    "Use a loss that is defined for one example, such as those of `keras.losses`.",
)
_UNEXAMINED_LOSS = (
    "The loss is zero or not finite on all made-up rows, so it is not known whether it compares "
    "examples with each other.",
    "Use a loss that is finite for targets within the range of each column of the data.",
)
_LOSS_TOLERANCE = 1e-3


def issues_of_parts(model: keras.Model) -> list[PrivacyIssue]:
    """Return the issues that layers, methods, optimizer and metrics show without a run."""
    return layer_issues(model) + compile_issues(model) + metric_issues(model)


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
        for metric in keras_private.compiled_metrics(model)
        if not takes_weights(metric)
    ]


def loss_issues(model: keras.Model, sample: SampleRows) -> list[PrivacyIssue]:
    """Return the loss of the user's own if it compares the examples of a batch with each other.

    A private step evaluates the loss on each example alone. If the loss of a batch is a mean (in
    any weighting) or a sum of the losses of its examples, that is the same training. If not, as
    with contrastive losses, the model would learn something else. Keras's own losses are not
    examined: all of them have a value for one example alone.

    Args:
        model: A compiled and built model.
        sample: Makes the rows up, with targets.
    """
    own = OwnLoss.of(model)
    if own is None:
        return []
    # Where predictions are zero, so may be the loss.
    judges = [functools.partial(_is_loss_separable, model, spread) for spread in (0.0, 0.3)]
    is_separable = sample.first_shown(judges, _NUM_LOSS_ROWS)
    if is_separable:
        return []
    told = _UNEXAMINED_LOSS if is_separable is None else _MIXING_LOSS
    return [PrivacyIssue(own.name, *told)]


def _is_loss_separable(model: keras.Model, spread: float, batch: Batch) -> bool | None:
    """Return whether the loss of a batch is that of its rows; None if these show nothing.

    Args:
        model: A compiled and built model.
        spread: What is added to the predictions at most.
        batch: The rows.
    """

    def moved(value: Tensor) -> Tensor:
        """Return other predictions, without their mask, so that no mask rescales anything."""
        noise = np.random.default_rng(0).uniform(0.0, spread, tuple(value.shape))
        return value + ops.cast(noise, value.dtype)

    def loss(part: Batch) -> Tensor:
        """Return the loss of some rows, with Keras's reduction."""
        named = {} if part.y is None else {"y": part.y}
        return ops.cast(gradients.compute_loss(model, **part.x, **named), "float32")

    def losses(_: Any) -> list[Tensor]:
        """Return the loss of the batch, twice, and the losses of its rows."""
        y_pred = gradients.call_model(model, batch.x, training=False)
        y_pred = keras.tree.map_structure(moved, y_pred)
        whole = Batch({"x": batch.x, "y_pred": y_pred}, batch.y)
        singles = [loss(whole.rows(row, 1)) for row in range(_NUM_LOSS_ROWS)]
        return [loss(whole), loss(whole), ops.stack(singles)]

    variables = [*model.variables, *model.metrics_variables]
    ((value, again, singles),) = backend.evaluate_each(losses, variables, [()])
    if not (np.isfinite(value) and (value or again or singles.any())):
        return None
    if not np.isclose(value, again, rtol=1e-5):
        return True  # It draws random numbers, and cannot be judged.
    if not np.isfinite(singles).all():
        return False
    # A weighted mean lies between the least and the largest, a sum may be anything else.
    slack = _LOSS_TOLERANCE * max(float(np.abs(singles).max()), 1e-2)
    is_mean = singles.min() - slack <= value <= singles.max() + slack
    return bool(is_mean or abs(value - singles.sum()) <= _NUM_LOSS_ROWS * slack)
