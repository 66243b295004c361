"""Keras's own TensorBoard callback writes epsilon, clip norm and unclipped fraction.

On JAX and PyTorch too it needs TensorFlow, to write its files.
"""

import keras
import pytest

import keras_adaclip as ka
from tests.models import helpers


def scalars(folder):
    """The curves in the event file of a folder: lists of values by tag."""
    pytest.importorskip("tensorflow")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(str(folder)).Reload()
    return {
        tag: [(each.step, float(make_ndarray(each.tensor_proto))) for each in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
        if events.SummaryMetadata(tag).plugin_data.plugin_name == "scalars"
    }


def callbacks(folder):
    """TensorBoard first: what a callback adds to the logs reaches the later ones only."""
    pytest.importorskip("tensorflow")
    return [
        keras.callbacks.TensorBoard(folder),
        ka.callbacks.ClippingMonitor(),
        ka.callbacks.PrivacyCallback(delta=1e-3),
    ]


def quantile():
    return ka.clipping.QuantileClipping(initial_clip_norm=0.2, count_noise_stddev=2.0)


def assert_written(folder, history):
    written = scalars(folder / "train")
    for name in ("epsilon", "clip_norm", "unclipped_fraction"):
        expected = [(epoch, pytest.approx(value)) for epoch, value in enumerate(history[name])]
        assert written[f"epoch_{name}"] == expected
        assert len(expected) == 2
    assert history["epsilon"][0] < history["epsilon"][1]


def test_a_private_model(tmp_path):
    model = helpers.compiled(clipping=quantile())
    given = callbacks(tmp_path)
    x, y = helpers.features(), helpers.labels()
    history = helpers.quiet_fit(model, x, y, batch_size=12, epochs=2, callbacks=given)
    assert_written(tmp_path, history)
