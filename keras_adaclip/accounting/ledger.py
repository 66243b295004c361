"""The privacy ledger: counters that only grow, one for each mechanism of each owner.

    L = {(owner, mechanism): (steps, releases)}

An owner is one optimizer in one process; nobody else adds steps under its number. Two ledgers are
therefore merged by the maximum of each counter: an earlier state of a run, a checkpoint that was
rewound, two processes that continue from one file and weights that two models share all count each
step once. Rows without an owner (plans) add up instead.

Epsilon is a function of the ledger alone (`ledger_epsilon`), so a saved model can be accounted for
after loading. The smallest delta that was promised stays with the ledger: a larger one would renew
a budget.
"""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from keras_adaclip._checks import check_between_0_and_1
from keras_adaclip.accounting.epsilon import default_delta
from keras_adaclip.accounting.kinds import SelectionCost, Unit
from keras_adaclip.accounting.row import LedgerRow


@dataclasses.dataclass(frozen=True)
class Ledger:
    """Rows of what ran. The last row is the one that is running.

    Rows without steps are dropped, except the last, which may be about to run, and no other row has
    an open release. Rows of one mechanism and owner become one. Iteration joins the rows of all
    owners of a mechanism.

    Args:
        rows: The rows, one for each mechanism of each owner.
        promised_delta: The smallest delta for which a target epsilon was promised; 1 if none was.

    Raises:
        ValueError: If some steps are about examples and others about clients.

    Guarantees:
        No method returns a ledger with a smaller epsilon than the ledger it was called on, under
        the same neighbouring relation and unit. (Steps without `unit_ids` after steps with them
        are stated for zeroing out one row instead of one person. Fixed-size batches are stated for
        replacing a unit, and truncated draws for adding or removing one. With other steps among
        them, or merged with others, all steps are stated for zeroing out a unit, a smaller change.)

    Example:

    >>> from keras_adaclip.accounting import Sampling
    >>> first = LedgerRow.open(Sampling.POISSON, 256, 60_000, noise_multiplier=1.0)
    >>> second = LedgerRow.open(Sampling.POISSON, 256, 60_000, noise_multiplier=1.5)
    >>> ledger = Ledger().append(first).advance(10).append(second).advance(5)
    >>> [(row.steps, row.noise_multiplier) for row in ledger]
    [(10, 1.0), (5, 1.5)]
    >>> Ledger.from_array(ledger.to_array()) == ledger
    True
    """

    rows: tuple[LedgerRow, ...] = ()
    promised_delta: float = 1.0

    def __post_init__(self) -> None:
        rows = tuple(self.rows)
        if len({row.unit for row in rows if row.steps > 0}) > 1:
            raise ValueError(
                "A ledger cannot hold steps about single examples and steps about whole clients: "
                "they do not add up to an epsilon for either. Train a model in one way only, or "
                "begin with weights that have not been trained on these data."
            )
        joined = dict[object, LedgerRow]()
        for row in rows:
            earlier = joined.pop(row.key, None)
            joined[row.key] = row if earlier is None else row.plus(earlier)
        rows = tuple(joined.values())
        closed = (row.begin_segment() if row.free_steps else row for row in rows[:-1])
        kept = (*(row for row in closed if row.steps > 0), *rows[-1:])
        object.__setattr__(self, "rows", kept)

    def __iter__(self) -> Iterator[LedgerRow]:
        joined = dict[object, LedgerRow]()
        for row in self.rows:
            row = dataclasses.replace(row, owner=0)
            earlier = joined.pop(row.mechanism, None)
            joined[row.mechanism] = row if earlier is None else row.plus(earlier)
        return iter(joined.values())

    def __len__(self) -> int:
        return len({row.mechanism for row in self.rows})

    @property
    def unit(self) -> Unit | None:
        """The unit of privacy; None if no step ran."""
        return next((row.unit for row in self.rows if row.steps > 0), None)

    @property
    def current(self) -> LedgerRow | None:
        """The row that is running; None if there are no rows."""
        return self.rows[-1] if self.rows else None

    @property
    def num_examples(self) -> int:
        """Units of the largest data set on which steps ran; 0 if none ran or none is known."""
        return max((row.num_examples for row in self.rows if row.steps > 0), default=0)

    @property
    def steps(self) -> int:
        """Steps in all rows."""
        return sum(row.steps for row in self.rows)

    @property
    def releases(self) -> int:
        """Releases in all rows."""
        return sum(row.releases for row in self.rows)

    def budget_delta(self, delta: float | None, num_examples: int) -> float:
        """Return the delta at which a target epsilon holds, never above the promised one.

        Args:
            delta: The delta that was asked for; None for the default of the largest data set.
            num_examples: Units of the next data set, 0 if unknown.

        Raises:
            ValueError: If no delta was asked for, and no data set of two or more units is known.
        """
        # With a larger delta, a smaller data set would renew the budget.
        num_examples = max(num_examples, self.num_examples)
        if delta is None and num_examples < 2:
            raise ValueError(
                "The default delta is computed from the number of examples (or clients), which "
                f"must be known and above one. Give `delta`. Received: {num_examples} (0: unknown)"
            )
        return min(delta or default_delta(num_examples), self.promised_delta)

    def append(self, row: LedgerRow) -> Self:
        """Return the ledger with `row` as the one that runs from now on.

        If its owner has a row with the same mechanism, that moves to the end and `row` is added to
        it. Training that alternates between two settings thus takes two rows.

        Args:
            row: The row, usually a fresh one (`LedgerRow.open`).

        Returns:
            The new ledger.
        """
        others = tuple(each for each in self.rows if each.key != row.key)
        for present in self.rows:
            row = row.plus(present) if present.key == row.key else row
        return dataclasses.replace(self, rows=(*others, row))

    def advance(self, num_steps: int) -> Self:
        """Return the ledger after `num_steps` more steps of the running row.

        Args:
            num_steps: Number of steps, at least 0.

        Returns:
            The new ledger.

        Raises:
            ValueError: If there is no row.
        """
        if not self.rows:
            raise ValueError("An empty `Ledger` has no row that could run: `append` one first.")
        return dataclasses.replace(self, rows=(*self.rows[:-1], self.rows[-1].advance(num_steps)))

    def begin_segment(self) -> Self:
        """Return the ledger at the start of another `fit` call, which begins a pass."""
        return dataclasses.replace(self, rows=tuple(row.begin_segment() for row in self.rows))

    def owned_by(self, owner: int) -> Self:
        """Return the ledger with all rows under one owner.

        Args:
            owner: The number of the owner.
        """
        ledger = dataclasses.replace(self, rows=())
        for row in self.rows:
            ledger = ledger.append(dataclasses.replace(row, owner=owner))
        return ledger

    def raised_to(self, plan: "Ledger") -> Self:
        """Return the ledger with at least as many steps and releases of each mechanism as a plan.

        Args:
            plan: The plan of a run. The owner of the running row gets what is missing.
        """
        owner = 0 if self.current is None else self.current.owner
        own, ledger = {row.mechanism: row for row in self}, self
        for row in plan:
            ran = own.get(row.mechanism, row.emptied())
            releases = max(row.releases - ran.releases, 0)
            steps = max(row.steps - ran.steps, releases)
            missing = dataclasses.replace(
                row.emptied(), steps=steps, releases=releases, owner=owner
            )
            ledger = ledger.append(missing)
        return ledger

    def is_covered_by(self, other: "Ledger") -> bool:
        """Return whether `other` holds at least these steps and releases of each mechanism.

        Args:
            other: The ledger that may hold more.
        """
        held = {row.mechanism: row for row in other}
        pairs = [(row, held.get(row.mechanism, row.emptied())) for row in self]
        return all(row.steps <= its.steps and row.releases <= its.releases for row, its in pairs)

    def merge(self, other: "Ledger") -> Self:
        """Return the ledger that counts all steps of both, each once.

        Args:
            other: Another ledger, or an earlier or later state of this one.

        Returns:
            The maximum of each counter, and the sum for rows without an owner, with the smaller
            promised delta. If this ledger has a running row, the result has one with the same
            owner and mechanism.
        """
        rows = {row.key: row.begin_segment() for row in other.rows if row.steps > 0}
        for row in self.rows:
            theirs = rows.pop(row.key, None)
            if theirs is not None:
                row = row.at_least(theirs) if row.owner else row.plus(theirs)
            rows[row.key] = row
        promised = min(self.promised_delta, other.promised_delta)
        return dataclasses.replace(self, rows=tuple(rows.values()), promised_delta=promised)

    def to_json(self) -> str:
        """Return the ledger as a text: every field of every row under its name."""
        # The sampling schemes of a selection are a set.
        return json.dumps(dataclasses.asdict(self), default=sorted)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return the ledger that `to_json` wrote.

        Args:
            text: The text.

        Raises:
            ValueError: If it is no ledger, or the numbers of a row are impossible.
        """
        try:
            document = _complete(json.loads(text, object_pairs_hook=_unique), cls)
            if not isinstance(document["rows"], list):
                raise ValueError("`rows` is no list")
            rows = []
            for fields in document["rows"]:
                fields = {"rows_per_unit": 0, **fields}  # Version 0.3.0 has not written it.
                cost = _complete(fields, LedgerRow)["selection"]
                cost = None if cost is None else SelectionCost(**_complete(cost, SelectionCost))
                rows.append(LedgerRow(**{**fields, "selection": cost}))
            delta = document["promised_delta"]
            return cls(tuple(rows), delta if delta == 1 else check_between_0_and_1("delta", delta))
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(
                f"The privacy ledger is damaged: it must be the text that `to_json` has written. "
                f"Load another copy of it. Received: {error}"
            ) from error

    def to_array(self, multiple: int = 1) -> npt.NDArray[np.uint8]:
        """Return the bytes of `to_json`, for files.

        Args:
            multiple: Spaces fill the text up to a multiple of this number of bytes.
        """
        return padded_bytes(self.to_json(), multiple)

    @classmethod
    def from_array(cls, values: npt.ArrayLike) -> Self:
        """Return the ledger that `to_array` wrote.

        Args:
            values: The bytes.

        Raises:
            ValueError: If they are no ledger, or the numbers of a row are impossible.
        """
        return cls.from_json(np.asarray(values).astype(np.uint8).tobytes())


def padded_bytes(text: str, multiple: int) -> npt.NDArray[np.uint8]:
    """Return the bytes of a text, filled up with spaces to a multiple of a number of bytes."""
    encoded = text.encode()
    return np.frombuffer(encoded.ljust(-(-len(encoded) // multiple) * multiple), np.uint8)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the entries of a JSON object, none of which may be there twice."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError(f"an entry is there twice in {[name for name, _ in pairs]}")
    return entries


def _complete(entries: Any, kind: type[Any]) -> dict[str, Any]:
    """Return the entries of a JSON object, which must be the fields of a dataclass."""
    names = {each.name for each in dataclasses.fields(kind)}
    if not isinstance(entries, dict) or entries.keys() != names:
        raise ValueError(f"a {kind.__name__} has the entries {sorted(names)}, not {entries!r:.200}")
    return entries
