"""A `.keras` file that somebody has changed: an error, and none of their code runs."""

import json
import zipfile

import keras
import pytest

import keras_adaclip as ka
from tests.models import helpers


@keras.saving.register_keras_serializable("tests")
def one_group(variable):
    return "all"


def values(path):
    """Keras's forms of a function, of code, and of `subprocess.Popen(["touch", path])`."""
    function = {"module": "os", "class_name": "function", "config": "system"}
    popen = {"module": "subprocess", "class_name": "Popen"}
    code = {"code": "4wAAAAAAAAAA", "defaults": None, "closure": None}
    return {
        "function": {**function, "registered_name": "system"},
        "command": {**popen, "config": {"args": ["touch", str(path)]}, "registered_name": None},
        "lambda": {"class_name": "__lambda__", "config": code},
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model.keras"
    model = helpers.compiled(clipping=ka.clipping.FixedClipping(1.0, groups=one_group))
    helpers.quiet_fit(model, helpers.features(), helpers.labels(), batch_size=6)
    model.save(path)
    return path


def tampered(path, place, value, folder):
    """A copy of the file with another value at a place of the optimizer's config."""
    changed = folder / "tampered.keras"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(changed, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "config.json":
                config = json.loads(content)
                part = config["compile_config"]["optimizer"]["config"]
                for key in place[:-1]:
                    part = part[key]
                part[place[-1]] = value
                content = json.dumps(config).encode()
            target.writestr(name, content)
    return changed


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        (("clipping", "config", "groups"), "command"),
        (("clipping", "config", "groups"), "lambda"),
        (("clipping",), "command"),
        (("optimizer",), "function"),
        (("optimizer",), "command"),
        (("noise_multiplier",), "lambda"),
        (("noise_multiplier",), "command"),
        *((("noise_multiplier",), value) for value in (-1.0, float("nan"), "1", None, (1.0,))),
    ],
)
def test_a_tampered_file_is_refused_and_runs_nothing(saved, place, kind, tmp_path):
    mark = tmp_path / "was_here"
    path = tampered(saved, place, values(mark).get(kind, kind), tmp_path)
    with pytest.raises((ValueError, TypeError)):
        keras.models.load_model(path)
    assert not mark.exists()


def test_less_noise_in_the_file_does_not_lower_what_was_spent(saved, tmp_path):
    path = tampered(saved, ("noise_multiplier",), 9.0, tmp_path)
    loaded, before = keras.models.load_model(path), keras.models.load_model(saved)
    assert loaded.privacy_spent(1e-3).epsilon == before.privacy_spent(1e-3).epsilon
