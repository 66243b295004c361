"""The privacy ledger of an optimizer: one row as a variable, which the compiled step advances.

The other rows are on the host. What the host has seen only grows: a variable that a failed training
loop has reset to an earlier value lowers no count.
"""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend, noise
from keras_adaclip.accounting import Ledger, LedgerRow, Sampling

_STEPS_PER_RELEASE, _STEPS, _RELEASES, _FREE_STEPS = 7, 8, 9, 10


class LedgerState:
    """The ledger of one optimizer.

    Args:
        add_variable: a function that makes a variable from a name and an initial array.

    Attributes:
        is_open: whether a row is open; then `read` returns it without steps too.
        variable: the row in which steps are counted; nothing else may assign it.
    """

    def __init__(self, add_variable: Callable[[str, np.ndarray], keras.Variable]) -> None:
        self.is_open = False
        self._owner = _new_owner()
        self.variable = add_variable("ledger_row", self._first_row().to_integers())
        # The ledger when the host last saw it; later steps are in the variable alone.
        self._known = Ledger()

    def count_step(self) -> None:
        """Advance the current row by one step, inside the compiled step."""
        row = self.variable.value
        mechanism = [row[column] for column in range(_STEPS)]
        opened = ops.cast(row[_FREE_STEPS] <= 0, "int32")
        free_steps = row[_FREE_STEPS] + opened * row[_STEPS_PER_RELEASE] - 1
        counts = [row[_STEPS] + 1, row[_RELEASES] + opened, free_steps]
        self.variable.assign(ops.stack([*mechanism, *counts]))

    def current_row(self) -> LedgerRow:
        """Return the row in which steps are counted."""
        integers = backend.array_of(self.variable)
        try:
            return LedgerRow.from_integers(integers)
        except ValueError as error:
            raise RuntimeError(
                "The privacy ledger in the variables of the optimizer is damaged: something "
                "outside of this package has assigned them, so the privacy spent is unknown. "
                "Load the model from a file that was saved before. Received: a row of "
                f"{integers.tolist()}"
            ) from error

    def read(self) -> Ledger:
        """Return all rows with at least one step, and the current row if it was opened."""
        current = self.current_row()
        rows = (current,) if self.is_open or current.steps > 0 else ()
        self._known = Ledger(rows).merge(self._known)
        return self._known

    def was_reset(self) -> bool:
        """Return whether the variable has been set back to fewer steps than the host has seen."""
        return self.read().current != self.current_row()

    def open(self, row: LedgerRow) -> LedgerRow:
        """Make `row` the current row, or continue the one of its mechanism.

        Returns:
            The current row, at the start of a release.
        """
        row = dataclasses.replace(row, owner=self._owner)
        known = (each for each in self.read().rows if each.key == row.key)
        row = next(known, row.emptied()).begin_segment()
        self.variable.assign(row.to_integers())
        self.is_open = True
        return row

    def close(self) -> None:
        """Close the current row; a later step counts as a full release."""
        self.open(self.current_row().as_stream())
        self.is_open = False

    def include(self, other: Ledger) -> None:
        """Raise the ledger to cover another one; it is never lowered."""
        self._known = self.read().merge(other)

    def renew_owner(self) -> None:
        """Count later steps under another owner, as another process does.

        What the host saw is a state of the old one, whichever process ran steps since. Those steps
        are counted under the new owner.
        """
        current = self.current_row()
        own = (row for row in self._known.rows if row.key == current.key)
        counted = next(own, current.emptied())
        self._owner = _new_owner()
        steps = max(current.steps - counted.steps, 0)
        releases = max(current.releases - counted.releases, min(steps, 1))
        row = dataclasses.replace(
            current.emptied(), steps=steps, releases=releases, owner=self._owner
        )
        self.variable.assign(row.to_integers())

    def replace(self, other: Ledger) -> None:
        """Set the ledger to one whose cost contains that of all steps so far."""
        promised = Ledger(promised_delta=self.read().promised_delta)
        self._known, self._owner = other.owned_by(_new_owner()).merge(promised), _new_owner()
        self.is_open = False
        self.variable.assign(self._first_row().to_integers())

    def _first_row(self) -> LedgerRow:
        """Return the row before any is opened, in which a step is a release without noise."""
        return LedgerRow(Sampling.STREAM, 1, 0, noise_multiplier=0.0, owner=self._owner)


def _new_owner() -> int:
    """Return a random number that no other owner has."""
    return int(noise.fresh_key().view(np.int64)[0])
