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
    kind = type(optimizer)
    restored = {name: getattr(BaseOptimizer, name) for name in _overridden_by_backend(kind)}
    functional = type(kind.__name__, (kind,), restored)
    made: Any = functional
    return made.from_config(optimizer.get_config())


def _overridden_by_backend(kind: type) -> list[str]:
    """The methods of `BaseOptimizer` that are those of a class for one backend in `kind`."""
    names = []
    for name, member in vars(BaseOptimizer).items():
        if not callable(member) or (name.startswith("__") and name.endswith("__")):
            continue
        owner = next(cls for cls in kind.__mro__ if name in vars(cls))
        if owner.__module__.startswith(_OF_BACKENDS):
            names.append(name)
    return names
