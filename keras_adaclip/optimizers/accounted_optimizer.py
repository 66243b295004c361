"""Runs of steps as the accountant sees them: which noise, over which data, counted where.

What `PrivateModel.fit` calls around its steps stands here; what a step does stands in
`DPOptimizer`, or in an optimizer whose noise another library draws.
"""

import abc
import dataclasses
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from keras_adaclip import backend
from keras_adaclip.accounting import Ledger, LedgerRow, Sampling, Unit
from keras_adaclip.optimizers.ledger_variables import LedgerVariables, Run
from keras_adaclip.optimizers.validation import checked_inner_optimizer, checked_noise_multiplier
from keras_adaclip.optimizers.wrapping_optimizer import WrappingOptimizer
from keras_adaclip.schedules import Schedule


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """What the ledger must know of a run of steps, besides the noise.

    Args:
        sampling: How the units are sampled.
        expected_batch_size: Expected number of units in a step, the divisor of the noised sum.
        num_examples: Number of units in the data set, 0 if unknown.
        steps_per_release: Steps in a pass, where passes are released.
        steps_per_epoch: Steps in an epoch, for schedules; None if unknown.
        noise_scale: Factor of the noise multiplier in this run. The row counts the product, which
            is what is drawn.
        unit: The unit of privacy.
    """

    sampling: Sampling
    expected_batch_size: int
    num_examples: int
    steps_per_release: int | None = None
    steps_per_epoch: int | None = None
    noise_scale: float = 1.0
    unit: Unit = Unit.EXAMPLE


class AccountedOptimizer(WrappingOptimizer):
    """Keeps the ledger, and the noise in step with it.

    Attributes:
        aggregation: what adds up the contributions of a step's units in the place of clipping
            and summing; None where these do.
        diagnostics: names of what can be recorded of the contributions, which is not private.
        microbatch_size: number of units that are processed at a time; None lets the step decide.
        seed: of the noise and the draws of units; None takes both from the operating system.
        used_seeds: every seed that noise or draws of a run came from so far, those of data sets
            and of earlier optimizers of the model too. Another run may draw the same with them.
        num_inclusions: how often any ledger of this process took over what ran elsewhere.

    Args:
        inner_optimizer: the optimizer that applies the updates.
        noise_multiplier: float >= 0, or a schedule.
        name: name of the optimizer.

    Guarantees:
        The noise multiplier of a step is that of the ledger row which counts the step. It changes
        between epochs only, when another row is opened.
    """

    aggregation: Any = None
    diagnostics: tuple[str, ...] = ("gradient_norm", "clipped_fraction")
    microbatch_size: int | str | None = None
    seed: int | None = None
    used_seeds: frozenset[int] = frozenset()
    num_inclusions: ClassVar[int] = 0
    _ledger: LedgerVariables

    def __init__(self, inner_optimizer: Any, noise_multiplier: Any, name: str | None) -> None:
        super().__init__(inner_optimizer, name)
        self._noise_multiplier = checked_noise_multiplier(noise_multiplier)
        self._is_for_private_model = False
        self._model: Callable[[], keras.Model | None] = lambda: None
        self._built_for: list[int] = []
        self._is_configured = False
        self._past_run = Run()
        self._process = os.getpid()
        self._run_settings = RunSettings(Sampling.STREAM, 1, 0)

    @property
    def noise_multiplier(self) -> Any:
        """The total noise multiplier, or its schedule.

        A new one takes effect, and is accounted, from the next epoch or run on.
        """
        return self._noise_multiplier

    @noise_multiplier.setter
    def noise_multiplier(self, noise_multiplier: Any) -> None:
        self._noise_multiplier = checked_noise_multiplier(noise_multiplier)

    @property
    def ledger(self) -> Ledger:
        """Everything that ran with this optimizer, for the accountant."""
        return self.run.ledger

    @property
    def run(self) -> Run:
        """The ledger and the identity of the run."""
        if not self.built:
            return self._past_run
        self.renew_after_fork()
        run = self._ledger.run
        if self._is_configured:
            return run
        # Between runs nothing is open: only rows in which something ran are of interest.
        ledger = Ledger(tuple(row for row in run.ledger if row.steps > 0))
        return Run(ledger, run.identity, run.included)

    def include_run(self, run: Run) -> None:
        """Takes over what was spent elsewhere; the ledger is never lowered.

        Args:
            run: the ledger to cover, and whose it is.
        """
        AccountedOptimizer.num_inclusions += 1
        if self.built:
            self.renew_after_fork()
            self._ledger.include(run)
        else:
            self._past_run = self._past_run.union_upward(run)

    def renew_after_fork(self) -> None:
        """Takes another identity, and noise of its own, in a process that was forked off.

        The other process goes on from the same state: its steps are not those of this one.
        """
        if self.built and self._process != os.getpid():
            self._process = os.getpid()
            self._ledger.renew_identity()
            self._renew_secrets()

    def remember_seeds(self, *seeds: int | None) -> None:
        """Adds to `used_seeds`; None stands for randomness of the operating system."""
        self.used_seeds |= {seed for seed in seeds if seed is not None}

    def configure(self, settings: RunSettings) -> LedgerRow:
        """Prepares a run of steps: noise, divisor, and the row of the ledger that counts them.

        Args:
            settings: What the ledger must know of the run besides the noise.

        Returns:
            The row as it stands before the first step.

        Raises:
            ValueError: If the clipping strategy's statistics cannot be paid for, a schedule counts
                in epochs of unknown length, or earlier steps were about another unit.
        """
        checked_inner_optimizer(self.inner_optimizer)
        self.renew_after_fork()
        self._run_settings = settings
        row = self._row_now()
        unit = settings.unit
        if self.ledger.unit not in (None, unit):
            raise ValueError(
                f"The optimizer has counted steps about single {self.ledger.unit.label}s, and this "
                f"run is about {unit.label}s: they do not add up to an epsilon for either. Train a "
                "model in one way only, or begin with weights that have not been trained on these "
                "data, under a new optimizer."
            )
        split = self._noise_split(row)
        self._begin_schedules(self._steps_taken, settings.steps_per_epoch)
        # Nothing after this can fail and leave less noise than the open row says.
        row = self._ledger.open(row)
        self._set_noise(row, split)
        self._is_configured = True
        return row

    def begin_epoch(self, is_pass: bool) -> None:
        """Sets the noise of a later epoch of the run, and the row that counts it.

        Args:
            is_pass: whether the epoch opens a new pass over the data.
        """
        if not self._is_configured:
            raise RuntimeError(
                "The run of steps ended before its `fit` did: something called `fit` or "
                "`train_on_batch` on the same optimizer meanwhile. Train after `fit` has returned."
            )
        row = self._row_now()
        if row.noise_multiplier != self.open_row.noise_multiplier:
            split = self._noise_split(row)
            self._set_noise(self._ledger.open(row), split)
        elif is_pass:
            self._ledger.open(self.open_row)

    def ledger_of_next_epoch(self) -> Ledger:
        """The ledger as `begin_epoch(is_pass=True)` would leave it."""
        row, ledger = self._row_now(), self.ledger
        if row.noise_multiplier == self.open_row.noise_multiplier:
            return ledger.begin_segment()
        return ledger.append(row)

    def end_run(self) -> None:
        """Ends what `configure` began: a step that ran all the same counts as a full release.

        Nothing is left from which the noise of the run could be drawn again.
        """
        if self.built and self._is_configured:
            self._is_configured = False
            self._ledger.restore()
            self._ledger.open(self.open_row.as_stream())
            self._retire_secrets()

    # What is saved

    @property
    def secret_variables(self) -> list[keras.Variable]:
        """The variables whose values must not leave the process: keys of random numbers."""
        return self._secret_variables() if self.built else []

    def set_values(self, values: Mapping[int, Any]) -> None:
        """Goes on from another state: a saved one, or one of a model's state tree.

        The ledger is raised to cover the one of that state, and never lowered. What belongs to the
        run that is under way stays, and random numbers come from a new key.

        Args:
            values: arrays, by the `id` of the variable that is to have them; the ledger's are
                given all together or not at all.

        Raises:
            ValueError: where the ledger's arrays make no ledger.
        """
        if self.built:
            if all(id(variable) in values for variable in self._ledger.variables):
                self.include_run(self._ledger.run_from(values))
            self._renew_secrets()
        restored = self._restored_variables() if self.built else self.inner_optimizer.variables
        for variable in restored:
            if id(variable) in values:
                variable.assign(values[id(variable)])

    @abc.abstractmethod
    def _secret_variables(self) -> list[keras.Variable]:
        """The keys of random numbers."""

    @abc.abstractmethod
    def _restored_variables(self) -> list[keras.Variable]:
        """The variables that a saved state sets."""

    @abc.abstractmethod
    def _renew_secrets(self) -> None:
        """Draws new keys from the operating system."""

    @abc.abstractmethod
    def _retire_secrets(self) -> None:
        """Replaces the keys that were used."""

    @property
    def open_row(self) -> LedgerRow:
        """The row of the ledger in which steps are counted."""
        return self._ledger.current_row()

    @property
    def is_in_a_run(self) -> bool:
        """Whether `configure` was called, and `end_run` not yet."""
        return self._is_configured

    def mark_for_private_model(self, model: keras.Model) -> None:
        """Allows `build`: the model takes what single units contribute.

        Args:
            model: the private model that is compiled with this optimizer.
        """
        self._is_for_private_model = True
        self._model = weakref.ref(model)

    def is_built_for(self, variables: Sequence[keras.Variable]) -> bool:
        """Whether the optimizer was built for exactly these trainable variables.

        Args:
            variables: trainable variables of a model, in order.
        """
        return [id(variable) for variable in variables] == self._built_for

    @abc.abstractmethod
    def described(self) -> dict[str, str]:
        """How contributions are bounded and where the noise comes from, for a report."""

    @abc.abstractmethod
    def _refuse_plain_model(self) -> None:
        """Raises where no private model was compiled with this optimizer."""

    @abc.abstractmethod
    def _noise_split(self, row: LedgerRow) -> tuple[float, float]:
        """What the row's noise multiplier leaves for the sum, and the noise on the statistics."""

    @abc.abstractmethod
    def _set_noise(self, row: LedgerRow, split: tuple[float, float]) -> None:
        """Sets noise and divisor to what the row says."""

    @abc.abstractmethod
    def _begin_schedules(self, step: int, steps_per_epoch: int | None) -> None:
        """Tells the clipping strategy that a run of steps begins."""

    def _build_ledger(self) -> None:
        """Makes the variables of the ledger, and takes over what was spent before."""
        self.remember_seeds(self.seed)
        first = np.float32(self._noise_multiplier_at(0, 1))
        self._ledger = LedgerVariables(self._add_own_variable, first)
        self._ledger.include(self._past_run)

    @property
    def _steps_taken(self) -> int:
        return int(backend.array_of(self.iterations))

    def _noise_multiplier_at(self, step: int, steps_per_epoch: int | None) -> float:
        """The total noise multiplier of the epoch that begins with `step`, as float32 holds it."""
        value = self.noise_multiplier
        if isinstance(value, Schedule):
            value = checked_noise_multiplier(value.value_at(step, steps_per_epoch))
        return float(np.float32(value * self._run_settings.noise_scale))

    def _row_now(self) -> LedgerRow:
        """The row of an epoch that begins now, in the run that was configured last."""
        settings = self._run_settings
        return LedgerRow.open(
            settings.sampling,
            settings.expected_batch_size,
            settings.num_examples,
            noise_multiplier=self._noise_multiplier_at(self._steps_taken, settings.steps_per_epoch),
            steps_per_release=settings.steps_per_release,
            unit=settings.unit,
        )


def with_objects(
    config: dict[str, Any], kinds: tuple[str, ...], custom_objects: Any
) -> dict[str, Any]:
    """A config with the optimizer and other objects of Keras that it describes.

    Args:
        config: what `get_config` returns.
        kinds: names of the entries that hold such objects besides `optimizer`.
        custom_objects: as of `from_config`.
    """
    # Keras's function for optimizers finds them on another backend than the one that saved.
    makers = {"optimizer": keras.optimizers.deserialize}
    makers |= dict.fromkeys(kinds, keras.saving.deserialize_keras_object)
    described = {name: config[name] for name in makers if isinstance(config[name], dict)}
    return config | {
        name: makers[name]({**of_object}, custom_objects=custom_objects)
        for name, of_object in described.items()
    }
