"""Epsilon of a plan, and epsilon of what a ledger says has run.

    epsilon(delta) = inf {e : the composed events are (e, delta)-differentially private}

by `dp_accounting`, with privacy loss distributions ("pld", tight) or Rényi divergences ("rdp").
"""

import dataclasses
import math
import warnings
from collections.abc import Iterable
from typing import Self

from keras_adaclip import _checks
from keras_adaclip.accounting import events
from keras_adaclip.accounting.accountants import composed_epsilon
from keras_adaclip.accounting.events import CountedEvents, NoiseSchedule, PlannedRun
from keras_adaclip.accounting.kinds import Sampling
from keras_adaclip.accounting.row import LedgerRow
from keras_adaclip.accounting.tradeoff import TradeoffCurve, composed_tradeoff

ACCOUNTANTS = ("pld", "rdp")
# A grid this much coarser is several times as fast. Epsilon grows by some tenths of a percent.
COARSENESS = 8
# The neighbouring data sets of each relation.
RELATIONS_IN_WORDS = {
    events.ADD_OR_REMOVE_ONE: "one unit is added or removed",
    events.ZERO_OUT: "one unit is zeroed out, leaving a hole in its batch",
    events.REPLACE_ONE: "one unit is replaced by another",
}


def default_delta(num_examples: int) -> float:
    """Return the delta that is used if the user gives none: `num_examples ** -1.1`.

    Args:
        num_examples: Number of units (examples or clients) in the data, at least 2.

    Returns:
        A delta a little below `1 / num_examples`.

    Raises:
        ValueError: If there are fewer than two units, for which delta would not be below 1.

    Example:

    >>> f"{default_delta(60_000):.3g}"
    '5.55e-06'
    """
    number: float = _checks.check_integer("num_examples", num_examples, minimum=2) ** -1.1
    return number


def check_accountant(value: object) -> str:
    """Return the name of an accountant.

    Args:
        value: The value of the argument.

    Raises:
        ValueError: If there is no such accountant.
    """
    return _checks.check_choice("accountant", value, ACCOUNTANTS)


def warn_of_large_delta(
    delta: float, num_examples: int, stacklevel: int = 3, unit: str = "example"
) -> None:
    """Warn if `delta` would allow one unit's data to be published.

    Args:
        delta: The delta.
        num_examples: Number of units; 0 if unknown, which never warns.
        stacklevel: As of `warnings.warn`.
        unit: The unit of privacy, `"example"` or `"client"`.
    """
    if delta * num_examples >= 1:
        warnings.warn(
            f"Argument `delta` should be well below 1 / num_{unit}s = {1 / num_examples:.3g}: "
            f"with a larger one, publishing a random {unit} counts as private. "
            f"Received: delta={delta}. A usual choice is num_{unit}s ** -1.1, "
            f"{max(num_examples, 2) ** -1.1:.3g} here.",
            UserWarning,
            stacklevel=stacklevel,
        )


def compute_epsilon(
    noise_multiplier: float | NoiseSchedule,
    num_examples: int,
    batch_size: int,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    delta: float,
    sampling: str = "poisson",
    accountant: str = "pld",
    steps_per_epoch: int | None = None,
    max_batch_size: int | None = None,
    max_rows_per_unit: int | None = None,
) -> float:
    """Epsilon of a training run as planned.

    Args:
        noise_multiplier: Standard deviation of the noise over the clip norm, at least 0. Training
            rounds it to the nearest float32, and here it is rounded down. A schedule is read once
            an epoch, at the first step of the epoch, and each value is rounded to the nearest. By
            PLD, 40 epochs of different noise take several seconds.
        num_examples: Number of units (examples or clients) in the data, which counts as public.
        batch_size: Expected number of units a step.
        epochs: Number of epochs, of `steps_per_epoch` steps each.
        steps: Number of steps; give this or `epochs`.
        delta: Delta, between 0 and 1, well below `1 / num_examples`.
        sampling: `"poisson"`, each unit with probability `batch_size / num_examples` at each step;
            `"shuffle"`, one full release for each pass that began (zero-out); `"stream"`, one full
            release a step (zero-out); `"fixed"`, exactly `batch_size` units without replacement
            (replace-one).
        accountant: `"pld"` or `"rdp"`. RDP is always used for `"fixed"`, for which PLD has no
            bound. The bound of RDP is poor with `max_batch_size`.
        steps_per_epoch: Steps of an epoch, if `fit` is given that number; None means
            `ceil(num_examples / batch_size)`. Noise schedules change with the epochs.
        max_batch_size: The most units a step, with `"poisson"` only; see `PoissonDataset`.
        max_rows_per_unit: The most rows of a person, up to 100,000, as for `fit`, without
            `max_batch_size` and not with `"fixed"`. Epsilon is then that of a person;
            `num_examples` and `batch_size` count rows. None for the epsilon of one unit.

    Returns:
        Epsilon, an upper bound; infinite without noise, 0.0 without steps.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range, or not exactly one of `epochs` and `steps` is
            given.

    Example:

    >>> epsilon = compute_epsilon(
    ...     noise_multiplier=1.0, num_examples=60_000, batch_size=256, steps=3515, delta=1e-5
    ... )
    >>> print(f"{epsilon:.3f}")
    1.351
    """
    accountant, largest = check_accountant(accountant), (max_batch_size, max_rows_per_unit)
    run = PlannedRun.of(
        num_examples, batch_size, epochs, steps, sampling, steps_per_epoch, *largest
    )
    delta = _checks.check_between_0_and_1("delta", delta)
    warn_of_large_delta(delta, num_examples)
    return composed_epsilon(run.events(noise_multiplier), delta, accountant)


def ledger_epsilon(rows: Iterable[LedgerRow], delta: float, accountant: str = "pld") -> float:
    """Epsilon of what has run.

    Args:
        rows: A `Ledger`, rows of one, or rows of several, whose releases then count together.
        delta: Delta, between 0 and 1.
        accountant: `"pld"` or `"rdp"`.

    Returns:
        Epsilon, an upper bound under `neighboring_relation(rows)`; infinite if a step ran without
        noise, 0.0 if none ran.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range.

    Guarantees:
        Not below what `dp_accounting` gives for the same events. Computed again only if the number
        of releases has changed.

    Example:

    >>> row = LedgerRow.open(Sampling.POISSON, 256, 60_000, noise_multiplier=1.0)
    >>> print(f"{ledger_epsilon([row.advance(3515)], delta=1e-5):.3f}")
    1.351
    """
    delta = _checks.check_between_0_and_1("delta", delta)
    return composed_epsilon(events.counted_events(rows), delta, check_accountant(accountant))


def quick_epsilon(rows: Iterable[LedgerRow], delta: float, accountant: str) -> float:
    """Return an upper bound on the epsilon of some rows, less than 1% above `ledger_epsilon`.

    Args:
        rows: Ledger rows.
        delta: Delta, between 0 and 1.
        accountant: `"pld"` or `"rdp"`.
    """
    return composed_epsilon(events.counted_events(rows), delta, accountant, COARSENESS)


def quick_tradeoff(rows: Iterable[LedgerRow], delta: float) -> TradeoffCurve:
    """Return the trade-off curve of some rows on a coarse grid, a little above the true one.

    Args:
        rows: Ledger rows.
        delta: Delta, between 0 and 1.
    """
    return composed_tradeoff(events.counted_events(rows), delta, "pld", COARSENESS)


@dataclasses.dataclass(frozen=True)
class PrivacySpent:
    """The privacy that a model has spent. `str()` of it is a statement in words.

    Args:
        epsilon: Epsilon, an upper bound.
        delta: The delta of this epsilon.
        steps: Steps that ran.
        sampling: How units were drawn: labels of `Sampling`, joined by " + "; "none" before the
            first step.
        neighboring_relation: `"add_or_remove_one"`, `"zero_out"` or `"replace_one"`.
        accountant: The accountant that was used, `"pld"` or `"rdp"`. It is `"rdp"` for the result
            of a search, for which PLD has no bound.
        unit: The unit of privacy, `"example"`, `"client"` or `"person"`.
        rows_per_unit: The most rows of the person, of which training uses no more; 0 for another
            unit.
        selection: How the model was selected among several runs, in words. Epsilon counts the
            selection. Empty if there was none.
        weights_unchanged: Whether the weights are those that private training left. False if
            something else has changed them, None if that is unknown.
        events: What was released, for `tradeoff`. Left out, it knows epsilon and delta alone.

    Example:

    >>> row = LedgerRow.open(Sampling.POISSON, 256, 60_000, noise_multiplier=1.0)
    >>> print(PrivacySpent.from_ledger([row.advance(3515)], delta=1e-5))
    (epsilon = 1.3513, delta = 1e-05)-differential privacy after 3515 steps, by the PLD
    accountant. Neighbouring data sets: one unit is added or removed. Sampling: Poisson sampling:
    every unit is drawn independently at each step. A unit is one row.
    """

    epsilon: float
    delta: float
    steps: int
    sampling: str
    neighboring_relation: str
    accountant: str
    unit: str = "example"
    rows_per_unit: int = 0
    selection: str = ""
    weights_unchanged: bool | None = dataclasses.field(default=None, compare=False)
    events: CountedEvents = dataclasses.field(default=(), compare=False, repr=False)

    @classmethod
    def from_ledger(cls, rows: Iterable[LedgerRow], delta: float, accountant: str = "pld") -> Self:
        """Return what the rows of a ledger have spent.

        Args:
            rows: A `Ledger`, or rows of one.
            delta: Delta, between 0 and 1.
            accountant: `"pld"` or `"rdp"`.

        Returns:
            The statement.

        Raises:
            TypeError: If an argument is of the wrong type.
            ValueError: If an argument is out of range.
        """
        rows = tuple(rows)
        relation = events.neighboring_relation(rows)
        ran = sorted({sampling for row in rows if row.steps > 0 for sampling in row.samplings})
        selection = selections_in_words(rows)
        return cls(
            epsilon=ledger_epsilon(rows, delta, accountant),
            delta=float(delta),
            steps=sum(row.steps for row in rows),
            sampling=" + ".join(sampling.label for sampling in ran) or "none",
            neighboring_relation=relation,
            accountant="rdp" if relation == events.REPLACE_ONE or selection else accountant,
            unit=events.unit_label(rows),
            rows_per_unit=events.rows_per_unit(rows),
            selection=selection,
            events=events.counted_events(rows),
        )

    def tradeoff(self) -> TradeoffCurve:
        """Return what an attacker can find out about one unit at most.

        Returns:
            The curve of true over false positive rates. It follows from the privacy loss
            distribution of all steps. With RDP, batches of a fixed size or a search, it follows
            from epsilon and delta alone, which its `basis` says.

        Example:

        >>> row = LedgerRow.open(Sampling.POISSON, 256, 60_000, noise_multiplier=1.0)
        >>> curve = PrivacySpent.from_ledger([row.advance(3515)], delta=1e-5).tradeoff()
        >>> print(f"{curve.best_guess():.3f}, {curve.true_positive_rate(0.01):.3f}")
        0.565, 0.024
        """
        if self.steps == 0 or (self.events and self.accountant == "pld"):
            return composed_tradeoff(self.events, self.delta)
        return TradeoffCurve((self.epsilon,), (self.delta,))

    def __str__(self) -> str:
        if self.steps == 0:
            return "Nothing has been released yet: no privacy is spent (epsilon = 0)."
        steps = f"{self.steps} step{'s' if self.steps != 1 else ''}"
        if math.isinf(self.epsilon):
            guarantee = f"No differential privacy (epsilon = inf) after {steps}"
        else:
            guarantee = (
                f"(epsilon = {rounded_up(self.epsilon)}, delta = {self.delta:g})-differential "
                f"privacy after {steps}"
            )
        kinds = "; ".join(Sampling[name.upper()].describe() for name in self.sampling.split(" + "))
        sentences = [
            f"{guarantee}, by the {self.accountant.upper()} accountant.",
            f"Neighbouring data sets: {RELATIONS_IN_WORDS[self.neighboring_relation]}.",
            f"Sampling: {kinds}.",
        ]
        sentences.append(f"A unit is one {unit_in_words(self.unit, self.rows_per_unit)}.")
        if self.selection:
            sentences.append(f"Selection: {self.selection}.")
        if self.weights_unchanged is False:
            sentences.append("The weights have been changed outside of private training since.")
        return " ".join(sentences)


def selections_in_words(rows: Iterable[LedgerRow]) -> str:
    """Return how the runs in some rows were selected; empty if none were."""
    return "; ".join(
        f"{row.selection}" if row.releases == 1 else f"{row.releases} times {row.selection}"
        for row in rows
        if row.selection is not None
    )


def unit_in_words(unit: str, rows_per_unit: int) -> str:
    """Return what epsilon protects one of, in words.

    Args:
        unit: `"example"`, `"client"` or `"person"`.
        rows_per_unit: The most rows of the person.
    """
    rows = f"{rows_per_unit:,} row{'s' * (rows_per_unit > 1)}"
    return f"person with up to {rows}" if rows_per_unit else unit.replace("example", "row")


def rounded_up(value: float, digits: int = 5) -> str:
    """Return a value rounded up to a few significant digits.

    Args:
        value: The value, at least 0; infinity gives `"inf"`.
        digits: The number of significant digits.
    """
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return f"{math.ceil(value / unit) * unit:.{digits}g}"


def percent(share: float) -> str:
    """Return a share in percent, rounded up.

    Args:
        share: The share, between 0 and 1.
    """
    return f"{math.ceil(1000 * share - 1e-9) / 10:g}%"
