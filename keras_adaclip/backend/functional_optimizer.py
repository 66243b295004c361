"""A Keras optimizer that works inside of a `keras.StatelessScope`, on every backend.

`BaseOptimizer` assigns Keras variables, which a scope redirects. The classes that Keras puts in
front of it for TensorFlow (`tf.distribute`) and PyTorch (updates of all variables in one call)
write to the variables of the backend, past the scope.
"""

from typing import Any

import keras
from keras.src.optimizers.base_optimizer import BaseOptimizer

_BACKENDS = "keras.src.backend."


def functional_optimizer(optimizer: keras.optimizers.Optimizer) -> Any:
    """Return an unbuilt copy of an optimizer that updates Keras variables alone.

    Args:
        optimizer: Any Keras optimizer. It is not changed.

    Returns:
        An optimizer of a subclass of its class, made from its config.
    """
    # PyTorch's optimizers are subclasses of Keras's own, with the same config.
    kind = next(cls for cls in type(optimizer).__mro__ if not _is_of_backend(cls))
    # After the optimizer's own methods, which may call these, and before those of the backend.
    functional: Any = type(kind.__name__, (kind, _OnKerasVariables), {})
    return functional.from_config(optimizer.get_config())


def _is_of_backend(cls: type) -> bool:
    return cls.__module__.startswith(_BACKENDS)


def _overridden_by_backend() -> dict[str, Any]:
    """Return the original methods of `BaseOptimizer` that the class of the backend overrides."""
    overridden = {
        name
        for cls in keras.optimizers.Optimizer.__mro__
        if _is_of_backend(cls)
        for name in vars(cls)
        if not (name.startswith("__") and name.endswith("__"))
    }
    return {
        name: member
        for name, member in vars(BaseOptimizer).items()
        if name in overridden and callable(member)
    }


_OnKerasVariables = type(
    "_OnKerasVariables", (keras.optimizers.Optimizer,), _overridden_by_backend()
)
