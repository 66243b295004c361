"""Every public name has a docstring that names its arguments and its errors.

That each stands on the page of the API is for the build of the documentation to say: it fails in
`mkdocs_hooks/api_coverage.py` where one does not.
"""

import inspect
import re

import pytest

import keras_adaclip as ka
from mkdocs_hooks.public_names import SHARED_NAMES, public_modules
from tests.docs.public_surface import explained, public_things, section

THINGS = list(public_things())


def assert_none(wrong, what):
    listed = "".join(f"\n  {line}" for line in wrong)
    assert not wrong, f"{what}:{listed}"


def test_the_walk_finds_the_public_surface():
    names = {thing.name.split()[0] for thing in THINGS}
    assert {
        "keras_adaclip.accounting.plan",
        "keras_adaclip.federated.partition.dirichlet",
        "keras_adaclip.models.PrivateModel.fit",
        "keras_adaclip.optimizers.DPOptimizer.clip_norm",
        "keras_adaclip.plots.history",
        "keras_adaclip.tuners.PrivateSearch.best_model",
    } <= names
    modules = {name for name in ka.__all__ if inspect.ismodule(getattr(ka, name))}
    assert {f"keras_adaclip.{name}" for name in modules} <= set(public_modules())


def test_everything_public_has_a_docstring():
    assert_none([thing.name for thing in THINGS if not thing.docstring.strip()], "No docstring")


def test_every_argument_is_explained():
    wrong = []
    for thing in THINGS:
        missing = set(thing.arguments_to_explain) - set(explained(thing.docstring))
        if missing:
            wrong.append(f"{thing.name}: {', '.join(sorted(missing))}")
    assert_none(wrong, "Arguments that `Args:` does not explain")


def test_nothing_else_is_explained_as_an_argument():
    wrong = []
    for thing in THINGS:
        # What goes on to Keras in `**kwargs` is explained too, where it matters.
        if not thing.arguments or "**" in thing.source:
            continue
        surplus = set(explained(thing.docstring)) - set(thing.arguments)
        wrong += [f"{thing.name}: {name}" for name in sorted(surplus)]
    assert_none(wrong, "`Args:` explains what is no argument")


def test_errors_that_are_raised_are_named():
    wrong = []
    for thing in THINGS:
        raised = set(
            re.findall(r"^\s+raise (ValueError|TypeError|ImportError)\(", thing.source, re.M)
        )
        named = section(thing.docstring, "Raises")
        wrong += [f"{thing.name}: {error}" for error in sorted(raised) if f"{error}:" not in named]
    assert_none(wrong, "`Raises:` does not name an error that the code raises")


@pytest.mark.parametrize("module", SHARED_NAMES)
def test_a_shared_name_is_one_that_the_module_has(module):
    assert SHARED_NAMES[module] <= set(public_modules()[module])
