"""Rule 10: the noise has the standard deviation that the ledger says. Rule 12: in float32.

Every mode of compilation is measured in `test_rules_schedules.py`.
"""

import math

import keras
import numpy as np
import pytest
from keras import ops
from scipy import stats

import keras_adaclip as ka
from keras_adaclip.accounting import Sampling
from keras_adaclip.optimizers import RunSettings
from tests import oracles
from tests.soundness import setups

BATCH_SIZE = 5
COUNT_NOISE = 4.0


def quantile(learning_rate=1e-7, **options):
    return ka.clipping.QuantileClipping(
        initial_clip_norm=0.7,
        learning_rate=learning_rate,
        count_noise_stddev=COUNT_NOISE,
        **options,
    )


CLIPPING = {"fixed": lambda: ka.clipping.FixedClipping(0.7), "quantile": quantile}


def noise_of_sums(total, num_groups):
    """What is left for the sum when the total noise multiplier has paid for the statistics."""
    return (total**-2 - num_groups * (2.0 * COUNT_NOISE) ** -2) ** -0.5


@pytest.mark.parametrize("mode", setups.COMPILED)
@pytest.mark.parametrize(
    ("strategy", "microbatch_size"), [("fixed", None), ("fixed", 2), ("quantile", 2)]
)
def test_the_noise_is_what_the_ledger_says(mode, strategy, microbatch_size):
    """`2 * NUM_DRAWS` draws; half a step's noise or twice it is 70 standard errors away."""
    optimizer = setups.dp_sgd(
        CLIPPING[strategy](), noise_multiplier=5.0, microbatch_size=microbatch_size
    )
    model = setups.pure_noise_model(optimizer, **setups.COMPILED[mode])
    recorder = setups.recorded_fit(model, *setups.pure_noise_data(15), BATCH_SIZE, 2)
    (row,) = optimizer.ledger
    assert row.sampling_probability == 1 / 3
    of_sum = noise_of_sums(row.noise_multiplier, 1 if strategy == "quantile" else 0)
    assert recorder.updates.size == 2 * setups.NUM_DRAWS
    setups.spread(recorder.updates, of_sum * 0.7 / row.expected_batch_size)
    assert stats.kstest(recorder.updates.ravel() / np.std(recorder.updates), "norm").pvalue > 1e-6


# Strategies with a threshold that moves, and groups: two kernels, and joint norms.
FURTHER = {
    "scheduled": lambda **options: ka.clipping.ScheduledClipping(
        ka.schedules.ExponentialDecay(0.7, 0.5, 1), **options
    ),
    "automatic": lambda **options: ka.clipping.AutomaticClipping(0.7, **options),
    "mean": lambda **options: ka.clipping.MeanNormClipping(
        0.7, mean_noise_stddev=COUNT_NOISE, **options
    ),
    "expected error": lambda **options: ka.clipping.ExpectedErrorClipping(
        0.7, excess_noise_stddev=COUNT_NOISE, **options
    ),
    "slack": lambda **options: ka.clipping.SlaClip(0.7, num_slots=4),
    "fixed by group": lambda **options: ka.clipping.FixedClipping([0.3, 0.9], **options),
    "quantile": lambda **options: quantile(learning_rate=0.2, **options),
}


@pytest.mark.parametrize(
    ("strategy", "groups", "allocation"),
    [
        ("scheduled", "flat", "global"),
        ("automatic", "per_layer", "global"),
        ("expected error", "per_layer", "optimal"),
        ("mean", "per_layer", "proportional"),
        ("fixed by group", "per_layer", "proportional"),
        ("fixed by group", "per_layer", "optimal"),
        ("quantile", "per_layer", "optimal"),
        ("slack", "flat", "global"),
    ],
)
@pytest.mark.parametrize("mode", setups.COMPILED)
@pytest.mark.filterwarnings("ignore:The statistics of `.*` take much")
def test_the_noise_of_each_group_is_what_the_ledger_says(mode, strategy, groups, allocation):
    """One or two steps, each with the thresholds from before it: 10,000 draws at least."""
    num_groups = 1 if groups == "flat" else 2
    has_statistics = strategy in ("quantile", "mean", "expected error")
    of_sum = noise_of_sums(5.0, num_groups if has_statistics else 0)
    # Noise makes the mean of no norms at all negative or not, and the next threshold tiny or not.
    num_steps = 1 if strategy == "mean" else 2
    optimizer = setups.dp_sgd(FURTHER[strategy](groups=groups, noise_allocation=allocation), 5.0)
    model = setups.pure_noise_model(optimizer, **setups.COMPILED[mode])
    recorder = setups.recorded_fit(model, *setups.pure_noise_data(15), BATCH_SIZE, num_steps)
    assert setups.steps_and_noise(model) == [(5.0, num_steps)]
    for update, clip_norms in zip(recorder.updates, recorder.clip_norms, strict=False):
        clip_norms, sizes = np.atleast_1d(clip_norms), [setups.NUM_DRAWS / num_groups] * num_groups
        stddevs = oracles.group_stddevs(allocation, of_sum, clip_norms, sizes)
        np.testing.assert_allclose(np.sum((clip_norms / stddevs) ** 2), of_sum**-2)
        for stddev, part in zip(stddevs, np.split(update, num_groups), strict=True):
            setups.spread(part, stddev / BATCH_SIZE)


def test_the_noise_of_adaclip_is_z_in_each_scaled_coordinate():
    """In the first step all scales are equal: `b = sqrt(s sum s) = s sqrt(size)`, centre zero."""
    model = setups.pure_noise_model(
        setups.dp_sgd(ka.clipping.AdaClip(min_variance=1e-6, max_variance=1e-2), 5.0)
    )
    recorder = setups.recorded_fit(model, *setups.pure_noise_data(15), BATCH_SIZE)
    scale = math.sqrt(1e-4) * math.sqrt(setups.NUM_DRAWS)
    setups.spread(recorder.updates, 5.0 * scale / BATCH_SIZE)


class ManyStatistics(ka.clipping.FixedClipping):
    """Releases `NUM_DRAWS` statistics, all zero, and keeps what was released in its state."""

    statistic_bound = 1e-6

    def num_statistics(self, num_groups):
        return setups.NUM_DRAWS

    def initial_state(self, groups):
        released = np.zeros(setups.NUM_DRAWS, np.float32)
        return {**super().initial_state(groups), "released": released}

    def statistics(self, state, norms, finite):
        return ops.zeros((ops.shape(norms)[0], setups.NUM_DRAWS))

    def noise_split(self, noise_multiplier, expected_units, num_groups=1):
        return 1.001 * noise_multiplier, COUNT_NOISE

    def update(self, state, release):
        return {**state, "released": release.statistics}


def test_the_noise_of_the_statistics_is_what_the_strategy_asks_for():
    model = setups.line_model(setups.dp_sgd(ManyStatistics(1.0)))
    released = []
    for _ in range(2):
        setups.recorded_fit(model, *setups.line_data([1.0] * 12), 4)
        variable = next(v for v in model.optimizer.variables if v.name == "released")
        released.append(np.array(ops.convert_to_numpy(variable.value), np.float64))
        setups.spread(released[-1], COUNT_NOISE)
    assert abs(np.corrcoef(released)[0, 1]) < 6 / math.sqrt(setups.NUM_DRAWS)


@pytest.mark.parametrize("noise_multiplier", [1e-3, 0.3, 1.1, 7.9])
@pytest.mark.parametrize("strategy", CLIPPING)
@pytest.mark.filterwarnings("ignore:The statistics of `QuantileClipping` take much")
def test_the_noise_is_wider_by_what_rounding_can_move(strategy, noise_multiplier):
    optimizer = setups.dp_sgd(CLIPPING[strategy](), noise_multiplier)
    optimizer.build(setups.line_model(optimizer).trainable_variables)
    row = optimizer.configure(RunSettings(Sampling.POISSON, 3, 6))
    values = {v.name: ops.convert_to_numpy(v.value) for v in optimizer.own_variables}
    needed = noise_of_sums(row.noise_multiplier, 1 if strategy == "quantile" else 0)
    assert 1.001 <= float(values["sum_noise_multiplier"]) / needed < 1.0011
    of_statistics = float(values["statistics_stddev"])
    if strategy == "quantile":
        assert 1.001 <= of_statistics / COUNT_NOISE < 1.0011
    else:
        assert of_statistics == 0.0


# Rule 12


def test_the_noise_is_float32_under_mixed_precision():
    """Noise of 1e-7 is below what half precision can hold; 20,000 draws differ in float32."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = setups.pure_noise_model(setups.dp_sgd(1e-6, 1.0))
    recorder = setups.recorded_fit(model, *setups.pure_noise_data(20), 10)
    assert type(model.optimizer) is ka.optimizers.DPOptimizer
    assert {v.dtype for v in model.trainable_variables} == {"float32"}
    setups.spread(recorder.updates, 1e-7)
    assert len(np.unique(recorder.updates)) > 0.95 * setups.NUM_DRAWS


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")  # JAX truncates it.
@pytest.mark.parametrize("floatx", ["float16", "float32", "float64"])
def test_norms_and_sums_are_float32_in_every_precision(monkeypatch, floatx):
    """The square of 300 is not finite in float16, nor is a sum of 300 clipped examples exact."""
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy("float64" if floatx == "float64" else "mixed_float16")
    setups.fix_draws(monkeypatch, [range(301)])
    model = setups.line_model(setups.dp_sgd(1.0, 0.0))
    (update,) = setups.recorded_fit(model, *setups.line_data([300.0] * 400), 1).updates
    np.testing.assert_allclose(update, [301.0], rtol=1e-5)
