"""The events that `dp_accounting` composes, for ledger rows and for plans.

    POISSON            PoissonSampledDpEvent(q, GaussianDpEvent(z)) for each step
    TRUNCATED_POISSON  TruncatedSubsampledGaussianDpEvent(n, q, m, z) for each step
    SHUFFLE, PASS      GaussianDpEvent(z) for each pass over the data
    STREAM             GaussianDpEvent(z) for each step
    FIXED              SampledWithoutReplacementDpEvent(n, k, GaussianDpEvent(z / 2)) for each step
    selected runs      SelectedRunsEvent: Rényi divergences of the best run with its selection

For a person with up to k rows, POISSON is DrawnRowsEvent(q, z, k) and the full releases are
GaussianDpEvent(z / k).

A noise schedule is read once an epoch, at the first step, and rounded to float32, as in training.

Guarantees:
    The contribution of a unit has a norm of at most C, and the noise has standard deviation z C.
    Poisson rows hold if one unit is *added or removed*: the sum of a step then moves by at most C,
    with probability q. Full releases hold under *zero-out*: a removed unit leaves a hole, so the
    batches of all other units stay the same, and the sum moves by at most C.

    Mixed ledgers are stated under zero-out, under which the Poisson rows hold as well: filling a
    hole changes the sum of a step just as adding a unit does, with the same probability, and thus
    with the same pair of distributions. Each of these events has sensitivity 1 in units of C. The
    accountants are not told the relation, because they treat it differently: RDP ignores it for
    Gaussians, PLD doubles the sensitivity for replace-one, and older versions know fewer relations.

    A unit in a truncated draw may take the place of another, which moves the sum by up to 2 C. This
    happens only if the others alone fill the batch. Here n is the size of the larger of two
    neighbouring data sets, which is the one that was used: the smaller lacks one of its units. (For
    n + 1, epsilon is larger by about a ten-thousandth.) The event holds under zero-out too: with a
    hole in place of the unit, the other units of the batch stay the same, and `dp_accounting`
    bounds even the replacement of the unit by another.

    Fixed-size batches have no smaller neighbours: one unit *replaces* another, and the sum moves
    by up to 2 C. `dp_accounting` takes the noise relative to that change, hence z / 2. In a ledger
    with other steps, they are stated under zero-out too: a hole that is drawn instead of a unit
    moves the sum of a fixed-size batch by at most C, so one full release dominates the step.
    Selected runs of fixed-size batches keep their divergences then, because a hole is one of the
    units that another can be replaced by.

    A person with k rows, each drawn by itself, moves a sum by as many C as rows of theirs were
    drawn: Binomial(k, q), or at most k in a full release. Removing a person removes all of their
    rows. The largest k of a ledger counts for all of its steps. Where some steps do not say whose
    the rows are, all are stated for one row, under zero-out: if a row were removed, another row of
    the person could take its place among the k, and move a sum by up to 2 C.

References:
    Abadi et al. 2016, "Deep learning with differential privacy"; Ponomareva et al. 2023, "How to
    DP-fy ML", on shuffled batches and neighbouring relations; Wang, Balle and Kasiviswanathan 2019,
    "Subsampled Rényi differential privacy", on sampling without replacement; Ganesh et al. 2025
    (arXiv:2508.15089), on truncated Poisson sampling; Charles et al. 2024, "Fine-tuning large
    language models with user-level differential privacy", on sampling the rows of persons.
"""

import dataclasses
import importlib
import math
from collections.abc import Iterable
from typing import Any, Self

import numpy as np

from keras_adaclip import _checks
from keras_adaclip.accounting.kinds import Sampling
from keras_adaclip.accounting.row import LedgerRow, rows_of_epochs

ADD_OR_REMOVE_ONE = "add_or_remove_one"
ZERO_OUT = "zero_out"
REPLACE_ONE = "replace_one"
_SAMPLING_NAMES = ("poisson", "shuffle", "stream", "fixed")
MOST_ROWS = 100_000
_POISSON = frozenset({Sampling.POISSON, Sampling.TRUNCATED_POISSON})

DpEvent = Any  # Of `dp_accounting`, or a `SelectedRunsEvent`.
# Events with the number of times that each happened.
CountedEvents = tuple[tuple[DpEvent, int], ...]


class _DpAccounting:
    """`dp_accounting`, imported at first use, because its import takes as long as the package's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("dp_accounting"), name)


dp: Any = _DpAccounting()


@dataclasses.dataclass(frozen=True)
class SelectedRunsEvent:
    """The best of several runs, of which only Rényi divergences are known.

    Args:
        divergences: One for each of `kinds.ORDERS`.
    """

    divergences: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class DrawnRowsEvent:
    """A Poisson draw of rows, several of which belong to one person.

    Args:
        sampling_probability: Probability of each row.
        noise_multiplier: Standard deviation of the noise over the sensitivity to one row.
        num_rows: The rows of the person.
    """

    sampling_probability: float
    noise_multiplier: float
    num_rows: int


def knows_truncation() -> bool:
    """Return whether the installed `dp_accounting` knows truncated Poisson sampling."""
    return hasattr(dp, "TruncatedSubsampledGaussianDpEvent")


def require_truncation() -> None:
    """Raise an `ImportError` if `dp_accounting` does not know truncated Poisson sampling."""
    if not knows_truncation():
        raise ImportError(
            "The privacy of truncated Poisson batches needs a newer `dp-accounting`: "
            "`pip install --upgrade dp-accounting`."
        )


def row_event(row: LedgerRow, relation: str, group_size: int = 1) -> DpEvent:
    """Return the event of one release of a row, in a ledger that is stated under a relation.

    Args:
        row: The row. If it is of truncated draws or fixed batches, the group has one row.
        relation: The relation.
        group_size: The rows of one person.
    """
    noise, size, num_examples = row.noise_multiplier, row.expected_batch_size, row.num_examples
    if row.selection is not None:
        divergences = row.selection.divergences
        is_private = any(math.isfinite(each) for each in divergences)
        return SelectedRunsEvent(divergences) if is_private else dp.NonPrivateDpEvent()
    if noise == 0:
        return dp.NonPrivateDpEvent()
    if row.sampling is Sampling.POISSON and size < num_examples:
        if group_size > 1:
            return DrawnRowsEvent(size / num_examples, noise, group_size)
        return dp.PoissonSampledDpEvent(size / num_examples, dp.GaussianDpEvent(noise))
    if row.sampling is Sampling.TRUNCATED_POISSON:
        require_truncation()
        most = row.max_batch_size
        return dp.TruncatedSubsampledGaussianDpEvent(num_examples, size / num_examples, most, noise)
    if row.sampling is Sampling.FIXED and relation == REPLACE_ONE:
        # Replacing a unit moves the sum by twice the clip norm.
        event = dp.GaussianDpEvent(noise / 2)
        return dp.SampledWithoutReplacementDpEvent(num_examples, size, event)
    return dp.GaussianDpEvent(noise / group_size)


def rows_per_unit(rows: Iterable[LedgerRow]) -> int:
    """Return the most rows of the persons whom epsilon is about; 0 if it is about other units.

    Args:
        rows: Ledger rows. Rows without steps add nothing.
    """
    sizes = [row.rows_per_unit for row in rows if row.steps > 0]
    return max(sizes, default=0) if all(sizes) else 0


def unit_label(rows: Iterable[LedgerRow], default: str = "example") -> str:
    """Return what the epsilon of some rows protects: `"example"`, `"client"` or `"person"`.

    Args:
        rows: Ledger rows. Rows without steps add nothing.
        default: The result if no step ran.
    """
    ran = [row for row in rows if row.steps > 0]
    return "person" if rows_per_unit(ran) else ran[0].unit.label if ran else default


def counted_events(
    rows: Iterable[LedgerRow], relation: str | None = None, group_size: int | None = None
) -> CountedEvents:
    """Return the different events of ledger rows with their counts, the most recent one last.

    Args:
        rows: Ledger rows. Rows without a release add nothing.
        relation: The relation that the events must hold under; None means that of the rows.
        group_size: The rows of one person; None means what the rows say.

    Returns:
        Pairs of an event and its count.
    """
    rows = tuple(rows)
    relation = neighboring_relation(rows) if relation is None else relation
    group_size = group_size or max(1, rows_per_unit(rows))
    counts: dict[DpEvent, int] = {}
    for row in rows:
        if row.releases > 0:
            # An event that comes again moves to the end. The events before the running one then
            # stay the same from one epoch to the next, and their composition is cached.
            event = row_event(row, relation, group_size)
            counts[event] = counts.pop(event, 0) + row.releases
    return tuple(counts.items())


def neighboring_relation(rows: Iterable[LedgerRow]) -> str:
    """Return the relation under which the epsilon of some rows is stated.

    Args:
        rows: Ledger rows. Rows without steps add nothing.

    Returns:
        `"add_or_remove_one"` if all steps were Poisson-sampled, truncated or not, `"replace_one"`
        if all batches were of a fixed size, else `"zero_out"`, also if only some steps say whose
        the rows are.
    """
    rows = [row for row in rows if row.steps > 0]
    ran = {sampling for row in rows for sampling in row.samplings}
    if ran == {Sampling.FIXED}:
        return REPLACE_ONE
    is_mixed = len({row.rows_per_unit > 0 for row in rows}) > 1
    return ADD_OR_REMOVE_ONE if ran <= _POISSON and not is_mixed else ZERO_OUT


# A schedule of `keras_adaclip.schedules`, which is not imported: Keras would come with it.
NoiseSchedule = Any


def is_noise_schedule(value: Any) -> bool:
    """Return whether `value` is a schedule of noise multipliers rather than a number."""
    return hasattr(value, "value_at")


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A run as planned, without its noise.

    Args:
        mechanism: The row before the first step, with any noise.
        num_steps: Number of steps.
        steps_per_epoch: Steps of an epoch. The last epoch may have fewer.
    """

    mechanism: LedgerRow
    num_steps: int
    steps_per_epoch: int

    @classmethod
    def of(
        cls,
        num_examples: int,
        batch_size: int,
        epochs: int | None,
        steps: int | None,
        sampling: str,
        steps_per_epoch: int | None = None,
        max_batch_size: int | None = None,
        max_rows_per_unit: int | None = None,
    ) -> Self:
        """Return the run with these arguments, checked as `compute_epsilon` says."""
        num_examples = _checks.check_integer("num_examples", num_examples, minimum=1)
        batch_size = _checks.check_batch_size(batch_size, num_examples)
        sampling = _checks.check_choice("sampling", sampling, _SAMPLING_NAMES)
        if steps_per_epoch is None:
            steps_per_epoch = math.ceil(num_examples / batch_size)
        steps_per_epoch = _checks.check_integer("steps_per_epoch", steps_per_epoch, minimum=1)
        if (epochs is None) == (steps is None):
            raise ValueError(
                "Exactly one of the arguments `epochs` and `steps` must be given. "
                f"Received: epochs={epochs!r}, steps={steps!r}"
            )
        if epochs is not None:
            most = _checks.INT32_MAX // steps_per_epoch
            steps = steps_per_epoch * _checks.check_integer("epochs", epochs, maximum=most)
        num_steps = _checks.check_integer("steps", steps)
        kind, most = Sampling[sampling.upper()], 0
        if max_batch_size is not None:
            most = _checks.check_integer("max_batch_size", max_batch_size, minimum=batch_size)
            if kind is not Sampling.POISSON:
                raise ValueError(
                    "Argument `max_batch_size` is for sampling='poisson' only. Received: "
                    f"max_batch_size={most}, sampling={sampling!r}"
                )
            # No draw is larger than the data.
            most = most if most < num_examples else 0
            kind = Sampling.TRUNCATED_POISSON if most else kind
        most_rows = 0
        if max_rows_per_unit is not None:
            most_rows = _checks.check_integer(
                "max_rows_per_unit", max_rows_per_unit, minimum=1, maximum=MOST_ROWS
            )
        sizes = (batch_size, num_examples)
        row = LedgerRow(kind, *sizes, 0.0, max_batch_size=most, rows_per_unit=most_rows)
        return cls(row, num_steps, steps_per_epoch)

    def rows(self, noise_multiplier: Any) -> list[LedgerRow]:
        """Return what the run adds to a ledger.

        A schedule is read at the first step of each epoch. A number is rounded *down* to float32,
        so that epsilon covers the number and what training makes of it.
        """
        if not is_noise_schedule(noise_multiplier):
            noise = _checks.check_noise_multiplier(noise_multiplier)
            rounded = np.float32(noise)
            if float(rounded) > noise:
                rounded = np.nextafter(rounded, np.float32(0))
            row = dataclasses.replace(self.mechanism, noise_multiplier=float(rounded))
            return [row.advance(self.num_steps)]
        size = self.steps_per_epoch
        firsts = range(0, self.num_steps, size)
        values = [noise_multiplier.value_at(first, size) for first in firsts]
        rows = [dataclasses.replace(self.mechanism, noise_multiplier=value) for value in values]
        sizes = (min(size, self.num_steps - first) for first in firsts)
        return rows_of_epochs(zip(rows, sizes, strict=True), is_pass=False)

    def events(self, noise_multiplier: Any) -> CountedEvents:
        """Return the events of the run, with their counts."""
        return counted_events(self.rows(noise_multiplier))
