"""Imports point down only: the package keeps `import_rules.py`, and the checker can fail."""

from pathlib import Path

import pytest

from tests.packaging.import_rules import LAYERS, PACKAGE, package_modules, violations

ROOT = Path(__file__).resolve().parents[2] / PACKAGE


def test_package_keeps_the_rules():
    modules = list(package_modules(ROOT))
    assert modules, f"no module was found under {ROOT}"
    problems = [problem for name, source in modules for problem in violations(source, name)]
    assert not problems, "\n".join(problems)


def test_every_folder_has_its_layer():
    entries = {
        entry.stem if entry.is_file() else entry.name
        for entry in ROOT.iterdir()
        if entry.suffix == ".py" or (entry / "__init__.py").exists()
    }
    public = {entry for entry in entries if not entry.startswith("_")}
    assert public <= set(LAYERS)


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
        ("noise", "from keras import ops\nops._hidden()", "keras.ops._hidden is private"),
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
        ("integrations.tensorflow_privacy.tensorflow_queries", "import tensorflow as tf"),
    ],
)
def test_an_allowed_import_passes(module, source):
    assert violations(source, f"{PACKAGE}.{module}") == []
