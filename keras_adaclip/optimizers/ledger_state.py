"""The privacy ledger as Keras variables, so that the compiled step counts itself.

The current row is a variable that the step advances. Closed rows are a table that only the host
writes. Both are saved with the optimizer.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend, noise
from keras_adaclip.accounting import Ledger, LedgerRow, Sampling
from keras_adaclip.optimizers.run import Identity, Run

MAX_ROWS = 512
_STEPS_PER_RELEASE, _STEPS, _RELEASES, _STEPS_IN_RELEASE = 3, 4, 5, 6


class LedgerState:
    """The ledger of one optimizer.

    Args:
        add_variable: a function that makes a variable from a name and an initial array.

    Attributes:
        is_open: whether a row is open; then `read` returns it without steps too.
    """

    def __init__(self, add_variable: Callable[[str, np.ndarray], keras.Variable]) -> None:
        # Before a row is opened, a step counts as one release without noise.
        self.is_open = False
        first = LedgerRow.open(Sampling.STREAM, 1, 0, noise_multiplier=0.0)
        self._current = add_variable("ledger_current_row", first.to_integers())
        self._current_noise = add_variable("ledger_current_noise", np.zeros((), np.float32))
        closed, closed_noise = Ledger().to_arrays(MAX_ROWS)
        self._closed = add_variable("ledger_closed_rows", closed)
        self._closed_noise = add_variable("ledger_closed_noise", closed_noise)
        self._identity = add_variable("ledger_identity", noise.fresh_key())
        self._included: Mapping[Identity, Ledger] = {}
        # The ledger as the host last wrote it; later steps are in the variables alone.
        self._written = Ledger()

    def count_step(self) -> None:
        """Advance the current row by one step, inside the compiled step."""
        row = self._current.value
        mechanism = [row[column] for column in range(_STEPS)]
        opened = ops.cast(row[_STEPS_IN_RELEASE] >= row[_STEPS_PER_RELEASE], "int32")
        in_release = (1 - opened) * row[_STEPS_IN_RELEASE] + 1
        counts = [row[_STEPS] + 1, row[_RELEASES] + opened, in_release]
        self._current.assign(ops.stack([*mechanism, *counts]))

    def current_row(self) -> LedgerRow:
        """Return the row in which steps are counted."""
        integers = backend.array_of(self._current)
        noise_multiplier = float(backend.array_of(self._current_noise))
        try:
            return LedgerRow.from_integers(integers, noise_multiplier=noise_multiplier)
        except ValueError as error:
            raise RuntimeError(
                "The privacy ledger in the variables of the optimizer is damaged: something "
                "outside of this package has assigned them, so the privacy spent is unknown. "
                "Load the model from a file that was saved before. Received: a row of "
                f"{integers.tolist()}"
            ) from error

    def read(self) -> Ledger:
        """Return all rows with at least one step, and the current row if it was opened."""
        tables = map(backend.array_of, (self._closed, self._closed_noise))
        closed = Ledger.from_arrays(*tables)
        current = self.current_row()
        return closed.append(current) if self.is_open or current.steps > 0 else closed

    def open(self, row: LedgerRow) -> LedgerRow:
        """Make `row` the current row, or continue the current row if its mechanism is the same.

        Returns:
            The current row, at the start of a release.
        """
        current = self.current_row()
        if current.mechanism == row.mechanism:
            row = current.begin_segment()
        else:
            self.is_open = False  # A row without steps is left out.
            self._write_closed(self.read())
        self._current.assign(row.to_integers())
        self._current_noise.assign(np.float32(row.noise_multiplier))
        self.is_open = True
        self._written = self.read()
        return row

    def close(self) -> None:
        """Close the current row; a later step counts as a full release.

        A training loop that failed may have reset the variables. The ledger as last written is then
        written again, because `_included` would claim steps that are missing.
        """
        if not self._written.is_covered_by(self.read()):
            run = self.run
            self.include(Run(self._written, run.identity, run.included))
        self.open(self.current_row().as_stream())
        self.is_open = False

    def renew_identity(self) -> None:
        """Take another identity, because another process continues from the same ledger."""
        run = self.run
        # The ledger as last written is a state of the old one, whichever process ran steps since.
        if self._written.steps > 0:
            self._included = {**run.included, run.identity: self._written}
        self._identity.assign(noise.fresh_key())

    @property
    def run(self) -> Run:
        """The ledger with its identity and the states of others that it contains."""
        first, second = backend.array_of(self._identity).tolist()
        return Run(self.read(), (first, second), self._included)

    @property
    def variables(self) -> tuple[keras.Variable, ...]:
        """All variables of the ledger; nothing else may assign them."""
        rows = (self._current, self._current_noise, self._closed, self._closed_noise)
        return (*rows, self._identity)

    def run_from(self, values: Mapping[int, Any]) -> Run:
        """Return the run in saved arrays.

        Args:
            values: the saved array of each of `variables`, by the variable's `id`.

        Raises:
            ValueError: If the arrays are not those of a ledger.
        """
        current, current_noise, closed, closed_noise, identity = (
            np.asarray(values[id(variable)]) for variable in self.variables
        )
        row = LedgerRow.from_integers(current, noise_multiplier=float(current_noise))
        first, second = identity.tolist()
        ledger = Ledger.from_arrays(closed, closed_noise)
        return Run(ledger.append(row) if row.steps > 0 else ledger, (first, second))

    def include(self, other: Run) -> None:
        """Raise the ledger to cover that of `other`; it is never lowered."""
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

    def _write_closed(self, ledger: Ledger) -> None:
        """Write the table of closed rows."""
        # Fewer rows than the table has: the current row and a promised delta must fit too.
        num_rows = MAX_ROWS - 1 - (ledger.promised_delta < 1.0)
        rows, noise_multipliers = ledger.compact(num_rows).to_arrays(MAX_ROWS)
        self._closed.assign(rows)
        self._closed_noise.assign(noise_multipliers)
