"""The noise of a trial, epoch by epoch, planned before the trial runs and compared while it runs.

    z_e = f s(e),  f the least factor with epsilon(z_0, z_1, ...) <= target_epsilon

where s is the shape of the noise schedule and e the epoch from 0.
"""

import dataclasses
import itertools
import math
from typing import Any

import keras
import keras_tuner

from keras_adaclip.accounting import Ledger, LedgerRow, Sampling
from keras_adaclip.schedules import ExponentialDecay, LinearDecay, PiecewiseConstant

NOISE_SCHEDULES = ("constant", "linear", "exponential", "growing")
# Every other value is a mechanism of its own, which takes time to compose and a row of the ledger.
_MAX_STAGES = 20


def noise_shape(noise_schedule: str, epochs: int) -> PiecewiseConstant:
    """The noise of each epoch in units of the first one's, in twenty stages at most."""
    if noise_schedule == "constant":
        return PiecewiseConstant([1.0] * epochs)
    schedule = {
        "linear": LinearDecay(1.0, epochs),
        "exponential": ExponentialDecay(1.0, 2.0, epochs),
        "growing": ExponentialDecay(1.0, 0.5, epochs),
    }[noise_schedule]
    length = math.ceil(epochs / _MAX_STAGES)
    return PiecewiseConstant([schedule.value_at(epoch - epoch % length) for epoch in range(epochs)])


@dataclasses.dataclass(frozen=True)
class NoisePlan:
    """The noise multiplier of each epoch of a Poisson-sampled run.

    Args:
        noise_multipliers: one for each epoch.
        batch_size: expected number of examples in a step.
        num_examples: number of examples in the training data.
    """

    noise_multipliers: tuple[float, ...]
    batch_size: int
    num_examples: int

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch."""
        return math.ceil(self.num_examples / self.batch_size)

    def for_optimizer(self, epoch: int = 0, epochs_done: int = 0) -> Any:
        """The argument `noise_multiplier` of `DPOptimizer`.

        Args:
            epoch: the next epoch, from 0.
            epochs_done: the number of epochs that the optimizer has counted so far.
        """
        if len(set(self.noise_multipliers)) == 1:
            return self.noise_multipliers[0]
        before = self.noise_multipliers[:1] * epochs_done
        return PiecewiseConstant([*before, *self.noise_multipliers[epoch:]], self.steps_per_epoch)

    def ledger(self, epochs: int | None = None) -> Ledger:
        """The ledger of the first epochs; None means all."""
        ledger = Ledger()
        for noise_multiplier, stage in itertools.groupby(self.noise_multipliers[:epochs]):
            row = self._empty_row(noise_multiplier)
            ledger = ledger.append(row.advance(len(list(stage)) * self.steps_per_epoch))
        return ledger

    def row(self, epoch: int) -> LedgerRow:
        """The row of an epoch, from 0, before it runs."""
        return self._empty_row(self.noise_multipliers[epoch])

    def _empty_row(self, noise_multiplier: float) -> LedgerRow:
        return LedgerRow.open(
            Sampling.POISSON, self.batch_size, self.num_examples, noise_multiplier
        )

    def begin(self, model: Any, epoch: int) -> None:
        """Sets the noise of a model as `build` returned it, for a trial from this epoch on.

        A trial of `Hyperband` can begin with the model of another trial, in the state of that
        trial's best epoch. The noise continues after the other trial's last epoch.

        Raises:
            FatalValueError: if the model has another optimizer, or has not trained the epochs
                before.
        """
        if _config(model.optimizer.noise_multiplier) != _config(self.for_optimizer()):
            raise keras_tuner.errors.FatalValueError(
                "The model's optimizer must be the one of `ClippingHyperModel.build`, whose noise "
                "was calibrated. Give `optimizer` to the hypermodel, not to the tuner. "
                f"Received: noise_multiplier={model.optimizer.noise_multiplier!r}"
            )
        if epoch == 0:
            return
        if not self.ledger(epoch).is_covered_by(model.privacy_ledger):
            raise keras_tuner.errors.FatalValueError(
                "A trial that begins after the first epoch must continue the model of another "
                "trial, whose ledger has the epochs before. Received: "
                f"initial_epoch={epoch}, a ledger of {model.privacy_ledger.steps} steps"
            )
        epochs_done = int(model.optimizer.iterations) // self.steps_per_epoch
        model.optimizer.noise_multiplier = self.for_optimizer(epoch, epochs_done)


class PlanGuard(keras.callbacks.Callback):
    """Compares the ledger with the plan when an epoch begins, and when training ends.

    They differ if trials share weights, if the data have another number of rows, or if another
    callback trains or changes the noise.

    Args:
        plan: the noise of each epoch.
    """

    def __init__(self, plan: NoisePlan) -> None:
        super().__init__()
        self._plan = plan
        self._epochs_done = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Raises `FatalValueError` if the ledger, or the row of this epoch, is not as planned."""
        self._epochs_done = epoch + 1
        self._check_ledger(epoch)
        row, planned = self.model.optimizer.open_row, self._plan.row(epoch)
        if row.mechanism != planned.mechanism:
            raise keras_tuner.errors.FatalValueError(
                f"Epoch {epoch + 1} of this trial was about to run with other data, noise or "
                "batches than planned, so its epsilon might exceed the target. Give as many rows "
                "as `num_examples`, and let only the search change noise and batches. Received: "
                f"{_in_words(row)}; planned: {_in_words(planned)}"
            )

    def on_train_end(self, logs: Any = None) -> None:
        """Raises `FatalValueError` if the ledger has more than the epochs that ran."""
        self._check_ledger(self._epochs_done)

    def _check_ledger(self, epochs: int) -> None:
        ledger = self.model.privacy_ledger
        if not ledger.is_covered_by(self._plan.ledger(epochs)):
            raise keras_tuner.errors.FatalValueError(
                f"After {epochs} epochs this trial has spent more than planned, so its epsilon may "
                "exceed the target. Every call of `build_model` must return a model with new "
                "weights that were never trained on the data, and only the search may train it or "
                f"change its noise. Received: {'; '.join(map(_in_words, ledger))}"
            )


def _config(noise_multiplier: Any) -> Any:
    return (
        noise_multiplier if isinstance(noise_multiplier, float) else noise_multiplier.get_config()
    )


def _in_words(row: LedgerRow) -> str:
    return (
        f"{row.steps} steps, noise_multiplier={row.noise_multiplier:g}, "
        f"sampling={row.sampling.label!r}, batch size {row.expected_batch_size} of "
        f"{row.num_examples} rows"
    )
