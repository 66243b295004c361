"""Keeps a trial to what was planned for it, and ends a search that departs from its plan."""

from typing import Any

import keras
import keras_tuner

from keras_adaclip.tuners.choices.planned_noise import PlannedNoise


class PlanGuard(keras.callbacks.Callback):
    """Compares the ledger with the plan when an epoch begins, and when training ends.

    What a trial has spent by then must be among what the plan has for the epochs before. It is
    not where trials share weights, where a model was trained before, or where another callback
    trains or changes the noise.

    Args:
        planned: the noise of each epoch.
    """

    def __init__(self, planned: PlannedNoise) -> None:
        super().__init__()
        self._planned = planned
        self._epochs_done = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Raises `FatalValueError` where the ledger or the noise is not that of the plan."""
        self._epochs_done = epoch + 1
        self._check(epoch)
        self._check_noise(epoch)

    def on_train_end(self, logs: Any = None) -> None:
        """Raises `FatalValueError` where more is on the ledger than the epochs that ran spend."""
        self._check(self._epochs_done)

    def _check_noise(self, epoch: int) -> None:
        """Compares the row that the epoch is about to run in, still empty, with the plan's."""
        row = self.model.optimizer.open_row
        planned = self._planned.row(epoch)
        if row.mechanism != planned.mechanism:
            raise keras_tuner.errors.FatalValueError(
                f"Epoch {epoch + 1} of this trial was about to run with other noise or batches "
                "than were planned for it, so its epsilon might exceed the target. Nothing but the "
                f"search may change them. Received: noise_multiplier={row.noise_multiplier:g}, "
                f"sampling={row.sampling.label!r}, batch size {row.expected_batch_size}; planned: "
                f"noise_multiplier={planned.noise_multiplier:g}, "
                f"sampling={planned.sampling.label!r}, batch size {planned.expected_batch_size}"
            )

    def _check(self, epochs: int) -> None:
        ledger = self.model.privacy_ledger
        if not ledger.is_covered_by(self._planned.ledger(epochs)):
            ran = [(row.sampling.label, row.steps, row.noise_multiplier) for row in ledger]
            raise keras_tuner.errors.FatalValueError(
                f"After {epochs} epochs this trial has spent other than what was planned for it, "
                "so its epsilon may exceed the target. Every call of `build_model` must return a "
                "model with new weights that were never trained on the data, and nothing but the "
                "search may train it or change its noise. Received: a ledger with (sampling, "
                f"steps, noise_multiplier) {ran}"
            )


def go_on(model: Any, planned: PlannedNoise, epoch: int) -> None:
    """Sets the noise for a run that begins with this epoch, on a model as `build` returned it.

    The model of a trial that goes on with another one's comes from the best epoch of that, which
    need not be the last: the noise goes on where that trial ended.
    """
    if not _is_same(model.optimizer.noise_multiplier, planned.for_optimizer()):
        raise keras_tuner.errors.FatalValueError(
            "The model's optimizer must be the one of `ClippingHyperModel.build`, whose noise was "
            "calibrated: give no `optimizer` to the tuner, but to the hypermodel. "
            f"Received: an optimizer with noise_multiplier={model.optimizer.noise_multiplier!r}"
        )
    if epoch == 0:
        return
    if not planned.ledger(epoch).is_covered_by(model.privacy_ledger):
        raise keras_tuner.errors.FatalValueError(
            "A trial that begins after the first epoch must go on with the model of another trial, "
            "on whose ledger the epochs before are. Received: "
            f"initial_epoch={epoch}, a ledger of {model.privacy_ledger.steps} steps"
        )
    epochs_done = int(model.optimizer.iterations) // planned.steps_per_epoch
    model.optimizer.noise_multiplier = planned.for_optimizer(epoch, epochs_done)


def _is_same(noise_multiplier: Any, planned: Any) -> bool:
    if isinstance(noise_multiplier, float) or isinstance(planned, float):
        return bool(noise_multiplier == planned)
    return bool(noise_multiplier.get_config() == planned.get_config())
