"""The state of a private optimizer as Keras variables: clipping norm, noise and ledger.

The step reads all of it from variables, so that none is constant in a compiled step. It reads the
clipping norm before it clips and writes it after it has added the noise, so that clipping, noise,
schedule and read-outs always agree.

    means = (sums + N(0, stddevs^2)) / expected_units

with the standard deviations of `noise.group_stddevs` for the sum's noise multiplier.

The ledger has one row as a variable, which the compiled step advances. The other rows are on the
host. What the host has seen only grows: a variable that a failed training loop has reset to an
earlier value lowers no count.
"""

import dataclasses
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend, noise
from keras_adaclip.accounting import Ledger, LedgerRow, Sampling
from keras_adaclip.backend import keras_private
from keras_adaclip.clipping import Clipper, ClippingStrategy, ParameterGroups, Release

Tensor = Any
# Makes a variable from a name and an initial array.
AddVariable = Callable[[str, np.ndarray], keras.Variable]

# Norms and sums in float32 are exact to three digits and more, see `gradients.totals`. The noise is
# wider by that much, and by a little more for each group whose norm is part of a sum.
_ROUNDING_MARGIN, _MARGIN_PER_GROUP = 1.001, 2.0**-23
_STATISTICS_STREAM, _SUMS_STREAM, _LAYERS_STREAM, _LAST_STREAM = 0, 1, 2, 3
_STEPS_PER_RELEASE, _STEPS, _RELEASES, _FREE_STEPS = 7, 8, 9, 10


class ClipState:
    """The clipping norms and the other state of a strategy.

    Args:
        add_variable: A function that makes a variable from a name and an initial array.
        strategy: The clipping strategy.
        groups: The groups of the trainable variables.
    """

    def __init__(
        self, add_variable: AddVariable, strategy: ClippingStrategy, groups: ParameterGroups
    ) -> None:
        self._strategy = strategy
        self._groups = groups
        state = strategy.initial_state(groups)
        clip_norms = state.get("clip_norm")
        if not isinstance(clip_norms, np.ndarray) or clip_norms.shape != (groups.num_groups,):
            raise ValueError(
                f"`{type(strategy).__name__}.initial_state` must return a NumPy array of shape "
                f"(num_groups,) under 'clip_norm', here ({groups.num_groups},). "
                f"Received: clip_norm={clip_norms!r}"
            )
        self._variables = {name: add_variable(name, value) for name, value in state.items()}

    def use(self, strategy: ClippingStrategy) -> None:
        """Go on with a strategy whose state has the same variables, from its initial state."""
        self._strategy = strategy
        self.assign(strategy.initial_state(self._groups))

    @property
    def variables(self) -> list[keras.Variable]:
        """All variables of the state."""
        return list(self._variables.values())

    @property
    def current(self) -> Clipper:
        """Strategy, groups and state as tensors, for the gradient code."""
        state = {name: variable.value for name, variable in self._variables.items()}
        return Clipper(self._strategy, self._groups, state)

    def begin_run(self, step: int, steps_per_epoch: int | None) -> None:
        """Let the strategy set the state at the start of a run of steps.

        Args:
            step: Number of steps taken so far.
            steps_per_epoch: Number of steps in an epoch, None if unknown.
        """
        self.assign(self._strategy.begin_run(self.arrays(), step, steps_per_epoch))

    def update(self, release: Release) -> None:
        """Replace the state by that of the next step."""
        self.assign(self._strategy.update(self.current.state, release))

    def read(self, name: str) -> np.ndarray | None:
        """Return one entry of the state, None if there is none of that name.

        Raises:
            RuntimeError: In the middle of an epoch on JAX.
        """
        if name not in self._variables:
            return None
        if keras_private.is_empty(self._variables[name]):
            raise RuntimeError(
                f"`{name}` cannot be read in the middle of an epoch on JAX, where Keras holds the "
                "state of training apart from the variables. Read it when the epoch ends, or call "
                "`model.jax_state_sync()` first."
            )
        return self.arrays()[name]

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state as arrays."""
        return {name: backend.array_of(variable) for name, variable in self._variables.items()}

    def assign(self, values: Mapping[str, Any]) -> None:
        """Assign new values to some variables of the state."""
        for name, value in values.items():
            self._variables[name].assign(value)


class NoiseState:
    """The noise of one optimizer.

    Args:
        add_variable: A function that makes a variable from a name and an initial array.
        groups: The groups of the trainable variables.
        allocation: How the noise is spread over the groups.
    """

    def __init__(self, add_variable: AddVariable, groups: ParameterGroups, allocation: str) -> None:
        self._groups = groups
        self._allocation = allocation
        self.key = add_variable("noise_key", noise.fresh_key())
        self._num_draws = add_variable("num_noise_draws", np.zeros((), np.int32))
        self._sum_noise_multiplier = add_variable("sum_noise_multiplier", np.zeros((), np.float32))
        self._statistics_stddev = add_variable("statistics_stddev", np.zeros((), np.float32))
        self._expected_units = add_variable("expected_units", np.ones((), np.float32))

    def configure(
        self, sum_noise_multiplier: float, statistics_stddev: float, expected_units: int
    ) -> None:
        """Set the noise of the next steps.

        Args:
            sum_noise_multiplier: Joint noise multiplier of the sums.
            statistics_stddev: Standard deviation of the noise on the statistics.
            expected_units: Expected number of units in a step.
        """
        margin = _ROUNDING_MARGIN + _MARGIN_PER_GROUP * self._groups.num_groups
        self._sum_noise_multiplier.assign(_rounded_up(sum_noise_multiplier * margin))
        self._statistics_stddev.assign(_rounded_up(statistics_stddev * margin))
        self._expected_units.assign(np.float32(expected_units))

    @property
    def expected_units(self) -> Tensor:
        """Expected number of units in a step, the divisor of every sum."""
        return self._expected_units.value

    def sum_stddevs(self, clip_norms: Tensor) -> list[Tensor]:
        """Return the standard deviation of the noise on each variable's sum.

        Args:
            clip_norms: The clipping norms of this step, of shape `(num_groups,)`.
        """
        stddevs = noise.group_stddevs(
            self._allocation, self._sum_noise_multiplier.value, clip_norms, self._groups.sizes
        )
        of_groups = [stddevs[number] for number in range(self._groups.num_groups)]
        return [of_groups[number] for number in self._groups.assignment]

    def noised_means(
        self,
        sums: Sequence[Tensor],
        stddevs: Sequence[Tensor],
        remainders: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """Return the noised sums over the expected number of units, float32.

        Args:
            sums: The sum of contributions of each variable.
            stddevs: The standard deviation of the noise on each.
            remainders: What float32 has lost of each sum, None for nothing.
        """
        noised = noise.add_noise(
            sums, stddevs, self.key.value, self._num_draws.value, _SUMS_STREAM, remainders
        )
        means, divisor = [], ops.convert_to_tensor(self.expected_units, "float32")
        for total in noised:
            total /= divisor  # In place on PyTorch.
            means.append(total)
        return means

    def noised_last(self, sums: np.ndarray, stddev: float) -> np.ndarray:
        """Return sums that a run releases once, after its last step, with noise.

        Args:
            sums: Float64 array.
            stddev: The standard deviation of the noise.
        """
        exact = sums.astype(np.float32)
        tensors, remainders = (
            [ops.convert_to_tensor(v)] for v in (exact, (sums - exact).astype(np.float32))
        )
        (noised,) = noise.add_noise(
            tensors,
            [_rounded_up(stddev * _ROUNDING_MARGIN)],
            self.key.value,
            self._num_draws.value,
            _LAST_STREAM,
            remainders,
        )
        return ops.convert_to_numpy(noised)

    def noised_statistics(self, statistics: Tensor, remainder: Tensor | None = None) -> Tensor:
        """Return the noised sums of the strategy's statistics, of shape `(num_statistics,)`.

        Args:
            statistics: The sums.
            remainder: What float32 has lost of them, None for nothing.
        """
        (noised,) = noise.add_noise(
            [statistics],
            [self._statistics_stddev.value],
            self.key.value,
            self._num_draws.value,
            _STATISTICS_STREAM,
            None if remainder is None else [remainder],
        )
        return noised

    @property
    def seed_of_layers(self) -> Tensor:
        """64 random bits, new for each step: the seed of random numbers other than noise."""
        return backend.seed_of_step(self.key.value, self._num_draws.value, _LAYERS_STREAM)

    def begin_draw(self) -> None:
        """Advance the counter of draws, before any noise of the step is drawn."""
        self._num_draws.assign(self._num_draws.value + 1)


def _rounded_up(value: float) -> np.float32:
    """Return the smallest float32 that is at least `value`: noise is never rounded down."""
    rounded = np.float32(value)
    return rounded if float(rounded) >= value else np.nextafter(rounded, np.float32(np.inf))


class Account:
    """The ledger of weights: what the host knows, and the row in which an optimizer counts.

    Each weight and its layer remember the account that counts what they have learned. Copies of
    a weight lead to the same account, and pickled ones to the ledger as it was.

    Args:
        ledger: What the host knows; later steps are in the variable alone.
        lost: Why the ledger of the weights is not known; None if it is known.

    Attributes:
        is_open: Whether a row is open; then `ledger` holds it without steps too.
        num_inclusions: How often any account of this process took over steps from elsewhere.
        used_seeds: Every seed of noise or sampling so far, of data sets and of earlier optimizers
            of the model too. Another run can draw the same numbers with them.
        variable: The row in which steps are counted; nothing else may assign it.
    """

    variable: keras.Variable
    num_inclusions: ClassVar[int] = 0

    def __init__(self, ledger: Ledger | None = None, lost: str | None = None) -> None:
        self._known, self.lost = ledger or Ledger(), lost
        self.is_open, self._is_built, self._owner = False, False, 0
        self.used_seeds, self._process = frozenset[int](), os.getpid()
        # A thread may read the ledger while another one includes steps.
        self._lock = threading.RLock()

    def __deepcopy__(self, memo: Any) -> "Account":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Account, (self.ledger, self.lost)

    def build(self, add_variable: AddVariable, renew_key: Callable[[], None]) -> None:
        """Make the variable, under an owner of its own.

        Args:
            add_variable: A function that makes a variable from a name and an initial array.
            renew_key: Called in a process that was forked, which needs noise of its own.
        """
        self._is_built, self._owner, self._renew_key = True, _new_owner(), renew_key
        self.variable = add_variable("ledger_row", self._first_row().to_integers())

    def count_step(self) -> None:
        """Advance the current row by one step, inside the compiled step."""
        row = self.variable.value
        mechanism = [row[column] for column in range(_STEPS)]
        opened = ops.cast(row[_FREE_STEPS] <= 0, "int32")
        free_steps = row[_FREE_STEPS] + opened * row[_STEPS_PER_RELEASE] - 1
        counts = [row[_STEPS] + 1, row[_RELEASES] + opened, free_steps]
        self.variable.assign(ops.stack([*mechanism, *counts]))

    def count_release(self, row: LedgerRow) -> None:
        """Count a release that is made after the steps, before it is made; go on with the row."""
        steps = self.current_row()
        self.variable.assign(self.open(row).advance(1).to_integers())
        self.open(steps)

    def current_row(self) -> LedgerRow:
        """Return the row in which steps are counted."""
        if not self._is_built:
            return self._first_row()
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

    @property
    def ledger(self) -> Ledger:
        """All rows with at least one step, and the current row if it was opened."""
        with self._lock:
            self.renew_after_fork()
            current = self.current_row()
            rows = (current,) if self.is_open or current.steps > 0 else ()
            self._known = Ledger(rows).merge(self._known)
            return self._known

    def was_reset(self) -> bool:
        """Return whether the variable has been set back to fewer steps than the host has seen."""
        return self.ledger.current != self.current_row()

    def open(self, row: LedgerRow) -> LedgerRow:
        """Make `row` the current row, or continue the one of its mechanism.

        Returns:
            The current row, at the start of a release.
        """
        rows = self.ledger.rows  # First: in a forked process, the owner is another one then.
        row = dataclasses.replace(row, owner=self._owner)
        known = (each for each in rows if each.key == row.key)
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
        with self._lock:
            Account.num_inclusions += 1
            self._known = self.ledger.merge(other)

    def renew_after_fork(self) -> None:
        """Count later steps under another owner, and with another key, in a forked process.

        The parent process continues from the same state, and its steps are not those of this one.
        What the host saw is a state of the old owner. Steps since are counted under the new one.
        """
        if not self._is_built or self._process == os.getpid():
            return
        self._process = os.getpid()
        current = self.current_row()
        own = (row for row in self._known.rows if row.key == current.key)
        counted = next(own, current.emptied())
        self._owner = _new_owner()
        steps = max(current.steps - counted.steps, 0)
        releases = max(current.releases - counted.releases, min(steps, 1))
        row = dataclasses.replace(current.emptied(), owner=self._owner)
        row = dataclasses.replace(row, steps=steps, releases=releases)
        self.variable.assign(row.to_integers())
        self._renew_key()

    def replace(self, other: Ledger) -> None:
        """Set the ledger to one whose cost contains that of all steps so far."""
        Account.num_inclusions += 1
        promised = Ledger(promised_delta=self.ledger.promised_delta)
        self._known, self._owner = other.owned_by(_new_owner()).merge(promised), _new_owner()
        self.is_open = False
        self.variable.assign(self._first_row().to_integers())

    def _first_row(self) -> LedgerRow:
        """Return the row before any is opened, in which a step is a release without noise."""
        return LedgerRow(Sampling.STREAM, 1, 0, noise_multiplier=0.0, owner=self._owner)


def _new_owner() -> int:
    """Return a random number that no other owner has."""
    return int(noise.fresh_key().view(np.int64)[0])
