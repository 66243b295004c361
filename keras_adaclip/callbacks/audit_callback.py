"""A lower bound on epsilon in the logs, beside the accountant's upper bound."""

from typing import Any

import keras
import numpy as np

from keras_adaclip._checks import check_between_0_and_1, check_integer
from keras_adaclip._configurable import Printable
from keras_adaclip.audit import Canaries, OneRunAudit


class AuditCallback(Printable, keras.callbacks.Callback):
    """Audits a model while it trains on `Canaries.dataset`.

    `audit_epsilon` appears in the logs of every epoch: a lower bound on epsilon from the losses of
    the canaries at the last audit. Each value alone holds with the given confidence; the highest of
    many does not. `result` is the last audit. None of it is private: it reveals the coins of the
    canaries without noise.

    Args:
        canaries: The `Canaries` whose `dataset` is trained on.
        delta: Between 0 and 1; far below one over the number of canaries.
        confidence: Between 0 and 1.
        frequency: Positive, number of epochs between audits; the last epoch is always audited. An
            audit evaluates the canaries, which takes a second more when it is compiled.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range.

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
        """Check the data; `fit` calls it before training.

        Args:
            model: The private model.
            data: Its training data.

        Raises:
            ValueError: If these are not the canaries' data.
        """
        canaries, present = self.canaries, getattr(data.poisson, "present", None)
        if (
            present is None
            or len(present) != canaries.num_examples
            or not np.array_equal(present[canaries.rows], canaries.is_member)
        ):
            raise ValueError(
                "`AuditCallback` audits the training of a `PrivateModel` on the data of its own "
                "canaries: `model.fit(canaries.dataset(batch_size), ...)`."
            )

    def on_train_begin(self, logs: Any = None) -> None:
        """Record the losses of the canaries before a model's first training.

        Raises:
            TypeError: If the model is not private.
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
        """Add `audit_epsilon` to the logs: that of the last audit, which still holds."""
        if (epoch + 1) % self.frequency == 0:
            self._audit()
        if logs is not None:
            logs["audit_epsilon"] = 0.0 if self.result is None else self.result.epsilon_lower_bound

    def on_train_end(self, logs: Any = None) -> None:
        """Audit the last epoch, if it was not audited."""
        if self._audited_steps != self.model.privacy_ledger.steps:
            self._audit()

    def _audit(self) -> None:
        """Audit the model with the present losses of the canaries."""
        spent = self.model.privacy_spent(self.delta)
        self._audited_steps = spent.steps
        self.result = OneRunAudit.from_scores(
            self._losses_before - self.canaries.losses(self.model),
            self.canaries.is_member,
            delta=self.delta,
            claimed_epsilon=spent.epsilon,
            confidence=self.confidence,
        )
