"""Keras's own TensorBoard callback writes epsilon, clip norm and unclipped fraction.

On JAX and PyTorch too it needs TensorFlow, to write its files.
"""

import keras
import pytest

import keras_adaclip as ka
from tests.models import helpers


def test_tensorboard_gets_the_private_logs(tmp_path):
    """It comes first: the package's callbacks must still be called before it."""
    pytest.importorskip("tensorflow")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    clipping = ka.clipping.QuantileClipping(initial_clip_norm=0.2, count_noise_stddev=2.0)
    callbacks = [
        keras.callbacks.TensorBoard(tmp_path),
        ka.callbacks.ClippingMonitor(),
        ka.callbacks.PrivacyCallback(delta=1e-3),
    ]
    model, data = helpers.compiled(clipping=clipping), (helpers.features(), helpers.labels())
    history = helpers.quiet_fit(model, *data, batch_size=12, epochs=2, callbacks=callbacks)
    events = EventAccumulator(str(tmp_path / "train")).Reload()
    for name in ("epsilon", "clip_norm", "unclipped_fraction"):
        written = [float(make_ndarray(e.tensor_proto)) for e in events.Tensors(f"epoch_{name}")]
        assert written == pytest.approx(history[name])
        assert len(written) == 2
