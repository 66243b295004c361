"""What every clipping strategy must do: bound contributions, pay for its statistics, come back."""

import inspect
import itertools
import math

import keras
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from keras import ops

import keras_adaclip as ka
from keras_adaclip import noise
from keras_adaclip.clipping import Clipper, ParameterGroups
from keras_adaclip.clipping.groups import LARGEST_CLIP_NORM, SMALLEST_CLIP_NORM
from tests.clipping.support import SINGLE, summed_statistics, tensors, updated

# Every exported strategy, with the arguments that a test of its own would use.
STRATEGIES = {
    "FixedClipping": lambda **options: ka.clipping.FixedClipping(0.75, **options),
    "QuantileClipping": lambda **options: ka.clipping.QuantileClipping(
        0.7, 0.3, 0.1, 6.0, update="linear", min_clip_norm=0.01, max_clip_norm=9.0, **options
    ),
    "ScheduledClipping": lambda **options: ka.clipping.ScheduledClipping(
        ka.schedules.LinearDecay(0.8, 10), **options
    ),
    "AutomaticClipping": lambda **options: ka.clipping.AutomaticClipping(0.9, 0.02, **options),
    "MeanNormClipping": lambda **options: ka.clipping.MeanNormClipping(
        initial_clip_norm=0.4, factor=0.9, norm_bound_factor=3.0, mean_noise_stddev=7.0, **options
    ),
    "PSAC": lambda **options: ka.clipping.PSAC(0.9, 0.02, **options),
    "ExpectedErrorClipping": lambda **options: ka.clipping.ExpectedErrorClipping(
        0.4, 0.1, excess_noise_stddev=7.0, **options
    ),
    "AdaClip": lambda: ka.clipping.AdaClip(0.8, 0.95, 1e-6, 1e-2),
    "SlaClip": lambda: ka.clipping.SlaClip(0.4, 5, 0.1),
}
WITH_GROUPS = [name for name in STRATEGIES if name not in ("AdaClip", "SlaClip")]
# Each group has two coordinates here.
THREE = ParameterGroups(("a", "b", "c"), (0, 1, 2), ((2,), (2,), (2,)))
GROUPS = {"flat": SINGLE, "three groups": THREE}
CASES = [
    *((name, "flat", "global") for name in STRATEGIES),
    *(
        (name, "three groups", allocation)
        for name in WITH_GROUPS
        for allocation in ("global", "proportional", "optimal")
    ),
]
NORMS = np.array([0.0, 1e-38, 1e-20, 1e-6, 0.1, 0.5, 1.0, 1.0 + 1e-7, 2.5, 1e6, 1e18], np.float32)

every_strategy = pytest.mark.parametrize("name", STRATEGIES)
every_case = pytest.mark.parametrize(("name", "groups", "allocation"), CASES)


def strategy_for(name, allocation="global"):
    return (
        STRATEGIES[name](noise_allocation=allocation) if name in WITH_GROUPS else STRATEGIES[name]()
    )


def factors(strategy, norms, clip_norm=1.0):
    state = tensors({**strategy.initial_state(SINGLE), "clip_norm": [clip_norm]})
    return ops.convert_to_numpy(strategy.clip_factors(state, ops.convert_to_tensor(norms[:, None])))


def test_the_battery_holds_every_exported_strategy():
    exported = {
        name
        for name, value in vars(ka.clipping).items()
        if inspect.isclass(value)
        and issubclass(value, ka.clipping.ClippingStrategy)
        and not inspect.isabstract(value)
    }
    assert exported == set(STRATEGIES)


class Returning(ka.clipping.FixedClipping):
    def __init__(self, factor):
        super().__init__(0.5)
        self.factor = factor

    def clip_factors(self, state, norms):
        return ops.full_like(norms, self.factor)


@pytest.mark.parametrize("factor", [-1e9, -3.0, 0.25, 3.0, 1e30, math.inf, -math.inf, math.nan])
def test_no_factor_of_a_strategy_lets_a_contribution_pass_its_bound(factor):
    strategy = Returning(factor)
    current = Clipper(strategy, SINGLE, tensors(strategy.initial_state(SINGLE)))
    finite = ops.ones((len(NORMS),), "bool")
    found = ops.convert_to_numpy(current.factors(ops.convert_to_tensor(NORMS[:, None]), finite))
    assert np.isfinite(found).all()
    assert (np.abs(found[:, 0]) * NORMS.astype(float) <= 0.5 * (1 + 1e-6)).all()
    # Of a norm that reads zero the gradient may have numbers whose squares underflow.
    assert abs(found[0, 0]) * 1e-20 <= 0.5


@keras.saving.register_keras_serializable(package="tests")
def kind_of(variable):
    return variable.name


@pytest.mark.parametrize("has_groups", [False, True])
@every_strategy
def test_the_config_comes_back(name, has_groups):
    options = {"groups": kind_of, "noise_allocation": "proportional"}
    strategy = STRATEGIES[name](**options if has_groups and name in WITH_GROUPS else {})
    config = strategy.get_config()
    assert set(config) == set(inspect.signature(type(strategy)).parameters)
    assert repr(strategy).startswith(f"{name}(")
    serialized = keras.saving.serialize_keras_object(strategy)
    for again in (type(strategy).from_config(config), ka.clipping.get(serialized)):
        assert again.get_config() == config
        assert again.groups == strategy.groups
        assert again.noise_allocation == strategy.noise_allocation


@every_case
def test_the_state_begins_with_a_clip_norm_for_each_group(name, groups, allocation):
    """In float32, and the same joint norm however many groups there are."""
    groups = GROUPS[groups]
    state = strategy_for(name, allocation).initial_state(groups)
    joint = strategy_for(name).initial_state(SINGLE)["clip_norm"]
    assert state["clip_norm"].shape == (groups.num_groups,)
    assert state["clip_norm"].dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(state["clip_norm"]), joint, rtol=1e-6)


@given(
    norm=st.floats(0, 2.0**60, width=32), clip_norm=st.floats(SMALLEST_CLIP_NORM, LARGEST_CLIP_NORM)
)
@example(norm=0.0, clip_norm=SMALLEST_CLIP_NORM)
@example(norm=1.0, clip_norm=1.0)
@example(norm=2.0**60, clip_norm=LARGEST_CLIP_NORM)
@every_strategy
def test_no_contribution_is_longer_than_the_clip_norm(name, norm, clip_norm):
    norms = np.append(NORMS, np.float32(norm))
    found = factors(strategy_for(name), norms, clip_norm)
    assert (found.dtype, found.shape) == (np.float32, (len(norms), 1))
    if clip_norm == 1.0:
        # Short ones stay whole, but for the method that normalizes them all.
        np.testing.assert_allclose(found[:3], 50.0 if name == "AutomaticClipping" else 1.0)
    lengths = found[:, 0].astype(np.float64) * norms
    assert ((lengths >= 0) & (lengths <= np.float32(clip_norm) * (1 + 1e-6))).all()


@every_case
def test_what_is_not_finite_or_padded_has_no_factor(name, groups, allocation):
    groups = GROUPS[groups]
    strategy = strategy_for(name, allocation)
    clipping = Clipper(strategy, groups, tensors(strategy.initial_state(groups)))
    norms = np.zeros((4, groups.num_groups), np.float32)
    norms[0] = 1e18
    finite = np.array([True, False, False, True])
    present = np.array([True, True, False, True])
    arguments = [ops.convert_to_tensor(value) for value in (norms, finite, present)]
    factors = clipping.factors(*arguments[:2])
    found = ops.convert_to_numpy(factors)
    np.testing.assert_array_equal(found[1:3], 0.0)
    assert (found[[0, 3]] > 0.0).all()
    sums = ops.convert_to_numpy(clipping.summed_statistics(*arguments, factors))
    # A unit that is not finite counts like one that is as long as can be, padding not at all.
    longest = np.where(finite[:, None], norms, np.float32(1e18))[present]
    np.testing.assert_allclose(sums, summed_statistics(strategy, clipping.state, longest))


def in_coordinates(strategy, state, groups, unit):
    """A unit, of shape `(num_groups, 2)`, as the strategy sees it."""
    pairs = strategy.coordinates(tensors(state), groups)
    if pairs is None:
        return unit
    pairs = [tuple(map(ops.convert_to_numpy, pair)) for pair in pairs]
    return np.stack([(part - a) / b for part, (a, b) in zip(unit, pairs, strict=True)])


def released(strategy, state, groups, units):
    """Clipped sums of shape `(num_groups, 2)` and summed statistics, as the step makes them."""
    units = np.asarray(units, np.float32).reshape(-1, groups.num_groups, 2)
    units = np.stack([in_coordinates(strategy, state, groups, unit) for unit in units])
    with np.errstate(invalid="ignore"):
        norms = np.linalg.norm(units, axis=2).astype(np.float32)
    finite = np.isfinite(norms).all(axis=1)
    norms = np.where(finite[:, None], norms, np.float32(0))
    clip_factors = strategy.clip_factors(tensors(state), ops.convert_to_tensor(norms))
    weights = (ops.convert_to_numpy(clip_factors) * finite[:, None])[:, :, None]
    total = np.sum(np.where(finite[:, None, None], units, 0) * weights, axis=0)
    return total, summed_statistics(strategy, state, norms, finite)


def units_for(num_groups, generator):
    """Short, long, borderline and broken units, of shape `(num_groups, 2)` each."""
    polar = itertools.product((0.0, 0.5, 0.999, 1.0, 1.001, 300.0), (0.0, 0.7, math.pi))
    units = [[[r * math.cos(angle), r * math.sin(angle)]] * num_groups for r, angle in polar]
    units.extend(generator.lognormal(0, 2, (6, num_groups, 2)))
    for bad in (math.inf, math.nan):
        units.append([[1.0, 0.0]] * (num_groups - 1) + [[bad, 0.0]])
    return [np.asarray(unit, np.float32) for unit in units]


@every_case
def test_the_joint_sensitivity_is_what_the_split_pays_for(name, groups, allocation):
    """The worst case over all batches of up to two units, and one more or less."""
    groups = GROUPS[groups]
    strategy, total = strategy_for(name, allocation), 2.0
    num_groups = groups.num_groups
    state = strategy.initial_state(groups)
    if name != "AdaClip":
        state["clip_norm"] = np.linspace(0.5, 2.0, num_groups).astype(np.float32)
    assert strategy.noise_split(0.0, 100.0, num_groups)[0] == 0.0
    of_sum, of_statistics = strategy.noise_split(total, 100.0, num_groups)
    tensors_of = map(ops.convert_to_tensor, (np.float32(of_sum), state["clip_norm"]))
    stddevs = noise.group_stddevs(allocation, *tensors_of, groups.sizes)
    stddevs = ops.convert_to_numpy(stddevs)[:, None]
    units = units_for(num_groups, np.random.default_rng(3))
    batches = [*((unit,) for unit in units), *itertools.combinations(units[::4], 2)]
    worst = max(
        np.linalg.norm(released(strategy, state, groups, [unit])[0] / stddevs) for unit in units
    )
    for rest in batches:
        without = released(strategy, state, groups, rest)
        for unit in units:
            with_unit = released(strategy, state, groups, [*rest, unit])
            moved = np.linalg.norm((with_unit[0] - without[0]) / stddevs)
            if len(without[1]):
                moved = math.hypot(moved, np.linalg.norm(with_unit[1] - without[1]) / of_statistics)
            worst = max(worst, moved)
    assert worst <= 1.0 / total * (1 + 1e-5)
    assert worst > 0.99 / total


@every_case
def test_the_next_state_is_finite_after_any_release(name, groups, allocation):
    groups = GROUPS[groups]
    strategy = strategy_for(name, allocation)
    state = strategy.initial_state(groups)
    for value in (-1e30, -100.0, 0.0, 100.0, 1e30):
        statistics = np.full(strategy.num_statistics(groups.num_groups), value)
        means = [np.full(shape, value) for shape in groups.shapes]
        after = updated(strategy, state, statistics, 10.0, means, [0.1] * len(means))
        kinds = [{key: (v.shape, v.dtype) for key, v in each.items()} for each in (after, state)]
        assert kinds[0] == kinds[1]
        assert all(np.isfinite(array).all() for array in after.values())
        assert (after["clip_norm"] >= SMALLEST_CLIP_NORM * 0.999).all()
        assert (after["clip_norm"] <= LARGEST_CLIP_NORM * 1.001).all()
        for pair in strategy.coordinates(tensors(after), groups) or []:
            centre, scale = map(ops.convert_to_numpy, pair)
            assert np.isfinite(centre).all()
            assert (scale > 0.0).all()


def test_a_strategy_tells_what_is_paid_for_its_statistics():
    bits = ka.clipping.QuantileClipping(count_noise_stddev=4.0, groups="per_layer")
    price = "1.6% more noise, the price of 2 private statistics with noise of standard deviation 4"
    assert bits.describe(1.0, 5.0, 2) == (
        f"QuantileClipping: noise multiplier z = 1, of the sum z_D = 1.016 ({price}); 2 groups, "
        "noise allocation 'global'"
    )
    free = ka.clipping.SlaClip(num_slots=9).describe(1.0, 5.0)
    assert free.endswith("of the sum z_D = 1; 2 private statistics at no cost")


@pytest.mark.parametrize(
    ("identifier", "name"),
    [
        (np.float32(0.5), "FixedClipping"),
        ("quantile", "QuantileClipping"),
        ("automatic", "AutomaticClipping"),
        (ka.schedules.LinearDecay(1.0, 10), "ScheduledClipping"),
        (keras.optimizers.schedules.CosineDecay(1.0, 10), "ScheduledClipping"),
        (keras.saving.serialize_keras_object(ka.schedules.PowerDecay(1.0)), "ScheduledClipping"),
    ],
)
def test_numbers_names_and_schedules_are_strategies(identifier, name):
    assert type(ka.clipping.get(identifier)).__name__ == name


class Pooled(ka.clipping.FixedClipping):
    """Clips each contribution to the mean norm of the batch."""

    def clip_factors(self, state, norms):
        return ops.mean(norms, axis=0) / ops.maximum(norms, 1e-6)


class Ranked(ka.clipping.QuantileClipping):
    """Its bits tell who is below the mean of the batch, ten times as loud as is paid for."""

    def statistics(self, state, norms, finite):
        return 10.0 * ops.sign(norms - ops.mean(norms) - 0.1)


class Loud(ka.clipping.SlaClip):
    """Its slots are longer than contributions leave room for."""

    def statistics(self, state, norms, finite):
        return ops.ones((ops.shape(norms)[0], 2))


def replaced():
    strategy = ka.clipping.FixedClipping(2.0)
    strategy.clip_factors = lambda state, norms: ops.mean(norms, axis=0) / norms
    return strategy


@pytest.mark.parametrize(
    "strategy",
    [Pooled(2.0), Ranked(initial_clip_norm=2.0), Loud(2.0), replaced()],
    ids=lambda strategy: str(strategy)[:6],
)
def test_a_users_strategy_sees_one_unit_at_a_time_and_adds_what_is_paid_for(strategy):
    """Contribution over `clip_norm`, and statistics over what is paid for: at most 1 each."""
    groups = ParameterGroups.single([(4,)])
    clipper = Clipper(strategy, groups, tensors(strategy.initial_state(groups)))
    norms = np.array([0.5, 1.0, 1.5, 2.0, 4.0, 50.0], np.float32)[:, None]

    def sums(present):
        there = ops.where(present[:, None], norms, 0.0)
        factors = clipper.factors(there, present)
        contributions = ops.sum(factors * there) / 2.0
        statistics = clipper.summed_statistics(there, present, present, factors)
        return np.array([contributions, *ops.convert_to_numpy(statistics)], np.float64)

    everyone = sums(ops.ones((6,), "bool"))
    for absent in range(6):
        moved = everyone - sums(ops.arange(6) != absent)
        if strategy.statistics_fit_the_norm:
            moved = [np.linalg.norm(moved)]
        elif strategy.statistic_bound is not None:
            moved[1:] /= strategy.statistic_bound
        assert np.max(np.abs(moved)) <= 1.0001


class Remembering(ka.clipping.FixedClipping):
    """Its factors change their sign behind a unit with a large norm."""

    sign = 1.0

    def clip_factors(self, state, norms):
        factors = self.sign * super().clip_factors(state, norms)
        self.sign = -1.0 if float(ops.max(norms)) > 40.0 else self.sign
        return factors


def test_a_users_strategy_carries_nothing_from_one_unit_to_the_next():
    groups = ParameterGroups.single([(4,)])
    strategy = Remembering(2.0)
    clipper = Clipper(strategy, groups, tensors(strategy.initial_state(groups)))
    norms = ops.convert_to_tensor(np.array([[50.0], [1.0]], np.float32))
    # JAX and TensorFlow say by themselves that a tensor is no number yet.
    with pytest.raises((ValueError, TypeError)):
        clipper.factors(norms, ops.ones((2,), "bool"))
    assert strategy.sign == 1.0


@pytest.mark.parametrize("method", ["clip_factors", "statistics"])
def test_further_axes_are_refused(method):
    """Each of their numbers would be released, and one is paid for."""
    strategy = ka.clipping.QuantileClipping(initial_clip_norm=2.0)
    setattr(strategy, method, lambda state, norms, *_: ops.ones((1, 1, 100)))
    groups = ParameterGroups.single([(4,)])
    clipper = Clipper(strategy, groups, tensors(strategy.initial_state(groups)))
    norms, present = ops.ones((3, 1)), ops.ones((3,), "bool")
    with pytest.raises(ValueError, match=f"{method}` must return a tensor of shape"):
        clipper.summed_statistics(norms, present, present, clipper.factors(norms, present))
