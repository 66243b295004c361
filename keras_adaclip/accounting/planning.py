"""A training run planned: the quantity that is left out, and the noise beside the signal.

    epsilon(noise multiplier, delta; batch size, epochs, number of examples) = target

Epsilon grows with the epochs and falls with the noise. It also grows with the batch size, but not
strictly: an epoch has a whole number of steps, and with so little noise that epsilon is in the
tens, a batch of all examples costs less than many samples.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from keras_adaclip.accounting import _validation, events
from keras_adaclip.accounting.accountants import composed_epsilon, rough_epsilon
from keras_adaclip.accounting.calibrate import (
    calibrate_noise_multiplier,
    greatest,
    largest_within,
)
from keras_adaclip.accounting.epsilon import rounded_up
from keras_adaclip.accounting.events import CountedEvents

_MOST_EPOCHS = 1_000_000
_SAMPLINGS_IN_WORDS = {
    "shuffle": "shuffled passes, no amplification",
    "stream": "unknown, an example may be in every batch, no amplification",
    "fixed": "batches of fixed size without replacement, one example replaced",
}


@dataclasses.dataclass(frozen=True)
class PrivacyPlan:
    """A run and its privacy. `str()` of it is a table.

    Args:
        epsilon: epsilon of the run, an upper bound.
        delta: the delta of this epsilon.
        num_examples: number of units in the data.
        batch_size: expected number of units a step.
        epochs: passes over the data.
        noise_multiplier: standard deviation of the noise over the clipping norm.
        sampling: `"poisson"`, `"shuffle"`, `"stream"` or `"fixed"`.
        accountant: the accountant that was used.
        solved_for: the argument of `plan` that was left out.
        num_parameters: number of trainable parameters; None if it was not given.
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

    def to_dict(self) -> dict[str, Any]:
        """All quantities, including those that follow from others."""
        derived = ("steps", "sampling_probability", "noise_stddev", "noise_norm")
        return {**dataclasses.asdict(self), **{name: getattr(self, name) for name in derived}}

    def __str__(self) -> str:
        noise = self.noise_multiplier
        is_solved = self.solved_for == "noise_multiplier"
        sampling = _SAMPLINGS_IN_WORDS.get(
            self.sampling,
            f"poisson, each example with probability {self.sampling_probability:.3%} a step",
        )
        rows = [
            ("epsilon", f"{rounded_up(self.epsilon)} ({self.accountant.upper()})"),
            ("delta", f"{self.delta:.9g}"),
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
    target_epsilon: float | None = None,
    batch_size: int | None = None,
    epochs: int | None = None,
    noise_multiplier: float | None = None,
    sampling: str = "poisson",
    accountant: str = "pld",
    num_parameters: int | None = None,
) -> PrivacyPlan:
    """Plans a run: leave out one of budget, batch size, epochs and noise, and it is solved for.

    Args:
        delta: Delta, between 0 and 1, well below `1 / num_examples`.
        num_examples: Number of units (examples or clients) in the data.
        target_epsilon: The budget, positive.
        batch_size: Expected number of units a step.
        epochs: Number of epochs, of `ceil(num_examples / batch_size)` steps each.
        noise_multiplier: Standard deviation of the noise over the clipping norm.
        sampling: `"poisson"`, `"shuffle"`, `"stream"` or `"fixed"`, as in `compute_epsilon`.
        accountant: `"pld"` or `"rdp"`. RDP is always used for `"fixed"`.
        num_parameters: Number of trainable parameters, to compare the norms of noise and signal.

    Returns:
        The plan, within the budget: the least noise (to within 0.1% of epsilon), the most epochs
        (up to a million), or the largest batch that bisection finds. A larger batch may be within
        the budget too, since epsilon is not strictly monotone in the batch size. `print` the plan.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range, not exactly one of the four is left out,
            nothing reaches the target, or the batch size is left out with a sampling that does not
            amplify.

    Example:

    >>> print(plan(target_epsilon=3.0, delta=1e-5, num_examples=60_000, batch_size=1024, epochs=40))
    epsilon                            3 (PLD)
    delta                              1e-05
    examples                           60,000
    batch size                         1,024 expected
    epochs                             40 of 59 steps
    noise multiplier                   1.3684  <- solved for
    sampling                           poisson, each example with probability 1.707% a step
    noise in a coordinate of the mean  0.00134 C
    mean of clipped gradients, norm    at most C
    C is the clipping norm; the noise is Gaussian.
    """
    delta = _validation.check_delta(delta)
    num_examples = _validation.check_integer(num_examples, "num_examples", minimum=1)
    sampling = _validation.check_sampling_name(sampling)
    accountant = _validation.check_accountant(accountant)
    if sampling == "fixed":
        accountant = "rdp"
    if num_parameters is not None:
        num_parameters = _validation.check_integer(num_parameters, "num_parameters", minimum=1)
    quantities = {
        "target_epsilon": target_epsilon,
        "batch_size": batch_size,
        "epochs": epochs,
        "noise_multiplier": noise_multiplier,
    }
    run, missing = _checked(quantities, num_examples, sampling)

    def planned(**changed: Any) -> CountedEvents:
        values = {**run, **changed}
        steps = _validation.check_num_steps(
            values["epochs"], None, steps_per_epoch=math.ceil(num_examples / values["batch_size"])
        )
        return events.planned_events(
            values["noise_multiplier"], num_examples, values["batch_size"], steps, sampling
        )

    def epsilon(**changed: Any) -> float:
        return composed_epsilon(planned(**changed), delta, accountant)

    def largest(most: int) -> int:
        """The largest value of the missing quantity within the budget."""
        target = run["target_epsilon"]
        guess = greatest(lambda n: rough_epsilon(planned(**{missing: n}), delta) <= target, most)
        found = largest_within(lambda n: epsilon(**{missing: n}) if n else 0.0, target, most, guess)
        if found == 0:
            received = ", ".join(f"{name}={value}" for name, value in run.items())
            raise ValueError(
                f"No `{missing}` reaches the target epsilon: with {missing}=1 epsilon is "
                f"{epsilon(**{missing: 1}):.4g}. Use more noise, or a larger target. "
                f"Received: {received}, delta={delta}, num_examples={num_examples}"
            )
        return found

    if missing == "noise_multiplier":
        options = {"epochs": run["epochs"], "sampling": sampling, "accountant": accountant}
        run[missing] = calibrate_noise_multiplier(
            run["target_epsilon"], delta, num_examples, run["batch_size"], **options
        )
    else:  # Calibration warns by itself.
        _validation.warn_of_large_delta(delta, num_examples)
    if missing == "epochs":
        steps_per_epoch = math.ceil(num_examples / run["batch_size"])
        run[missing] = largest(min(_MOST_EPOCHS, _validation.INT32_MAX // steps_per_epoch))
    elif missing == "batch_size":
        run[missing] = largest(num_examples)
    return PrivacyPlan(
        epsilon=epsilon(),
        delta=delta,
        num_examples=num_examples,
        batch_size=run["batch_size"],
        epochs=run["epochs"],
        noise_multiplier=run["noise_multiplier"],
        sampling=sampling,
        accountant=accountant,
        solved_for=missing,
        num_parameters=num_parameters,
    )


def _checked(run: dict[str, Any], num_examples: int, sampling: str) -> tuple[dict[str, Any], str]:
    """The quantities that are given, each of the right type and in range, and the missing one."""
    missing = [name for name, value in run.items() if value is None]
    if len(missing) != 1:
        raise ValueError(
            f"Exactly one of {', '.join(f'`{name}`' for name in run)} must be left out, to be "
            f"solved for. Received: {', '.join(missing) or 'none'} left out"
        )
    if missing == ["batch_size"] and sampling in ("shuffle", "stream"):
        raise ValueError(
            "`batch_size` can only be solved for if sampling amplifies privacy: with "
            f"sampling={sampling!r}, a smaller batch has no smaller epsilon. Leave out another "
            'argument, or use sampling="poisson".'
        )
    checks: dict[str, Callable[[Any], Any]] = {
        "target_epsilon": _validation.check_target_epsilon,
        "batch_size": lambda size: _validation.check_batch(num_examples, size)[1],
        "epochs": lambda epochs: _validation.check_integer(epochs, "epochs", minimum=1),
        "noise_multiplier": _validation.check_noise_multiplier,
    }
    run = {name: None if name in missing else checks[name](value) for name, value in run.items()}
    if run["noise_multiplier"] == 0 and run["target_epsilon"] is not None:
        raise ValueError(
            "Argument `noise_multiplier` must be positive for a finite `target_epsilon`. "
            "Received: noise_multiplier=0"
        )
    return run, missing[0]
