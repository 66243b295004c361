"""What would break the guarantee, found before training starts.

`fit` refuses a model with an issue and leaves it as it was.
"""

import inspect
from dataclasses import dataclass

import keras

from keras_adaclip import backend
from keras_adaclip.accounting import Sampling
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients import Batch
from keras_adaclip.models.loss_probe import probe_loss
from keras_adaclip.models.probe import probe
from keras_adaclip.models.training_data import TrainingData
from keras_adaclip.optimizers.accounted_optimizer import AccountedOptimizer

_MIXING_LAYERS = tuple(
    getattr(keras.layers, name) for name in ("MixUp", "CutMix") if hasattr(keras.layers, name)
)
_FORBIDDEN_OPTIONS = ("clipnorm", "clipvalue", "global_clipnorm", "gradient_accumulation_steps")


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


def refuse_unsound_training(model: keras.Model, rows: Batch | None) -> bool:
    """Raises where what `model` does with rows like `rows` shows that training is not private.

    Args:
        model: a compiled and built private model.
        rows: a few training examples to run the model on; None leaves that out.

    Returns:
        Whether the model does the same on the same rows, so that examining it told something.

    Raises:
        ValueError: with every issue, one a line.
    """
    refuse_other_weights(model)
    # Building may have made further layers.
    refuse(model, layer_issues(model))
    if rows is None:
        return True
    finding = probe(model, rows)
    found = [*finding.issues, *probe_loss(model, rows)]
    refuse(model, [PrivacyIssue(*parts) for parts in found])
    return finding.is_repeatable


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
    issues = []
    for layer in keras_private.flatten_layers(model):
        if isinstance(layer, _MIXING_LAYERS):
            issues.append(
                PrivacyIssue(
                    layer.name,
                    f"{type(layer).__name__} blends the examples of a batch with each other.",
                    "Remove it; augmentations of single examples are fine.",
                )
            )
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
            issues.append(
                PrivacyIssue(
                    layer.name,
                    "BatchNormalization in training mode mixes the examples of a batch, so one "
                    "example changes the gradients of the others.",
                    "Use `privatize(model, replace_batch_normalization=True)`, which puts "
                    "GroupNormalization in its place, or freeze it with `layer.trainable = False`.",
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


def compile_issues(model: keras.Model) -> list[PrivacyIssue]:
    """What the options of optimizer and model would do to the guarantee."""
    issues = []
    # The instance's: Keras calls what was put there in the place of the class's.
    if hasattr(model, "gradient_plan") and not getattr(model.train_step, "is_private", False):
        issues.append(
            PrivacyIssue(
                "train_step",
                f"{type(model).__name__} overrides `train_step`, and what an own step does to the "
                "weights cannot be accounted for.",
                "Remove the override; `compute_loss` and `compute_metrics` may be overridden.",
            )
        )
    optimizer = getattr(model, "optimizer", None)
    inner = optimizer.inner_optimizer if isinstance(optimizer, AccountedOptimizer) else optimizer
    return issues + [
        PrivacyIssue(
            option,
            f"The optimizer's `{option}` works on the noised mean and not on single examples.",
            f"Remove `{option}`; `DPOptimizer(clipping=...)` bounds each example, "
            "`microbatch_size` saves memory.",
        )
        for option in _FORBIDDEN_OPTIONS
        if getattr(inner, option, None) is not None
    ]


def metric_issues(model: keras.Model) -> list[PrivacyIssue]:
    """Metrics that cannot be told to leave out padding, which Keras itself refuses too."""
    issues = []
    metrics = keras_private.compiled_metrics(model) or getattr(model, "given_metrics", [])
    for metric in metrics:
        parameters = inspect.signature(metric.update_state).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        if "sample_weight" not in parameters and not takes_any:
            issues.append(
                PrivacyIssue(
                    metric.name,
                    "The metric takes no `sample_weight`, so it would count the padding of "
                    "Poisson-sampled batches.",
                    "Give its `update_state` a `sample_weight` argument.",
                )
            )
    return issues
