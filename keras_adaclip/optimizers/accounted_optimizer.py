"""The base of private optimizers: runs of steps, their noise, and the ledger that counts them.

`PrivateModel.fit` and `FederatedModel.fit` call it around their steps. A step itself is in the
subclass: `DPOptimizer`, or an optimizer whose noise another library draws.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras.optimizers.schedules import LearningRateSchedule

from keras_adaclip import backend, noise, schedules
from keras_adaclip._checks import check_noise_multiplier
from keras_adaclip.accounting import (
    LEDGER_KEY,
    Ledger,
    LedgerRow,
    Mechanism,
    Sampling,
    rows_of_epochs,
)
from keras_adaclip.optimizers.state import Account
from keras_adaclip.optimizers.wrapping_optimizer import WrappingOptimizer, check_plain_optimizer

_DEFAULT_BATCH_SIZE = 32


@dataclasses.dataclass(frozen=True)
class RunSettings(Mechanism):
    """The facts of a run of steps that the ledger records.

    Args:
        noise_multiplier: That of the optimizer, which is not known here, is put in its place.
        steps_per_epoch: Steps in an epoch, for schedules; None if unknown.
        noise_scale: Factor of the noise multiplier in this run. The row counts the product, which
            is what is drawn.
    """

    noise_multiplier: float = 0.0
    steps_per_epoch: int | None = None
    noise_scale: float = 1.0

    def row(self, noise_multiplier: float) -> LedgerRow:
        """Return the row that counts steps, with the noise multiplier of the optimizer."""
        facts = {each.name: getattr(self, each.name) for each in dataclasses.fields(Mechanism)}
        return LedgerRow(**{**facts, "noise_multiplier": noise_multiplier * self.noise_scale})


class AccountedOptimizer(WrappingOptimizer):
    """Keeps the ledger, and the noise in step with it.

    Attributes:
        microbatch_size: Number of units that are processed at a time; None lets the step decide.
        seed: Seed of the noise and of the sampling; None takes both from the operating system.
        account: The ledger, for the weights that remember it; see `training.weights`.

    Args:
        inner_optimizer: The optimizer that applies the updates.
        noise_multiplier: Float >= 0, or a schedule.
        name: Name of the optimizer.

    Guarantees:
        The noise multiplier of a step is that of the ledger row which counts the step. It changes
        between epochs only, when another row is opened.
    """

    microbatch_size: int | str | None = None
    seed: int | None = None
    # What a run releases after its last step: as planned, and counted but not made.
    planned_release: LedgerRow | None = None
    counted_release: LedgerRow | None = None
    _key: keras.Variable

    def __init__(self, inner_optimizer: Any, noise_multiplier: Any, name: str | None) -> None:
        super().__init__(inner_optimizer, name)
        self._noise_multiplier = check_noise_multiplier_or_schedule(noise_multiplier)
        self._is_seed_forgotten = False
        # The variables besides the inner optimizer's that a saved state sets.
        self._restored_variables: list[keras.Variable] = []
        self.account = Account()
        self._run_settings = RunSettings(Sampling.STREAM, 1, 0)

    # The ledger

    @property
    def ledger(self) -> Ledger:
        """The steps that ran with this optimizer, for the accountant."""
        return self.account.ledger

    @property
    def open_row(self) -> LedgerRow:
        """The row of the ledger in which steps are counted."""
        return self.account.current_row()

    @property
    def is_in_a_run(self) -> bool:
        """Whether `configure` was called, and `end_run` was not called yet."""
        return self.account.is_open

    def include_ledger(self, ledger: Ledger) -> None:
        """Take over the steps of another ledger; this one is never lowered.

        Args:
            ledger: The ledger to cover.
        """
        self.account.include(ledger)

    def replace_ledger(self, ledger: Ledger) -> None:
        """Set the ledger to one whose cost contains that of all steps so far.

        Args:
            ledger: The ledger, such as the cost of the best of several runs.
        """
        self.account.replace(ledger)

    def promise(self, delta: float) -> None:
        """Keep a delta with the ledger: no later target epsilon is for a larger one.

        Args:
            delta: The delta of a target epsilon.
        """
        self.include_ledger(Ledger(promised_delta=delta))

    @property
    def sampling_seed(self) -> int | None:
        """The seed of noise and sampling in the next run; None after loading."""
        return None if self._is_seed_forgotten else self.seed

    def remember_seeds(self, *seeds: int | None) -> None:
        """Add to the seeds of the account; None stands for randomness of the operating system."""
        self.account.used_seeds |= {seed for seed in seeds if seed is not None}

    # The plan of a `fit`; see `BudgetedOptimizer` and `AutoDPOptimizer`

    def default_batch_size(
        self, num_examples: int, num_epochs: int, steps_per_epoch: int | None
    ) -> int:
        """Return the expected number of examples in a step, if `fit` is given none.

        Args:
            num_examples: Number of examples.
            num_epochs: Number of epochs of the run.
            steps_per_epoch: Number of steps of an epoch, None for a pass over the data.
        """
        return _DEFAULT_BATCH_SIZE

    def plan_clipping(self, class_weight: Mapping[Any, float] | None) -> bool:
        """Choose how contributions are bounded; return whether that has changed, by default not.

        Args:
            class_weight: The weights of the classes, which are public; None without.
        """
        return False

    @property
    def learns_temperature(self) -> bool:
        """Whether the run of a classifier ends with the release of a temperature."""
        return False

    def count_release(self) -> None:
        """Count what was planned to follow the last step, before it is made."""
        self.counted_release, self.planned_release = self.planned_release, None
        if self.counted_release is not None:
            self.account.count_release(self.counted_release.emptied())

    @property
    def plans_steps(self) -> bool:
        """Whether the inner optimizer plans its steps, and takes the noise of each gradient.

        It has methods `begin(num_steps)` and `apply_noised(gradients, stddevs, variables)`, as
        `PlannedMomentum` has.
        """
        return hasattr(self.inner_optimizer, "apply_noised")

    # A run of steps

    def configure(self, settings: RunSettings) -> LedgerRow:
        """Prepare a run of steps: noise, divisor, and the row of the ledger that counts them.

        Args:
            settings: What the ledger must know of the run besides the noise.

        Returns:
            The row before the first step.

        Raises:
            ValueError: If the noise cannot pay for the clipping strategy's statistics, a schedule
                counts in epochs of unknown length, or earlier steps were about another unit.
        """
        check_plain_optimizer("optimizer", self.inner_optimizer)
        counted = self.ledger.unit
        if counted not in (None, settings.unit):
            raise ValueError(
                f"The optimizer has counted steps on single {counted.label}s, and this run is on "
                f"{settings.unit.label}s: they do not add up to an epsilon for either. Train on "
                "one kind of unit only, or begin with weights that have not been trained on these "
                "data, under a new optimizer."
            )
        self._run_settings = settings
        row = self._row_at(self._steps_taken)
        split = self._noise_split(row)
        self._begin_schedules(self._steps_taken, settings.steps_per_epoch)
        # Nothing after this can fail and leave less noise than the open row says.
        return self._open(row, split)

    def begin_epoch(self, is_pass: bool) -> None:
        """Set the noise of a later epoch of the run, and open the row that counts it.

        If a callback has set the variables back, the noise gets another key: it would repeat.

        Args:
            is_pass: Whether the epoch begins a new pass over the data.
        """
        if not self.is_in_a_run:
            raise RuntimeError(
                "The run of steps ended before its `fit` did: something called `fit` or "
                "`train_on_batch` on the same optimizer meanwhile. Train after `fit` has returned."
            )
        row = self._row_at(self._steps_taken)
        if self.account.was_reset() or row.noise_multiplier != self.open_row.noise_multiplier:
            row = row.behind(self.open_row, is_pass)
            self._open(row, self._noise_split(row))
        elif is_pass:
            self.account.open(self.open_row)

    def ledger_of_next_epoch(self) -> Ledger:
        """Return the ledger as `begin_epoch(is_pass=True)` would leave it."""
        row, ledger = self._row_at(self._steps_taken), self.ledger
        if row.noise_multiplier == self.open_row.noise_multiplier:
            return ledger.begin_segment()
        return ledger.append(row)

    def planned_rows(
        self, num_epochs: int, is_pass: bool, settings: RunSettings | None = None
    ) -> list[LedgerRow]:
        """Return what the next epochs of the run add to the ledger if all of their steps run.

        Args:
            num_epochs: Number of epochs; of one step each, if their length is not known.
            is_pass: Whether each epoch begins a new pass over the data.
            settings: Those of a run that has not begun; None for the current run.
        """
        settings = settings or self._run_settings
        size = settings.steps_per_epoch or 1
        firsts = (self._steps_taken + epoch * size for epoch in range(num_epochs))
        return rows_of_epochs(((self._row_at(first, settings), size) for first in firsts), is_pass)

    def end_run(self) -> None:
        """End the run that `configure` began; a later step counts as a full release.

        The key is replaced, so that the noise of the run cannot be drawn again.
        """
        if self.is_in_a_run:
            self.account.close()
            self._key.assign(noise.next_key(backend.array_of(self._key)))

    # Saving

    def load_own_variables(self, store: Any) -> None:
        """Load clipping norm, ledger and the inner optimizer's state; never lower the ledger.

        Noise, divisor and open row belong to the current run and stay; a new key is drawn. The
        store of a model that was saved without an optimizer is empty, and nothing is loaded.

        Raises:
            ValueError: If the stored variables are not those of this optimizer.
        """
        saved = {name: np.asarray(store[name]) for name in store.keys()}  # noqa: SIM118
        if saved:
            ledger = Ledger.from_array(saved.pop(LEDGER_KEY, ()))
            self.set_values(self._by_id(saved), ledger)

    def save_own_variables(self, store: Any) -> None:
        """Store the variables, without the keys of random numbers, and the ledger."""
        super().save_own_variables(store)
        store[LEDGER_KEY] = self.ledger.to_array()

    def set_values(self, values: Mapping[int, Any], ledger: Ledger) -> None:
        """Continue from another state: a saved one, or one of a model's state tree.

        The ledger is raised to cover that of the state, and never lowered. The current run
        continues, and random numbers come from a new key.

        Args:
            values: Arrays by the `id` of the variable.
            ledger: The ledger of the state.
        """
        self.include_ledger(ledger)
        if self.built:
            self._renew_key()
        for variable in [*self._restored_variables, *self.inner_optimizer.variables]:
            if id(variable) in values:
                variable.assign(values[id(variable)])

    # Implemented by subclasses

    @abc.abstractmethod
    def described(self) -> dict[str, str]:
        """Return how contributions are bounded, and the source of randomness, for a report."""

    @abc.abstractmethod
    def _set_noise(self, row: LedgerRow, split: tuple[float, float]) -> None:
        """Set noise and divisor to those of the row."""

    def _noise_split(self, row: LedgerRow) -> tuple[float, float]:
        """Return the noise multiplier of the sum and the standard deviation on the statistics."""
        return row.noise_multiplier, 0.0

    def _begin_schedules(self, step: int, steps_per_epoch: int | None) -> None:
        """Prepare schedules for a run of steps."""

    # Private

    def _build_ledger(self) -> None:
        """Create the variable of the ledger."""
        self.remember_seeds(self.seed)
        self.secret_variables = [self._key]
        self.account.build(self._add_own_variable, self._renew_key)

    def _open(self, row: LedgerRow, split: tuple[float, float]) -> LedgerRow:
        """Open the row that counts the next steps, under a new key; return it with its steps."""
        row = self.account.open(row)
        # With one seed, the number of earlier steps tells runs apart.
        self._key.assign(noise.fresh_key(self.sampling_seed, self.ledger.steps))
        self._set_noise(row, split)
        return row

    def _renew_key(self) -> None:
        """Draw a new key from the operating system, with a seed too."""
        # Another process may have continued from the same state, with the same seed.
        self._is_seed_forgotten = True
        self._key.assign(noise.fresh_key())

    @property
    def _steps_taken(self) -> int:
        """The number of steps so far."""
        return int(backend.array_of(self.iterations))

    def _noise_multiplier_at(self, step: int, steps_per_epoch: int | None) -> float:
        """Return the optimizer's noise multiplier in the epoch that begins with `step`."""
        value = self._noise_multiplier
        if isinstance(value, schedules.Schedule):
            value = check_noise_multiplier_or_schedule(value.value_at(step, steps_per_epoch))
        return value

    def _row_at(self, step: int, settings: RunSettings | None = None) -> LedgerRow:
        """Return the row of an epoch of a run, by default the current, that begins with a step."""
        settings = settings or self._run_settings
        return settings.row(self._noise_multiplier_at(step, settings.steps_per_epoch))


def check_noise_multiplier_or_schedule(value: Any) -> Any:
    """Return a noise multiplier as a float, a schedule or its config as a schedule.

    Args:
        value: A number, a schedule or the config of one.

    Raises:
        TypeError: If it is neither a number nor a schedule.
        ValueError: If it is negative, not finite or too large.
    """
    if isinstance(value, (dict, schedules.Schedule, LearningRateSchedule)):
        return schedules.get(value)
    number = check_noise_multiplier(value)
    if number > 1e15:
        raise ValueError(
            "Argument `noise_multiplier` must be at most 1e+15: steps are float32. "
            f"Received: noise_multiplier={value!r}"
        )
    return number
