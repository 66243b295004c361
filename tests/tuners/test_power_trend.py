import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_adaclip.schedules import PiecewiseConstant, PowerDecay
from keras_adaclip.tuners import PowerTrend


@given(st.floats(0.01, 100.0), st.floats(0.0, 3.0), st.integers(2, 30))
def test_a_power_law_is_found_again(initial, power, epochs):
    law = PowerDecay(initial, power, steps_per_epoch=1)
    trend = PowerTrend.of(PiecewiseConstant([law.value_at(epoch) for epoch in range(epochs)]))
    assert trend.power == pytest.approx(power, abs=1e-6)
    assert trend.schedule.initial_value == pytest.approx(initial, rel=1e-6)
    assert trend.residual == pytest.approx(0.0, abs=1e-6)


@given(st.lists(st.floats(0.01, 10.0), min_size=2, max_size=8), st.floats(0, 4), st.floats(-3, 3))
def test_no_other_power_law_is_closer(values, power, log_initial):
    logarithms = np.log(values)
    ages = np.log(np.arange(1, len(values) + 1))
    other = np.sqrt(np.mean((logarithms - log_initial + power * ages) ** 2))
    assert PowerTrend.of(PiecewiseConstant(values)).residual <= other + 1e-9


def test_growing_thresholds_have_power_zero_and_a_residual():
    trend = PowerTrend.of(PiecewiseConstant([1.0, 4.0]))
    assert trend.power == 0.0
    assert trend.schedule.initial_value == pytest.approx(2.0)
    assert trend.residual == pytest.approx(np.log(2.0))


def test_one_epoch_has_no_power():
    with pytest.raises(ValueError, match="two epochs"):
        PowerTrend.of(PiecewiseConstant([1.0]))
