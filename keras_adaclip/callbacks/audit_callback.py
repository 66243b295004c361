"""A lower bound on epsilon in the logs, beside the accountant's upper bound."""

from typing import Any

import keras
import numpy as np

from keras_adaclip._checks import check_between_0_and_1, check_choice, check_integer, optional
from keras_adaclip._configurable import Printable
from keras_adaclip.audit import Canaries, GradientAudit, GradientCanaries, OneRunAudit


class AuditCallback(Printable, keras.callbacks.Callback):
    """Audits a model while it trains.

    With `kind="loss"`, training is on `Canaries.dataset`, and the attack compares the losses of the
    canaries before and after. With `kind="gradient"`, `fit` trains on any data with Poisson
    sampling, and the callback adds canaries of its own to the steps: gradients of ten times the
    clipping norm, orthogonal to each other, which pass through clip factors, sum and noise like
    those of rows. The attack sees every step. It does not see how rows are drawn, nor how their
    gradients are computed.

    `audit_epsilon` appears in the logs of every epoch: the lower bound on epsilon of the last
    audit, of gradients that within the family of the ledger's mechanism. Each value alone holds
    with the given confidence; the highest of many does not. `result` is the last audit. None of it
    is private: it reveals the coins of the canaries without noise.

    Args:
        canaries: The `Canaries` whose `dataset` is trained on; None with gradients.
        delta: Between 0 and 1, far below one over the number of canaries; None takes that of
            `model.privacy_spent()`.
        confidence: Between 0 and 1.
        frequency: Positive, number of epochs between audits; the last epoch is always audited. An
            audit evaluates the canaries, which takes a second more when it is compiled.
        kind: `"loss"` or `"gradient"`.
        num_canaries: Number of gradient canaries, from 2 to the number of trainable weights.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range; when `fit` begins, if it is of a kind that
            cannot be audited.

    Example:

    >>> canaries = Canaries.draw(np.zeros((100, 3)), np.zeros(100), num_canaries=50)
    >>> callback = AuditCallback(canaries, delta=1e-5)
    >>> # model.fit(canaries.dataset(batch_size=10), epochs=5, callbacks=[callback])
    >>> callback = AuditCallback(kind="gradient", num_canaries=1000, delta=1e-5)
    >>> # model.fit(x, y, batch_size=100, epochs=5, callbacks=[callback])
    >>> callback.frequency
    1

    References:
        Steinke, Nasr & Jagielski 2023, "Privacy auditing with one (1) training run"; Mahloujifar,
        Melis & Chaudhuri 2025, "Auditing f-differential privacy in one run".
    """

    def __init__(
        self,
        canaries: Canaries | None = None,
        delta: float | None = None,
        confidence: float = 0.95,
        frequency: int = 1,
        *,
        kind: str = "loss",
        num_canaries: int = 1000,
    ) -> None:
        super().__init__()
        self.kind = check_choice("kind", kind, ("loss", "gradient"))
        if isinstance(canaries, Canaries) == (kind == "gradient"):
            raise TypeError(
                "Argument `canaries` must be of type `Canaries` with kind='loss', and None with "
                "kind='gradient', which makes its own. "
                f"Received: an object of type {type(canaries).__name__} and kind={kind!r}"
            )
        self.canaries: Any = canaries
        self.delta = optional(check_between_0_and_1, "delta", delta)
        self.confidence = check_between_0_and_1("confidence", confidence)
        self.frequency = check_integer("frequency", frequency, minimum=1)
        self.num_canaries = check_integer("num_canaries", num_canaries, minimum=2)
        self.result: OneRunAudit | None = None
        self._audited_model: Any = None
        self._losses_before = np.zeros(0)
        self._audited_steps: int | None = None

    def prepare(self, model: Any, data: Any) -> None:
        """Check the data, and add gradient canaries; `fit` calls it before training.

        Args:
            model: The private model.
            data: Its training data.

        Raises:
            ValueError: If these are not the canaries' data, or cannot be audited.
        """
        if self.kind == "gradient":
            self._gradients = GradientCanaries.for_run(self.num_canaries, model, data)
            model.train_with_canaries(self._gradients)
            return
        canaries, present = self.canaries, getattr(data.poisson, "present", None)
        if (
            present is None
            or len(present) != canaries.num_examples
            or not np.array_equal(present[canaries.rows], canaries.is_member)
        ):
            raise ValueError(
                "`AuditCallback` audits the training of a `PrivateModel` on the data of its own "
                "canaries: `model.fit(canaries.dataset(batch_size), ...)`. On other data, "
                "`AuditCallback(kind='gradient')` adds canaries to the steps."
            )

    def on_train_begin(self, logs: Any = None) -> None:
        """Record the losses of the canaries before a model's first training.

        Raises:
            TypeError: If the model is not private.
        """
        self._audited_steps = None
        if self._audited_model is not self.model or self.kind == "gradient":
            if not hasattr(self.model, "privacy_spent"):
                raise TypeError(
                    "`AuditCallback` audits a `PrivateModel`. "
                    f"Received: a model of type {type(self.model).__name__}"
                )
            self.result, self._audited_model = None, self.model
            if self.kind == "loss":
                self._losses_before = self.canaries.losses(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add `audit_epsilon` to the logs: that of the last audit, which still holds."""
        if (epoch + 1) % self.frequency == 0:
            self._audit()
        if logs is not None:
            found: Any = self.result
            bound = getattr(found, "family_lower_bound", None)
            logs["audit_epsilon"] = (
                bound if bound is not None else getattr(found, "epsilon_lower_bound", 0.0)
            )

    def on_train_end(self, logs: Any = None) -> None:
        """Audit the last epoch, if it was not audited."""
        if self._audited_steps != self.model.privacy_ledger.steps:
            self._audit()

    def _audit(self) -> None:
        """Audit the model with the present scores of the canaries."""
        spent = self.model.privacy_spent(self.delta)
        self._audited_steps = spent.steps
        if self.kind == "gradient":
            self.result = GradientAudit.of_run(
                self._gradients.scores,
                self._gradients.is_member,
                self.model.privacy_ledger,
                delta=spent.delta,
                confidence=self.confidence,
            )
            return
        self.result = OneRunAudit.from_scores(
            self._losses_before - self.canaries.losses(self.model),
            self.canaries.is_member,
            delta=spent.delta,
            claimed_epsilon=spent.epsilon,
            confidence=self.confidence,
        )
