"""Functional models as instances of a class of their own.

Keras rewrites the bases of a class that is built functionally, after which subclassed children of
that class fail. So functional models are instances of a class that no user subclasses, and the
class that users subclass is left as it is.
"""

from typing import Any

import keras


class ModelType(type(keras.Model)):  # type: ignore[misc]
    """Lets `isinstance(model, cls)` hold for functional and sequential models too.

    A class with an attribute `stands_for` stands for every instance of that one.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        stands_for = cls.__dict__.get("stands_for")
        if stands_for is not None:
            return isinstance(instance, stands_for)
        return bool(super().__instancecheck__(instance))


def is_functional(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the arguments of a model's constructor are inputs and outputs."""
    return (
        len(args) == 2
        or (len(args) == 1 and "outputs" in kwargs)
        or ("inputs" in kwargs and "outputs" in kwargs)
    )


def make_functional(cls: type, subclassed: type, functional: type, training: type) -> None:
    """Puts the functional class in the place of the subclassed one among the bases of a subclass.

    Args:
        cls: the subclass whose instance is built from inputs and outputs.
        subclassed: the class that users subclass.
        functional: the class of functional models.
        training: the mixin that both have.
    """
    if cls in (object, functional):
        return
    bases = tuple(functional if base is subclassed else base for base in cls.__bases__)
    if bases != cls.__bases__:
        cls.__bases__ = bases
    for base in bases:
        if base is not functional and issubclass(base, training):
            make_functional(base, subclassed, functional, training)
