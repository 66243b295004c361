"""`PrivateModel`: functional or subclassed, a Keras model whose `fit` is private.

Keras rewrites the bases of a class that is built functionally, after which subclassed children of
that class fail. So functional models are instances of a class of their own, which no user
subclasses, and `PrivateModel` itself is left as it is.
"""

from typing import Any

import keras

from keras_adaclip.models.private_training import PrivateTraining


@keras.saving.register_keras_serializable(package="keras_adaclip")
class PrivateFunctional(PrivateTraining, keras.Model):
    """What `PrivateModel(inputs, outputs)` returns."""


class _PrivateModelType(type(keras.Model)):  # type: ignore[misc]
    """Lets `isinstance(model, PrivateModel)` hold for functional and sequential ones."""

    def __instancecheck__(cls, instance: Any) -> bool:
        if cls.__dict__.get("_stands_for_every_private_model", False):
            return isinstance(instance, PrivateTraining)
        return bool(super().__instancecheck__(instance))


class PrivateModel(PrivateTraining, keras.Model, metaclass=_PrivateModelType):
    """A Keras model that trains on clipped and noised gradients of single examples.

    `PrivateModel(inputs, outputs)` makes a functional model; a subclass with `call` makes a
    subclassed one. Compile it with a `keras_adaclip.optimizers.DPOptimizer`; everything else is
    Keras: `fit`, `evaluate`, `predict`, callbacks, saving.

    Args:
        inputs: symbolic inputs, as for `keras.Model`.
        outputs: symbolic outputs, as for `keras.Model`.
        name: name of the model.

    Guarantees:
        The weights after `fit` are (epsilon, delta)-differentially private for adding or removing
        one training example (Poisson sampling) or for replacing one by a hole (other data), with
        the epsilon that `privacy_spent` tells. Training losses and metrics are not covered.

    Example:

    >>> import keras
    >>> inputs = keras.Input((4,))
    >>> model = PrivateModel(inputs, keras.layers.Dense(3)(inputs))
    >>> model.count_params()
    15

    Reference:
        Abadi et al. 2016, "Deep learning with differential privacy".
    """

    _stands_for_every_private_model = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A functional model where inputs and outputs are given, else one of this class."""
        if cls is PrivateModel and _is_functional(args, kwargs):
            return PrivateFunctional(*args, **kwargs)
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if _is_functional(args, kwargs):
            _make_functional(type(self))
            PrivateFunctional.__init__(self, *args, **kwargs)
        else:
            super().__init__(*args, **kwargs)


def _is_functional(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return (
        len(args) == 2
        or (len(args) == 1 and "outputs" in kwargs)
        or ("inputs" in kwargs and "outputs" in kwargs)
    )


def _make_functional(cls: type) -> None:
    """Puts `PrivateFunctional` in the place of `PrivateModel` among the bases of a subclass."""
    if cls in (object, PrivateFunctional):
        return
    bases = tuple(PrivateFunctional if base is PrivateModel else base for base in cls.__bases__)
    if bases != cls.__bases__:
        cls.__bases__ = bases
    for base in bases:
        if base is not PrivateFunctional and issubclass(base, PrivateTraining):
            _make_functional(base)
