"""A ledger with the identity of its owner, so that merging ledgers counts every step once."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_adaclip.accounting import NUM_INTEGERS, Ledger

Identity = tuple[int, int]
_NOBODY: Identity = (0, 0)


@dataclasses.dataclass(frozen=True)
class Run:
    """A ledger, and the identity of the one optimizer that adds steps to it.

    Two runs with one identity are an earlier and a later state of the same ledger, so the later one
    contains the earlier one. Steps of other optimizers are added once: `included` remembers which
    states of their ledgers are in this one already, so that a checkpoint and a run that continued
    from it count as the latter. In doubt, steps are counted twice rather than not at all.

    Args:
        ledger: the steps that ran.
        identity: two random 32-bit integers; zeros for a ledger that no optimizer owns.
        included: by identity, the latest state of another optimizer's ledger that this one
            contains.
    """

    ledger: Ledger = dataclasses.field(default_factory=Ledger)
    identity: Identity = _NOBODY
    included: Mapping[Identity, Ledger] = dataclasses.field(default_factory=dict, hash=False)

    def union_upward(self, other: "Run") -> "Run":
        """Return a run that covers both; steps that both contain are counted once.

        Args:
            other: another run, or another state of this one.
        """
        if other.ledger.steps == 0:
            ledger = self.ledger.union_upward(other.ledger, same_run=True)
            return dataclasses.replace(self, ledger=ledger)
        if self.identity == other.identity != _NOBODY:
            ledger = self.ledger.union_upward(other.ledger, same_run=True)
        elif other._is_within(self):
            ledger = self.ledger
        elif self._is_within(other):
            ledger = other.ledger
        else:
            ledger = self.ledger.union_upward(other.ledger)
        # The result contains both, and every state that they contain.
        included = dict(self._held)
        for identity, state in other._held.items():
            known = included.get(identity)
            included[identity] = state if known is None or known.is_covered_by(state) else known
        included.pop(self.identity, None)
        promised = min(self.ledger.promised_delta, other.ledger.promised_delta)
        ledger = dataclasses.replace(ledger, promised_delta=promised)
        return Run(ledger, self.identity, included)

    @property
    def _held(self) -> dict[Identity, Ledger]:
        """The states that the ledger contains by identity, its own among them.

        A ledger without an owner is no state of anything: later steps belong to another owner.
        """
        if self.identity == _NOBODY:
            return dict(self.included)
        return {**self.included, self.identity: self.ledger}

    def _is_within(self, other: "Run") -> bool:
        """Return whether the ledger is one state of a run that the other ledger contains too."""
        return any(
            self.ledger.is_covered_by(state)
            and state.is_covered_by(other._held.get(identity, Ledger()))
            for identity, state in self._held.items()
        )

    def included_to_array(self) -> np.ndarray:
        """Return `included` as rows of identity, integers of a ledger row and bits of its noise."""
        tables = [np.zeros((0, 2 + NUM_INTEGERS + 1), np.int32)]
        for identity, ledger in self.included.items():
            integers, noise_multipliers = ledger.to_arrays()
            owners = np.tile(identity, (len(integers), 1))
            tables.append(np.column_stack([owners, integers, noise_multipliers.view(np.int32)]))
        return np.concatenate(tables).astype(np.int32)

    def with_included(self, saved: Any) -> "Run":
        """Return the run with the saved `included`, as far as the ledger covers it.

        Args:
            saved: an array from `included_to_array`.
        """
        saved = np.asarray(saved, np.int32).reshape(-1, 2 + NUM_INTEGERS + 1)
        identities = {(int(first), int(second)) for first, second in saved[:, :2]}
        included = {}
        for identity in identities:
            rows = saved[(saved[:, :2] == identity).all(axis=1), 2:]
            noise_multipliers = np.ascontiguousarray(rows[:, -1]).view(np.float32)
            ledger = Ledger.from_arrays(rows[:, :-1], noise_multipliers)
            # No file can claim steps that are not on the ledger.
            if ledger.is_covered_by(self.ledger):
                included[identity] = ledger
        return Run(self.ledger, self.identity, included)
