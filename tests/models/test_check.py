"""`ka.check` names what it finds, on built and unbuilt, compiled and uncompiled models."""

import re

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.gradients.architectures import Scale
from tests.gradients.test_planning import NoisyWeights
from tests.models import helpers
from tests.models.unsafe import Unsafe, centred


def issue(model):
    (found,) = ka.check(model)
    assert isinstance(found, ka.PrivacyIssue)
    assert found.reason
    assert found.fix
    assert str(found).startswith(found.layer)
    return found


def test_all_of_them_are_listed():
    norms = [keras.layers.BatchNormalization(name=f"norm_{number}") for number in range(2)]
    model = ka.PrivateSequential([keras.Input((4,)), *norms, keras.layers.Dense(3)])
    assert [found.layer for found in ka.check(model)] == ["norm_0", "norm_1"]
    helpers.compiled(model)
    with pytest.raises(ValueError, match=r"(?s)norm_0.*\n- norm_1"):
        helpers.quiet_fit(model, helpers.features(), helpers.labels(), batch_size=6)


def test_unbuilt_models_are_examined_as_far_as_possible():
    model = keras.Sequential([keras.layers.Dense(3), keras.layers.BatchNormalization(name="norm")])
    assert issue(model).layer == "norm"
    assert ka.check(keras.Sequential([Unsafe(centred), keras.layers.Dense(3)])) == []


def test_an_optimizer_that_clips_is_found():
    model = helpers.dense_model(keras.Model)
    model.compile(keras.optimizers.Adam(clipnorm=1.0), loss="mse")
    assert issue(model).layer == "clipnorm"


def test_checking_changes_nothing():
    model = helpers.compiled(helpers.model_with(keras.layers.Dropout(0.5)))
    before = helpers.weights_of(model)
    assert ka.check(model) == []
    helpers.assert_same_weights(model, before)
    assert model.privacy_spent(1e-3).steps == 0


def test_a_slow_way_is_named_with_its_layer_before_training():
    reason = "layer 'culprit' has weights and draws random numbers"
    model = helpers.model_with(NoisyWeights("choice", name="culprit"))
    checked = ka.check(model)
    assert checked == []
    assert checked.slow_reason == reason
    assert f"slow: {reason}" in " ".join(str(checked).split())
    lines = []
    model.private_summary(print_fn=lines.append)
    assert f"slow: {reason}" in " ".join(lines[0].split())
    assert ka.check(helpers.model_with(keras.layers.Dropout(0.5))).slow_reason is None


def refuse_eight(x):
    if x.shape[0] == 8:  # TensorFlow does not know while it traces.
        raise RuntimeError("eight rows")
    return x


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="any number is traced at once")
def test_a_model_that_could_not_be_run_is_said_to_be():
    checked = ka.check(helpers.model_with(keras.layers.Lambda(refuse_eight)))
    assert "eight rows" in checked.failure
    assert "could not be run on made-up rows" in str(checked)
    assert ka.check(helpers.model_with(keras.layers.Dropout(0.5))).failure is None


def summary(model, **arguments):
    texts = []
    model.private_summary(print_fn=texts.append, **arguments)
    (text,) = texts
    assert max(map(len, text.splitlines())) <= 80
    return text


def test_a_line_for_each_layer():
    inputs = keras.Input((20,), dtype="int32")
    x = keras.layers.Dense(40, name="wide")(keras.layers.Embedding(30, 4, name="table")(inputs))
    x = Scale(name="scale")(keras.layers.Flatten()(x))
    x = keras.layers.Dense(1, name="head")(x)
    model = helpers.compiled(ka.PrivateModel(inputs, x), loss="mse")
    text = summary(model, batch_size=256)
    for line in (
        r"table \(Embedding\) +Embedding +Gram of rows",
        r"scale \(Scale\) +general +written out",
        r"head \(Dense\) +Dense +two norms",
        r"(?s)layer by layer.*take [\d.]+ KiB per example, [\d.]+ MiB for 256 at a time\.",
    ):
        assert re.search(line, text), line


def test_a_model_of_unknown_shapes_wants_a_few_inputs():
    model = ka.PrivateSequential([keras.layers.Dense(2, name="only")])
    with pytest.raises(ValueError, match=r"private_summary\(x=\.\.\.\)"):
        model.private_summary()
    text = summary(model, x=np.ones((2, 3), "float32"))
    assert re.search(r"only \(Dense\) +Dense +two norms +28 B", text)
