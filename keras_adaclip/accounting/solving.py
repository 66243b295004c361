"""The one quantity of a training run that is not given, found from the five others.

    epsilon(noise multiplier, delta; batch size, epochs, number of examples) = target

Epsilon grows with the epochs and falls with the noise and delta. It also grows with the batch size
and falls with the number of examples, but not quite: an epoch has a whole number of steps, and with
so little noise that epsilon is in the tens a batch of all examples costs less than many samples.
So each of the six follows from the other five.
"""

import math
from typing import Any

from keras_adaclip.accounting import _validation
from keras_adaclip.accounting.accountants import composed_epsilon, rough_epsilon
from keras_adaclip.accounting.budget import largest_within
from keras_adaclip.accounting.calibration import calibrate_noise_multiplier
from keras_adaclip.accounting.epsilon import planned_events
from keras_adaclip.accounting.events import CountedEvents

QUANTITIES = (
    "target_epsilon",
    "delta",
    "num_examples",
    "batch_size",
    "epochs",
    "noise_multiplier",
)
_MOST_EPOCHS = 1_000_000
_LEAST_DELTA = 1e-30
# Delta and the number of examples are found to within this share.
_PRECISION = 1e-3


class Solver:
    """Finds the quantity that is missing.

    Args:
        quantities: the five that are given.
        sampling: the way of sampling.
        accountant: the accountant that does the work.
    """

    def __init__(self, quantities: dict[str, Any], sampling: str, accountant: str) -> None:
        self.quantities = quantities
        self._sampling = sampling
        self._accountant = accountant

    def solve(self, name: str) -> None:
        """Puts the missing quantity among `quantities`."""
        if name != "target_epsilon":
            self.quantities[name] = getattr(self, f"_{name}")()

    def epsilon(self, **changed: Any) -> float:
        """Epsilon, with some quantities changed."""
        delta = changed.pop("delta", None) or self.quantities["delta"]
        return composed_epsilon(self._events(**changed), delta, self._accountant)

    def _rough_epsilon(self, **changed: Any) -> float:
        return rough_epsilon(self._events(**changed), self.quantities["delta"])

    def _events(self, **changed: Any) -> CountedEvents:
        values = {**self.quantities, **changed}
        num_examples, batch_size = values["num_examples"], values["batch_size"]
        steps = _validation.check_num_steps(
            values["epochs"], None, steps_per_epoch=math.ceil(num_examples / batch_size)
        )
        return planned_events(
            values["noise_multiplier"], num_examples, batch_size, steps, self._sampling
        )

    def _noise_multiplier(self) -> float:
        values = {name: self.quantities[name] for name in QUANTITIES[:-1]}
        return calibrate_noise_multiplier(
            **values, sampling=self._sampling, accountant=self._accountant
        )

    def _epochs(self) -> int:
        steps_per_epoch = math.ceil(self.quantities["num_examples"] / self.quantities["batch_size"])
        return self._largest("epochs", min(_MOST_EPOCHS, _validation.INT32_MAX // steps_per_epoch))

    def _batch_size(self) -> int:
        return self._largest("batch_size", self.quantities["num_examples"])

    def _largest(self, name: str, most: int) -> int:
        """The largest whole number within the target; epsilon grows with it, but for rounding."""
        target = self.quantities["target_epsilon"]

        def epsilon(number: int) -> float:
            return self.epsilon(**{name: number}) if number else 0.0

        guess = 1
        while guess < most and self._rough_epsilon(**{name: min(2 * guess, most)}) <= target:
            guess = min(2 * guess, most)
        found = largest_within(epsilon, target, most, guess)
        if found == 0:
            raise ValueError(self._out_of_reach(name, 1, epsilon(1)))
        return found

    def _num_examples(self) -> int:
        """The least number, to within `_PRECISION`: epsilon falls with it, but for rounding."""
        target, batch_size = self.quantities["target_epsilon"], self.quantities["batch_size"]

        def is_enough(number: int) -> bool:
            return self.epsilon(num_examples=number) <= target

        # An epoch has that many steps more; the ledger counts up to 2**31 - 1 of them.
        most = batch_size * (_validation.INT32_MAX // self.quantities["epochs"])
        most = max(min(most, _validation.INT32_MAX), batch_size)
        high = batch_size
        while high < most and self._rough_epsilon(num_examples=high) > target:
            high = min(2 * high, most)
        if not is_enough(high):
            raise ValueError(
                self._out_of_reach("num_examples", high, self.epsilon(num_examples=high))
            )
        low = batch_size - 1
        while high - low > max(1, int(_PRECISION * high)):
            # The logarithms are halved while the two are far apart.
            middle = math.isqrt(max(low, 1) * high) if high > 4 * max(low, 1) else (low + high) // 2
            middle = min(max(middle, low + 1), high - 1)
            low, high = (low, middle) if is_enough(middle) else (middle, high)
        return high

    def _delta(self) -> float:
        """The least delta, to within `_PRECISION`."""
        target = self.quantities["target_epsilon"]
        low, high = math.log(_LEAST_DELTA), 0.0
        if self.epsilon(delta=_LEAST_DELTA) <= target:
            return _LEAST_DELTA
        while high - low > _PRECISION / 2:
            middle = (low + high) / 2
            is_enough = self.epsilon(delta=math.exp(middle)) <= target
            low, high = (low, middle) if is_enough else (middle, high)
        if high == 0.0:
            raise ValueError(
                self._out_of_reach("delta", math.exp(low), self.epsilon(delta=math.exp(low)))
            )
        return math.exp(high)

    def _out_of_reach(self, name: str, value: float, epsilon: float) -> str:
        received = ", ".join(f"{key}={given}" for key, given in self.quantities.items())
        return (
            f"No `{name}` reaches the target epsilon: with {name}={value:g} epsilon is "
            f"{epsilon:.4g}. Use more noise, or a larger target. Received: {received}"
        )
