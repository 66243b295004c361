"""What one step of private training does: how units are drawn, and how much noise hides them."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from keras_adaclip import _checks
from keras_adaclip._checks import INT32_MAX
from keras_adaclip.accounting.kinds import Sampling, SelectionCost, Unit


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """A Gaussian mechanism on sampled units.

    A *release* is what costs privacy: one Gaussian mechanism over all units that it can touch. With
    Poisson sampling, each step is one release. Without amplification, a whole pass over the data is
    one release: each unit is in a single batch of the pass, so the steps of a pass compose in
    parallel.

    Args:
        sampling: How units are drawn.
        expected_batch_size: Expected number of units a step, at least 1; sums are divided by it.
        num_examples: Number of units in the data; 0 if unknown, with `STREAM` and `PASS` only.
        noise_multiplier: Standard deviation of the noise over the sensitivity of the sum. Rounded
            to the nearest float32, as in training.
        unit: The unit of privacy, whose contribution the sensitivity bounds.
        max_batch_size: The most units a step, with `TRUNCATED_POISSON` only; 0 otherwise.
        selection: What one release costs, if it is the best of several runs. Sampling, noise and
            batch size are then those of the run with the least noise.

    Raises:
        TypeError: If a count is not an integer.
        ValueError: If a number is out of range, or two numbers contradict each other.

    Example:

    >>> Mechanism(Sampling.SHUFFLE, 256, 60_000, noise_multiplier=1.0).steps_per_release
    235
    """

    sampling: Sampling
    expected_batch_size: int
    num_examples: int
    noise_multiplier: float
    unit: Unit = Unit.EXAMPLE
    max_batch_size: int = 0
    selection: SelectionCost | None = None

    def __post_init__(self) -> None:
        noise_multiplier = _checks.check_noise_multiplier(self.noise_multiplier)
        checked: dict[str, int | float] = {
            "sampling": Sampling(self.sampling),
            "unit": Unit(self.unit),
            "noise_multiplier": float(np.float32(noise_multiplier)),
        }
        for name, minimum in self._minima().items():
            checked[name] = _checks.check_integer(name, getattr(self, name), minimum=minimum)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        for rule in self._broken_rules():
            received = ", ".join(f"{name}={getattr(self, name)}" for name in self._minima())
            raise ValueError(f"Argument {rule}. Received: {received}")

    @classmethod
    def _minima(cls) -> dict[str, int]:
        """Return the smallest value of each count."""
        return {"expected_batch_size": 1, "num_examples": 0, "max_batch_size": 0}

    def _broken_rules(self) -> Iterator[str]:
        """Yield a sentence about each pair of numbers that contradict each other."""
        sampling, label = self.sampling, repr(self.sampling.label)
        if self.num_examples == 0 and sampling not in (Sampling.STREAM, Sampling.PASS):
            yield f"`num_examples` must be known for sampling={label}"
        if sampling.is_amplified and self.expected_batch_size > self.num_examples:
            yield "`expected_batch_size` must not exceed `num_examples`"
        if sampling is not Sampling.TRUNCATED_POISSON and self.max_batch_size > 0:
            yield f"`max_batch_size` must be 0 for sampling={label}"
        if sampling is Sampling.TRUNCATED_POISSON and not (
            self.expected_batch_size <= self.max_batch_size < self.num_examples
        ):
            yield (
                "`max_batch_size` must be at least `expected_batch_size` and below `num_examples` "
                f"for sampling={label}"
            )

    @property
    def mechanism(self) -> tuple[object, ...]:
        """The facts as a key. Rows with equal mechanisms add up exactly."""
        sampled = (self.sampling, self.expected_batch_size, self.num_examples, self.max_batch_size)
        return (*sampled, self.noise_multiplier, self.unit, self.selection)

    @property
    def steps_per_release(self) -> int:
        """The most steps that one release lasts."""
        if self.sampling is Sampling.PASS and self.selection is None:
            return INT32_MAX  # The source alone knows when the next pass begins.
        if self.sampling is Sampling.SHUFFLE and self.selection is None:
            return max(1, math.ceil(self.num_examples / self.expected_batch_size))
        return 1

    @property
    def sampling_probability(self) -> float:
        """Probability that a step draws a unit, from the integers; 1 if unknown."""
        if self.num_examples == 0:
            return 1.0
        return min(1.0, self.expected_batch_size / self.num_examples)

    @property
    def samplings(self) -> frozenset[Sampling]:
        """The sampling scheme; those of all runs if it is about selected runs."""
        return frozenset({self.sampling}) if self.selection is None else self.selection.samplings
