"""The private names of Keras that the package needs, in one place.

`tests/backend/test_keras_private.py` fails if Keras moves one of them.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import keras
from keras.src.backend import compute_output_spec, core, get_keras_mask, set_keras_mask
from keras.src.backend import random as random_functions
from keras.src.backend.common import global_state
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.saving.keras_saveable import KerasSaveable as KerasSaveable

Tensor = Any


def flatten_layers(layer: keras.Layer) -> list[keras.Layer]:
    """Return the layer and every layer inside it, each once, outermost first."""
    return list(layer._flatten_layers())


# Attributes that Keras fills when `add_loss` is called, and empties.
ADDED_LOSSES = ("_losses", "_loss_ids")
# Methods that a copy of a model does not need: their results are the same, or made again.
_NOT_NEEDED = {
    *("build_from_config", "compile_from_config", "compute_output_shape", "compute_output_spec"),
    *("from_config", "get_build_config", "get_compile_config", "get_config", "summary"),
}
_MISSING = object()


def is_own(model: keras.Model, name: str) -> bool:
    """Return whether the class or the instance replaces the method `name` of `keras.Model`."""
    return getattr(getattr(model, name), "__func__", None) is not getattr(keras.Model, name)


def own_methods(model: keras.Model, among: Iterable[str] | None = None) -> list[str]:
    """Return the methods and properties of Keras or this package that a user's model replaces.

    The user's class or the instance may replace them. Methods that a copy of the model does not
    need are left out.

    Args:
        model: The model.
        among: The names to look at. None means all.
    """
    cls = type(model)
    packages = ("keras", "keras_adaclip")
    base = next(each for each in cls.__mro__ if each.__module__.split(".")[0] in packages)
    found = []
    for name in dir(base) if among is None else among:
        if name in _NOT_NEEDED or (name.startswith("__") and name != "__call__"):
            continue
        method = inspect.getattr_static(base, name, None)
        if not (callable(method) or hasattr(method, "__get__")):
            continue
        # Keras itself sets these on each instance.
        of_instance = name in vars(model) and name not in {"build", "loss", "quantize"}
        if of_instance or inspect.getattr_static(cls, name) is not method:
            found.append(name)
    return found


def own_variables(layer: keras.Layer) -> list[keras.Variable]:
    """Return the variables of `layer` itself, without those of the layers inside it."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def own_trainable_variables(layer: keras.Layer) -> list[keras.Variable]:
    """Return the trainable variables of `layer` itself, without those of the layers inside it."""
    own = layer._trainable_variables if layer.trainable else []
    return [variable for variable in own if variable.trainable]


def seed_generator_states(layer: keras.Layer) -> list[keras.Variable]:
    """Return the states of the seed generators of `layer` and the layers inside it."""
    return [variable for variable in layer.variables if is_seed_generator_state(variable)]


def is_seed_generator_state(variable: keras.Variable) -> bool:
    """Return whether a variable is the state of any seed generator."""
    return variable.name == "seed_generator_state"


def set_attribute(layer: Any, name: str, value: Any) -> None:
    """Set an instance attribute without the tracking of Keras or PyTorch."""
    object.__setattr__(layer, name, value)


def uses_legacy_config() -> bool:
    """Return whether Keras is writing or reading a whole model in an HDF5 file.

    It then passes over `save_own_variables`, and writes the variables of an optimizer unchanged.
    """
    return bool(global_state.get_global_attribute("use_legacy_config", False))


def place_of(store: Any) -> str:
    """Return at which object Keras's store of an HDF5 file stands, as its `get` takes it."""
    return str(store._h5_entry_path)


def as_default_config(get_config: Any) -> Any:
    """Decorate a `get_config` so that subclasses keep Keras's automatic config."""
    get_config._is_default = True
    return get_config


class NoTensorFlowCheckpoint:
    """Mixin for optimizers that `tf.train.Checkpoint` refuses and a SavedModel leaves out.

    TensorFlow would write and assign the variables one by one, past `save_own_variables`.
    """

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        """Return nothing for a SavedModel and refuse a checkpoint."""
        if save_type == "savedmodel":
            return {}
        raise ValueError(
            "TensorFlow's own checkpoints cannot hold a private optimizer: they would write the "
            "key of the noise into a file, and could lower the privacy ledger. Use `model.save`, "
            "`model.save_weights` or `keras.callbacks.BackupAndRestore`."
        )


def layers_fed_by(model: keras.Model, tensor: keras.KerasTensor) -> list[keras.Layer]:
    """Return the layers that an input of a functional model feeds, also inside of its models.

    Args:
        model: The model.
        tensor: One of its inputs.
    """
    found = []
    for layer in flatten_layers(model):
        for node in layer._inbound_nodes:
            for number, given in enumerate(node.input_tensors):
                if given is not tensor:
                    continue
                found.append(layer)
                inner = getattr(layer, "inputs", None) or ()
                if layer is not model and number < len(inner):
                    found += layers_fed_by(layer, inner[number])
    return found


def replaced_calls(calls: Mapping[keras.Layer, Callable[..., Any]]) -> AbstractContextManager[None]:
    """Return a context in which layers have another `call`.

    Args:
        calls: The layers and their calls.
    """
    return replaced_attributes((layer, "call", call) for layer, call in calls.items())


_REPLACED_DRAWS: ContextVar[Any] = ContextVar("replaced_draws", default=None)


@contextmanager
def replaced_draws(
    wrapped: Callable[[Callable[..., Tensor]], Callable[..., Tensor]] | None,
) -> Iterator[None]:
    """Let layers and `keras.random` draw with other functions within the context, in this thread.

    Args:
        wrapped: Takes a function of `keras.random` and returns the one to call in its place. None
            replaces nothing.
    """
    token = _REPLACED_DRAWS.set(wrapped)
    try:
        yield
    finally:
        _REPLACED_DRAWS.reset(token)


# Functions whose results are random numbers of a given shape, or factors of the input.
KEPT_DRAWS = ("dropout", "uniform", "normal", "truncated_normal", "randint")


def kept_draws(drawn: list[Tensor], again: bool = False) -> AbstractContextManager[None]:
    """Return a context in which a list gets the results of `KEPT_DRAWS`, or gives them again.

    Args:
        drawn: The list. Of dropout it has the factors.
        again: Whether draws are taken from the list, in their order.
    """
    outer, left = _REPLACED_DRAWS.get(), iter(drawn if again else ())

    def keeping(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return the function in the place of one that draws."""

        def kept(*args: Any, **kwargs: Any) -> Tensor:
            """Draw as outside of the context, or take what was drawn."""
            if again:
                return next(left)
            with replaced_draws(outer):
                value = (draw if outer is None else outer(draw))(*args, **kwargs)
            drawn.extend([value] if draw.__name__ in KEPT_DRAWS else [])
            return value

        def dropped(inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            """Drop, by factors."""
            return inputs * kept(keras.ops.ones_like(inputs), *args, **kwargs)

        return dropped if draw.__name__ == "dropout" else kept

    return replaced_draws(keeping)


def _heeding(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function of `keras.random` that heeds `replaced_draws`."""

    @functools.wraps(function)
    def draw(*args: Any, **kwargs: Any) -> Tensor:
        """Draw random numbers."""
        wrapped = _REPLACED_DRAWS.get()
        return (function if wrapped is None else wrapped(function))(*args, **kwargs)

    return draw


# Once: functions that each thread replaced for itself would stay replaced.
for _name in set(dir(keras.random)) & set(vars(random_functions)):
    if inspect.isfunction(getattr(random_functions, _name)):
        setattr(random_functions, _name, _heeding(getattr(random_functions, _name)))


_KEEPS_RESULTS = ContextVar("keeps_results", default=False)


@contextmanager
def without_remat() -> Iterator[None]:
    """Let `keras.remat` and `keras.RematScope` compute nothing again, in this thread.

    What a layer computes is recorded for the gradients of single examples.
    """
    token = _KEEPS_RESULTS.set(True)
    try:
        yield
    finally:
        _KEEPS_RESULTS.reset(token)


def _heeding_remat(remat: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function like `keras.remat` that heeds `without_remat`."""

    def heeding(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose results may be computed again."""
        again = remat(function)

        def call(*args: Any, **kwargs: Any) -> Any:
            """Call one of the two functions."""
            return (function if _KEEPS_RESULTS.get() else again)(*args, **kwargs)

        return call

    return heeding


core.remat = _heeding_remat(core.remat)


_DRAWS_OUTSIDE = ContextVar("draws_outside", default=False)


@contextmanager
def drawing_from_outside() -> Iterator[None]:
    """Let seed generators draw from PyTorch's own generators within the context."""
    token = _DRAWS_OUTSIDE.set(True)
    try:
        yield
    finally:
        _DRAWS_OUTSIDE.reset(token)


def let_seed_generators_draw_outside() -> None:
    """Make Keras heed `drawing_from_outside`; to be called once, on PyTorch.

    Keras itself makes 32 bits of a seed, which can be tried one by one.
    """
    from keras.src.backend.torch import random

    of_seed = random.torch_seed_generator

    def generator(seed: Any) -> Any:
        """Return PyTorch's generator for a seed; None stands for its own."""
        is_fixed = isinstance(seed, int)
        return None if _DRAWS_OUTSIDE.get() and not is_fixed else of_seed(seed)

    random.torch_seed_generator = generator


@contextmanager
def replaced_attributes(changes: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Set attributes of objects within the context, without the tracking of Keras.

    Afterwards each object has its former instance attributes, and no others.

    Args:
        changes: Objects with the names and values of their attributes or properties.
    """
    before = []
    try:
        for owner, name, value in changes:
            is_property = isinstance(getattr(type(owner), name, None), property)
            own = getattr(owner, name) if is_property else vars(owner).get(name, _MISSING)
            before.append((owner, name, own))
            object.__setattr__(owner, name, value)
        yield
    finally:
        for owner, name, own in reversed(before):
            if own is not _MISSING:
                object.__setattr__(owner, name, own)
            elif name in vars(owner):
                object.__delattr__(owner, name)


def compiled_on_jax(model: keras.Model) -> AbstractContextManager[None]:
    """Return a context in which Keras's trainer on JAX compiles its steps.

    Keras does not compile a model if one of its layers says that XLA cannot compile it. Most such
    layers mean XLA under TensorFlow, and the examination of the model has compiled them already.

    Args:
        model: A compiled model. One with `run_eagerly=True` stays eager.
    """
    others = [layer for layer in flatten_layers(model) if not layer.supports_jit]
    if keras.backend.backend() != "jax" or model.run_eagerly or not others:
        return nullcontext()
    changes = [(layer, "supports_jit", True) for layer in others]
    return replaced_attributes([*changes, (model, "jit_compile", True)])


def replaced_jit(jit: Callable[..., Any]) -> AbstractContextManager[None]:
    """Return a context with another `jit`, with which Keras's trainer on JAX compiles steps.

    Args:
        jit: Takes the arguments of `jax.jit`. If Keras uses that of Flax, nothing is replaced.
    """
    from keras.src.backend.jax import trainer

    return replaced_attributes([] if keras.config.is_nnx_enabled() else [(trainer, "jit", jit)])


class NestedScope(keras.StatelessScope):
    """A scope that reads variables whose values it does not hold in the scope around it."""

    def get_current_value(self, variable: keras.Variable) -> Tensor | None:
        """Return the value of a variable in this scope, or else in the one around it."""
        value, outer = super().get_current_value(variable), self.original_scope
        return outer.get_current_value(variable) if value is None and outer else value

    def add_update(self, update: tuple[keras.Variable, Tensor]) -> None:
        """Keep an update, and tell of it a scope around this one that watches."""
        super().add_update(update)
        if hasattr(self.original_scope, "note_assigned"):
            self.original_scope.note_assigned(update[0])


def is_empty(variable: keras.Variable) -> bool:
    """Return whether Keras's trainer on JAX has emptied `variable`."""
    return variable._value is None


def write_back_variables(model: keras.Model) -> None:
    """Assign the values that the trainer on JAX keeps elsewhere during an epoch."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


def mask_of(value: Tensor) -> Tensor | None:
    """Return the mask that Keras attached to a tensor, or None."""
    return get_keras_mask(value)


def attach_mask(value: Tensor, mask: Tensor | None) -> Tensor:
    """Attach a mask to a tensor as Keras's layers do, and return the tensor."""
    if mask is not None:
        set_keras_mask(value, mask)
    return value


def adapted_layers(model: keras.Model) -> list[keras.Layer]:
    """Return the layers whose tables or moments `adapt` has made, rather than an argument."""
    layers = flatten_layers(model)
    inner = {id(getattr(layer, "_lookup_layer", None)) for layer in layers}

    def is_adapted(layer: keras.Layer) -> bool:
        """Return whether `adapt` has made the state of a layer."""
        kinds = keras.layers
        if isinstance(layer, (kinds.TextVectorization, kinds.StringLookup, kinds.IntegerLookup)):
            is_given = layer._has_input_vocabulary or id(layer) in inner
            return not is_given and bool(layer.get_vocabulary(include_special_tokens=False))
        if isinstance(layer, kinds.Normalization):
            if layer.input_mean is not None or not layer.built:
                return False
            moments = zip((layer.adapt_mean, layer.adapt_variance), (0.0, 1.0), strict=True)
            return any((keras.ops.convert_to_numpy(each) != start).any() for each, start in moments)
        is_binned = isinstance(layer, kinds.Discretization) and layer.num_bins is not None
        return is_binned and layer.bin_boundaries is not None

    return [layer for layer in layers if is_adapted(layer)]


def outputs_for(model: keras.Model, x: Any) -> Any:
    """Return the symbolic outputs of a model, built or not, for a few inputs."""
    return compute_output_spec(model, _as_tensors(x))


def _as_tensors(part: Any) -> Any:
    """Return a structure of arrays as tensors, None unchanged."""
    return keras.tree.map_structure(
        lambda value: None if value is None else keras.ops.convert_to_tensor(value), part
    )


def build_for_training(model: keras.Model, x: Any, y: Any, sample_weight: Any) -> None:
    """Build model, loss, metrics and optimizer from a few rows, as Keras's `fit` does.

    Args:
        model: A compiled model.
        x: Inputs with at least one row.
        y: Targets or None.
        sample_weight: Weights or None.
    """
    # Converted to tensors, since JAX warns of each NumPy array of 64 bits.
    parts = list(map(_as_tensors, (x, y, sample_weight)))
    try:
        # Keras looks at inference alone, which may not call all the layers inside of a layer.
        for training in (False, True):
            if not all(layer.built for layer in flatten_layers(model)):
                compute_output_spec(model, parts[0], training=training)
        model._symbolic_build(data_batch=tuple(parts))
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        error.add_note("`fit` tried the model on the first rows of the data, up to three of them.")
        raise


class BuiltBeforeFit:
    """Mixin for models that Keras's `fit` must not build, from batches that it cannot unpack.

    Keras would do so if the model holds a layer that nothing calls, and always with several
    replicas on TensorFlow.
    """

    _is_built_already = False

    def _symbolic_build(self, *args: Any, **kwargs: Any) -> None:
        """Build as Keras does, unless the model is built already."""
        if not self._is_built_already:
            super()._symbolic_build(*args, **kwargs)  # type: ignore[misc]

    def _maybe_symbolic_build(self, *args: Any, **kwargs: Any) -> None:
        """Build as Keras does, unless the model is built already."""
        if not self._is_built_already:
            super()._maybe_symbolic_build(*args, **kwargs)  # type: ignore[misc]


class ToldBeforeEmptied:
    """Mixin for models that are told before Keras's trainer on JAX empties their variables.

    The trainer does so before the first step and after each evaluation. If a later step fails, the
    values that the variables had before are all that is left.
    """

    def before_emptied(self) -> None:
        """Read what the variables of the optimizer hold."""

    def _purge_model_variables(self, **which: bool) -> None:
        """Empty variables as Keras does."""
        if which.get("optimizer_variables"):
            self.before_emptied()
        super()._purge_model_variables(**which)  # type: ignore[misc]


def built_already(model: BuiltBeforeFit) -> AbstractContextManager[None]:
    """Return a context in which Keras's `fit` builds nothing, after `build_for_training`."""
    return replaced_attributes([(model, "_is_built_already", True)])


def without_regularizers(model: keras.Model) -> AbstractContextManager[None]:
    """Return a context without weight regularizers, whose gradient is added after the noise."""
    return replaced_attributes((each, "regularizer", None) for each in model.trainable_variables)


def functional_optimizer(optimizer: keras.optimizers.Optimizer) -> Any:
    """Return an unbuilt copy of an optimizer that works inside of a `keras.StatelessScope`.

    `BaseOptimizer` assigns Keras variables, which a scope redirects. The classes that Keras puts in
    front of it for TensorFlow (`tf.distribute`) and PyTorch (updates of all variables in one call)
    write to the variables of the backend, past the scope.

    Args:
        optimizer: Any Keras optimizer. It is not changed.

    Returns:
        An optimizer of a subclass of its class, made from its config.
    """
    # PyTorch's optimizers are subclasses of Keras's own, with the same config.
    classes = type(optimizer).__mro__
    kind = next(cls for cls in classes if not cls.__module__.startswith("keras.src.backend."))
    # After the optimizer's own methods, which may call these, and before those of the backend.
    functional: Any = type(kind.__name__, (kind, _OnKerasVariables), {})
    return functional.from_config(optimizer.get_config())


# The methods of `BaseOptimizer`, before those of the backend.
_OnKerasVariables = type(
    "_OnKerasVariables",
    (keras.optimizers.Optimizer,),
    {
        name: method
        for name, method in vars(BaseOptimizer).items()
        if inspect.isfunction(method) and not name.startswith("__")
    },
)
