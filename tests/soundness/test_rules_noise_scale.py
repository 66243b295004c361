"""Rule 10: the noise has the standard deviation that the ledger says. Rule 12: in float32."""

import math

import keras
import numpy as np
import pytest
from keras import ops
from scipy import stats

import keras_adaclip as ka
from tests import oracles
from tests.soundness.setups import (
    COMPILED,
    MODES,
    NUM_DRAWS,
    dp_sgd,
    fix_draws,
    line_data,
    line_model,
    pure_noise_data,
    pure_noise_model,
    recorded_fit,
    spread,
)

BATCH_SIZE = 5
COUNT_NOISE = 4.0
CLIPPING = {
    "fixed": lambda: ka.clipping.FixedClipping(0.7),
    "quantile": lambda: ka.clipping.QuantileClipping(
        initial_clip_norm=0.7, learning_rate=1e-7, count_noise_stddev=COUNT_NOISE
    ),
}


def noise_multiplier_of_sums(row, strategy):
    """What is left for the sum when the ledger's noise multiplier has paid for the bits."""
    z = row.noise_multiplier
    if strategy == "quantile":
        return (z**-2 - (2.0 * COUNT_NOISE) ** -2) ** -0.5
    return z


@pytest.mark.parametrize(
    ("mode", "strategy", "microbatch_size"),
    [
        *((mode, "fixed", None) for mode in MODES),
        *((mode, "fixed", 2) for mode in COMPILED),
        *((mode, "quantile", size) for mode in COMPILED for size in (None, 2)),
    ],
)
def test_the_noise_is_what_the_ledger_says(mode, strategy, microbatch_size):
    """`2 * NUM_DRAWS` draws; half a step's noise or twice it is 70 standard errors away."""
    optimizer = dp_sgd(CLIPPING[strategy](), noise_multiplier=5.0, microbatch_size=microbatch_size)
    model = pure_noise_model(optimizer, **MODES[mode])
    per_epoch = MODES[mode].get("steps_per_execution", 1)
    recorder = recorded_fit(model, *pure_noise_data(15), BATCH_SIZE, 2, per_epoch)
    (row,) = optimizer.ledger
    assert row.sampling_probability == 1 / 3
    stddev = noise_multiplier_of_sums(row, strategy) * 0.7 / row.expected_batch_size
    assert recorder.updates.size >= 20_000
    spread(recorder.updates, stddev * math.sqrt(per_epoch))
    assert stats.kstest(recorder.updates.ravel() / np.std(recorder.updates), "norm").pvalue > 1e-6


# Strategies whose threshold moves, and groups: two kernels of `SIDE` times `SIDE`, and joint norms.
FURTHER = {
    "scheduled": lambda **options: ka.clipping.ScheduledClipping(
        ka.schedules.ExponentialDecay(0.7, 0.5, 1), **options
    ),
    "automatic": lambda **options: ka.clipping.AutomaticClipping(0.7, **options),
    "mean": lambda **options: ka.clipping.MeanNormClipping(
        0.7, mean_noise_stddev=COUNT_NOISE, **options
    ),
    "fixed by group": lambda **options: ka.clipping.FixedClipping([0.3, 0.9], **options),
    "quantile": lambda **options: ka.clipping.QuantileClipping(
        initial_clip_norm=0.7, count_noise_stddev=COUNT_NOISE, **options
    ),
}


@pytest.mark.parametrize(
    ("strategy", "groups", "allocation"),
    [
        *((name, "flat", "global") for name in FURTHER if name != "fixed by group"),
        *((name, "per_layer", "global") for name in FURTHER),
        ("fixed by group", "per_layer", "proportional"),
        ("fixed by group", "per_layer", "optimal"),
        ("quantile", "per_layer", "optimal"),
    ],
)
@pytest.mark.parametrize("mode", COMPILED)
@pytest.mark.filterwarnings("ignore:The statistics of `.*` take much")
def test_the_noise_of_each_group_is_what_the_ledger_says(mode, strategy, groups, allocation):
    """Three steps, each with the thresholds from before it: 30,000 draws a group at least."""
    num_groups = 1 if groups == "flat" else 2
    of_sum = 5.0
    if strategy in ("quantile", "mean"):
        of_sum = (5.0**-2 - num_groups * (2.0 * COUNT_NOISE) ** -2) ** -0.5
    standardized = [[] for _ in range(num_groups)]
    # Noise makes the mean of no norms at all negative or not, and the next threshold tiny or not.
    num_runs, num_steps = (3, 1) if strategy == "mean" else (1, 3)
    for _ in range(num_runs):
        clipping = FURTHER[strategy](groups=groups, noise_allocation=allocation)
        optimizer = dp_sgd(clipping, noise_multiplier=5.0)
        model = pure_noise_model(optimizer, **COMPILED[mode])
        recorder = recorded_fit(model, *pure_noise_data(15), BATCH_SIZE, num_steps)
        (row,) = optimizer.ledger
        assert (row.noise_multiplier, row.steps) == (5.0, num_steps)
        for update, clip_norms in zip(recorder.updates, recorder.clip_norms, strict=False):
            clip_norms = np.atleast_1d(clip_norms)
            sizes = [NUM_DRAWS / num_groups] * num_groups
            stddevs = oracles.group_stddevs(allocation, of_sum, clip_norms, sizes)
            np.testing.assert_allclose(np.sum((clip_norms / stddevs) ** 2), of_sum**-2)
            for number, part in enumerate(np.split(update, num_groups)):
                standardized[number].append(part / (stddevs[number] / BATCH_SIZE))
    for draws in standardized:
        assert np.size(draws) >= 20_000
        spread(np.concatenate(draws), 1.0)


@pytest.mark.parametrize("mode", COMPILED)
def test_the_noise_of_adaclip_is_z_in_each_scaled_coordinate(mode):
    """In the first step all scales are equal: `b = sqrt(s sum s) = s sqrt(size)`, centre zero."""
    optimizer = dp_sgd(ka.clipping.AdaClip(min_variance=1e-6, max_variance=1e-2), 5.0)
    model = pure_noise_model(optimizer, **COMPILED[mode])
    recorder = recorded_fit(model, *pure_noise_data(15), BATCH_SIZE)
    scale = math.sqrt(1e-4) * math.sqrt(NUM_DRAWS)
    spread(recorder.updates, 5.0 * scale / BATCH_SIZE)
    assert recorder.updates.size >= 20_000


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
def test_the_noise_does_not_depend_on_the_sampling(sampling):
    optimizer = dp_sgd(0.7, 5.0)
    model = pure_noise_model(optimizer)
    recorder = recorded_fit(model, *pure_noise_data(15), 5, 2, sampling=sampling)
    spread(recorder.updates, 5.0 * 0.7 / 5)


def test_a_changed_noise_multiplier_runs_and_is_accounted():
    optimizer = dp_sgd(1.0, 2.0)
    model = pure_noise_model(optimizer)
    spread(recorded_fit(model, *pure_noise_data(), 4).updates, 2.0 / 4)
    optimizer.noise_multiplier = 3.0
    spread(recorded_fit(model, *pure_noise_data(), 4).updates, 3.0 / 4)
    assert [(row.noise_multiplier, row.steps) for row in optimizer.ledger] == [(2, 1), (3, 1)]


class ManyStatistics(ka.clipping.FixedClipping):
    """Releases `NUM_DRAWS` statistics, all zero, and keeps what was released in its state."""

    def num_statistics(self, num_groups):
        return NUM_DRAWS

    def initial_state(self, groups):
        released = np.zeros(NUM_DRAWS, np.float32)
        return {**super().initial_state(groups), "released": released}

    def statistics(self, state, norms, finite):
        return ops.zeros((ops.shape(norms)[0], NUM_DRAWS))

    def noise_split(self, noise_multiplier, expected_units, num_groups=1):
        return 1.001 * noise_multiplier, COUNT_NOISE

    def update(self, state, release):
        return {**state, "released": release.statistics}


@pytest.mark.parametrize("mode", COMPILED)
def test_the_noise_of_the_statistics_is_what_the_strategy_asks_for(mode):
    model = line_model(dp_sgd(ManyStatistics(1.0)), **COMPILED[mode])
    released = []
    for _ in range(2):
        recorded_fit(model, *line_data([1.0] * 12), 4)
        variable = next(v for v in model.optimizer.variables if v.name == "released")
        released.append(np.array(ops.convert_to_numpy(variable.value), np.float64))
        spread(released[-1], COUNT_NOISE)
    assert abs(np.corrcoef(released)[0, 1]) < 6 / math.sqrt(NUM_DRAWS)


def test_the_bits_of_quantile_clipping_are_noised_as_they_are_paid_for(monkeypatch):
    """200 steps: a standard deviation of half or twice is never taken for the right one."""
    num_steps, batch_size = 200, 20
    fix_draws(monkeypatch, [range(batch_size)])
    optimizer = dp_sgd(CLIPPING["quantile"](), 5.0)
    model = line_model(optimizer)
    recorder = recorded_fit(model, *line_data([1e-6] * 40), batch_size, num_steps)
    spread((np.array(recorder.fractions[1:]) - 1.0) * batch_size, COUNT_NOISE)


@pytest.mark.parametrize("noise_multiplier", [1e-3, 0.3, 1.1, 7.9])
@pytest.mark.parametrize("strategy", CLIPPING)
@pytest.mark.filterwarnings("ignore:The statistics of `QuantileClipping` take much")
def test_rounding_to_float32_never_lowers_the_noise(strategy, noise_multiplier):
    optimizer = dp_sgd(CLIPPING[strategy](), noise_multiplier)
    model = line_model(optimizer)
    model.fit(*line_data([1.0] * 6), batch_size=3, epochs=1, steps_per_epoch=1, verbose=0)
    (row,) = optimizer.ledger
    values = {
        v.name: float(ops.convert_to_numpy(v.value))
        for v in optimizer.variables[:6]
        if v.shape == ()
    }
    needed = noise_multiplier_of_sums(row, strategy)
    assert needed < values["sum_noise_multiplier"] < needed * (1 + 1e-4)
    assert values["statistics_stddev"] == (COUNT_NOISE if strategy == "quantile" else 0.0)


# Rule 12


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_the_noise_is_float32_under_mixed_precision(policy):
    """Noise of 1e-7 is below what half precision can hold; 20,000 draws differ in float32."""
    keras.config.set_dtype_policy(policy)
    model = pure_noise_model(dp_sgd(1e-6, 1.0))
    recorder = recorded_fit(model, *pure_noise_data(20), 10)
    assert type(model.optimizer) is ka.optimizers.DPOptimizer
    assert {v.dtype for v in model.trainable_variables} == {"float32"}
    spread(recorder.updates, 1e-7)
    assert len(np.unique(recorder.updates)) > 0.95 * NUM_DRAWS


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_norms_and_sums_are_float32_under_mixed_precision(policy, monkeypatch):
    """The square of 300 is not finite in float16, nor is a sum of 300 clipped examples exact."""
    keras.config.set_dtype_policy(policy)
    fix_draws(monkeypatch, [range(301)])
    model = line_model(dp_sgd(1.0, 0.0))
    (update,) = recorded_fit(model, *line_data([300.0] * 400), 1).updates
    np.testing.assert_allclose(update, [301.0], rtol=1e-5)


def test_a_non_finite_example_adds_nothing_and_counts_as_clipped(monkeypatch):
    fix_draws(monkeypatch, [range(4)])
    clipping = ka.clipping.QuantileClipping(initial_clip_norm=1.0, learning_rate=1e-9)
    model = line_model(dp_sgd(clipping, 0.0))
    recorder = recorded_fit(model, *line_data([0.5, np.nan, np.inf, 1e30, 0.25]), 4)
    np.testing.assert_allclose(recorder.updates, [[0.5 / 4]], rtol=1e-6)
    np.testing.assert_allclose(recorder.fractions[1:], [1 / 4], rtol=1e-6)
