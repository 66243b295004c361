"""The privacy ledger as Keras variables, so that the compiled step counts itself.

The current row is a variable of its own that the step advances; closed rows are a table that
only the host writes. Both are saved with the optimizer.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend, noise
from keras_adaclip.accounting import NUM_INTEGERS, Ledger, LedgerRow, Sampling

MAX_ROWS = 512
_STEPS_PER_RELEASE, _STEPS, _RELEASES, _STEPS_IN_RELEASE = 3, 4, 5, 6

Identity = tuple[int, int]
_NOBODY: Identity = (0, 0)


@dataclasses.dataclass(frozen=True)
class Run:
    """A ledger, and the identity of the one optimizer that adds steps to it.

    Two states with one identity are an earlier and a later state of the same ledger, so the later
    one holds the earlier one. What other optimizers did comes on top, once: `included` remembers
    which states of theirs are in the ledger already, so that a checkpoint and one that goes on from
    it count as the latter. Where it does not know, steps are counted twice rather than not at all.

    Args:
        ledger: what ran.
        identity: two random 32-bit integers; zeros for a ledger that no optimizer owns.
        included: by identity, the latest state of other optimizers' ledgers that this one holds.
    """

    ledger: Ledger = dataclasses.field(default_factory=Ledger)
    identity: Identity = _NOBODY
    included: Mapping[Identity, Ledger] = dataclasses.field(default_factory=dict, hash=False)

    def union_upward(self, other: "Run") -> "Run":
        """The ledger that covers both; what one holds of the other is not counted twice.

        Args:
            other: another run, or another state of this one.
        """
        if other.ledger.steps == 0:
            return self
        if self.identity == other.identity != _NOBODY:
            ledger = self.ledger.union_upward(other.ledger, same_run=True)
        elif other._is_within(self):
            ledger = self.ledger
        elif self._is_within(other):
            ledger = other.ledger
        else:
            ledger = self.ledger.union_upward(other.ledger)
        # Both are in the result, and so is each state that they hold.
        included = dict(self._held)
        for identity, state in other._held.items():
            known = included.get(identity)
            included[identity] = state if known is None or known.is_covered_by(state) else known
        included.pop(self.identity, None)
        return Run(ledger, self.identity, included)

    @property
    def _held(self) -> dict[Identity, Ledger]:
        """By identity, the states of ledgers that this one holds, its own among them.

        A ledger without an owner is a state of none: what is added to it later is another's.
        """
        if self.identity == _NOBODY:
            return dict(self.included)
        return {**self.included, self.identity: self.ledger}

    def _is_within(self, other: "Run") -> bool:
        """Whether nothing is here but one state of a run, which the other ledger holds too."""
        return any(
            self.ledger.is_covered_by(state) and _covers(other._held.get(identity), state)
            for identity, state in self._held.items()
        )

    def included_to_array(self) -> np.ndarray:
        """What the ledger holds of others, a row each: identity, integers and bits of the noise."""
        tables = [np.zeros((0, 2 + NUM_INTEGERS + 1), np.int32)]
        for identity, ledger in self.included.items():
            num_rows = max(2, sum(row.num_table_rows for row in ledger))
            owners = np.tile(identity, (num_rows, 1))
            integers, noise_multipliers = ledger.to_arrays(num_rows)
            tables.append(np.column_stack([owners, integers, noise_multipliers.view(np.int32)]))
        return np.concatenate(tables).astype(np.int32)

    def with_included(self, saved: Any) -> "Run":
        """The run, with what its ledger was saved to hold of others, as far as it can.

        Args:
            saved: what `included_to_array` returned.
        """
        saved = np.asarray(saved, np.int32).reshape(-1, 2 + NUM_INTEGERS + 1)
        identities = {(int(first), int(second)) for first, second in saved[:, :2]}
        included = {}
        for identity in identities:
            rows = saved[(saved[:, :2] == identity).all(axis=1), 2:]
            noise_multipliers = np.ascontiguousarray(rows[:, -1]).view(np.float32)
            ledger = Ledger.from_arrays(rows[:, :-1], noise_multipliers)
            # Whatever a file says, nothing is lost by it.
            if ledger.is_covered_by(self.ledger):
                included[identity] = ledger
        return Run(self.ledger, self.identity, included)


def _covers(ledger: Ledger | None, earlier: Ledger) -> bool:
    return ledger is not None and earlier.is_covered_by(ledger)


class LedgerVariables:
    """The ledger of one optimizer.

    Args:
        add_variable: makes a variable from a name and an initial array.
        noise_multiplier: noise multiplier of the first row.
    """

    def __init__(
        self,
        add_variable: Callable[[str, np.ndarray], keras.Variable],
        noise_multiplier: np.float32,
    ) -> None:
        # Until a row is opened, every step counts as one full release: never as none.
        self._is_open = False
        first = LedgerRow.open(Sampling.STREAM, 1, 0, noise_multiplier=float(noise_multiplier))
        self._current = add_variable("ledger_current_row", first.to_integers())
        self._current_noise = add_variable("ledger_current_noise", np.asarray(noise_multiplier))
        closed, closed_noise = Ledger().to_arrays(MAX_ROWS)
        self._closed = add_variable("ledger_closed_rows", closed)
        self._closed_noise = add_variable("ledger_closed_noise", closed_noise)
        self._identity = add_variable("ledger_identity", noise.fresh_key())
        self._included: Mapping[Identity, Ledger] = {}
        # As the host last wrote it: what has run since is known to the step alone.
        self._written = Ledger()

    def count_step(self) -> None:
        """Advances the current row by one step, inside the compiled step."""
        row = self._current.value
        opens_release = row[_STEPS_IN_RELEASE] >= row[_STEPS_PER_RELEASE]
        opened = ops.cast(opens_release, "int32")
        in_release = ops.where(opens_release, 1, row[_STEPS_IN_RELEASE] + 1)
        self._current.assign(
            ops.stack(
                [
                    *(row[column] for column in range(_STEPS)),
                    row[_STEPS] + 1,
                    row[_RELEASES] + opened,
                    ops.cast(in_release, "int32"),
                ]
            )
        )

    def current_row(self) -> LedgerRow:
        """The row that steps are counted in."""
        integers = backend.array_of(self._current)
        noise_multiplier = float(backend.array_of(self._current_noise))
        try:
            return LedgerRow.from_integers(integers, noise_multiplier=noise_multiplier)
        except ValueError as error:
            raise RuntimeError(
                "The privacy ledger among the variables of the optimizer is damaged: something "
                "outside of this package has assigned them, so that nobody can tell what was "
                "spent. Load the model from a file that was saved before. Received: a row of "
                f"{integers.tolist()}"
            ) from error

    def read(self) -> Ledger:
        """All rows with at least one step, and the current one where it was opened."""
        closed = Ledger.from_arrays(
            backend.array_of(self._closed), backend.array_of(self._closed_noise)
        )
        current = self.current_row()
        return closed.append(current) if self._is_open or current.steps > 0 else closed

    def open(self, row: LedgerRow) -> LedgerRow:
        """Makes `row` the current one, or goes on with the current one if it is of the same kind.

        Returns:
            The current row, at the start of a release.
        """
        current = self.current_row()
        if current.mechanism == row.mechanism:
            row = current.begin_segment()
        else:
            self._write_closed(self.read())
        self._current.assign(row.to_integers())
        self._current_noise.assign(np.float32(row.noise_multiplier))
        self._is_open = True
        self._written = self.read()
        return row

    def renew_identity(self) -> None:
        """Goes on under another identity, as a copy does that others may add steps to as well."""
        run = self.run
        # What was written last is a state of the old ledger, whoever made the steps since.
        if self._written.steps > 0:
            self._included = {**run.included, run.identity: self._written}
        self._identity.assign(noise.fresh_key())

    @property
    def run(self) -> Run:
        """The ledger, whose it is, and what of others it holds."""
        first, second = backend.array_of(self._identity).tolist()
        return Run(self.read(), (first, second), self._included)

    @property
    def variables(self) -> tuple[keras.Variable, ...]:
        """All variables of the ledger, none of which may be set from outside."""
        return (
            self._current,
            self._current_noise,
            self._closed,
            self._closed_noise,
            self._identity,
        )

    def run_from(self, values: Mapping[int, Any]) -> Run:
        """The run that saved arrays describe.

        Args:
            values: the saved array of each of `variables`, by the variable's `id`.

        Raises:
            ValueError: where the arrays make no ledger.
        """
        current, current_noise, closed, closed_noise, identity = (
            np.asarray(values[id(variable)]) for variable in self.variables
        )
        row = LedgerRow.from_integers(current, noise_multiplier=float(current_noise))
        first, second = identity.tolist()
        ledger = Ledger.from_arrays(closed, closed_noise)
        return Run(ledger.append(row) if row.steps > 0 else ledger, (first, second))

    def include(self, other: Run) -> None:
        """Raises the ledger to at least that of `other`, never lowering it."""
        run = self.run
        union = run.union_upward(other)
        self._included = union.included
        if union.ledger == run.ledger:
            return
        self._write_closed(union.ledger)
        current = self.current_row()
        emptied = dataclasses.replace(current, steps=0, releases=0).begin_segment()
        self._current.assign(emptied.to_integers())
        self._written = self.read()

    def restore(self) -> None:
        """Writes again what was included, where a training loop that failed has put back variables.

        `_included` would say that it is there, and what is loaded again would count for nothing.
        """
        if not self._written.is_covered_by(self.read()):
            run = self.run
            self.include(Run(self._written, run.identity, run.included))

    def _write_closed(self, ledger: Ledger) -> None:
        # One row fewer than the table has, so that the ledger with the current row still fits one.
        rows, noise_multipliers = ledger.compact(MAX_ROWS - 1).to_arrays(MAX_ROWS)
        self._closed.assign(rows)
        self._closed_noise.assign(noise_multipliers)
