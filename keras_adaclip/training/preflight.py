"""What would break the guarantee, found before training starts.

`fit` refuses a model with an issue and leaves it as it was.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras

from keras_adaclip import backend
from keras_adaclip.accounting import Sampling
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients import Batch
from keras_adaclip.optimizers import FORBIDDEN_OPTIONS, AccountedOptimizer
from keras_adaclip.training.batch_normalizations import batch_normalization_issue
from keras_adaclip.training.findings import Finding
from keras_adaclip.training.loss_probe import probe_loss
from keras_adaclip.training.probe import probe
from keras_adaclip.training.training_data import TrainingData

_MIXING_LAYERS = tuple(
    getattr(keras.layers, name) for name in ("MixUp", "CutMix") if hasattr(keras.layers, name)
)
# The methods of Keras's trainers (the third is that of JAX) that train.
_STEPS = ("train_step", "make_train_function", "compute_loss_and_updates")


@dataclass(frozen=True)
class PrivacyIssue:
    """One thing that would break the guarantee.

    Args:
        layer: name of the layer, metric or option.
        reason: what it would do.
        fix: what to do about it.
    """

    layer: str
    reason: str
    fix: str

    def __str__(self) -> str:
        return f"{self.layer}: {self.reason} {self.fix}"


def refuse_unsound_parts(model: keras.Model) -> None:
    """Raises where what `model` consists of shows that training it would not be private.

    Args:
        model: a compiled private model, built or not.

    Raises:
        ValueError: with every issue, one a line.
    """
    refuse_unsupported(model)
    refuse(model, layer_issues(model) + compile_issues(model) + metric_issues(model))


def refuse_unsound_training(model: keras.Model, rows: Batch | None) -> Finding | None:
    """Raises where what `model` does with rows like `rows` shows that training is not private.

    Args:
        model: a compiled and built private model.
        rows: a few training examples to run the model on; None leaves that out.

    Returns:
        What was found of a model without issues; None where it was not run.

    Raises:
        ValueError: with every issue, one a line.
    """
    refuse_other_weights(model)
    # Building may have made further layers.
    refuse(model, layer_issues(model))
    if rows is None:
        return None
    finding = probe(model, rows, with_loss=True)
    found = [*finding.issues, *probe_loss(model, rows)]
    refuse(model, [PrivacyIssue(*parts) for parts in found])
    return finding


def refuse_unsupported(model: keras.Model) -> None:
    """Raises where the way in which `model` is to run cannot be private.

    Raises:
        ValueError: where devices would not share one noise, or compiling would fix it.
    """
    unsupported = backend.unsupported_distribution(model)
    if unsupported is not None:
        raise ValueError(unsupported)
    unsupported = backend.unsupported_compilation(model)
    if unsupported is not None:
        raise ValueError(unsupported)


def refuse_uneven_batches(data: TrainingData) -> None:
    """Raises where devices cannot divide the batches evenly, which are not ours to pad.

    Args:
        data: what is to be trained on.

    Raises:
        ValueError: with the numbers.
    """
    num_shards = backend.num_batch_shards()
    if data.poisson is not None or num_shards == 1:
        return
    sizes = {data.expected_batch_size}
    if data.sampling is Sampling.SHUFFLE:
        sizes.add(data.num_examples % data.expected_batch_size)
    uneven = [size for size in sizes if size % num_shards != 0]
    if uneven:
        raise ValueError(
            f"{num_shards} devices divide each batch evenly among them. Choose a `batch_size` that "
            "is a multiple and leaves no other rest of the examples, or `sampling='poisson'`, "
            f"whose batches are padded. Received: a batch of {uneven[0]:,} examples"
        )


def refuse_other_weights(model: keras.Model) -> None:
    """Raises where there is nothing to train, or the optimizer was built for something else.

    Raises:
        ValueError: with what to do about it.
    """
    if not model.trainable_variables:
        raise ValueError(f"Model {model.name!r} has no trainable weights, so nothing to train.")
    if not model.optimizer.is_built_for(model.trainable_variables):
        raise ValueError(
            f"The `{type(model.optimizer).__name__}` was built for other trainable weights than "
            "the model has now (a layer was frozen or unfrozen, or the optimizer belongs to "
            "another model). Compile with a new one; the privacy spent so far is carried over."
        )


def refuse(model: keras.Model, issues: list[PrivacyIssue]) -> None:
    """Raises where there is an issue, with every one on a line of its own."""
    if issues:
        listed = "\n".join(f"- {issue}" for issue in issues)
        raise ValueError(f"Model {model.name!r} cannot be trained privately:\n{listed}")


def layer_issues(model: keras.Model) -> list[PrivacyIssue]:
    """What the layers of `model`, by their kind and options, would do to the guarantee."""
    issues = [
        PrivacyIssue(
            tensor.name,
            "It takes strings, which can be fed to a model on the TensorFlow backend alone.",
            "Look them up before training, and let the model begin with the integers.",
        )
        for tensor in getattr(model, "inputs", None) or ()
        if keras.backend.backend() != "tensorflow"
        and keras.backend.standardize_dtype(tensor.dtype) == "string"
    ]
    for layer in keras_private.flatten_layers(model):
        if isinstance(layer, _MIXING_LAYERS):
            issues.append(
                PrivacyIssue(
                    layer.name,
                    f"{type(layer).__name__} blends the examples of a batch with each other.",
                    "Remove it; augmentations of single examples are fine.",
                )
            )
        if any(
            getattr(variable, "overwrite_with_gradient", False)
            for variable in keras_private.own_trainable_variables(layer)
        ):
            issues.append(
                PrivacyIssue(
                    layer.name,
                    "Quantization to float8 replaces weights of its own by their gradients, which "
                    "are noise in private training.",
                    "Leave out `quantize('float8')`.",
                )
            )
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            issues.append(
                PrivacyIssue(
                    layer.name,
                    "A stateful recurrent layer carries data from one batch to the next, past "
                    "clipping and noise.",
                    "Build it with `stateful=False`.",
                )
            )
        if getattr(layer, "activity_regularizer", None) is not None:
            issues.append(
                PrivacyIssue(
                    layer.name,
                    "Activity regularization adds a loss that depends on the data and belongs to "
                    "no single example.",
                    "Remove `activity_regularizer`; weight regularizers are fine.",
                )
            )
    return issues


def batch_normalization_issues(model: keras.Model) -> list[PrivacyIssue]:
    """The batch normalizations that are not frozen, however they may be called."""
    return [
        PrivacyIssue(*batch_normalization_issue(model, layer))
        for layer in keras_private.flatten_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    ]


@contextmanager
def refusing_batch_statistics(model: keras.Model) -> Iterator[None]:
    """Raises where a batch normalization of `model` is called in training mode meanwhile.

    Raises:
        ValueError: with the layer.
    """

    def watching(layer: keras.layers.Layer) -> Any:
        original = layer.call

        def call(*args: Any, **kwargs: Any) -> Any:
            training = inspect.signature(original).bind(*args, **kwargs).arguments.get("training")
            # Whatever is not known to be false may be true.
            if layer.trainable and training is not None and training is not False:
                refuse(model, [PrivacyIssue(*batch_normalization_issue(model, layer))])
            return original(*args, **kwargs)

        return call

    layers = keras_private.flatten_layers(model)
    watched = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
    with keras_private.replaced_calls({layer: watching(layer) for layer in watched}):
        yield


def compile_issues(model: keras.Model) -> list[PrivacyIssue]:
    """What the options of optimizer and model would do to the guarantee."""
    is_private = hasattr(model, "gradient_plan")
    issues = [
        PrivacyIssue(
            name,
            f"{type(model).__name__} overrides `{name}`, and what an own step does to the "
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
    """Metrics that cannot be told to leave out padding, which Keras itself refuses too."""
    issues = []
    for metric in keras_private.compiled_metrics(model):
        parameters = inspect.signature(metric.update_state).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        if "sample_weight" not in parameters and not takes_any:
            issues.append(
                PrivacyIssue(
                    metric.name,
                    "The metric takes no `sample_weight`, so it would count rows of padding.",
                    "Give its `update_state` a `sample_weight` argument.",
                )
            )
    return issues
