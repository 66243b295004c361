"""The private Keras names that the package cannot do without, in one place.

`tests/backend/test_keras_private.py` breaks when Keras moves one of them.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import keras
from keras.src.backend import compute_output_spec, get_keras_mask, set_keras_mask
from keras.src.backend.common import global_state

Tensor = Any


def flatten_layers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """The layer itself and every layer inside it, each once, outermost first."""
    return list(layer._flatten_layers())


# What such a method of a model says or sets up is the same, or made anew, in a copy of the model.
_SAID_ANEW = {
    *("build_from_config", "compile_from_config", "compute_output_shape", "compute_output_spec"),
    *("from_config", "get_build_config", "get_compile_config", "get_config", "summary"),
}
# Keras itself sets them on each instance.
_OF_EACH_INSTANCE = {"build", "loss", "quantize"}


def is_own(model: keras.Model, name: str) -> bool:
    """Whether the class or the instance replaces the method `name` of `keras.Model`."""
    return getattr(getattr(model, name), "__func__", None) is not getattr(keras.Model, name)


def own_methods(model: keras.Model, among: Iterable[str] | None = None) -> list[str]:
    """The methods and properties of Keras (or of this package) that a user's class replaces.

    So does one that was set on the instance. Those that training, evaluation, prediction and saving
    do not depend on are left out.

    Args:
        model: the model.
        among: the names to look at; None for all.
    """
    cls = type(model)
    packages = ("keras", "keras_adaclip")
    base = next(each for each in cls.__mro__ if each.__module__.split(".")[0] in packages)
    found = []
    for name in dir(base) if among is None else among:
        if name in _SAID_ANEW or (name.startswith("__") and name != "__call__"):
            continue
        method = inspect.getattr_static(base, name, None)
        if not (callable(method) or hasattr(method, "__get__")):
            continue
        of_instance = name in vars(model) and name not in _OF_EACH_INSTANCE
        if of_instance or inspect.getattr_static(cls, name) is not method:
            found.append(name)
    return found


def own_variables(layer: keras.layers.Layer) -> list[keras.Variable]:
    """The variables that belong to `layer` itself and not to a layer inside it."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


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


def is_seed_generator_state(variable: keras.Variable) -> bool:
    """Whether a variable is the state of a seed generator, of whichever layer or of none."""
    return variable.name == "seed_generator_state"


def set_attribute(layer: keras.layers.Layer, name: str, value: Any) -> None:
    """Sets an instance attribute without Keras's (or PyTorch's) tracking."""
    object.__setattr__(layer, name, value)


def is_legacy_file() -> bool:
    """Whether a config is asked for that goes into an HDF5 file of a whole model, or out of it.

    Keras writes an optimizer's variables into such a file as they are.
    """
    return bool(global_state.get_global_attribute("use_legacy_config", False))


def as_default_config(get_config: Any) -> Any:
    """Decorator: a `get_config` that leaves Keras's automatic config of subclasses in place."""
    get_config._is_default = True
    return get_config


class NoTensorFlowCheckpoint:
    """An optimizer that `tf.train.Checkpoint` refuses, and a SavedModel leaves out.

    TensorFlow would write and set its variables one by one, past `save_own_variables`.
    """

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        if save_type == "savedmodel":
            return {}
        raise ValueError(
            "TensorFlow's own checkpoints cannot hold a private optimizer: they would write the "
            "key of the noise into a file, and could lower the privacy ledger. Use `model.save`, "
            "`model.save_weights` or `keras.callbacks.BackupAndRestore`."
        )


def replaced_calls(
    calls: Mapping[keras.layers.Layer, Callable[..., Any]],
) -> AbstractContextManager[None]:
    """Sets the instance attribute `call` of layers for the time of the context.

    Args:
        calls: the layers, and what is called in the place of their `call`.
    """
    return replaced_methods({layer: {"call": call} for layer, call in calls.items()})


@contextmanager
def replaced_methods(
    methods: Mapping[keras.layers.Layer, Mapping[str, Callable[..., Any]]],
) -> Iterator[None]:
    """Sets instance attributes of layers for the time of the context.

    Afterwards each layer has what it had: most often none, its class's methods then serve.

    Args:
        methods: the layers, and what is called in the place of their methods, by name.
    """
    replaced = [(layer, name) for layer, by_name in methods.items() for name in by_name]
    before = [vars(layer).get(name) for layer, name in replaced]
    try:
        for layer, name in replaced:
            object.__setattr__(layer, name, methods[layer][name])
        yield
    finally:
        for (layer, name), own in zip(replaced, before, strict=True):
            if own is not None:
                object.__setattr__(layer, name, own)
            elif name in vars(layer):
                object.__delattr__(layer, name)


@contextmanager
def compiled_on_jax(model: keras.Model) -> Iterator[None]:
    """Makes Keras's trainer on JAX compile what it makes meanwhile.

    Keras runs a model operation by operation where a layer says that XLA cannot compile it. Most
    of the layers that say so mean XLA under TensorFlow, and examining the model has compiled it.

    Args:
        model: a compiled model; one that is told to run eagerly stays as it is.
    """
    can_compile = all(layer.supports_jit for layer in flatten_layers(model))
    if keras.backend.backend() != "jax" or model.run_eagerly or can_compile:
        yield
        return
    before = model._jit_compile
    object.__setattr__(model, "_jit_compile", True)
    try:
        yield
    finally:
        object.__setattr__(model, "_jit_compile", before)


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


def write_back_variables(model: keras.Model) -> None:
    """Gives the variables their values, which JAX's trainer keeps elsewhere during an epoch."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


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
    """The single metrics of `compile(metrics=..., weighted_metrics=...)`.

    Before Keras builds them, those that were given as objects.
    """
    compiled = model._compile_metrics
    if compiled is None or compiled.built:
        return [] if compiled is None else list(compiled.metrics)
    given = keras.tree.flatten([compiled._user_metrics, compiled._user_weighted_metrics])
    return [metric for metric in given if isinstance(metric, keras.metrics.Metric)]


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
    # Keras looks at inference alone, where a layer may leave out some of those inside it.
    for training in (False, True):
        if not all(layer.built for layer in flatten_layers(model)):
            compute_output_spec(model, parts[0], training=training)
    model._symbolic_build(data_batch=tuple(parts))


@contextmanager
def built_already(model: keras.Model) -> Iterator[None]:
    """Keeps Keras's `fit` from building the model once more, from a batch that is ours to unpack.

    Keras would for every layer inside the model that nothing calls, which is never built, and over
    replicas of TensorFlow always.

    Args:
        model: went through `build_for_training`.
    """
    names = ("_symbolic_build", "_maybe_symbolic_build")
    with replaced_methods({model: dict.fromkeys(names, _nothing)}):
        yield


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Does nothing."""


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
