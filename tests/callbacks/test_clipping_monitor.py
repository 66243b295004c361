"""The clipping norm and the noised share of unclipped units in the logs."""

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip.callbacks import ClippingMonitor
from tests.models import helpers

X, Y = helpers.features(), helpers.labels()


def quantile(**options):
    return ka.clipping.QuantileClipping(
        target_quantile=0.5, initial_clip_norm=0.2, count_noise_stddev=2.0, **options
    )


def fit(model, monitor, **options):
    options = {"batch_size": 24, "epochs": 2, **options}
    return helpers.quiet_fit(model, X, Y, callbacks=[monitor], **options)


def test_the_logged_fraction_is_the_one_that_moved_the_norm():
    model = helpers.compiled(clipping=quantile())
    history = fit(model, ClippingMonitor())
    norms, fractions = history["clip_norm"], history["unclipped_fraction"]
    # One step an epoch: C <- C exp(-0.2 (b - 0.5)).
    before = [0.2, norms[0]]
    expected = [c * np.exp(-0.2 * (b - 0.5)) for c, b in zip(before, fractions, strict=True)]
    assert norms == pytest.approx(expected, rel=1e-5)
    # Noised: no multiple of 1/24.
    assert any(abs(24 * b - round(24 * b)) > 1e-3 for b in fractions)


def test_an_epoch_shows_the_scheduled_norm_with_which_it_clipped():
    schedule = ka.schedules.PiecewiseConstant([0.9, 0.5, 0.2])
    clipping = ka.clipping.ScheduledClipping(schedule, groups="per_layer")
    model = helpers.compiled(clipping=clipping)
    history = fit(model, ClippingMonitor(), batch_size=12, epochs=2)
    assert history["clip_norm"] == pytest.approx([0.9, 0.5])
    # What is read between the epochs is the norm of the step to come.
    assert np.linalg.norm(model.optimizer.clip_norm) == pytest.approx(0.2)
    # Training that is resumed goes on in the schedule.
    history = fit(model, ClippingMonitor(), batch_size=12, epochs=3, initial_epoch=2)
    assert history["clip_norm"] == pytest.approx([0.2])


def test_an_epoch_shows_the_norm_of_its_last_step_where_every_step_has_another():
    clipping = ka.schedules.LinearDecay(1.0, total_steps=4)
    norms = fit(helpers.compiled(clipping=clipping), ClippingMonitor(), batch_size=12)["clip_norm"]
    # C / (1 + t / 4), t = 1 and 3 the last steps of two epochs of two.
    assert norms == pytest.approx([1 / 1.25, 1 / 1.75])


def gradient_norms(model):
    """Norms of the single gradients of a dense softmax layer, in NumPy."""
    kernel, bias = model.get_weights()
    logits = X @ kernel + bias
    errors = np.exp(logits - logits.max(-1, keepdims=True))
    errors = errors / errors.sum(-1, keepdims=True) - np.eye(3)[Y]
    return np.sqrt((errors**2).sum(-1) * ((X**2).sum(-1) + 1.0))


def test_private_diagnostics_are_the_true_values_and_are_warned_of():
    inputs = keras.Input((helpers.NUM_FEATURES,))
    model = helpers.compiled(
        ka.PrivateModel(inputs, keras.layers.Dense(3)(inputs)),
        clipping=0.7,
        optimizer=keras.optimizers.SGD(0.0),
    )
    with helpers.warns("not covered by epsilon"):
        history = fit(model, ClippingMonitor(private_diagnostics=True), validation_data=(X, Y))
    norms = gradient_norms(model)
    assert history["gradient_norm"] == pytest.approx([norms.mean()] * 2, rel=1e-4)
    assert history["clipped_fraction"] == pytest.approx([(norms > 0.7).mean()] * 2, rel=1e-4)
    assert not any(name.startswith(("val_g", "val_c")) for name in history)
    # They go with the callback. A fixed norm has no fraction of unclipped units.
    history = fit(model, ClippingMonitor())
    assert set(history) == {"loss", "clip_norm"}
    assert history["clip_norm"] == pytest.approx([0.7, 0.7])
    assert set(model.evaluate(X, Y, verbose=0, return_dict=True)) == {"loss"}
