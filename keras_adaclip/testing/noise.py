"""A thousand draws of an optimizer's noise against the Gaussian that the ledger counts."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend
from keras_adaclip.accounting import Sampling
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients import ClippedSum
from keras_adaclip.models import PrivateSequential
from keras_adaclip.optimizers import DPOptimizer, RunSettings
from keras_adaclip.testing.comparing import array, require

_NUM_DRAWS, _UNITS, _FALSE_ALARM = 1000, 10_000, 1e-6


def assert_noise(optimizer: DPOptimizer) -> None:
    """Assert that the noise of a private optimizer is what the ledger counts, and never repeats.

    A new optimizer with the same arguments draws 500 times for sums, remainders and statistics that
    are known, and another one 500 times. Tested are the price of a contribution at the noise
    multiplier of the ledger, standard deviation and mean of each variable and statistic, the shape
    of the Gaussian, and the correlation between all draws, coordinates and variables. All tests
    together raise a false alarm less than once in a million times.

    Args:
        optimizer: A private optimizer, whose model has at most a few thousand weights. A
            planned noise multiplier that is not known yet, and one of 0, is taken as 1. In the
            place of an `AutoDPOptimizer`, a `DPOptimizer` with its clipping strategy is tested.

    Raises:
        AssertionError: If the noise is too small, has another distribution than it says, or
            repeats.

    Example:

    >>> from keras_adaclip.optimizers import DPOptimizer
    >>> assert_noise(DPOptimizer("sgd", clipping=1.0, noise_multiplier=1.1))
    """
    from scipy import stats

    given = optimizer._model and optimizer._model()
    layers = [keras.Input((5,)), keras.layers.Dense(4), keras.layers.Dense(3)]
    model = given if given is not None and given.built else PrivateSequential(layers)
    names = [*(variable.path for variable in model.trainable_variables), "statistics"]
    halves = [
        _draws(_copy(optimizer, seed), model, sign)
        for seed, sign in ((optimizer.seed, 1.0), (None, -1.0))
    ]
    draws = [np.concatenate(parts) for parts in zip(*halves, strict=True)]
    numbers = np.concatenate(draws, axis=1)
    sequence = numbers.ravel()
    level = _FALSE_ALARM / (2 * len(draws) + 2)
    for name, part in zip(names, draws, strict=True):
        if part.size:
            spread, mean = float(np.sum(np.square(part))), float(part.mean())
            chance = min(stats.chi2.cdf(spread, part.size), stats.chi2.sf(spread, part.size))
            _require(chance > level / 2, name, "standard deviation", math.sqrt(spread / part.size))
            chance = 2 * stats.norm.sf(abs(mean) * math.sqrt(part.size))
            _require(chance > level, name, "mean", mean)
    name = "all variables"
    distance = stats.kstest(sequence, "norm")
    _require(distance.pvalue > level, name, "distance from a Gaussian", distance.statistic)
    # All numbers against all that lie further on by as many places, for each number of places.
    power = np.square(np.abs(np.fft.rfft(sequence)))
    products = np.fft.irfft(power, sequence.size)[1 : sequence.size // 2 + 1]
    lag = int(np.argmax(np.abs(products)))
    chance = 2 * len(products) * stats.norm.sf(abs(products[lag]) / math.sqrt(sequence.size))
    what = f"correlation of numbers {lag + 1} places apart ({numbers.shape[1]} in a step)"
    _require(chance > level, name, what, products[lag] / sequence.size)


def _copy(optimizer: DPOptimizer, seed: int | None) -> DPOptimizer:
    """Return a new optimizer with the same arguments, except for the inner optimizer."""
    noise = optimizer.noise_multiplier or 1.0
    if "noise_multiplier" in (config := optimizer.get_config()):
        new = {"noise_multiplier": noise, "target_epsilon": None, "delta": None, "seed": seed}
        kinds = map(type, (optimizer.clipping, optimizer.inner_optimizer))
        with keras.saving.custom_object_scope({kind.__name__: kind for kind in kinds}):
            copy = type(optimizer).from_config({**config, **new})
    else:  # An `AutoDPOptimizer`.
        copy = DPOptimizer("sgd", optimizer.clipping, noise_multiplier=noise, seed=seed)
    copy.inner_optimizer = keras.optimizers.SGD(0.0)
    return copy


def _draws(optimizer: DPOptimizer, model: keras.Model, sign: float) -> list[np.ndarray]:
    """Return half of the draws, by variable and of the statistics, over their stated deviation.

    Args:
        optimizer: A new optimizer.
        model: A model with known variables.
        sign: The sign of the sums of statistics, which are as large as half of the units allow.
    """
    variables, half = model.trainable_variables, _NUM_DRAWS // 2
    optimizer.mark_for_private_model(model)
    optimizer.build(variables)
    row = optimizer.configure(RunSettings(Sampling.STREAM, _UNITS, _UNITS, steps_per_epoch=half))
    clipping = optimizer.current_clipping
    strategy, groups, number = clipping.strategy, clipping.groups, clipping.num_statistics
    noise, bound = row.noise_multiplier, strategy.statistic_bound or 0.0
    _, of_statistics = strategy.noise_split(noise, _UNITS, groups.num_groups)
    is_paid = number and not strategy.statistics_fit_the_norm
    share = math.sqrt(number) * bound / of_statistics if is_paid else 0.0
    # Half of each sum is what float32 has lost of it.
    part, of_number = float(np.max(array(clipping.state["clip_norm"]))), sign * bound * _UNITS / 4
    sums = [ops.full((number,), of_number), *(ops.full(each.shape, part) for each in variables)]
    known = ClippedSum(sums[1:], sums[0], remainders=sums)
    # Each step begins with the clipping norms of the first one, and with the counters of the last.
    fixed = {id(variable) for variable in optimizer._clip.variables}
    moving = [variable for variable in optimizer.variables if id(variable) not in fixed]
    applied: list[Any] = []
    record = (optimizer.inner_optimizer, "apply", lambda found, _: applied.append(found))

    def step(_: Any, values: Any) -> Any:
        """Return what a step releases and applies, with its clipping norms; the next values."""
        with keras_private.NestedScope(list(zip(moving, values, strict=True))) as scope:
            state = dict(optimizer.current_clipping.state)
            release = optimizer.apply(known, variables)
            after = [scope.get_current_value(each) for each in moving]
            sent = strategy.gradients(state, release.means)
        figures = release.means, release.mean_stddevs, release.statistics, state["clip_norm"]
        return [*figures, sent, applied.pop()], after

    drawn, run = [], backend.Evaluator(step, model)
    values = [backend.array_of(each) for each in moving]
    with keras_private.replaced_attributes([record]):
        for _ in range(half):
            (means, stddevs, statistics, clip_norms, sent, updates), values = run([], values)
            for variable, one, other in zip(variables, sent, updates, strict=True):
                gap = np.max(np.abs(one - other)) / np.max(np.abs(one))
                _require(gap <= 1e-5, variable.path, "what is lost before it is applied", gap)
            of_groups = dict(zip(groups.assignment, stddevs, strict=True))
            shares = [clip_norms[each] / (_UNITS * of_groups[each]) for each in of_groups]
            price = math.hypot(share, *shares) * noise
            # The noise is wider by a thousandth, for the rounding of float32.
            _require(price <= 0.9995, "all variables", "price of a contribution", price)
            pairs = zip(means, stddevs, strict=True)
            parts = [(array(mean) - 2 * part / _UNITS) / stddev for mean, stddev in pairs]
            drawn.append([*parts, (array(statistics) - 2 * of_number) / (of_statistics or 1.0)])
    key = backend.array_of(optimizer.secret_variables[0]).copy()
    optimizer.end_run()
    is_new = not np.array_equal(key, backend.array_of(optimizer.secret_variables[0]))
    _require(is_new, "the next run", "number of keys", 1)
    return [np.stack(parts).reshape(half, -1) for parts in zip(*drawn, strict=True)]


def _require(is_sound: Any, name: str, what: str, figure: float) -> None:
    """Raise an `AssertionError` about the noise of a variable."""
    require(is_sound, f"Noise of {name!r}, in units of what the ledger says: {what} {figure:.6g}.")
