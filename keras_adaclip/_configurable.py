"""Config and printed form of a class from the arguments of its constructor."""

import inspect
from typing import Any, Self

import keras


class Configurable:
    """A class whose constructor arguments are attributes of the same names."""

    def get_config(self) -> dict[str, Any]:
        """Return every constructor argument under its own name, as plain values."""
        return {
            name: keras.saving.serialize_keras_object(self._argument(name))
            for name in inspect.signature(type(self)).parameters
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the object that `get_config` describes.

        Args:
            config: the value of `get_config`.
        """
        return cls(**config)

    def __repr__(self) -> str:
        names = inspect.signature(type(self)).parameters
        arguments = ", ".join(f"{name}={self._argument(name)!r}" for name in names)
        return f"{type(self).__name__}({arguments})"

    def _argument(self, name: str) -> Any:
        """Return the value of a constructor argument."""
        return getattr(self, name)
