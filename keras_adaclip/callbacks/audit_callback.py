"""A lower bound on epsilon in the logs, beside the accountant's upper bound."""

from typing import Any

import keras
import numpy as np

from keras_adaclip._checks import check_between_0_and_1, check_integer
from keras_adaclip.accounting import Unit
from keras_adaclip.audit import Canaries, OneRunAudit


class AuditCallback(keras.callbacks.Callback):
    """Audits while a model trains on `Canaries.dataset`.

    `audit_epsilon` appears in the logs of every epoch: what epsilon is at least, as far as the
    losses of the canaries told at the last audit. Each value alone holds with the given confidence;
    the highest of many does not. `result` has the last audit. Nothing of it is private: it tells,
    without noise, of the coins.

    Args:
        canaries: the `Canaries` whose `dataset` is trained on.
        delta: between 0 and 1; far below one over the number of canaries.
        confidence: between 0 and 1.
        frequency: positive, number of epochs from one audit to the next; the last epoch is always
            audited. An audit evaluates the canaries, and takes a second more where that is
            compiled.

    Raises:
        TypeError: where an argument has the wrong type.
        ValueError: where an argument is out of range.

    Example:

    >>> canaries = Canaries.draw(np.zeros((100, 3)), np.zeros(100), num_canaries=50)
    >>> callback = AuditCallback(canaries, delta=1e-5)
    >>> # model.fit(canaries.dataset(batch_size=10), epochs=5, callbacks=[callback])
    >>> callback.frequency
    1

    Reference:
        Steinke, Nasr & Jagielski 2023, "Privacy auditing with one (1) training run".
    """

    def __init__(
        self, canaries: Canaries, delta: float, confidence: float = 0.95, frequency: int = 1
    ) -> None:
        super().__init__()
        if not isinstance(canaries, Canaries):
            raise TypeError(
                "Argument `canaries` must be of type `Canaries`. "
                f"Received: an object of type {type(canaries).__name__}"
            )
        self.canaries = canaries
        self.delta = check_between_0_and_1("delta", delta)
        self.confidence = check_between_0_and_1("confidence", confidence)
        self.frequency = check_integer("frequency", frequency, minimum=1)
        self.result: OneRunAudit | None = None
        self._audited_model: Any = None
        self._losses_before = np.zeros(0)
        self._audited_steps: int | None = None

    def prepare(self, model: Any, data: Any) -> None:
        """Called by `fit` before training starts.

        Args:
            model: the private model.
            data: its training data.

        Raises:
            ValueError: where these are not the canaries' data, or it trains over clients.
        """
        if data.unit is Unit.CLIENT:
            raise ValueError(
                "`AuditCallback` audits what protects single examples: its canaries are examples, "
                "and a federated model protects whole clients. Leave it out, or audit a "
                "`keras_adaclip.PrivateModel`."
            )
        canaries, present = self.canaries, getattr(data.poisson, "present", None)
        if (
            present is None
            or len(present) != canaries.num_examples
            or not np.array_equal(present[canaries.rows], canaries.is_member)
        ):
            raise ValueError(
                "`AuditCallback` knows what its own canaries' coins decided. Train on their data: "
                "`model.fit(canaries.dataset(batch_size), ...)`."
            )

    def on_train_begin(self, logs: Any = None) -> None:
        """Notes the losses of the canaries, the first time that it sees a model.

        Raises:
            TypeError: where the model is not private.
        """
        self._audited_steps = None
        if self._audited_model is not self.model:
            if not hasattr(self.model, "privacy_spent"):
                raise TypeError(
                    "`AuditCallback` audits a `PrivateModel`. "
                    f"Received: a model of type {type(self.model).__name__}"
                )
            self.result, self._audited_model = None, self.model
            self._losses_before = self.canaries.losses(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds `audit_epsilon` to the logs: that of the last audit, which still holds."""
        if (epoch + 1) % self.frequency == 0:
            self._audit()
        if logs is not None:
            logs["audit_epsilon"] = 0.0 if self.result is None else self.result.epsilon_lower_bound

    def on_train_end(self, logs: Any = None) -> None:
        """Audits the last epoch, if it was not audited."""
        if self._audited_steps != self.model.privacy_ledger.steps:
            self._audit()

    def _audit(self) -> None:
        spent = self.model.privacy_spent(self.delta)
        self._audited_steps = spent.steps
        self.result = OneRunAudit.from_scores(
            self._losses_before - self.canaries.losses(self.model),
            self.canaries.is_member,
            delta=self.delta,
            claimed_epsilon=spent.epsilon,
            confidence=self.confidence,
        )
