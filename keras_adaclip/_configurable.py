"""Config and printed form of a class from the arguments of its constructor."""

import contextlib
import inspect
import reprlib
from collections.abc import Mapping
from typing import Any, Self

import keras


class Printable:
    """A class that prints itself by its constructor arguments, attributes of the same names."""

    def __repr__(self) -> str:
        names = [name for name in constructor_parameters(type(self)) if hasattr(self, name)]
        return printed(self, {name: self._argument(name) for name in names})

    def _argument(self, name: str) -> Any:
        """Return the value of a constructor argument."""
        return getattr(self, name)


class Configurable(Printable):
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
            config: The value of `get_config`.
        """
        return cls(**config)


def constructor_parameters(cls: type) -> dict[str, inspect.Parameter]:
    """Return the parameters of a constructor, with those that a subclass passes on."""
    found: dict[str, inspect.Parameter] = {}
    for each in cls.__mro__:
        if "__init__" in vars(each):
            _, *own = inspect.signature(each.__init__).parameters.values()  # type: ignore[misc]
            for parameter in own:
                found.setdefault(parameter.name, parameter)
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in own):
                break
    return found


def printed(value: Any, arguments: Mapping[str, Any]) -> str:
    """Return `Name(argument=value, ...)`: the first argument, and those that differ from defaults.

    Args:
        value: The object.
        arguments: The arguments of its constructor, by name.
    """
    shown = []
    for number, (name, parameter) in enumerate(constructor_parameters(type(value)).items()):
        # Keras numbers the names of objects.
        if name in arguments and name != "name":
            text = _SHORT.repr(arguments[name])
            if name == "seed" and arguments[name] is not None:
                # Whoever knows the seed can subtract the noise, and printed objects are published.
                text = "<given>"
            is_main = number == 0 and arguments[name] is not None
            if is_main or text != _SHORT.repr(parameter.default):
                shown.append(f"{name}={text}")
    return f"{type(value).__name__}({', '.join(shown)})"


class _Short(reprlib.Repr):
    """Short forms of arguments: Keras's objects by their configs, functions by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.maxother, self.maxstring = 200, 80

    def repr_tuple(self, value: tuple[Any, ...], level: int) -> str:
        """Return the form of a list: arguments may have been converted to one."""
        return self.repr_list(list(value), level)

    def repr_float(self, value: float, level: int) -> str:
        """Return seven significant digits, as many as a float32 has."""
        return repr(float(f"{value:.7g}"))

    def repr_dict(self, value: dict[Any, Any], level: int) -> str:
        """Return the items, or the form of an object whose config this is."""
        config = value.get("config")
        if not isinstance(config, dict) or "class_name" not in value:
            return super().repr_dict(value, level)
        items = [(name, each) for name, each in config.items() if name != "name"]
        arguments = ", ".join(f"{name}={self.repr1(each, level - 1)}" for name, each in items)
        return f"{value['class_name']}({arguments})"

    def repr_function(self, value: Any, level: int) -> str:
        """Return the name of a function."""
        return str(value.__name__)

    def repr_instance(self, value: Any, level: int) -> str:
        """Return the config of an object that prints nothing about itself, or its class."""
        if type(value).__repr__ is not object.__repr__:  # type: ignore[comparison-overlap]
            return super().repr_instance(value, level)
        # A class of the user may have no config, or arguments that a config cannot hold.
        with contextlib.suppress(AttributeError, NotImplementedError):
            return printed(value, value.get_config())
        return f"<{type(value).__name__}>"


_SHORT = _Short()
