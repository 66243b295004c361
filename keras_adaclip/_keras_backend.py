"""Imports Keras, and where its backend is missing says how to choose another.

Keras tells only that there is no module of that name. That is the first thing that whoever has
installed JAX or PyTorch alone would see: Keras's own choice is TensorFlow.
"""

from importlib.util import find_spec

_NAMES = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}


def explain(missing: str) -> str | None:
    """Return what to do about a module that Keras did not find.

    Args:
        missing: Dotted name of the module.

    Returns:
        The message, or None where the module belongs to no backend.
    """
    backend = missing.partition(".")[0].removesuffix("lib")
    if backend not in _NAMES:
        return None
    others = [name for name in _NAMES if name != backend and find_spec(name) is not None]
    installed = (
        "one that is installed, by the environment variable "
        + " or ".join(f"KERAS_BACKEND={name}" for name in others)
        if others
        else "one of the three: pip install keras-adaclip[tensorflow], [jax] or [torch], and set "
        "the environment variable KERAS_BACKEND to its name"
    )
    return f"Keras is to run on {_NAMES[backend]}, which is not installed. Choose {installed}."


try:
    import keras  # noqa: F401
except ModuleNotFoundError as error:
    message = explain(error.name or "")
    if message is None:
        raise
    raise ImportError(message) from error
