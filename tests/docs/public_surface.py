"""The public names as they are at run time, and what their docstrings say."""

import importlib
import inspect
import re
from dataclasses import dataclass

from mkdocs_hooks.public_names import PACKAGE, public_modules


@dataclass(frozen=True)
class Documented:
    """Something public that has a docstring.

    Args:
        name: its dotted name; behind it the base that a method comes from, in brackets.
        docstring: its docstring, the class's for `__init__`; "" where there is none.
        function: what its arguments are taken from; None where it takes none.
        overridden: what a method overrides: what that explains need not be explained again.
    """

    name: str
    docstring: str
    function: object = None
    overridden: object = None

    @property
    def arguments(self):
        """Names of its arguments."""
        return _arguments(self.function)

    @property
    def arguments_to_explain(self):
        """Those that nothing else explains."""
        return [name for name in self.arguments if name not in _arguments(self.overridden)]

    @property
    def source(self):
        """The code that its arguments pass through first; "" where Python made it."""
        function = inspect.unwrap(self.function) if self.function is not None else None
        if inspect.isclass(function):
            function = vars(function).get("__post_init__")
        try:
            return "" if function is None else inspect.getsource(function)
        except (OSError, TypeError):
            return ""


def _arguments(function):
    if function is None:
        return []
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # made by Python, in C
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        parameter.name
        for parameter in found
        if parameter.name not in ("self", "cls")
        and not parameter.name.startswith("_")
        and parameter.kind not in variadic
    ]


def section(docstring, title):
    """The indented lines below `Args:`, for one, without their common indentation."""
    found = re.search(rf"^{title}:\n((?:    .*\n|\n)+)", inspect.cleandoc(docstring) + "\n", re.M)
    return "" if found is None else inspect.cleandoc("\n" + found[1])


def explained(docstring):
    """Names that stand before a colon in the section `Args:`."""
    return re.findall(r"^\*{0,2}(\w+)(?: \([^)]*\))?:", section(docstring, "Args"), re.M)


def public_things():
    """Everything public that can have a docstring, each once."""
    seen = set()
    for module_name, names in public_modules().items():
        module = importlib.import_module(module_name)
        yield Documented(module_name, module.__doc__ or "")
        for name in names:
            thing, path = getattr(module, name), f"{module_name}.{name}"
            if inspect.isclass(thing):
                yield from _of_class(thing, path, seen)
            elif callable(thing):
                yield Documented(path, thing.__doc__ or "", thing)


def _of_class(thing, path, seen):
    if thing in seen:
        return
    seen.add(thing)
    is_enumeration = any(base.__name__ == "Enum" for base in thing.__mro__)
    made_by = thing.__dict__.get("__init__") or thing
    yield Documented(path, thing.__doc__ or "", None if is_enumeration else made_by)
    for position, owner in enumerate(thing.__mro__):
        if not owner.__module__.startswith(f"{PACKAGE}."):
            continue
        for name, member in vars(owner).items():
            function = _function_of(member)
            if name.startswith("_") or function is None or (owner, name) in seen:
                continue
            seen.add((owner, name))
            origin = "" if owner is thing else f" ({owner.__name__})"
            overridden = _next_in(thing.__mro__[position + 1 :], name)
            takes = None if isinstance(member, property) else function
            yield Documented(f"{path}.{name}{origin}", function.__doc__ or "", takes, overridden)


def _function_of(member):
    """The function behind a method or property; None for anything else."""
    if isinstance(member, property):
        return member.fget
    function = getattr(member, "__func__", member)
    if getattr(function, "__qualname__", "").startswith("synchronized."):
        # Of keras-tuner, which keeps neither name nor docstring of what it decorates.
        function = inspect.getclosurevars(function).nonlocals["func"]
    return function if inspect.isfunction(function) else None


def _next_in(bases, name):
    """The method of that name that comes first in the bases."""
    found = (_function_of(vars(base)[name]) for base in bases if name in vars(base))
    return next(found, None)
