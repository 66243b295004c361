"""Functional, sequential and subclassed forms of our model classes, and conversion into them.

Keras rewrites the bases of a class that is built functionally, after which subclassed children of
that class fail. So functional models are instances of a class that no user subclasses, and the
class that users subclass stays as it is.
"""

import math
from typing import Any

import keras

from keras_adaclip.backend import keras_private

# What classes of KerasHub replace so that inputs are preprocessed, or for losses that are chosen.
_OF_HUB = {
    *("__call__", "_post_quantize", "build", "compile", "evaluate", "fit", "layers", "predict"),
    *("get_quantization_layer_structure", "predict_on_batch", "test_on_batch", "train_on_batch"),
}


class ModelType(type(keras.Model)):  # type: ignore[misc]
    """The type of classes whose own attribute `stands_for` is the class that `isinstance` asks."""

    def __instancecheck__(cls, instance: Any) -> bool:
        stands_for = cls.__dict__.get("stands_for")
        if stands_for is not None:
            return isinstance(instance, stands_for)
        return bool(super().__instancecheck__(instance))


class SubclassedForm(metaclass=ModelType):
    """The first base of the class that users subclass, which may get inputs and outputs too.

    Attributes:
        _functional: The class of functional models.
        stands_for: The mixin with the training of both classes.
    """

    _functional: type
    stands_for: type

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return a functional model for inputs and outputs, otherwise one of this class.

        Raises:
            TypeError: If the only argument is a Keras model.
        """
        if SubclassedForm in cls.__bases__ and len(args) == 1 and isinstance(args[0], keras.Model):
            raise TypeError(
                f"`{cls.__name__}` takes inputs and outputs. For a model that exists already, call "
                "`keras_adaclip.privatize(model)` or `keras_adaclip.federate(model)`. "
                f"Received: a model of type {type(args[0]).__name__}"
            )
        if SubclassedForm in cls.__bases__ and _are_functional(args, kwargs):
            public_preprocessing = kwargs.pop("public_preprocessing", False)
            model = cls._functional(*args, **kwargs)
            model.public_preprocessing = public_preprocessing
            return model
        return super().__new__(cls)

    def __init__(self, *args: Any, public_preprocessing: bool = False, **kwargs: Any) -> None:
        if _are_functional(args, kwargs):
            functional = self._functional
            _make_functional(type(self), functional)
            functional.__init__(self, *args, **kwargs)  # type: ignore[misc]
        else:
            super().__init__(*args, **kwargs)
        self.public_preprocessing = public_preprocessing


class SequentialForm:
    """The first base of our sequential classes, with their further argument."""

    def __init__(
        self,
        layers: Any = None,
        trainable: bool = True,
        name: str | None = None,
        *,
        public_preprocessing: bool = False,
    ) -> None:
        super().__init__(layers, trainable=trainable, name=name)  # type: ignore[call-arg]
        self.public_preprocessing = public_preprocessing


def _are_functional(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether the arguments of a model's constructor are inputs and outputs."""
    return len(args) == 2 or ("outputs" in kwargs and (len(args) == 1 or "inputs" in kwargs))


def _make_functional(cls: type, functional: type) -> None:
    """Substitute the functional class for the subclassed one in the bases of `cls`."""
    bases = tuple(
        functional if SubclassedForm in base.__bases__ else base for base in cls.__bases__
    )
    if bases != cls.__bases__:
        cls.__bases__ = bases
    for base in bases:
        if base is not functional and issubclass(base, SubclassedForm):
            _make_functional(base, functional)


def converted(
    model: keras.Model, sequential: type, subclassed: type, replace_batch_normalization: bool
) -> Any:
    """Return a model of another class that shares the layers and weights of `model`.

    Args:
        model: A Functional or Sequential model.
        sequential: The class for a Sequential model.
        subclassed: The class that users subclass, for a Functional model.
        replace_batch_normalization: Whether group normalizations replace batch normalizations.

    Raises:
        TypeError: If `model` is a subclassed model, or no Keras model, or if its class replaces
            methods of Keras.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(
            "Argument `model` must be a Keras model. "
            f"Received: model of type {type(model).__name__}"
        )
    is_sequential = isinstance(model, keras.Sequential)
    if not is_sequential and not (hasattr(model, "inputs") and hasattr(model, "outputs")):
        raise TypeError(
            "`privatize` and `federate` take Functional and Sequential models, and "
            f"{type(model).__name__!r} is a subclassed model. Derive its class from "
            f"`keras_adaclip.{subclassed.__name__}` in place of `keras.Model`. Received: "
            f"model={model.name!r} of type {type(model).__name__}"
        )
    cls = f"keras_adaclip.{(sequential if is_sequential else subclassed).__name__}"
    refuse_own_methods(
        model,
        keras_private.own_methods(model),
        f"Derive the class from `{cls}` to keep them (`train_step` alone cannot be private), or "
        f"train the layers without them: `keras_adaclip.{subclassed.__name__}(model.input, "
        "model.output)`.",
    )
    if replace_batch_normalization:
        model = without_batch_normalization(model)
    if is_sequential:
        layers = list(model.layers)
        if model.built and getattr(model, "inputs", None):
            first = model.inputs[0]
            layers.insert(0, keras.Input(batch_shape=first.shape, dtype=first.dtype))
        return sequential(layers, name=model.name)
    return subclassed(model.input, model.output, name=model.name)


def own_methods(model: keras.Model) -> list[str]:
    """Return the methods of Keras that a model replaces, but for those of classes of KerasHub.

    Args:
        model: A Keras model.
    """

    def is_of_hub(name: str) -> bool:
        """Return whether KerasHub replaces a method for what does not concern the layers."""
        owner = next((cls for cls in type(model).__mro__ if name in vars(cls)), type(model))
        # Keras sets `build` on each instance.
        is_set = name in vars(model) and name != "build"
        return owner.__module__.startswith("keras_hub.") and name in _OF_HUB and not is_set

    return [name for name in keras_private.own_methods(model) if not is_of_hub(name)]


def refuse_own_methods(model: keras.Model, methods: list[str], advice: str) -> None:
    """Raise if the class of `model` replaces methods, which a copy of the model would lose."""
    if methods:
        raise TypeError(
            f"Model {model.name!r} of type {type(model).__name__} has methods of its own in the "
            f"place of Keras's, which would be dropped: {', '.join(map(repr, methods))}. {advice}"
        )


def without_batch_normalization(
    model: keras.Model, replaced: dict[int, Any] | None = None
) -> keras.Model:
    """Return the model with batch normalizations replaced and all other layers shared.

    Args:
        model: A Functional or Sequential model. It is returned itself if it has none.
        replaced: The replacements so far, by the `id` of the layer.
    """
    if not _holds_batch_normalization(model):
        return model
    replaced = {} if replaced is None else replaced
    of_layer = [name for name in own_methods(model) if hasattr(keras.Layer, name)]
    refuse_own_methods(
        model,
        of_layer,
        "Replace the batch normalization inside it yourself, and leave "
        "`replace_batch_normalization` out.",
    )

    def replace(layer: keras.Layer) -> keras.Layer:
        """Return the layer, or what replaces it."""
        if id(layer) not in replaced:
            if isinstance(layer, keras.layers.BatchNormalization):
                replaced[id(layer)] = _group_normalization(layer)
            elif _holds_batch_normalization(layer):
                replaced[id(layer)] = without_batch_normalization(layer, replaced)
            else:
                replaced[id(layer)] = layer
        return replaced[id(layer)]

    call = {} if isinstance(model, keras.Sequential) else {"call_function": _call}
    return keras.models.clone_model(model, clone_function=replace, **call)


def _call(layer: keras.Layer, *args: Any, **kwargs: Any) -> Any:
    """Call a layer, without the mask if it is a group normalization, which takes none."""
    if isinstance(layer, keras.layers.GroupNormalization):
        kwargs.pop("mask", None)
    return layer(*args, **kwargs)


def _group_normalization(layer: keras.layers.BatchNormalization) -> keras.Layer:
    """Return a group normalization with the options of a batch normalization and new weights.

    A group has four channels at least, if so many divide them, and without further axes all: the
    normalization of a group of one number is zero.
    """
    groups = 1
    if layer.built and layer.input_spec.ndim > 2:
        channels = int(layer.moving_mean.shape[0])
        groups = math.gcd(32, channels // math.gcd(4, channels))
    return keras.layers.GroupNormalization(
        groups=groups,
        axis=layer.axis,
        epsilon=layer.epsilon,
        center=layer.center,
        scale=layer.scale,
        name=f"{layer.name}_as_group_normalization",
    )


def _holds_batch_normalization(layer: keras.Layer) -> bool:
    """Return whether `layer` is a model of layers with a batch normalization among them."""
    if not isinstance(layer, keras.Sequential) and not hasattr(layer, "operations"):
        return False
    return any(
        isinstance(inner, keras.layers.BatchNormalization) or _holds_batch_normalization(inner)
        for inner in layer.layers
    )
