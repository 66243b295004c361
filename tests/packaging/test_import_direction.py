"""Arrows point down only: the package keeps `import_rules.py`, and the checker can fail."""

from pathlib import Path

import pytest

from tests.packaging.import_rules import LAYERS, PACKAGE, package_modules, violations

ROOT = Path(__file__).resolve().parents[2] / PACKAGE


def test_package_keeps_the_rules():
    modules = list(package_modules(ROOT))
    assert modules, f"no module was found under {ROOT}"
    problems = [
        problem
        for name, is_package, source in modules
        for problem in violations(source, name, is_package=is_package)
    ]
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
        (
            "keras_adaclip.clipping.fixed",
            "import keras_adaclip.models",
            "clipping lies below models",
        ),
        ("keras_adaclip.clipping.fixed", "from keras_adaclip import models", "lies below models"),
        ("keras_adaclip.clipping.fixed", "from keras_adaclip.models import fit", "below models"),
        ("keras_adaclip.clipping.fixed", "from ..models import fit", "clipping lies below models"),
        ("keras_adaclip.clipping.fixed", "from .. import models", "clipping lies below models"),
        ("keras_adaclip.noise", "from .clipping import fixed", "noise lies below clipping"),
        ("keras_adaclip.federated.step", "from ..models import step", "share training/ alone"),
        (
            "keras_adaclip.models.step",
            "from keras_adaclip.optimizers.saving import saved_arrays",
            "is inside of optimizers/",
        ),
        (
            "keras_adaclip.models.fit",
            "from keras_adaclip import tuners",
            "models lies below tuners",
        ),
        (
            "keras_adaclip.noise",
            "def f():\n    from keras_adaclip import sampling",
            "noise lies below",
        ),
        (
            "keras_adaclip.noise",
            "if TYPE_CHECKING:\n    from keras_adaclip.clipping import Strategy",
            "noise lies below clipping",
        ),
        (
            "keras_adaclip.noise",
            "import importlib\nimportlib.import_module('keras_adaclip.models')",
            "noise lies below models",
        ),
        ("keras_adaclip.noise", "import keras_adaclip", "import from the layer"),
        ("keras_adaclip.noise", "from keras_adaclip import PrivateModel", "above every layer"),
        ("keras_adaclip._validation", "from keras_adaclip import noise", "imports none"),
        ("keras_adaclip.novelty", "", "has no place in LAYERS"),
        ("keras_adaclip.accounting.ledger", "import keras", "accounting imports no Keras"),
        ("keras_adaclip.accounting.ledger", "from keras import ops", "accounting imports no Keras"),
        (
            "keras_adaclip.accounting.ledger",
            "from keras_adaclip import backend",
            "which backend does",
        ),
        ("keras_adaclip.noise", "import tensorflow as tf", "only backend/ imports tensorflow"),
        ("keras_adaclip.noise", "from jax import numpy as jnp", "only backend/ imports jax"),
        ("keras_adaclip.noise", "import torch.func", "only backend/ imports torch"),
        ("keras_adaclip.noise", "from keras.src import backend", "private to Keras"),
        ("keras_adaclip.noise", "from keras import src", "private to Keras"),
        ("keras_adaclip.noise", "import keras.src.backend as kb", "private to Keras"),
        ("keras_adaclip.noise", "from keras import _tf_keras", "private to Keras"),
        ("keras_adaclip.noise", "import keras\nkeras.src.backend.x()", "keras.src is private"),
        (
            "keras_adaclip.noise",
            "import keras as k\nk.ops._hidden()",
            "keras.ops._hidden is private",
        ),
        (
            "keras_adaclip.noise",
            "from keras import ops\nops._hidden()",
            "keras.ops._hidden is private",
        ),
    ],
)
def test_a_broken_rule_is_found(module, source, reason):
    problems = violations(source, module)
    assert len(problems) == 1, problems
    assert reason in problems[0]


def test_relative_imports_start_from_the_package_itself():
    source = "from .models import fit"
    assert violations(source, "keras_adaclip.clipping", is_package=True) == []
    assert violations(source, "keras_adaclip.clipping") != []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("keras_adaclip", "from keras_adaclip import models, tuners"),
        ("keras_adaclip.models.fit", "from keras_adaclip.callbacks import PrivacyCallback"),
        ("keras_adaclip.models.fit", "from keras_adaclip.models import other"),
        ("keras_adaclip.models.fit", "from . import other"),
        ("keras_adaclip.federated.model", "from keras_adaclip.training import checks"),
        ("keras_adaclip.noise", "from keras_adaclip import backend"),
        ("keras_adaclip.accounting.ledger", "from keras_adaclip._validation import positive"),
        ("keras_adaclip.backend.jax", "import jax\nfrom keras.src import x\nx._hidden()"),
        ("keras_adaclip.integrations.tensorflow_privacy", "import tensorflow_privacy"),
        (
            "keras_adaclip.integrations.tensorflow_privacy.tensorflow_queries",
            "import tensorflow as tf",
        ),
        ("keras_adaclip.noise", "import keras\nkeras.__version__\nkeras.ops.abs(x)._hidden"),
        ("keras_adaclip.models.fit", "from keras import Model\nModel._hidden"),
    ],
)
def test_what_is_allowed_passes(module, source):
    assert violations(source, module) == []
