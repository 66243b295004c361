"""Imports point down only, by `import_rules.py`, which can fail."""

from pathlib import Path

import pytest

from tests.packaging.import_rules import PACKAGE, package_modules, violations

ROOT = Path(__file__).resolve().parents[2] / PACKAGE
MODULES = dict(package_modules(ROOT))


@pytest.mark.parametrize("module", MODULES)
def test_the_package_keeps_the_rules(module):
    """A folder without a place in `LAYERS` breaks one too."""
    assert violations(MODULES[module], module) == []


@pytest.mark.parametrize(
    ("module", "source", "reason"),
    [
        ("clipping.fixed", "import keras_adaclip.models", "clipping lies below models"),
        ("federated.step", "from keras_adaclip import models", "share training/ alone"),
        ("models.step", "from keras_adaclip.optimizers.run import Run", "is inside of optimizers/"),
        ("noise", "def f():\n    from keras_adaclip import sampling", "noise lies below"),
        ("noise", "import importlib\nimportlib.import_module('keras_adaclip.models')", "below"),
        ("noise", "from keras_adaclip import PrivateModel", "above every layer"),
        ("_checks", "from keras_adaclip import noise", "imports none"),
        ("noise", "from . import models", "is a relative import"),
        ("novelty", "", "has no place in LAYERS"),
        ("accounting.ledger", "from keras import ops", "accounting imports no Keras"),
        ("accounting.ledger", "from keras_adaclip import backend", "which backend does"),
        ("noise", "import tensorflow as tf", "only backend/ imports tensorflow"),
        ("noise", "from keras.src import backend", "private to Keras"),
        ("noise", "from keras import ops\nops._hidden()", "ops._hidden is private"),
    ],
)
def test_a_broken_rule_is_found(module, source, reason):
    problems = violations(source, f"{PACKAGE}.{module}")
    assert len(problems) == 1, problems
    assert reason in problems[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("models.fit", "from keras_adaclip.callbacks import PrivacyCallback"),
        ("accounting.ledger", "from keras_adaclip._checks import check_real"),
        ("backend.jax", "import jax\nfrom keras.src import x\nx._hidden()"),
        ("noise", "import keras\nkeras.__version__\nkeras.ops.abs(x)._hidden"),
        ("models.fit", "from keras import Model\nModel._hidden"),
    ],
)
def test_an_allowed_import_passes(module, source):
    assert violations(source, f"{PACKAGE}.{module}") == []
