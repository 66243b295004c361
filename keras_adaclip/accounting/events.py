"""From ledger rows to the events that `dp_accounting` composes, and the relation they hold under.

    POISSON              PoissonSampledDpEvent(q, GaussianDpEvent(z)), a step each
    SHUFFLE, PASS        GaussianDpEvent(z), a pass over the data each
    STREAM               GaussianDpEvent(z), a step each
    fixed-size batches   SampledWithoutReplacementDpEvent(n, k, GaussianDpEvent(z / 2)), a step each
    selected runs        SelectedRunsEvent, Rényi divergences of the best run with its selection

Guarantees:
    A unit's contribution has at most the norm C, and the noise has the standard deviation z C.
    Poisson rows hold when one unit is *added or removed*: a step's sum then moves by at most C,
    with the probability q. The full releases hold under *zero-out*: a removed unit leaves a hole
    behind, so the batches of the others stay as they were, and the sum moves by at most C.

    Mixed ledgers are stated under zero-out, for the Poisson rows hold under that as well: filling
    a hole changes a step's sum just as adding a unit does, with the same probability, and so by the
    very same pair of distributions. Each event above is therefore that of sensitivity 1 in units
    of C, and accountants are not told of a relation, which they take differently: RDP ignores it
    for Gaussians, PLD doubles the sensitivity for replace-one, older versions know less of them.

    Fixed-size batches have no smaller neighbours: one unit *replaces* another, and moves the sum
    by up to 2 C. Hence z / 2, for `dp_accounting` takes the noise relative to that change. Where
    something else ran as well, all is stated under zero-out: a hole that is drawn in the place of a
    unit moves the sum of a fixed-size batch by at most C, so that one full release dominates it.
    Selected runs of fixed-size batches keep their divergences then: a hole is one of the units
    that another can be replaced by.

References:
    Abadi et al. 2016, "Deep learning with differential privacy"; Ponomareva et al. 2023, "How to
    DP-fy ML", on shuffled batches and neighbouring relations; Wang, Balle and Kasiviswanathan 2019,
    "Subsampled Rényi differential privacy", on sampling without replacement.
"""

import dataclasses
import math
from collections.abc import Iterable

from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from keras_adaclip.accounting.kinds import Sampling
from keras_adaclip.accounting.rows import LedgerRow

ADD_OR_REMOVE_ONE = "add_or_remove_one"
ZERO_OUT = "zero_out"
REPLACE_ONE = "replace_one"


@dataclasses.dataclass(frozen=True)
class SelectedRunsEvent(DpEvent):
    """The best of several runs, of which Rényi divergences are all that is known.

    Args:
        divergences: at each of `selection_cost.ORDERS`.
    """

    divergences: tuple[float, ...]


CountedEvents = tuple[tuple[DpEvent, int], ...]


def full_event(noise_multiplier: float) -> DpEvent:
    """The event of one release without amplification."""
    if noise_multiplier == 0:
        return NonPrivateDpEvent()
    return GaussianDpEvent(noise_multiplier)


def poisson_event(noise_multiplier: float, sampling_probability: float) -> DpEvent:
    """The event of one step with Poisson sampling."""
    event = full_event(noise_multiplier)
    if sampling_probability == 1 or noise_multiplier == 0:
        return event
    return PoissonSampledDpEvent(sampling_probability, event)


def fixed_size_event(noise_multiplier: float, num_examples: int, batch_size: int) -> DpEvent:
    """The event of one step with a batch of fixed size, drawn without replacement."""
    if noise_multiplier == 0:
        return NonPrivateDpEvent()
    # Replacing a unit moves the sum by twice the clip norm.
    event = GaussianDpEvent(noise_multiplier / 2)
    return SampledWithoutReplacementDpEvent(num_examples, batch_size, event)


def row_event(row: LedgerRow, relation: str) -> DpEvent:
    """The event of one release of a row, among rows that are stated under a relation."""
    if row.selection is not None:
        divergences = row.selection.divergences
        is_private = any(math.isfinite(each) for each in divergences)
        return SelectedRunsEvent(divergences) if is_private else NonPrivateDpEvent()
    if row.sampling is Sampling.POISSON:
        return poisson_event(row.noise_multiplier, row.sampling_probability)
    if row.sampling is Sampling.FIXED and relation == REPLACE_ONE:
        return fixed_size_event(row.noise_multiplier, row.num_examples, row.expected_batch_size)
    return full_event(row.noise_multiplier)


def counted_events(rows: Iterable[LedgerRow], relation: str | None = None) -> CountedEvents:
    """The differing events of some rows with their counts, the most recent one last.

    Args:
        rows: Ledger rows; those without a release add nothing.
        relation: The relation that the events are to hold under; None means that of the rows.

    Returns:
        Pairs of an event and how often it happened.
    """
    rows = tuple(rows)
    relation = neighboring_relation(rows) if relation is None else relation
    counts: dict[DpEvent, int] = {}
    for row in rows:
        if row.releases > 0:
            event = row_event(row, relation)
            # Taken out and put back, so that the running row's event comes last: what is composed
            # before it stays the same from one epoch to the next, and is cached.
            counts[event] = counts.pop(event, 0) + row.releases
    return tuple(counts.items())


def dp_event(rows: Iterable[LedgerRow]) -> DpEvent:
    """Everything that some rows released, as one event that `dp_accounting` can compose.

    Args:
        rows: Ledger rows.

    Returns:
        A `dp_accounting.ComposedDpEvent`.
    """
    return ComposedDpEvent(
        [SelfComposedDpEvent(event, count) for event, count in counted_events(rows)]
    )


def neighboring_relation(rows: Iterable[LedgerRow], running: LedgerRow | None = None) -> str:
    """The relation under which the epsilon of some rows is stated.

    Args:
        rows: Ledger rows.
        running: A row that is about to run, whether or not it has run before.

    Returns:
        `"add_or_remove_one"` if all that ran was sampled by Poisson's law, `"replace_one"` if all
        batches were of a fixed size, else `"zero_out"`.
    """
    ran = {sampling for row in rows if row.steps > 0 for sampling in row.samplings}
    if running is not None:
        ran |= running.samplings
    if ran == {Sampling.FIXED}:
        return REPLACE_ONE
    return ADD_OR_REMOVE_ONE if ran <= {Sampling.POISSON} else ZERO_OUT
