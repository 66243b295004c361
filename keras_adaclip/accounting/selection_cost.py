"""What it cost to select the runs that a model comes from, as one row of its ledger carries it.

    e(a), the Rényi divergence of the released run with its selection, at each order a of `ORDERS`

No composition of Gaussian mechanisms is the best of several runs, so that privacy loss
distributions do not serve. Rényi divergences of what runs afterwards add up with these.
"""

import dataclasses
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from keras_adaclip.accounting.kinds import Sampling

# Those of `dp_accounting`, written out: files keep a divergence for each of them.
ORDERS: tuple[float, ...] = (
    *(1 + tenth / 10 for tenth in range(1, 100)),
    *range(11, 64),
    *(128, 256, 512, 1024),
)
DISTRIBUTIONS = ("geometric", "logarithmic", "poisson")
# How a run may have been selected. A known number of runs has the cost of all of them.
KNOWN, SEVERAL = "known", "several"
_LAWS = (*DISTRIBUTIONS, KNOWN, SEVERAL)
_NUM_VALUES = 3 + len(ORDERS)


@dataclasses.dataclass(frozen=True)
class SelectionCost:
    """Rényi divergences of a released run with its selection.

    Args:
        distribution: the law of the number of runs, `"known"` for a number that is known, or
            `"several"` for several selections together.
        mean_trials: the mean of the number of runs.
        samplings: how units were drawn in the runs.
        divergences: at each of `ORDERS`, in the relation that the samplings ask for.

    Raises:
        ValueError: where the numbers are none of a selection.
    """

    distribution: str
    mean_trials: float
    samplings: frozenset[Sampling]
    divergences: tuple[float, ...]

    def __post_init__(self) -> None:
        are_divergences = all(divergence >= 0 for divergence in self.divergences)
        if len(self.divergences) != len(ORDERS) or not are_divergences or not self.samplings:
            raise ValueError(
                f"The cost of a selection must be {len(ORDERS)} divergences from 0, for one kind "
                f"of sampling or more. Received: {len(self.divergences)} values for "
                f"{len(self.samplings)} kinds"
            )

    def plus(self, other: Self, releases: tuple[int, int]) -> Self:
        """This selection and another one, made so many times, in one.

        Args:
            other: the other selection.
            releases: how many times this one was made, and the other.
        """
        divergences = np.array([self.divergences, other.divergences])
        return type(self)(
            SEVERAL,
            0.0,
            self.samplings | other.samplings,
            tuple(np.array(releases, np.float64) @ divergences),
        )

    def to_integers(self, width: int) -> npt.NDArray[np.int32]:
        """The bits of all values. Shape: `(num_rows(width), width)`.

        Args:
            width: integers in a row.
        """
        samplings = sum(1 << sampling for sampling in self.samplings)
        values = (_LAWS.index(self.distribution), self.mean_trials, samplings, *self.divergences)
        integers = np.array(values, "<f8").view(np.int32)
        return np.resize(integers, (self.num_rows(width), width))

    @classmethod
    def from_integers(cls, integers: npt.NDArray[Any]) -> Self:
        """The inverse of `to_integers`.

        Args:
            integers: the table.

        Raises:
            ValueError: where it is none of a selection.
        """
        if integers.shape[0] != cls.num_rows(integers.shape[1]):
            raise ValueError("The privacy ledger is damaged: the cost of a selection is cut short.")
        bits = np.ascontiguousarray(integers, np.int32).ravel()[: 2 * _NUM_VALUES]
        law, mean_trials, samplings, *divergences = bits.view("<f8").tolist()
        if law not in range(len(_LAWS)) or samplings not in range(1 << (max(Sampling) + 1)):
            raise ValueError("The privacy ledger is damaged: a selection of no known kind.")
        kinds = frozenset(each for each in Sampling if int(samplings) >> each & 1)
        return cls(_LAWS[int(law)], mean_trials, kinds, tuple(divergences))

    @staticmethod
    def num_rows(width: int) -> int:
        """Rows of the table, with so many integers each."""
        return -(-2 * _NUM_VALUES // width)

    def __str__(self) -> str:
        if self.distribution == SEVERAL:
            return "several selections, each of the best of several runs"
        if self.distribution == KNOWN:
            return (
                f"the best of {self.mean_trials:g} runs, a number that is known, so that epsilon "
                f"is that of all {self.mean_trials:g} runs together"
            )
        return (
            f"the best of a number of runs drawn from the {self.distribution} law with mean "
            f"{self.mean_trials:g}"
        )
