"""Rounds of a query as the accountant sees them: which noise, and since when its trees grow.

What a round does stands in `QueryOptimizer`.
"""

import warnings
from typing import Any

import numpy as np

from keras_adaclip import noise
from keras_adaclip.accounting import LedgerRow, Sampling
from keras_adaclip.integrations.tensorflow_privacy import trees
from keras_adaclip.integrations.tensorflow_privacy.checking import is_mean
from keras_adaclip.integrations.tensorflow_privacy.event_noise import noise_of_event
from keras_adaclip.integrations.tensorflow_privacy.integer_records import IntegerRecords
from keras_adaclip.optimizers import AccountedOptimizer, RunSettings

Tensor = Any
# What the ledger states is below what the event says: quotients and norms are float32.
_MARGIN = 1.0 - 2.0**-16
# An adaptive norm moves the quotient in its last digits: no row of the ledger for each of them.
_SAME_NOISE, _STILL_ENOUGH = 1.0 - 2.0**-14, 1.0 - 2.0**-17


class QueryAccounting(AccountedOptimizer):
    """Keeps the ledger in step with the noise that a query reports.

    Args:
        inner_optimizer: the optimizer that applies the updates.
        query: a `DPQuery`.
        name: name of the optimizer.

    Guarantees:
        The noise multiplier of a ledger row is a little below that of the query's event when the
        row was opened, and a round whose event has less fails unused. Without an event that is
        known, it is 0.
    """

    def __init__(self, inner_optimizer: Any, query: Any, name: str | None) -> None:
        from keras_adaclip.backend.tensorflow_queries import QueryRounds

        super().__init__(inner_optimizer, 0.0, name)
        self._query = query
        self._is_mean = is_mean(query)
        self._grid: IntegerRecords | None = None
        self._has_run, self._heeds_seed = False, True
        self._rounds = QueryRounds(query, self._noise_of)

    @property
    def aggregation(self) -> Any:
        """What adds up the clients of a round."""
        return self._rounds

    @property
    def noise_multiplier(self) -> float | None:
        """What the ledger states of the next round, 0 for none; None before the model is built."""
        return self._noise_multiplier_at(0, None) if self.built else None

    @noise_multiplier.setter
    def noise_multiplier(self, noise_multiplier: Any) -> None:
        raise AttributeError(
            "The noise of a `QueryOptimizer` is its query's own: make one with other noise. "
            f"Received: noise_multiplier={noise_multiplier!r}"
        )

    def configure(self, settings: RunSettings) -> LedgerRow:
        """Prepares a run of rounds: see `AccountedOptimizer`. Trees restart.

        Raises:
            ValueError: where the query's noise is not a number, or does not go with the run.
        """
        if settings.noise_scale != 1.0:
            raise ValueError(
                "The noise of a `QueryOptimizer` is its query's own, and cannot be scaled. "
                f"Received: noise_scale={settings.noise_scale}"
            )
        if self._grid is not None:
            self._grid.check_sum(settings.expected_batch_size)
        share = 0.0
        if settings.sampling is Sampling.SHUFFLE:
            share = trees.share_of_pass(-(-settings.num_examples // settings.expected_batch_size))
        self._share_of_pass.assign(np.float32(share))
        if not self._has_run and self.ledger.steps > 0:
            # An optimizer before this one may have drawn from the same seed.
            self._heeds_seed = False
        self._has_run = True
        self._restart_trees()
        self._key.assign(noise.fresh_key())
        reason = self._unaccounted(settings.sampling)
        if reason is not None and not self._is_configured:
            warnings.warn(f"Epsilon is infinite: {reason}.", stacklevel=2)
        return super().configure(settings)

    def begin_epoch(self, is_pass: bool) -> None:
        """Opens the row that counts a later epoch of the run; trees restart with a pass."""
        super().begin_epoch(is_pass)
        if is_pass:
            self._restart_trees()

    def described(self) -> dict[str, str]:
        """How contributions are bounded and where the noise comes from, for a report."""
        name = type(self._query).__name__
        reason = self._unaccounted(self._run_settings.sampling) if self.built else None
        seed = trees.given_seed(self._query) if trees.has_trees(self._query) else None
        seeds = (
            "noise by TensorFlow Privacy, sampling from the operating system, anew for each run"
            if seed is None
            else f"noise seeded with {seed}: whoever knows it can subtract the noise"
        )
        clipping = f"by the `{name}` of TensorFlow Privacy"
        return {"clipping": clipping + (f"; {reason}" if reason else ""), "seeds": seeds}

    def _build_noise(self) -> None:
        """Makes the variables of noise and divisor, before the query's own."""
        add = self._add_own_variable
        self._key = add("random_key", noise.fresh_key())
        self._divisor = add("divisor", np.ones((), np.float32))
        self._stated_noise = add("stated_noise", np.zeros((), np.float32))
        self._share_of_pass = add("share_of_pass", np.zeros((), np.float32))

    def _noise_of(self, event: Any, state: Any) -> Tensor | None:
        """The noise multiplier of one round's event, 0 for none, None where it is not known."""
        if not trees.has_trees(self._query):
            return noise_of_event(event)
        node = trees.node_noise(self._query, state)
        return None if node is None else node * self._share_of_pass.value

    def _unaccounted(self, sampling: Sampling) -> str | None:
        """Why the rounds of this query cannot be accounted, None where they can."""
        name = type(self._query).__name__
        if self._rounds.noise_multiplier() is None:
            return (
                f"what a round of `{name}` releases is no Gaussian mechanism that is known here "
                "(its event is unsupported), and counts as if it had no noise"
            )
        if trees.has_trees(self._query) and sampling is not Sampling.SHUFFLE:
            return (
                f"the noise of `{name}` hides a client that takes part once in a tree, which only "
                '`fit(sampling="shuffle")` sees to, and counts as none'
            )
        return None

    def _restart_trees(self) -> None:
        if trees.has_trees(self._query):
            self.remember_seeds(trees.given_seed(self._query))
            self._rounds.state = trees.restarted(self._query, self._rounds.state, self._heeds_seed)

    def _noise_multiplier_at(self, step: int, steps_per_epoch: int | None) -> float:
        """What the ledger states of the next round: a little below what its event says."""
        value = self._rounds.noise_multiplier()
        if value is None:
            return 0.0
        if not np.isfinite(value) or value < 0.0:
            raise ValueError(
                f"The noise over the sensitivity of the `{type(self._query).__name__}` is "
                f"{value}: its clipping norm has reached zero, or is no number. Begin with "
                "a new query."
            )
        stated = float(np.float32(_MARGIN * value))
        if self.built:
            held = self.open_row.noise_multiplier
            if _SAME_NOISE * stated <= held <= _STILL_ENOUGH * value:
                return held
        return stated

    def _noise_split(self, row: LedgerRow) -> tuple[float, float]:
        return row.noise_multiplier, 0.0

    def _set_noise(self, row: LedgerRow, split: tuple[float, float]) -> None:
        self._stated_noise.assign(np.float32(row.noise_multiplier))
        self._divisor.assign(np.float32(1.0 if self._is_mean else row.expected_batch_size))

    def _begin_schedules(self, step: int, steps_per_epoch: int | None) -> None:
        """The query keeps its own."""
