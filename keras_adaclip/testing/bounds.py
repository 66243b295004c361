"""The bounds and the price of a clipping strategy, over norms of all sizes."""

import math
from typing import Any

import numpy as np
from keras import ops

from keras_adaclip.clipping import Clipper, ClippingStrategy, ParameterGroups, Release
from keras_adaclip.testing.comparing import array, require

_NORMS = (0.0, 1e-38, 1e-20, 1e-6, 0.1, 0.5, 0.999, 1.0, 1.001, 2.5, 300.0, 1e6, 1e18)
_RELEASED = (-1e30, -100.0, 0.0, 100.0, 1e30)
_UNITS, _MOST_GROUPS, _ROUNDING = 100.0, 4, 1e-5


def assert_bounded(strategy: ClippingStrategy) -> None:
    """Assert that a clipping strategy bounds every contribution and pays for its statistics.

    Tried for norms from 0 to 1e18, contributions that are not finite, one to four groups, and the
    states that follow releases of any size.

    Args:
        strategy: The clipping strategy.

    Raises:
        AssertionError: If a factor times its norm exceeds the clipping norm, a unit's factor or
            statistics depend on another unit, a statistic exceeds its bound, `noise_split` pays
            for less than a unit adds, a state is not finite, or the strategy raises an error.

    Example:

    >>> from keras_adaclip.clipping import QuantileClipping
    >>> assert_bounded(QuantileClipping())
    """
    tried = 0
    for number in range(1, 2 if strategy.groups == "flat" else 1 + _MOST_GROUPS):
        numbers = tuple(range(number))
        groups = ParameterGroups(tuple(map(str, numbers)), numbers, ((2,),) * number)
        try:
            first = strategy.initial_state(groups)
        except ValueError:  # Its norms are those of another number of groups.
            continue
        tried += 1
        for state in (first, *(_updated(strategy, groups, first, value) for value in _RELEASED)):
            tensors = {name: ops.convert_to_tensor(value) for name, value in state.items()}
            try:
                _check(Clipper(strategy, groups, tensors))
            except AssertionError:
                raise
            except Exception as error:
                raise AssertionError(f"`{type(strategy).__name__}` fails: {error}") from error
    _require(tried, strategy, f"has no state for any of 1 to {_MOST_GROUPS} groups")


def _check(clipper: Clipper) -> None:
    """Compare factors and statistics of units with their bounds, and with what is paid for."""
    strategy, state, number = clipper.strategy, clipper.state, clipper.num_statistics
    clip_norms, fits = array(state["clip_norm"]), strategy.statistics_fit_the_norm
    columns = [
        np.random.default_rng(seed).permutation([*_NORMS, *np.array(_NORMS) * norm])
        for seed, norm in enumerate(clip_norms)
    ]
    together = np.concatenate([np.stack(columns, 1), np.multiply.outer(_NORMS, clip_norms)])
    norms = ops.convert_to_tensor(np.minimum(together, 1e18).astype("float32"))
    there = ops.ones((len(norms),), "bool")

    def used(factors: Any) -> np.ndarray:
        """Return the contributions, in clipping norms."""
        return np.abs(array(factors) * array(norms)) / clip_norms

    raw = used(strategy.clip_factors(state, norms))
    _require(raw.max() <= 1 + _ROUNDING, strategy, f"lets {raw.max():.6g} clipping norms pass")
    factors = clipper.factors(norms, there)
    lengths = used(factors)
    _require(lengths.max() <= 1 + _ROUNDING, strategy, "is not held to the clipping norm")
    absent = array(clipper.factors(norms, ops.logical_not(there)))
    _require(not absent.any(), strategy, "has factors for units that are not finite")
    units = [(norms[row : row + 1], there[:1]) for row in range(len(norms))]
    alone = [clipper.factors(*unit) for unit in units]
    gap = np.abs(used(ops.concatenate(alone)) - lengths).max()
    _require(gap <= _ROUNDING, strategy, f"clips a unit by other units: off by {gap:.3g} norms")
    sizes: Any = 0.0
    if number:
        rows = [
            array(clipper.summed_statistics(*unit, there[:1], own))
            for unit, own in zip(units, alone, strict=True)
        ]
        shown = array(strategy.statistics(state, norms, there))
        bound, most = strategy.statistic_bound or math.inf, np.abs(shown).max()
        _require(most <= bound * (1 + _ROUNDING), strategy, f"has a statistic of {most:.6g}")
        if fits:
            length = np.hypot(np.linalg.norm(shown, axis=1), lengths[:, 0]).max()
            is_short = length <= 1 + _ROUNDING
            _require(is_short, strategy, f"adds {length:.6g} norms with its statistics")
        total = array(clipper.summed_statistics(norms, there, there, factors))
        gap = np.max(np.abs(total - np.sum(rows, axis=0)))
        _require(gap <= 1e-3, strategy, f"has statistics that depend on other units: {gap:.3g}")
        sizes = np.linalg.norm(rows, axis=1) if fits else math.sqrt(number) * bound
    for noise in (0.1, 0.5, 1.0):
        of_sum, of_statistics = strategy.noise_split(noise, _UNITS, clipper.num_groups)
        # All groups are at most at their norm, and the noise of each follows its norm.
        moved = lengths.max(axis=1) if fits else 1.0
        paid = np.hypot(moved / of_sum, sizes / max(of_statistics, 1e-30))
        price = float(np.max(paid)) * noise
        _require(price <= 1 + _ROUNDING, strategy, f"moves by {price:.6g} of what is paid for")


def _updated(
    strategy: ClippingStrategy, groups: ParameterGroups, state: dict[str, Any], value: float
) -> dict[str, np.ndarray]:
    """Return the state that follows a release of equal numbers, which must be finite."""
    tensors = {name: ops.convert_to_tensor(each) for name, each in state.items()}
    number = strategy.num_statistics(groups.num_groups)
    means = [ops.full(shape, value, "float32") for shape in groups.shapes]
    stddev, units = (ops.convert_to_tensor(np.float32(each)) for each in (0.1, _UNITS))
    statistics, step = ops.full((number,), value, "float32"), ops.convert_to_tensor(np.int32(1))
    release = Release(means, [stddev] * len(means), statistics, units, step)
    after = strategy.update(tensors, release)
    after = {name: np.asarray(ops.convert_to_numpy(each)) for name, each in after.items()}
    for name, found in after.items():
        is_sound = np.isfinite(found).all() and (name != "clip_norm" or (found > 0.0).all())
        _require(is_sound, strategy, f"sets {name!r} to {found} after a release of {value:g}")
    return after


def _require(is_sound: Any, strategy: ClippingStrategy, problem: str) -> None:
    """Raise an `AssertionError` about the strategy."""
    require(is_sound, f"`{type(strategy).__name__}` {problem}.")
