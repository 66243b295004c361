"""Rules 7 and 8: one clip norm for clip and noise; it moves last, in the right direction."""

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.soundness.setups import (
    COMPILED,
    dp_sgd,
    fix_draws,
    line_data,
    line_model,
    pure_noise_data,
    pure_noise_model,
    recorded_fit,
    spread,
)


def fast_quantile(target_quantile=0.5, initial_clip_norm=1.0, **options):
    return ka.clipping.QuantileClipping(
        target_quantile, initial_clip_norm, learning_rate=2.0, **options
    )


@pytest.mark.parametrize("mode", COMPILED)
def test_the_noise_follows_the_clip_norm_of_the_same_step(mode):
    """The norm falls by a factor of about e a step: taking the next one's would be seen."""
    num_examples, batch_size = 2000, 1000
    model = pure_noise_model(dp_sgd(fast_quantile(count_noise_stddev=5.0)), **COMPILED[mode])
    recorder = recorded_fit(model, *pure_noise_data(num_examples), batch_size, 3)
    of_sum, _ = model.optimizer.clipping.noise_split(1.0, batch_size)
    assert recorder.clip_norms[-1] < 0.2
    for update, clip_norm in zip(recorder.updates, recorder.clip_norms, strict=False):
        spread(update, of_sum * clip_norm / batch_size)


@pytest.mark.parametrize("mode", COMPILED)
@pytest.mark.parametrize(("value", "power"), [(1e6, 1.0), (1e-6, -1.0)])
def test_a_step_clips_with_the_norm_from_before_and_moves_it_last(mode, value, power, monkeypatch):
    """If all units are clipped, a step adds the norm and the norm grows; if none is, it falls."""
    fix_draws(monkeypatch, [range(4)])
    model = line_model(dp_sgd(fast_quantile(0.5), noise_multiplier=0.0), **COMPILED[mode])
    recorder = recorded_fit(model, *line_data([value] * 8), 4, 4)
    norms = np.array(recorder.clip_norms)
    np.testing.assert_allclose(norms, np.exp(power * np.arange(5.0)), rtol=1e-5)
    np.testing.assert_allclose(recorder.updates[:, 0], np.minimum(norms[:-1], value), rtol=1e-5)
    np.testing.assert_allclose(recorder.fractions[1:], value < 1, atol=1e-6)


@pytest.mark.parametrize("mode", COMPILED)
def test_a_clip_norm_that_is_set_changes_clip_and_noise_together(mode):
    for make, noise_multiplier, data in (
        (line_model, 0.0, line_data([1e6] * 4)),
        (pure_noise_model, 3.0, pure_noise_data(4)),
    ):
        model = make(dp_sgd(1.0, noise_multiplier), **COMPILED[mode])
        recorded_fit(model, *data, 4)
        (variable,) = (v for v in model.optimizer.variables if v.name == "clip_norm")
        variable.assign(0.125)
        assert model.optimizer.clip_norm == 0.125
        (update,) = recorded_fit(model, *data, 4).updates
        if noise_multiplier:
            spread(update, 3.0 * 0.125 / 4)
        else:
            np.testing.assert_allclose(update, [0.125], rtol=1e-5)


def test_a_clipping_strategy_cannot_be_exchanged():
    """A compiled step would go on with the old one, under the new one's noise."""
    optimizer = dp_sgd("quantile")
    with pytest.raises(AttributeError):
        optimizer.clipping = ka.clipping.FixedClipping(1.0)
    assert isinstance(optimizer.clipping, ka.clipping.QuantileClipping)


def test_weight_regularization_is_outside_clip_and_noise():
    regularizer = keras.regularizers.L2(0.5)
    dense = keras.layers.Dense(1, use_bias=False, kernel_regularizer=regularizer)
    model = ka.PrivateSequential([keras.Input((1,)), dense])
    model.compile(optimizer=dp_sgd(1e-6, 0.0, 0.1), loss="mse")
    dense.kernel.assign([[2.0]])
    (update,) = recorded_fit(model, *line_data([1.0] * 4), 2).updates
    np.testing.assert_allclose(update, [-0.1 * 2 * 0.5 * 2.0], rtol=1e-4)
