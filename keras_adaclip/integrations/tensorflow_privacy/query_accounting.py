"""The ledger of an optimizer whose noise is that of a query, and the restarts of its trees.

Gaussian mechanisms on the same clients are one Gaussian mechanism: with noise multipliers z_k,

    z = (sum_k z_k^-2)^(-1/2)

since each sum, divided by its sensitivity, is a coordinate of one vector that moves by at most
sqrt(K), and scaling each by its noise leaves N(0, I). So the ledger composes, under Poisson
sampling, `PoissonSampledDpEvent(q, ComposedDpEvent([GaussianDpEvent(z_k), ...]))`, as one
`PoissonSampledDpEvent(q, GaussianDpEvent(z))`: exactly, and for every accountant.

Any other event (Laplace, sampling inside of a query, an unsupported event) is not a Gaussian
mechanism, and is not accounted: epsilon is then infinite.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import noise
from keras_adaclip.accounting import LedgerRow, Sampling
from keras_adaclip.accounting import lazy_dp as dp
from keras_adaclip.integrations.tensorflow_privacy import trees
from keras_adaclip.integrations.tensorflow_privacy.library import is_instance
from keras_adaclip.optimizers import AccountedOptimizer, RunSettings

Tensor = Any
# The ledger states a little less noise than the event: quotients and norms are float32.
_MARGIN = 1.0 - 2.0**-16
# An adaptive norm changes the last digits of the quotient, which is no reason for a new row.
_SAME_NOISE, _STILL_ENOUGH = 1.0 - 2.0**-14, 1.0 - 2.0**-17


class QueryAccounting(AccountedOptimizer):
    """Keeps the ledger in step with the noise that a query reports.

    Args:
        inner_optimizer: The optimizer that applies the updates.
        query: A `DPQuery`.
        name: The name of the optimizer.

    Guarantees:
        The noise multiplier of a ledger row is a little below that of the query's event when the
        row was opened, and a round whose event has less noise fails before its result is used. If
        the event is unknown, the noise multiplier of the row is 0.
    """

    def __init__(self, inner_optimizer: Any, query: Any, name: str | None) -> None:
        from keras_adaclip.integrations.tensorflow_privacy.tensorflow_queries import QueryRounds

        super().__init__(inner_optimizer, 0.0, name)
        self._query = query
        self._is_mean = _is_mean(query)
        self._rounds = QueryRounds(query, self._noise_of)

    @property
    def aggregation(self) -> Any:
        """Sums the clients of a round."""
        return self._rounds

    @property  # type: ignore[misc]
    def noise_multiplier(self) -> float | None:
        """The noise multiplier of the next round, 0 if unknown; None before the model is built."""
        return self._noise_multiplier_at(0, None) if self.built else None

    def begin_epoch(self, is_pass: bool) -> None:
        """Open the row that counts a later epoch of the run; trees restart with a pass."""
        super().begin_epoch(is_pass)
        if is_pass:
            self._restart_trees()

    def described(self) -> dict[str, str]:
        """Return how contributions are bounded, and the source of randomness, for a report."""
        reason = self._unaccounted() if self.built else None
        clipping = f"by the `{type(self._query).__name__}` of TensorFlow Privacy"
        return {
            "clipping": clipping + (f"; {reason}" if reason else ""),
            "seeds": "noise by TensorFlow Privacy, sampling from the operating system, new for "
            "each run",
        }

    def _build_state(self, variables: Sequence[keras.Variable]) -> None:
        """Create key, divisor, stated noise, the state of the query and the ledger."""
        add = self._add_own_variable
        self._key = add("random_key", noise.fresh_key())
        self._divisor = add("divisor", np.ones((), np.float32))
        self._stated_noise = add("stated_noise", np.zeros((), np.float32))
        self._share_of_pass = add("share_of_pass", np.zeros((), np.float32))
        self._rounds.build([tuple(variable.shape) for variable in variables])
        self._build_ledger()

    def _prepare_run(self, settings: RunSettings) -> None:
        """Restart the trees, and warn if the rounds of this run cannot be accounted."""
        share = 0.0
        if settings.sampling is Sampling.SHUFFLE:
            share = trees.share_of_pass(-(-settings.num_examples // settings.expected_batch_size))
        self._share_of_pass.assign(np.float32(share))
        self._restart_trees()
        reason = self._unaccounted()
        if reason is not None and not self.is_in_a_run:
            warnings.warn(f"Epsilon is infinite: {reason}.", stacklevel=3)

    def _noise_of(self, event: Any, state: Any) -> Tensor | None:
        """Return the noise multiplier of one round's event, 0 for none, None if unknown."""
        if not trees.has_trees(self._query):
            return noise_of_event(event)
        node = trees.node_noise(self._query, state)
        return None if node is None else node * self._share_of_pass.value

    def _unaccounted(self) -> str | None:
        """Return why the rounds of this query cannot be accounted, None if they can."""
        name = type(self._query).__name__
        if self._rounds.noise_multiplier() is None:
            return (
                f"a round of `{name}` is not a Gaussian mechanism that is known here (its event is "
                "unsupported), and counts as a release without noise"
            )
        if trees.has_trees(self._query) and self._run_settings.sampling is not Sampling.SHUFFLE:
            return (
                f"the noise of `{name}` protects a client that takes part once in a tree, which "
                'only `fit(sampling="shuffle")` ensures; here it counts as none'
            )
        return None

    def _restart_trees(self) -> None:
        """Restart the trees of the query, if it has any."""
        if trees.has_trees(self._query):
            self._rounds.state = trees.restarted(self._query, self._rounds.state)

    def _noise_multiplier_at(self, step: int, steps_per_epoch: int | None) -> float:
        """Return the noise multiplier to state for the next round, a little below its event's."""
        value = self._rounds.noise_multiplier()
        if value is None:
            return 0.0
        if not np.isfinite(value) or value < 0.0:
            raise ValueError(
                f"The noise over the sensitivity of the `{type(self._query).__name__}` is "
                f"{value}: its clipping norm has reached zero, or is not a number. Begin with "
                "a new query."
            )
        stated = float(np.float32(_MARGIN * value))
        if self.built:
            held = self.open_row.noise_multiplier
            if _SAME_NOISE * stated <= held <= _STILL_ENOUGH * value:
                return held
        return stated

    def _set_noise(self, row: LedgerRow, split: tuple[float, float]) -> None:
        """Set stated noise and divisor to those of the row."""
        self._stated_noise.assign(np.float32(row.noise_multiplier))
        self._divisor.assign(np.float32(1.0 if self._is_mean else row.expected_batch_size))


def _is_mean(query: Any) -> bool:
    """Return whether the results of a query are divided by a number of clients already.

    Raises:
        ValueError: If some parts of a nested query are means and others are sums.
    """
    if is_instance(query, "RestartQuery"):
        return _is_mean(query._inner_query)
    if not is_instance(query, "NestedQuery"):
        return is_instance(query, "NormalizedQuery", "NoPrivacyAverageQuery")
    found = {_is_mean(part) for part in keras.tree.flatten(query._queries)}
    if len(found) > 1:
        raise ValueError(
            "The parts of a `NestedQuery` must all be means (`NormalizedQuery`) or all be sums, "
            "which are then divided by the expected number of clients."
        )
    return found.pop()


def noise_of_event(event: Any) -> Tensor | None:
    """Return the noise multiplier of the Gaussian mechanism that is equivalent to an event.

    Args:
        event: An event of one round; its numbers may be tensors of a graph.

    Returns:
        A float32 scalar, 0 for a release without noise; None if there is no such mechanism.
    """
    gaussians = list(_gaussians(event))
    if not gaussians or any(noise is None for noise, _ in gaussians):
        return None
    # In float64 no square overflows. Without noise, the sum is infinite and the result 0.
    precisions = [
        ops.cast(count, "float64") / ops.square(ops.cast(noise, "float64"))
        for noise, count in gaussians
    ]
    return ops.cast(ops.rsqrt(sum(precisions)), "float32")


def _gaussians(event: Any, count: Any = 1) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of a noise multiplier, None if unknown, and a number of releases."""
    if isinstance(event, dp.ComposedDpEvent):
        for part in event.events:
            yield from _gaussians(part, count)
    elif isinstance(event, dp.SelfComposedDpEvent):
        yield from _gaussians(event.event, event.count * count)
    elif isinstance(event, dp.GaussianDpEvent):
        yield event.noise_multiplier, count
    elif isinstance(event, dp.NonPrivateDpEvent):
        yield 0.0, count
    elif not isinstance(event, dp.NoOpDpEvent):
        yield None, count
