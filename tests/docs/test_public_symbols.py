"""Every public name has a docstring that explains its arguments and names its errors.

The build of the documentation fails in `mkdocs_hooks/api_coverage.py` if the pages in `docs/api`
leave one out.
"""

import importlib
import inspect
import re
from dataclasses import dataclass

import keras_adaclip as ka
from mkdocs_hooks.public_names import PACKAGE, public_modules


@dataclass(frozen=True)
class Documented:
    """A public module, class, method, property or function.

    Args:
        name: Its dotted name.
        docstring: Its docstring, that of the class for `__init__`.
        function: The function or class that takes its arguments, if any.
        overridden: The method that it overrides, whose docstring explains shared arguments.
    """

    name: str
    docstring: str
    function: object = None
    overridden: object = None

    @property
    def source(self):
        """The code that its arguments reach first; empty if Python generated it."""
        function = inspect.unwrap(self.function) if self.function is not None else None
        if inspect.isclass(function):
            function = vars(function).get("__post_init__")
        try:
            return "" if function is None else inspect.getsource(function)
        except (OSError, TypeError):
            return ""


def arguments(function):
    """The names of the public arguments of a function."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return set()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = {parameter.name for parameter in found if parameter.kind not in variadic}
    return {name for name in names - {"self", "cls"} if not name.startswith("_")}


def section(docstring, title):
    """The indented lines below a title such as `Args:`, without their common indentation."""
    found = re.search(rf"^{title}:\n((?:    .*\n|\n)+)", inspect.cleandoc(docstring) + "\n", re.M)
    return "" if found is None else inspect.cleandoc("\n" + found[1])


def explained(docstring):
    """The names before a colon in the section `Args:`."""
    return set(re.findall(r"^\*{0,2}(\w+)(?: \([^)]*\))?:", section(docstring, "Args"), re.M))


def public_things():
    """Everything public that can have a docstring."""
    for module_name, names in public_modules().items():
        module = importlib.import_module(module_name)
        yield Documented(module_name, module.__doc__ or "")
        for name in names:
            thing, path = getattr(module, name), f"{module_name}.{name}"
            if inspect.isclass(thing):
                yield from of_class(thing, path)
            elif callable(thing):
                yield Documented(path, thing.__doc__ or "", thing)


def of_class(thing, path):
    """A class, and its public methods and properties that the package defines."""
    is_enumeration = any(base.__name__ == "Enum" for base in thing.__mro__)
    made_by = None if is_enumeration else vars(thing).get("__init__") or thing
    yield Documented(path, thing.__doc__ or "", made_by)
    for name in sorted(each for each in dir(thing) if not each.startswith("_")):
        owners = [owner for owner in thing.__mro__ if name in vars(owner)]
        if not owners or not owners[0].__module__.startswith(f"{PACKAGE}."):
            continue
        found = [function_of(vars(owner)[name]) for owner in owners]
        if found[0] is not None:
            takes = None if isinstance(vars(owners[0])[name], property) else found[0]
            overridden = next((each for each in found[1:] if each is not None), None)
            yield Documented(f"{path}.{name}", found[0].__doc__ or "", takes, overridden)


def function_of(member):
    """The function behind a method or property; None for anything else."""
    if isinstance(member, property):
        return member.fget
    function = getattr(member, "__func__", member)
    if getattr(function, "__qualname__", "").startswith("synchronized."):
        # keras-tuner's decorator keeps neither name nor docstring.
        function = inspect.getclosurevars(function).nonlocals["func"]
    return function if inspect.isfunction(function) else None


THINGS = list(public_things())


def test_everything_public_is_found_and_has_a_docstring():
    modules = {name for name in ka.__all__ if inspect.ismodule(getattr(ka, name))}
    assert {f"keras_adaclip.{name}" for name in modules} <= set(public_modules())
    names = {thing.name for thing in THINGS}
    for name in ("accounting.plan", "models.PrivateModel.fit", "optimizers.DPOptimizer.clip_norm"):
        assert f"keras_adaclip.{name}" in names
    assert [thing.name for thing in THINGS if not thing.docstring.strip()] == []


def test_args_explains_exactly_the_arguments():
    wrong = {}
    for thing in THINGS:
        taken, told = arguments(thing.function), explained(thing.docstring)
        missing = taken - arguments(thing.overridden) - told
        # Keras's arguments in `**kwargs` may be explained too.
        surplus = told - taken if taken and "**" not in thing.source else set()
        if missing or surplus:
            wrong[thing.name] = (missing, surplus)
    assert wrong == {}


def test_raises_names_the_errors_of_the_code():
    wrong = []
    for thing in THINGS:
        raised = set(
            re.findall(r"^\s+raise (ValueError|TypeError|ImportError)\(", thing.source, re.M)
        )
        named = section(thing.docstring, "Raises")
        wrong += [f"{thing.name}: {error}" for error in raised if f"{error}:" not in named]
    assert wrong == []
