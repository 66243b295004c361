"""A Keras optimizer whose updates a `keras.StatelessScope` can catch, on every backend.

`BaseOptimizer` assigns through Keras's variables, which a scope redirects. The classes that Keras
puts in front of it for TensorFlow (`tf.distribute`) and PyTorch (updates of all variables in one
call) write into the backend's own variables instead, and no scope sees it.
"""

from typing import Any

import keras
from keras.src.optimizers.base_optimizer import BaseOptimizer

_OF_BACKENDS = "keras.src.backend."


def functional_optimizer(optimizer: keras.optimizers.Optimizer) -> Any:
    """A copy of an optimizer, unbuilt, that updates Keras's variables alone.

    Args:
        optimizer: any Keras optimizer; it is not changed.

    Returns:
        An optimizer of a subclass of its class, made from its config.
    """
    # PyTorch's optimizers are subclasses of Keras's own, with the same config.
    kind = next(cls for cls in type(optimizer).__mro__ if not _is_of_backend(cls))
    # Behind the optimizer's own methods, which may call these, and before the backend's.
    functional: Any = type(kind.__name__, (kind, _OnKerasVariables), {})
    return functional.from_config(optimizer.get_config())


def _is_of_backend(cls: type) -> bool:
    return cls.__module__.startswith(_OF_BACKENDS)


def _overridden_by_backend() -> dict[str, Any]:
    """The methods of `BaseOptimizer` that the backend's class overrides, as they were."""
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
