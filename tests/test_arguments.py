"""One table of arguments that are refused where they are given, before any model or data."""

import dataclasses
import functools
import math

import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip import accounting, clipping, schedules
from keras_adaclip.accounting import Sampling, Unit
from keras_adaclip.activations import TemperedSigmoid
from keras_adaclip.audit import Canaries, OneRunAudit, epsilon_lower_bound

NUMBERS = np.zeros((300, 4), np.float32)
DPOptimizer = functools.partial(ka.optimizers.DPOptimizer, optimizer="sgd", noise_multiplier=1.0)
AutoDPOptimizer = functools.partial(ka.optimizers.AutoDPOptimizer, target_epsilon=1.0)
PLAN = {"noise_multiplier": 1.0, "num_examples": 1000, "batch_size": 10, "steps": 10}
compute_epsilon = functools.partial(accounting.compute_epsilon, **PLAN, delta=1e-5)
CALIBRATED = {"target_epsilon": 1.0, "delta": 1e-5, "num_examples": 1000, "batch_size": 10}
calibrate = functools.partial(accounting.calibrate_noise_multiplier, **CALIBRATED, steps=10)
RUN = {"delta": 1e-5, "num_examples": 6_000, "batch_size": 256, "target_epsilon": 3.0}
plan = functools.partial(accounting.plan, **RUN, noise_multiplier=1.2)
ROW = accounting.LedgerRow.open(Sampling.POISSON, 256, 60_000, 1.0)
OTHERS = accounting.LedgerRow.open(Sampling.POISSON, 10, 1000, 1.0, unit=Unit.CLIENT).advance(1)
MIXED = accounting.Ledger((ROW.advance(1),)), accounting.Ledger((OTHERS,))
LINEAR, EXPONENTIAL = schedules.LinearDecay, schedules.ExponentialDecay
draw = functools.partial(Canaries.draw, NUMBERS, num_canaries=10)
from_scores = functools.partial(OneRunAudit.from_scores, delta=0.0)
row = functools.partial(dataclasses.replace, ROW)
QUANTILE, MEAN_NORM = clipping.QuantileClipping, clipping.MeanNormClipping
ERROR, ADACLIP = clipping.ExpectedErrorClipping, clipping.AdaClip
FIXED, SIGMOID, TRUNCATED = clipping.FixedClipping, TemperedSigmoid, Sampling.TRUNCATED_POISSON
# Arguments that are clipping norms.
CLIP_NORMS = [(FIXED, "clip_norm"), (clipping.AutomaticClipping, "stabilizer")]
CLIP_NORMS += [(clipping.PSAC, "stabilizer"), (clipping.SlaClip, "initial_clip_norm")]
CLIP_NORMS += [(strategy, "initial_clip_norm") for strategy in (QUANTILE, MEAN_NORM, ERROR)]
# Numbers that are none, and what is said of them.
NO_NORMS = [(number, "lie between 1e-10") for number in (0.0, 1e-30, 1e30)]
NO_NORMS += [(number, "be a number") for number in (True, np.array(1.0))]
# What pays for statistics.
STDDEVS = [(QUANTILE, "count"), (MEAN_NORM, "mean"), (ERROR, "excess")]

# What is called, with which arguments, and what is said.
REFUSED = [
    (DPOptimizer, {"noise_multiplier": -0.1}, "`noise_multiplier` must not be negative"),
    (DPOptimizer, {"noise_multiplier": 1e16}, r"`noise_multiplier` must be at most 1e\+15"),
    (DPOptimizer, {"noise_multiplier": "1"}, "`noise_multiplier` must be a number"),
    (DPOptimizer, {"microbatch_size": 0}, "`microbatch_size` must be at least 1"),
    (DPOptimizer, {"seed": -1}, "`seed` must be at least 0"),
    (DPOptimizer, {"memory_limit": 10}, "`memory_limit` belongs to"),
    (DPOptimizer, {"gradient_method": "guess"}, "`gradient_method` must be one of"),
    (DPOptimizer, {"clipping": "median"}, "must be a clipping strategy"),
    (DPOptimizer, {"optimizer": "no_such_optimizer"}, "no_such_optimizer"),
    (setattr, (DPOptimizer(), "noise_multiplier", -1.0), "must not be negative"),
    (AutoDPOptimizer, {"target_epsilon": 0}, "`target_epsilon` must be positive"),
    (AutoDPOptimizer, {"delta": 1.0}, "`delta`"),
    (AutoDPOptimizer, {"plan": 3}, "`plan` must be a dict"),
    (AutoDPOptimizer, {"plan": {"norm": 1.0}}, "unknown parts: norm"),
    (AutoDPOptimizer, {"plan": {"batch_size": 0}}, "batch_size"),
    (AutoDPOptimizer, {"plan": {"noise_walk": -1}}, "`noise_walk` must not be negative"),
    (AutoDPOptimizer, {"plan": {"noise_multiplier": -1}}, "must not be negative"),
    (AutoDPOptimizer, {"plan": {"noise_multiplier": 0}}, "must be positive"),
    (AutoDPOptimizer, {"plan": {"noise_walk": 1.0}, "optimizer": "sgd"}, "another `optimizer`"),
    (AutoDPOptimizer, {"pretrained": True, "optimizer": "sgd"}, "another `optimizer` was"),
    (AutoDPOptimizer, {"pretrained": 1}, "`pretrained` must be a bool"),
    (setattr, (AutoDPOptimizer(), "noise_multiplier", 0.1), "noise_multiplier"),
    (ka.callbacks.PrivacyCallback, {"delta": 1.0}, "delta"),
    (ka.callbacks.PrivacyCallback, {"target_epsilon": 0.0}, "target_epsilon"),
    (ka.callbacks.PrivacyCallback, {"accountant": "moments"}, "accountant"),
    *(
        (strategy, {name: value}, f"`{name}` must {words}")
        for strategy, name in CLIP_NORMS
        for value, words in NO_NORMS
    ),
    *(
        (strategy(**{f"{name}_noise_stddev": given}).noise_split, (1.0, units), "must have a stand")
        for strategy, name in STDDEVS
        for given, units in ((0.5, 100), (None, 10))
    ),
    (FIXED, {"clip_norm": 1.0, "groups": "per-layer"}, "`groups` must be one of"),
    (FIXED, {"clip_norm": 1.0, "noise_allocation": "even"}, "`noise_allocation` must be one of"),
    (clipping.get, ("median",), "must be a clipping strategy .* clipping='median'"),
    (clipping.get, (None,), "must be a clipping strategy .* clipping=None"),
    (clipping.get, (True,), "must be a clipping strategy .* clipping=True"),
    (QUANTILE, {"target_quantile": 1.5}, "must lie between 0 and 1"),
    (QUANTILE, {"target_quantile": float("nan")}, "must be finite"),
    (QUANTILE, {"learning_rate": 0.0}, "must be positive"),
    (QUANTILE, {"update": "cubic"}, "must be one of 'geometric', 'linear'"),
    (QUANTILE, {"min_clip_norm": 0.2}, "must lie between `min_clip_norm` and"),
    (MEAN_NORM, {"factor": 0.0}, "must be positive"),
    (MEAN_NORM, {"norm_bound_factor": 1.0}, "must be above 1"),
    (ERROR, {"learning_rate": -1.0}, "must be positive"),
    (ERROR, {"excess_noise_stddev": 0.0}, "must be positive"),
    (clipping.SlaClip, {"num_slots": 1}, "num_slots"),
    (ADACLIP, {"beta1": 1.0}, "`beta1` must be at least 0 and below 1"),
    (ADACLIP, {"beta2": None}, "`beta2` must be a number"),
    (ADACLIP, {"min_variance": 1e-30}, "`min_variance` must lie between"),
    (ADACLIP, {"max_variance": 1e-13}, "`min_variance` must not be above"),
    (SIGMOID, {"scale": 0.0}, r"`scale` must be positive\. Received: scale=0\.0"),
    (SIGMOID, {"inverse_temperature": -1}, "`inverse_temperature` must be positive"),
    (SIGMOID, {"offset": float("nan")}, "`offset` must be finite"),
    (LINEAR, (0.0, 10), "`initial_value` must lie between 1e-30"),
    (LINEAR, (float("nan"), 10), "`initial_value` must be finite"),
    (LINEAR, (True, 10), "`initial_value` must be a number"),
    (LINEAR, (1.0, 0), "`total_steps` must be at least 1"),
    (EXPONENTIAL, (1.0, -1.0, 10), "`decay_rate` must lie between"),
    (schedules.PowerDecay, (1.0, 10.1), "`power` must lie between 0 and 10"),
    (schedules.PiecewiseConstant, ([1.0, 0.0],), "`values` must lie between"),
    (schedules.PiecewiseConstant, ([],), "`values` must hold at least one value"),
    (schedules.PiecewiseConstant, ("12",), "`values` must be a sequence of numbers"),
    (schedules.PiecewiseConstant, ([1.0], 0), "`steps_per_epoch` must be at least 1"),
    (schedules.KerasSchedule, (LINEAR(1.0, 10),), "`keras.optimizers.schedules"),
    (schedules.get, ("linear",), "`schedule` must be a schedule"),
    (LINEAR(1.0, 10).scaled, (0.0,), "`factor` must lie between"),
    (compute_epsilon, {"noise_multiplier": -0.1}, "`noise_multiplier` must not be negative"),
    (compute_epsilon, {"noise_multiplier": float("nan")}, "`noise_multiplier` must be finite"),
    (compute_epsilon, {"num_examples": 1000.0}, "`num_examples` must be an integer"),
    (compute_epsilon, {"batch_size": 1001}, "`batch_size` must lie between 1 and 1000"),
    (compute_epsilon, {"steps": -1}, "`steps` must be at least 0"),
    (compute_epsilon, {"steps": None}, "Exactly one of the arguments `epochs` and `steps`"),
    (compute_epsilon, {"epochs": 1}, "Exactly one of the arguments `epochs` and `steps`"),
    (compute_epsilon, {"delta": 1}, "`delta` must lie strictly between 0 and 1"),
    (compute_epsilon, {"sampling": "random"}, "one of 'poisson', 'shuffle', 'stream', 'fixed'"),
    (compute_epsilon, {"accountant": "prv"}, "`accountant` must be one of 'pld', 'rdp'"),
    (calibrate, {"target_epsilon": 0.0}, "`target_epsilon` must be"),
    (calibrate, {"steps": 0}, "Argument `steps` must be at least 1"),
    (accounting.max_steps_within, ([], ROW, 1e-5, False), "`target_epsilon` must be"),
    (accounting.max_steps_within, ([], ROW, 1e-5, 0.0), "`target_epsilon` must be"),
    (accounting.default_delta, (1,), "`num_examples` must be at least 2"),
    (plan, {"epochs": 3}, "Exactly one of `target_epsilon`, `epochs` and .*: none left out"),
    (plan, {"noise_multiplier": None}, "one of .*: `epochs`, `noise_multiplier` left out"),
    (plan, {"noise_multiplier": 0.0}, "one epoch has epsilon inf"),
    (plan, {"noise_multiplier": 0.02}, "No `epochs` reaches the target epsilon"),
    (plan, {"batch_size": 7_000}, "`batch_size` must lie between 1 and 6000"),
    (plan, {"num_parameters": 0}, "`num_parameters` must be at least 1"),
    (row, {"sampling": 0}, "0 is not a valid Sampling"),
    (row, {"expected_batch_size": 60_001}, "`expected_batch_size` must not exceed `num_ex"),
    (row, {"num_examples": 0}, "`num_examples` must be known for sampling='poisson'"),
    (row, {"steps": 3, "releases": 4}, "`releases` must lie between 1 and `steps`"),
    (row, {"steps": 3, "releases": 0}, "`releases` must lie between 1 and `steps`"),
    (row, {"free_steps": 1}, "`free_steps` must be below the number of steps of a release"),
    (row, {"max_batch_size": 300}, "`max_batch_size` must be 0 for sampling='poisson'"),
    (row, {"sampling": TRUNCATED}, "`max_batch_size` must be at least `expec"),
    (row, {"sampling": TRUNCATED, "max_batch_size": 60_000}, "below `num_examples`"),
    (row, {"noise_multiplier": 1e39}, "`noise_multiplier` must fit float32"),
    (ROW.advance(2**31 - 1).advance, (1,), "`steps` must lie between 0 and 2147483647"),
    (accounting.gaussian_mu, (-1.0, 1e-5), "`epsilon` must not be negative"),
    (accounting.RandomSelection, (1,), "must be above 1 with the geometric law"),
    (accounting.RandomSelection, (0.5, "poisson"), "must be at least 1"),
    (accounting.RandomSelection, (math.inf,), "mean_trials"),
    (accounting.RandomSelection, (10, "uniform"), "'geometric', 'logarithmic', 'poisson'"),
    (accounting.RunBounds, ((),), "at least one `Ledger`"),
    (accounting.RunBounds, (MIXED,), "cannot hold steps about"),
    (draw, {"kind": "mislabeled"}, "need targets"),
    (draw, {"num_canaries": 301}, "num_canaries"),
    (draw, {"num_canaries": 1}, "num_canaries"),
    (draw, {"kind": "dirac"}, "kind='dirac'"),
    (draw, {"y": np.zeros(299)}, "same number of rows"),
    (Canaries, (NUMBERS, None, [0, 0], [True, False]), "none twice, and `is_member` a bool"),
    (epsilon_lower_bound, (0, 1, 1), "num_canaries"),
    (epsilon_lower_bound, (10, 11, 1), "num_guesses"),
    (epsilon_lower_bound, (10, 5, 6), "num_correct"),
    (epsilon_lower_bound, (10, 5, 5, -0.1), "delta"),
    (epsilon_lower_bound, (10, 5, 5, 0.0, 1.0), "confidence"),
    (from_scores, ([1.0, 2.0], [1, 0]), "one number and one truth value"),
    (functools.partial(from_scores, num_guesses=3), ([1.0, 2.0], [True, False]), "num_guesses"),
]


@pytest.mark.parametrize(("function", "arguments", "message"), REFUSED)
def test_arguments_out_of_range_are_refused(function, arguments, message):
    with pytest.raises((ValueError, TypeError, AttributeError), match=message):
        function(**arguments) if isinstance(arguments, dict) else function(*arguments)
