"""A training run planned: the quantity that is left out, and the noise beside the signal.

    epsilon(noise multiplier, delta; batch size, epochs, number of examples) = target

Epsilon grows with the epochs and falls with the noise.
"""

import dataclasses
import functools
import math
from typing import Any

from keras_adaclip import _checks
from keras_adaclip.accounting import calibrate
from keras_adaclip.accounting.accountants import composed_epsilon
from keras_adaclip.accounting.epsilon import (
    COARSENESS,
    check_accountant,
    percent,
    rounded_up,
    warn_of_large_delta,
)
from keras_adaclip.accounting.events import CountedEvents, PlannedRun
from keras_adaclip.accounting.kinds import Sampling
from keras_adaclip.accounting.tradeoff import composed_tradeoff

_MOST_EPOCHS = 1_000_000


@dataclasses.dataclass(frozen=True)
class PrivacyPlan:
    """A run and its privacy. `str()` of it is a table.

    Args:
        epsilon: Epsilon of the run, an upper bound.
        delta: The delta of this epsilon.
        num_examples: Number of units in the data.
        batch_size: Expected number of units a step.
        epochs: Passes over the data.
        noise_multiplier: Standard deviation of the noise over the clipping norm.
        sampling: `"poisson"`, `"shuffle"`, `"stream"` or `"fixed"`.
        accountant: The accountant that was used.
        solved_for: The argument of `plan` that was solved for.
        true_positive_rate: The most of the members that an attacker finds, a share.
        false_positive_rate: The share of others whom that attacker takes for members.
        best_guess: The largest probability of a right guess whether one unit was in the data, if
            that is as likely as not.
        num_parameters: Number of trainable parameters; None if it was not given.
    """

    epsilon: float
    delta: float
    num_examples: int
    batch_size: int
    epochs: int
    noise_multiplier: float
    sampling: str
    accountant: str
    solved_for: str
    true_positive_rate: float
    false_positive_rate: float
    best_guess: float
    num_parameters: int | None = None

    @property
    def steps(self) -> int:
        """Steps of all epochs."""
        return self.epochs * math.ceil(self.num_examples / self.batch_size)

    @property
    def sampling_probability(self) -> float:
        """The share of the data that a step is expected to see."""
        return self.batch_size / self.num_examples

    @property
    def noise_stddev(self) -> float:
        """Standard deviation of the noise in a coordinate of the mean gradient.

        In units of the clipping norm, which bounds the norm of the mean of the clipped gradients
        of a batch of expected size.
        """
        return self.noise_multiplier / self.batch_size

    @property
    def noise_norm(self) -> float | None:
        """Expected norm of that noise over all parameters, in units of the clipping norm."""
        if self.num_parameters is None:
            return None
        return self.noise_stddev * math.sqrt(self.num_parameters)

    def __str__(self) -> str:
        noise = self.noise_multiplier
        is_solved = self.solved_for == "noise_multiplier"
        alarms = f"{100 * self.false_positive_rate:.3g}%"
        sampling = Sampling[self.sampling.upper()].describe()
        if self.sampling == "poisson":
            share = f"{self.sampling_probability:.3%}"
            sampling = f"poisson, each example with probability {share} a step"
        rows = [
            ("epsilon", f"{rounded_up(self.epsilon)} ({self.accountant.upper()})"),
            ("delta", f"{self.delta:.9g}"),
            ("an attacker guesses right", f"at most {percent(self.best_guess)}, a coin 50%"),
            (
                f"members found, {alarms} false alarms",
                f"at most {percent(self.true_positive_rate)}",
            ),
            ("examples", f"{self.num_examples:,}"),
            ("batch size", f"{self.batch_size:,} expected"),
            ("epochs", f"{self.epochs:,} of {self.steps // self.epochs:,} steps"),
            # Rounded up, so that a copy of the number stays within the budget.
            ("noise multiplier", rounded_up(noise) if is_solved else f"{noise:.9g}"),
            ("sampling", sampling),
            ("noise in a coordinate of the mean", f"{self.noise_stddev:.3g} C"),
            ("mean of clipped gradients, norm", "at most C"),
        ]
        if self.noise_norm is not None:
            ratio = "inf" if self.noise_norm == 0 else f"{1 / self.noise_norm:.3g}"
            noise_name = f"noise over {self.num_parameters:,} parameters, norm"
            rows.append((noise_name, f"{self.noise_norm:.3g} C"))
            rows.append(("signal over noise, one step, at most", ratio))
        solved = self.solved_for.removeprefix("target_").replace("_", " ")
        width = max(len(name) for name, _ in rows)
        lines = [
            f"{name:<{width}}  {value}{'  <- solved for' if name == solved else ''}"
            for name, value in rows
        ]
        return "\n".join([*lines, "C is the clipping norm; the noise is Gaussian."])


def plan(
    *,
    delta: float,
    num_examples: int,
    batch_size: int,
    target_epsilon: float | None = None,
    max_true_positive_rate: float | None = None,
    at_false_positive_rate: float = 0.01,
    epochs: int | None = None,
    noise_multiplier: float | None = None,
    sampling: str = "poisson",
    accountant: str = "pld",
    num_parameters: int | None = None,
) -> PrivacyPlan:
    """Plan a run: leave out one of budget, epochs and noise, and it is solved for.

    The budget is an epsilon, or the risk of one unit: the share of members that an attacker finds.

    Args:
        delta: Delta, between 0 and 1, well below `1 / num_examples`.
        num_examples: Number of units (examples or clients) in the data.
        batch_size: Expected number of units a step.
        target_epsilon: The budget, positive.
        max_true_positive_rate: The budget as a risk, in the place of `target_epsilon`: the largest
            true positive rate of a test of membership, between `at_false_positive_rate` and 1.
        at_false_positive_rate: The false positive rate of that test, between 0 and 1.
        epochs: Number of epochs, of `ceil(num_examples / batch_size)` steps each.
        noise_multiplier: Standard deviation of the noise over the clipping norm.
        sampling: `"poisson"`, `"shuffle"`, `"stream"` or `"fixed"`, as in `compute_epsilon`.
        accountant: `"pld"` or `"rdp"`. RDP is always used for `"fixed"`.
        num_parameters: Number of trainable parameters, to compare the norms of noise and signal.

    Returns:
        The plan, within the budget: the least noise (to within 0.1% of epsilon), or the most epochs
        (up to a million). `print` it.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range, not exactly one of the three is left out, or
            nothing reaches the target.

    Example:

    >>> print(plan(target_epsilon=3.0, delta=1e-5, num_examples=60_000, batch_size=1024, epochs=40))
    epsilon                            2.9985 (PLD)
    delta                              1e-05
    an attacker guesses right          at most 63.5%, a coin 50%
    members found, 1% false alarms     at most 5.3%
    examples                           60,000
    batch size                         1,024 expected
    epochs                             40 of 59 steps
    noise multiplier                   1.3688  <- solved for
    sampling                           poisson, each example with probability 1.707% a step
    noise in a coordinate of the mean  0.00134 C
    mean of clipped gradients, norm    at most C
    C is the clipping norm; the noise is Gaussian.
    """
    delta = _checks.check_between_0_and_1("delta", delta)
    accountant = check_accountant("rdp" if sampling == "fixed" else accountant)
    if num_parameters is not None:
        num_parameters = _checks.check_integer("num_parameters", num_parameters, minimum=1)
    target: Any = _checks.optional(_checks.check_positive, "target_epsilon", target_epsilon)
    rate = _checks.check_between_0_and_1("at_false_positive_rate", at_false_positive_rate)
    budget, name = "target_epsilon", "epsilon"
    if max_true_positive_rate is not None:
        if target is not None:
            raise ValueError("Give either `target_epsilon` or `max_true_positive_rate`, not both.")
        budget, name = "max_true_positive_rate", "true positive rate"
        target = _checks.check_between_0_and_1(budget, max_true_positive_rate)
        if target <= rate:
            raise ValueError(
                f"Argument `{budget}` must exceed `at_false_positive_rate`: even a blind guess "
                f"finds that share of members. Received: {budget}={target}, "
                f"at_false_positive_rate={rate}"
            )
    given = {"target_epsilon": target, "epochs": epochs, "noise_multiplier": noise_multiplier}
    missing = [each for each, value in given.items() if value is None]
    if len(missing) != 1:
        raise ValueError(
            f"Exactly one of `{budget}`, `epochs` and `noise_multiplier` must be left out, to "
            f"be solved for. Received: {', '.join(f'`{each}`' for each in missing) or 'none'} "
            "left out"
        )

    def events(epochs: Any, noise: Any) -> CountedEvents:
        """Return the events of some epochs with some noise."""
        run = PlannedRun.of(num_examples, batch_size, epochs, None, sampling)
        return run.events(noise)

    def spent(coarseness: int, epochs: Any, noise: Any) -> float:
        """Return what is to stay within the budget, computed on a grid of PLD."""
        if budget == "target_epsilon":
            return composed_epsilon(events(epochs, noise), delta, accountant, coarseness)
        curve = composed_tradeoff(events(epochs, noise), delta, accountant, coarseness)
        return float(curve.true_positive_rate(rate))

    if epochs is not None:
        epochs = _checks.check_integer("epochs", epochs, minimum=1)
    noise: Any = noise_multiplier
    if noise is None and budget == "target_epsilon":  # Calibration warns by itself.
        noise = calibrate.calibrate_noise_multiplier(
            target,
            delta,
            num_examples,
            batch_size,
            epochs=epochs,
            sampling=sampling,
            accountant=accountant,
        )
    else:
        noise = None if noise is None else _checks.check_noise_multiplier(noise)
        events(epochs or 1, 1.0)  # Checks the sizes.
        warn_of_large_delta(delta, num_examples)
    if noise is None:
        for coarseness in (COARSENESS, 1):
            of_noise = functools.partial(spent, coarseness, epochs)
            noise = calibrate.least_noise_multiplier(of_noise, target, noise or 1.0, budget=budget)
    if epochs is None:
        most = min(_MOST_EPOCHS, _checks.INT32_MAX // math.ceil(num_examples / batch_size))
        guess = calibrate.largest_within(lambda n: spent(COARSENESS, n, noise) <= target, most)
        epochs = calibrate.largest_within(lambda n: spent(1, n, noise) <= target, most, guess)
        if epochs == 0:
            raise ValueError(
                f"No `epochs` reaches the target {name}: one epoch has {name} "
                f"{spent(1, 1, noise):.4g}. Use more noise, or a larger target. Received: "
                f"{budget}={target}, noise_multiplier={noise}, delta={delta}"
            )
    curve = composed_tradeoff(events(epochs, noise), delta, accountant)
    return PrivacyPlan(
        epsilon=composed_epsilon(events(epochs, noise), delta, accountant),
        delta=delta,
        num_examples=num_examples,
        batch_size=batch_size,
        epochs=epochs,
        noise_multiplier=noise,
        sampling=sampling,
        accountant=accountant,
        solved_for=missing[0],
        true_positive_rate=curve.true_positive_rate(rate),
        false_positive_rate=rate,
        best_guess=curve.best_guess(),
        num_parameters=num_parameters,
    )
