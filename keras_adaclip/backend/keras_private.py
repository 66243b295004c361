"""The private Keras names that the package cannot do without, in one place.

`tests/backend/test_keras_private.py` breaks when Keras moves one of them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
from keras.src.backend import get_keras_mask, set_keras_mask

Tensor = Any


def flatten_layers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """The layer itself and every layer inside it, each once, outermost first."""
    return list(layer._flatten_layers())


def own_trainable_variables(layer: keras.layers.Layer) -> list[keras.Variable]:
    """The trainable variables that belong to `layer` itself and not to a layer inside it."""
    if not layer.trainable:
        return []
    return [variable for variable in layer._trainable_variables if variable.trainable]


def seed_generator_states(layer: keras.layers.Layer) -> list[keras.Variable]:
    """The states of the seed generators in `layer` and the layers inside it."""
    return [
        generator.state for inner in flatten_layers(layer) for generator in inner._seed_generators
    ]


def set_attribute(layer: keras.layers.Layer, name: str, value: Any) -> None:
    """Sets an instance attribute without Keras's (or PyTorch's) tracking."""
    object.__setattr__(layer, name, value)


@contextmanager
def replaced_calls(calls: Mapping[keras.layers.Layer, Callable[..., Any]]) -> Iterator[None]:
    """Sets the instance attribute `call` of layers for the time of the context.

    Afterwards each layer has what it had: most often none, its class's `call` then serves.

    Args:
        calls: the layers, and what is called in the place of their `call`.
    """
    before = {layer: vars(layer).get("call") for layer in calls}
    try:
        for layer, call in calls.items():
            object.__setattr__(layer, "call", call)
        yield
    finally:
        for layer, own_call in before.items():
            if own_call is not None:
                object.__setattr__(layer, "call", own_call)
            elif "call" in vars(layer):
                object.__delattr__(layer, "call")


@contextmanager
def replaced_jit(jit: Callable[..., Any]) -> Iterator[None]:
    """Sets what Keras's trainer on JAX compiles its steps with, for the time of the context.

    Args:
        jit: takes what `jax.jit` takes. Where Keras was told to use Flax's, that stays.
    """
    from keras.src.backend.jax import trainer

    before = trainer.jit
    if not keras.config.is_nnx_enabled():
        trainer.jit = jit
    try:
        yield
    finally:
        trainer.jit = before


def is_empty(variable: keras.Variable) -> bool:
    """Whether Keras's JAX trainer has taken the value out of `variable`."""
    return variable._value is None


def mask_of(value: Tensor) -> Tensor | None:
    """The mask that Keras attached to a tensor, None where there is none."""
    return get_keras_mask(value)


def attach_mask(value: Tensor, mask: Tensor | None) -> Tensor:
    """Attaches a mask to a tensor as Keras's layers do, and returns the tensor."""
    if mask is not None:
        set_keras_mask(value, mask)
    return value


def logits_of(value: Tensor) -> Tensor | None:
    """What softmax or sigmoid made `value` from, where TensorFlow's losses want it, else None.

    Only there do Keras's cross-entropies look for it: they are exact on logits, while on
    probabilities they clip at 1e-7, beyond which the gradient is zero.
    """
    if keras.backend.backend() != "tensorflow":
        return None
    return getattr(value, "_keras_logits", None)


def attach_logits(value: Tensor, logits: Tensor | None) -> Tensor:
    """Attaches logits to a tensor as Keras's activations do, and returns the tensor."""
    if logits is not None:
        value._keras_logits = logits
    return value


def output_loss_trackers(model: keras.Model) -> list[keras.metrics.Metric]:
    """The `Mean` metrics of the single losses of a model with several outputs."""
    compiled_loss = model._compile_loss
    return [] if compiled_loss is None else list(compiled_loss.metrics)


def compiled_losses(model: keras.Model) -> list[Any]:
    """The loss objects that `compile` made, one an output; empty before they are built."""
    compiled_loss = model._compile_loss
    if compiled_loss is None or not compiled_loss.built:
        return []
    return [entry.loss for entry in compiled_loss._flat_losses]


def loss_tracker(model: keras.Model) -> keras.metrics.Metric:
    """The metric that reports `loss`."""
    return model._loss_tracker


def compiled_metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    """The single metrics of `compile(metrics=..., weighted_metrics=...)`, once built."""
    return [] if model._compile_metrics is None else list(model._compile_metrics.metrics)


def update_masked_metrics(
    model: keras.Model, y: Any, y_pred: Any, sample_weight: Any, mask: Tensor
) -> None:
    """Updates the compiled metrics with the rows of `mask` only.

    Keras passes no weights to `metrics=[...]`; here they get the mask, and `weighted_metrics`
    get the mask times the sample weights.

    Args:
        model: a compiled model whose metrics are built.
        y: targets, of shape `(batch_size, ...)`.
        y_pred: predictions, of shape `(batch_size, ...)`.
        sample_weight: None or weights of shape `(batch_size, ...)`.
        mask: bool tensor of shape `(batch_size,)`.
    """
    compiled = model._compile_metrics
    if compiled is None:
        return
    targets = compiled._flatten_y(y)
    predictions = compiled._flatten_y(y_pred)
    present = keras.ops.cast(mask, "float32")
    for metrics, target, prediction in zip(
        compiled._flat_metrics, targets, predictions, strict=False
    ):
        if metrics:
            metrics.update_state(target, prediction, _with_rank_of_mask(present, prediction))
    if sample_weight is None:
        weights = [present] * len(targets)
    else:
        flat = compiled._flatten_y(sample_weight)
        flat = flat if len(flat) == len(targets) else [flat[0]] * len(targets)
        weights = [masked_weight(weight, present) for weight in flat]
    for metrics, target, prediction, weight in zip(
        compiled._flat_weighted_metrics, targets, predictions, weights, strict=False
    ):
        if metrics:
            metrics.update_state(target, prediction, _with_rank_of_mask(weight, prediction))


def build_for_training(model: keras.Model, x: Any, y: Any, sample_weight: Any) -> None:
    """Builds model, loss, metrics and optimizer from a few rows, as Keras's `fit` does.

    Args:
        model: a compiled model.
        x: inputs with at least one row.
        y: targets or None.
        sample_weight: weights or None.
    """
    # As tensors: JAX has no number of 64 bits unless told otherwise, and says so of each.
    parts = [
        None if part is None else keras.tree.map_structure(keras.ops.convert_to_tensor, part)
        for part in (x, y, sample_weight)
    ]
    model._symbolic_build(data_batch=tuple(parts))


def strategy_of_optimizer(optimizer: keras.optimizers.Optimizer) -> Any:
    """The `tf.distribute` strategy in whose scope an optimizer on TensorFlow was made."""
    return optimizer._distribution_strategy


@contextmanager
def without_all_reduce(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Makes an optimizer on TensorFlow take its gradients as they are on each replica.

    Replicas enter one after another, each before those before it have left.

    Args:
        optimizer: would add up what the replicas hand to it.
    """
    inside = vars(optimizer).setdefault("_num_replicas_inside", [0])
    inside[0] += 1
    object.__setattr__(optimizer, "_all_reduce_sum_gradients", _itself)
    try:
        yield
    finally:
        inside[0] -= 1
        if inside[0] == 0:
            vars(optimizer).pop("_all_reduce_sum_gradients")
            vars(optimizer).pop("_num_replicas_inside")


def _itself(value: Any) -> Any:
    return value


@contextmanager
def without_scaling_for_replicas() -> Iterator[None]:
    """Keeps Keras's losses from being divided by the number of `tf.distribute` replicas.

    Keras does so for the mean over all of them; the loss of one example is that of one alone.
    """
    if keras.backend.backend() != "tensorflow":
        yield
        return
    from keras.src.losses import loss

    names = ("scale_loss_for_distribution", "unscale_loss_for_distribution")
    before = [getattr(loss, name) for name in names]
    try:
        for name in names:
            setattr(loss, name, _itself)
        yield
    finally:
        for name, function in zip(names, before, strict=True):
            setattr(loss, name, function)


@contextmanager
def without_regularizers(model: keras.Model) -> Iterator[None]:
    """Hides the weight regularizers of `model`, whose gradient is added after the noise."""
    hidden = [
        (variable, variable.regularizer)
        for variable in model.trainable_variables
        if variable.regularizer is not None
    ]
    for variable, _ in hidden:
        variable.regularizer = None
    try:
        yield
    finally:
        for variable, regularizer in hidden:
            variable.regularizer = regularizer


def masked_weight(weight: Tensor | None, present: Tensor) -> Tensor:
    """Sample weights (None: ones) with zeros where `present`, of shape `(batch_size,)`, is zero."""
    if weight is None:
        return present
    weight = keras.ops.cast(weight, "float32")
    trailing = (1,) * (len(weight.shape) - 1)
    return weight * keras.ops.reshape(present, (-1, *trailing))


def _with_rank_of_mask(weight: Tensor, prediction: Tensor) -> Tensor:
    """The weight in the shape of the mask of the prediction, with which Keras multiplies it."""
    mask = mask_of(prediction)
    if mask is None or len(mask.shape) <= len(weight.shape):
        return weight
    for _ in range(len(mask.shape) - len(weight.shape)):
        weight = keras.ops.expand_dims(weight, -1)
    return weight * keras.ops.ones_like(mask, dtype="float32")
