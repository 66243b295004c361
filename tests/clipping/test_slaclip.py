"""SlaClip against the slots of its paper, and the norms that it finds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

import keras_adaclip as ka
from keras_adaclip.clipping.groups import LARGEST_CLIP_NORM, SMALLEST_CLIP_NORM
from tests import oracles
from tests.clipping.support import SINGLE, summed_statistics, tensors, updated
from tests.soundness.setups import dp_sgd, pure_noise_data, pure_noise_model


def shares(strategy, norms, clip_norm):
    state = tensors({"clip_norm": [clip_norm]})
    norms = ops.convert_to_tensor(np.asarray(norms, np.float32)[:, None])
    finite = ops.ones((len(norms),), "bool")
    return ops.convert_to_numpy(strategy.statistics(state, norms, finite)).astype(np.float64)


@pytest.mark.parametrize("num_slots", [2, 3, 10, 50])
@pytest.mark.parametrize("clip_norm", [0.02, 1.0, 300.0])
def test_the_statistics_are_the_first_and_the_last_slot(num_slots, clip_norm):
    norms = clip_norm * np.array([0.0, 0.01, 0.3, 0.49, 0.51, 0.97, 1.0, 1.5, 1e9])
    found = shares(ka.clipping.SlaClip(num_slots=num_slots), norms, clip_norm)
    expected = [oracles.slots(norm, clip_norm, num_slots)[[0, -1]] for norm in norms]
    np.testing.assert_allclose(found, np.array(expected) / clip_norm, atol=1e-5)


@given(
    share=st.floats(0, 2, width=32),
    clip_norm=st.floats(SMALLEST_CLIP_NORM, LARGEST_CLIP_NORM),
    num_slots=st.integers(2, 10_000),
)
def test_contribution_and_slots_are_no_longer_than_the_clip_norm(share, clip_norm, num_slots):
    """In units of their noise, which is what the mechanism needs."""
    strategy = ka.clipping.SlaClip(num_slots=num_slots)
    norm = np.float32(share * clip_norm)
    found = shares(strategy, [norm], clip_norm)[0]
    of_sum, of_statistics = strategy.noise_split(2.0, 100.0)
    clipped = min(float(norm) / float(np.float32(clip_norm)), 1.0)
    moved = math.hypot(clipped / of_sum, *(found / of_statistics))
    assert moved <= 0.5 * (1 + 1e-6)
    assert (found <= strategy.statistic_bound).all()


def test_the_noise_suits_any_number_of_slots():
    """A node may have another one than the server that adds the noise."""
    splits = {ka.clipping.SlaClip(num_slots=number).noise_split(1.5, 9.0) for number in (2, 9, 99)}
    assert splits == {(1.5, 1.5)}


@pytest.mark.parametrize(("initial", "scale"), [(1e-3, 1.0), (1e3, 1.0), (1e3, 50.0), (1e-4, 0.01)])
def test_the_norm_comes_from_afar_to_among_the_contributions(initial, scale):
    norms = scale * np.random.default_rng(1).lognormal(size=(500, 1))
    strategy = ka.clipping.SlaClip(initial)
    state = strategy.initial_state(SINGLE)
    for _ in range(300):
        state = updated(strategy, state, summed_statistics(strategy, state, norms), 500)
    assert np.quantile(norms, 0.3) < state["clip_norm"][0] < np.quantile(norms, 0.99)


class Unpaid(ka.clipping.SlaClip):
    def noise_split(self, noise_multiplier, expected_units, num_groups=1):
        return noise_multiplier, 0.9 * noise_multiplier


class Undeclared(ka.clipping.SlaClip):
    statistics_fit_the_norm = False


class Grouped(ka.clipping.SlaClip):
    """Has groups, whose slots are not those of one norm."""

    def __init__(self):
        super().__init__()
        self.groups = "per_layer"


class OneMore(ka.clipping.SlaClip):
    """Releases a statistic that it does not state."""

    def statistics(self, state, norms, finite):
        slots = super().statistics(state, norms, finite)
        return ops.concatenate([slots, slots[:, :1]], axis=1)


@pytest.mark.parametrize("strategy", [Unpaid(), Undeclared(), Grouped(), OneMore()])
def test_statistics_that_nothing_pays_for_are_refused(strategy):
    model = pure_noise_model(dp_sgd(strategy))
    message = "does not pay for what the strategy releases|as `num_statistics` says"
    with pytest.raises(ValueError, match=message):
        model.fit(*pure_noise_data(15), batch_size=5, steps_per_epoch=1, verbose=0)
