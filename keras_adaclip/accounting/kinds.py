"""Kinds of ledger rows: units of privacy, sampling schemes, and selections among several runs."""

import dataclasses
import enum

import numpy as np
import numpy.typing as npt

from keras_adaclip import _checks

Floats = npt.NDArray[np.float64]
Orders = tuple[float, ...]

# The default Rényi orders of `dp_accounting`, written out: files hold a divergence for each.
ORDERS: Orders = (
    *(1 + tenth / 10 for tenth in range(1, 100)),
    *range(11, 64),
    *(128, 256, 512, 1024),
)
DISTRIBUTIONS = ("geometric", "logarithmic", "poisson")


class _Labelled(enum.IntEnum):
    """Integers with names."""

    @property
    def label(self) -> str:
        """The name in lower case, as arguments and reports have it."""
        return self.name.lower()


class Unit(_Labelled):
    """The unit of privacy. Rows about different units do not add up to an epsilon for either."""

    EXAMPLE = 0
    CLIENT = 1


class Sampling(_Labelled):
    """How the units of a step were drawn. 0 is none, so that zeros are no row.

    `POISSON`: each unit independently, with the same probability at every step.
    `SHUFFLE`: batches of a shuffled pass over the data; a pass is one release.
    `STREAM`: batches from an unknown source, each unit at most once a batch; a step is one release.
    `PASS`: batches from an unknown source, each unit at most once a pass; a pass is one release.
    `FIXED`: a fixed number of units, drawn without replacement at each step; a step is one release.
    `TRUNCATED_POISSON`: as `POISSON`, but of a draw larger than the largest batch, as many units as
    that batch holds are used, chosen at random.
    """

    POISSON = 1
    SHUFFLE = 2
    STREAM = 3
    PASS = 4
    FIXED = 5
    TRUNCATED_POISSON = 6

    @property
    def is_counted_in_passes(self) -> bool:
        """Whether a release is a pass over the data instead of a step."""
        return self in (Sampling.SHUFFLE, Sampling.PASS)

    @property
    def is_amplified(self) -> bool:
        """Whether drawing units at random makes a release cost less than a full one."""
        return self in (Sampling.POISSON, Sampling.FIXED, Sampling.TRUNCATED_POISSON)

    def describe(self) -> str:
        """Return the sampling scheme and what counts as a release, in words for a report."""
        return _DESCRIPTIONS[self]


_DESCRIPTIONS = {
    Sampling.POISSON: "Poisson sampling: every unit is drawn independently at each step",
    Sampling.SHUFFLE: "shuffled passes over the data: one full release a pass, no amplification",
    Sampling.STREAM: "batches from an unknown source: one full release a step, no amplification",
    Sampling.PASS: (
        "batches in which no unit comes twice in a pass, as the user says: one full release a "
        "pass, no amplification"
    ),
    Sampling.FIXED: "fixed-size sampling: as many units at each step, drawn without replacement",
    Sampling.TRUNCATED_POISSON: (
        "truncated Poisson sampling: every unit is drawn independently at each step, and a draw "
        "larger than the largest batch is cut to it at random"
    ),
}


@dataclasses.dataclass(frozen=True)
class SelectionCost:
    """Rényi divergences of a released run together with its selection.

    The best of several runs is no composition of Gaussian mechanisms, so it has no privacy loss
    distribution. Its Rényi divergences add up with those of later steps.

    Args:
        distribution: The distribution of the number of runs.
        mean_trials: The mean of the number of runs.
        samplings: The sampling schemes of the runs.
        divergences: One for each of `ORDERS`, under the relation that the samplings ask for.

    Raises:
        ValueError: If the numbers cannot be those of a selection.
    """

    distribution: str
    mean_trials: float
    samplings: frozenset[Sampling]
    divergences: tuple[float, ...]

    def __post_init__(self) -> None:
        _checks.check_choice("distribution", self.distribution, DISTRIBUTIONS)
        _checks.check_positive("mean_trials", self.mean_trials)
        object.__setattr__(self, "samplings", frozenset(map(Sampling, self.samplings)))
        object.__setattr__(self, "divergences", tuple(map(float, self.divergences)))
        are_divergences = all(divergence >= 0 for divergence in self.divergences)
        if len(self.divergences) != len(ORDERS) or not are_divergences or not self.samplings:
            raise ValueError(
                f"The cost of a selection must be {len(ORDERS)} divergences of at least 0, for at "
                f"least one sampling scheme. Received: {len(self.divergences)} values for "
                f"{len(self.samplings)} schemes"
            )

    def __str__(self) -> str:
        return selection_in_words(self.distribution, self.mean_trials)


def selection_in_words(distribution: str, mean_trials: float) -> str:
    """Return the selection of the best of a random number of runs."""
    return (
        f"the best of a number of runs drawn from the {distribution} law with mean {mean_trials:g}"
    )
