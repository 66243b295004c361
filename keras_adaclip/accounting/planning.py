"""A training run planned: the quantity that is not given, and the noise beside the signal."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from keras_adaclip.accounting import _validation
from keras_adaclip.accounting.epsilon import effective_accountant, rounded_up
from keras_adaclip.accounting.solving import QUANTITIES, Solver


@dataclasses.dataclass(frozen=True)
class PrivacyPlan:
    """A run and its privacy; `str()` of it is a table.

    Args:
        epsilon: epsilon of the run, an upper bound.
        delta: the delta that it goes with.
        num_examples: number of units in the data.
        batch_size: expected number of units a step.
        epochs: passes over the data.
        noise_multiplier: standard deviation of the noise over the clipping norm.
        sampling: `"poisson"`, `"shuffle"`, `"stream"` or `"fixed"`.
        accountant: the accountant that did the work.
        solved_for: which of these was not given.
        num_parameters: number of trainable parameters, None where it was not given.
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

        In units of the clipping norm, which is the most that the mean of the clipped gradients of
        a batch of expected size can have as its norm.
        """
        return self.noise_multiplier / self.batch_size

    @property
    def noise_norm(self) -> float | None:
        """Expected norm of that noise over all parameters, in units of the clipping norm."""
        if self.num_parameters is None:
            return None
        return self.noise_stddev * math.sqrt(self.num_parameters)

    def to_dict(self) -> dict[str, Any]:
        """All quantities, those that follow from others too."""
        derived = ("steps", "sampling_probability", "noise_stddev", "noise_norm")
        return {**dataclasses.asdict(self), **{name: getattr(self, name) for name in derived}}

    def __str__(self) -> str:
        rows = [
            ("epsilon", f"{rounded_up(self.epsilon)} ({self.accountant.upper()})", "epsilon"),
            ("delta", self._shown("delta"), "delta"),
            ("examples", f"{self.num_examples:,}", "num_examples"),
            ("batch size", f"{self.batch_size:,} expected", "batch_size"),
            ("epochs", f"{self.epochs:,} of {self.steps // self.epochs:,} steps", "epochs"),
            ("noise multiplier", self._shown("noise_multiplier"), "noise_multiplier"),
            ("sampling", self._sampling_in_words(), ""),
            ("noise in a coordinate of the mean", f"{self.noise_stddev:.3g} C", ""),
            ("mean of clipped gradients, norm", "at most C", ""),
        ]
        if self.noise_norm is not None:
            ratio = "inf" if self.noise_norm == 0 else f"{1 / self.noise_norm:.3g}"
            rows += [
                (
                    f"noise over {self.num_parameters:,} parameters, norm",
                    f"{self.noise_norm:.3g} C",
                    "",
                ),
                ("signal over noise, one step, at most", ratio, ""),
            ]
        solved = "epsilon" if self.solved_for == "target_epsilon" else self.solved_for
        width = max(len(name) for name, _, _ in rows)
        lines = [
            f"{name:<{width}}  {value}{'  <- solved for' if key == solved else ''}"
            for name, value, key in rows
        ]
        return "\n".join([*lines, "C is the clipping norm; the noise is Gaussian."])

    def _shown(self, name: str) -> str:
        """As it was given; or as found, where the rounded value must do as well."""
        value = getattr(self, name)
        return rounded_up(value) if name == self.solved_for else f"{value:.9g}"

    def _sampling_in_words(self) -> str:
        if self.sampling == "poisson":
            return f"poisson, each example with probability {self.sampling_probability:.3%} a step"
        return {
            "shuffle": "shuffled passes, no amplification",
            "stream": "unknown, an example may be in every batch, no amplification",
            "fixed": "batches of fixed size without replacement, one example replaced",
        }[self.sampling]


def plan(
    *,
    target_epsilon: float | None = None,
    delta: float | None = None,
    num_examples: int | None = None,
    batch_size: int | None = None,
    epochs: int | None = None,
    noise_multiplier: float | None = None,
    sampling: str = "poisson",
    accountant: str = "pld",
    num_parameters: int | None = None,
) -> PrivacyPlan:
    """Plans a run: give five of the first six arguments, and the sixth is solved for.

    Args:
        target_epsilon: The budget, positive.
        delta: Delta, between 0 and 1, well below `1 / num_examples`.
        num_examples: Number of units (examples or clients) in the data.
        batch_size: Expected number of units a step.
        epochs: Number of epochs, of `ceil(num_examples / batch_size)` steps each.
        noise_multiplier: Standard deviation of the noise over the clipping norm.
        sampling: `"poisson"`, `"shuffle"`, `"stream"` or `"fixed"`, as in `compute_epsilon`.
        accountant: `"pld"` or `"rdp"`; RDP always for `"fixed"`.
        num_parameters: Number of trainable parameters, to set the noise's norm beside the signal's.

    Returns:
        The plan, within the budget: the least noise (to within 0.1% of epsilon), the most epochs,
        the largest batch that bisection finds, the least delta (to within 0.1%), the least number
        of examples that bisection finds to within 0.1%; a million epochs at most. Another batch
        size or number of examples may be within the budget as well, since epsilon is not quite
        monotone in them. `print` it.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range, not just one of six is left out, nothing
            reaches the target, or batch size or number of examples are left out with a sampling
            that does not amplify.

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
    given = dict(
        zip(
            QUANTITIES,
            (target_epsilon, delta, num_examples, batch_size, epochs, noise_multiplier),
            strict=True,
        )
    )
    missing = [name for name, value in given.items() if value is None]
    if len(missing) != 1:
        raise ValueError(
            f"Exactly one of {', '.join(f'`{name}`' for name in QUANTITIES)} must be left out, to "
            f"be solved for. Left out: {', '.join(missing) or 'none'}"
        )
    accountant = effective_accountant(
        _validation.check_sampling_name(sampling), _validation.check_accountant(accountant)
    )
    if missing[0] in ("num_examples", "batch_size") and sampling in ("shuffle", "stream"):
        raise ValueError(
            f"`{missing[0]}` can be solved for where sampling amplifies privacy: with "
            f"sampling={sampling!r} a smaller batch or more data give no smaller epsilon. Leave "
            'out another one, or use sampling="poisson".'
        )
    if num_parameters is not None:
        num_parameters = _validation.check_integer(num_parameters, "num_parameters", minimum=1)
    solver = Solver(_checked(given), sampling, accountant)
    solver.solve(missing[0])
    found = solver.quantities
    if missing[0] != "noise_multiplier":  # Calibration has warned by itself.
        _validation.warn_of_large_delta(found["delta"], found["num_examples"])
    return PrivacyPlan(
        epsilon=solver.epsilon(),
        **{name: found[name] for name in QUANTITIES[1:]},
        sampling=sampling,
        accountant=accountant,
        solved_for=missing[0],
        num_parameters=num_parameters,
    )


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """The quantities that are given, each of the type and in the range that it must have."""
    checks: dict[str, Callable[[Any], Any]] = {
        "target_epsilon": _validation.check_target_epsilon,
        "delta": _validation.check_delta,
        "num_examples": lambda n: _validation.check_integer(n, "num_examples", minimum=1),
        "batch_size": lambda n: _validation.check_integer(n, "batch_size", minimum=1),
        "epochs": lambda n: _validation.check_integer(n, "epochs", minimum=1),
        "noise_multiplier": _validation.check_noise_multiplier,
    }
    checked = {name: checks[name](value) for name, value in given.items() if value is not None}
    if {"num_examples", "batch_size"} <= set(checked):
        _validation.check_batch(checked["num_examples"], checked["batch_size"])
    if "target_epsilon" in checked and checked.get("noise_multiplier") == 0:
        raise ValueError(
            "Argument `noise_multiplier` must be positive for a finite `target_epsilon`. "
            "Received: noise_multiplier=0"
        )
    return checked
