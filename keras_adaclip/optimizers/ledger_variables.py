"""The privacy ledger as Keras variables, so that the compiled step counts itself.

The current row is a variable of its own that the step advances; closed rows are a table that
only the host writes. Both are saved with the optimizer.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import noise
from keras_adaclip.accounting import Ledger, LedgerRow, Sampling

MAX_ROWS = 64
_NUM_COLUMNS = 7
_STEPS_PER_RELEASE, _STEPS, _RELEASES, _STEPS_IN_RELEASE = 3, 4, 5, 6


@dataclasses.dataclass(frozen=True)
class Run:
    """A ledger and the identity, drawn at random, of the run that it is a state of.

    Args:
        ledger: what ran.
        identity: two random 32-bit integers.
    """

    ledger: Ledger = Ledger()
    identity: tuple[int, int] = (0, 0)

    def union_upward(self, other: "Run") -> "Run":
        """The ledger that covers both; two states of one run are not counted twice."""
        if other.ledger.steps == 0:
            return self
        if self.ledger.steps == 0:
            return other
        same_run = self.identity == other.identity
        return Run(self.ledger.union_upward(other.ledger, same_run=same_run), self.identity)


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
        first = LedgerRow.open(Sampling.STREAM, 1, 0, noise_multiplier=float(noise_multiplier))
        self._current = add_variable("ledger_current_row", first.to_integers())
        self._current_noise = add_variable("ledger_current_noise", np.asarray(noise_multiplier))
        closed, closed_noise = Ledger().to_arrays(MAX_ROWS)
        self._closed = add_variable("ledger_closed_rows", closed)
        self._closed_noise = add_variable("ledger_closed_noise", closed_noise)
        self._identity = add_variable("ledger_identity", noise.fresh_key())

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
        return LedgerRow.from_integers(
            _numpy(self._current), noise_multiplier=float(_numpy(self._current_noise))
        )

    def read(self) -> Ledger:
        """All rows with at least one step."""
        closed = Ledger.from_arrays(_numpy(self._closed), _numpy(self._closed_noise))
        return closed.append(self.current_row())

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
        return row

    @property
    def run(self) -> Run:
        """The ledger with the identity of the run that it belongs to."""
        return Run(self.read(), _identity(self._identity))

    def include(self, other: Run) -> None:
        """Raises the ledger to at least that of `other`, never lowering it."""
        if other.ledger.steps == 0:
            return
        union = self.run.union_upward(other)
        self._write_closed(union.ledger)
        current = self.current_row()
        emptied = dataclasses.replace(
            current, steps=0, releases=0, steps_in_release=current.steps_per_release
        )
        self._current.assign(emptied.to_integers())
        self._identity.assign(np.asarray(union.identity, np.int32))

    def _write_closed(self, ledger: Ledger) -> None:
        rows, noise_multipliers = ledger.to_arrays(MAX_ROWS)
        self._closed.assign(rows)
        self._closed_noise.assign(noise_multipliers)


def _identity(variable: keras.Variable) -> tuple[int, int]:
    first, second = _numpy(variable).tolist()
    return first, second


def _numpy(variable: keras.Variable) -> Any:
    return np.asarray(ops.convert_to_numpy(variable.value))
