"""The base of private optimizers whose noise is given, or planned for a privacy budget.

    noise multiplier:  the least z with  epsilon(ledger + steps of the run; z) <= target epsilon

The plan reads public numbers only: those of examples and steps, and the ledger.
"""

import dataclasses
import functools
from typing import Any

from keras_adaclip import accounting
from keras_adaclip._checks import check_between_0_and_1, check_positive, optional
from keras_adaclip.accounting import Ledger, LedgerRow
from keras_adaclip.optimizers.accounted_optimizer import (
    AccountedOptimizer,
    RunSettings,
    check_noise_multiplier_or_schedule,
)

# What is left of a budget beyond this would be so noisy that it undoes what was learned.
_SPENT = 0.95


class BudgetedOptimizer(AccountedOptimizer):
    """Takes its noise multiplier from the user, or plans it for each `fit`.

    Args:
        inner_optimizer: The optimizer that applies the updates.
        noise_multiplier: Float >= 0, or a schedule; None to plan it.
        target_epsilon: Positive float, the budget of everything that a model's training spends.
        delta: Float in (0, 1), that of the budget; None for that of the run.
        name: Name of the optimizer.

    Attributes:
        target_epsilon: The budget at which training ends; None for no budget.
        delta: The delta of the budget; None for that of the run.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range.

    Guarantees:
        A run has the noise multiplier that was given, or that of its own plan.
    """

    def __init__(
        self,
        inner_optimizer: Any,
        noise_multiplier: Any,
        target_epsilon: float | None,
        delta: float | None,
        name: str | None,
    ) -> None:
        plans_noise = noise_multiplier is None
        super().__init__(inner_optimizer, 0.0 if plans_noise else noise_multiplier, name)
        self._plans_noise = plans_noise
        self.target_epsilon = optional(check_positive, "target_epsilon", target_epsilon)
        self.delta = optional(check_between_0_and_1, "delta", delta)
        # Whether there has been a plan, whether the next run has one, and whether it has no step.
        self._was_planned = self._is_planned = self._plans_no_step = False

    @property
    def noise_multiplier(self) -> Any:
        """The total noise multiplier, or its schedule; if it is planned, that of the latest plan.

        None before the first plan. A new value takes effect, and is accounted, from the next epoch
        or run on.
        """
        is_known = self._was_planned or not self._plans_noise
        return self._noise_multiplier if is_known else None

    @noise_multiplier.setter
    def noise_multiplier(self, noise_multiplier: Any) -> None:
        if self.target_epsilon is not None:
            raise AttributeError(
                f"The noise multiplier of this `{type(self).__name__}` comes from its plan for "
                f"`target_epsilon`. Make a `DPOptimizer(..., noise_multiplier=...)` instead. "
                f"Received: noise_multiplier={noise_multiplier!r}"
            )
        self._noise_multiplier = check_noise_multiplier_or_schedule(noise_multiplier)

    def plan_run(
        self,
        ledger: Ledger,
        settings: RunSettings,
        num_epochs: int,
        is_pass: bool,
        delta: float | None = None,
        can_calibrate: bool = False,
    ) -> None:
        """Choose the noise of a run, so that it ends at the target.

        Args:
            ledger: Everything that the model has spent.
            settings: The facts of the run.
            num_epochs: Number of epochs of the run.
            is_pass: Whether each epoch begins a new pass over the data.
            delta: The delta of a `PrivacyCallback` of the run, None without.
            can_calibrate: Whether a temperature could follow the last step.

        Raises:
            ValueError: If 95% of the budget is spent, delta or the number of steps is not known, or
                no noise reaches the target.
        """
        target: Any = self.target_epsilon
        if target is None:
            return
        asked = self.delta or delta
        used = ledger.budget_delta(asked, settings.num_examples)
        self._plans_no_step, self.planned_release, self.counted_release = num_epochs < 1, None, None
        if self._plans_no_step:
            # No step runs, and the row of none needs a number.
            self._noise_multiplier = self._noise_multiplier or 1.0
            self._is_planned = True
            return
        name = type(self).__name__
        if settings.steps_per_epoch is None:
            raise ValueError(
                f"`{name}` plans the noise for all steps of a run, and the number of steps cannot "
                "be known from these data. Give `fit(steps_per_epoch=...)`, or train with "
                "`DPOptimizer(..., noise_multiplier=...)`."
            )
        spent = accounting.ledger_epsilon(ledger, used)
        if spent >= _SPENT * target:
            raise ValueError(
                f"The budget is spent: epsilon is {spent:.4g} of {target:g}, and one `fit` of "
                f"`{name}` uses all of it. Give all `epochs` to one `fit`. (One with a larger "
                "`target_epsilon` begins a plan of its own, and may undo what was learned.) "
                f"Received: target_epsilon={target}, delta={asked} (held to {used:g})"
            )
        if not self._plans_noise:
            self._was_planned = self._is_planned = True
            return
        rows, past = self.planned_rows(num_epochs, is_pass, settings), list(ledger)

        def epsilon(noise: float, of: Any = accounting.ledger_epsilon) -> float:
            """Return epsilon at the end of the run with this noise."""
            planned = [dataclasses.replace(row, noise_multiplier=noise) for row in rows]
            return float(of([*past, *planned], used, "pld"))

        guess = 1.0
        self.planned_release = self._release_after(settings, past, used) if can_calibrate else None
        if self.planned_release is not None:
            past.append(self.planned_release)
        if settings.rows_per_unit:  # The exact epsilon of a person takes seconds.
            quick = functools.partial(epsilon, of=accounting.quick_epsilon)
            guess = accounting.least_noise_multiplier(quick, target)
        self._noise_multiplier = accounting.least_noise_multiplier(epsilon, target, guess)
        self._was_planned = self._is_planned = True

    def _release_after(
        self, settings: RunSettings, past: list[LedgerRow], delta: float
    ) -> LedgerRow | None:
        """Return the release that follows the last step of a run, by default none.

        Args:
            settings: The facts of the run.
            past: What was spent before the run.
            delta: The delta of the budget.
        """
        return None

    def configure(self, settings: RunSettings) -> LedgerRow:
        """Prepare a run of steps, as `AccountedOptimizer` does.

        Raises:
            ValueError: If the run has no plan, and needs one.
        """
        needs_plan = self._plans_noise or self.target_epsilon is not None
        if needs_plan and not self._is_planned:
            raise ValueError(
                "The optimizer plans its noise for `target_epsilon` when `fit` begins, and these "
                "steps have no plan. Give `DPOptimizer(..., noise_multiplier=...)`, with the noise "
                "of `accounting.calibrate_noise_multiplier`."
            )
        return super().configure(settings)

    def end_run(self) -> None:
        """End the run that `configure` began; the next one needs a plan of its own."""
        self._is_planned = False
        super().end_run()

    def begin_plan(self, num_steps: int | None) -> None:
        """Begin the steps of a `fit`, unless it has planned none.

        Args:
            num_steps: Their number; None if it is not known.

        Raises:
            ValueError: If a callback trains epochs in a `fit` that was asked for none.
        """
        if self._plans_no_step:
            raise ValueError(
                "`fit` was asked for no epoch (`initial_epoch` is not below `epochs`), and a "
                "callback such as `BackupAndRestore` goes back to an earlier one, for which "
                f"`{type(self).__name__}` has planned no noise. Give an `initial_epoch` below "
                "`epochs`."
            )

    def refuse_single_steps(self) -> None:
        """Raise if the optimizer cannot train on a batch outside of `fit`.

        Raises:
            ValueError: If it plans noise or steps of a whole `fit`.
        """
        planner = self if self.target_epsilon is not None else self.inner_optimizer
        if planner is self or self.plans_steps:
            raise ValueError(
                f"`{type(planner).__name__}` plans a whole `fit`, and a single batch has no plan. "
                "Train with `fit`, or compile with `DPOptimizer(..., noise_multiplier=...)` around "
                "another optimizer for `train_on_batch`."
            )

    @property
    def plan_in_words(self) -> str:
        """What the optimizer has planned, empty if nothing."""
        return f"planned for epsilon {self.target_epsilon:g}" if self._was_planned else ""

    def _arguments(self) -> dict[str, Any]:
        """Return every constructor argument under its own name."""
        arguments = super()._arguments()
        if self._plans_noise and "noise_multiplier" in arguments:
            arguments["noise_multiplier"] = None
        return arguments
