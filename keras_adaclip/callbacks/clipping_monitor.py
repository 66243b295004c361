"""The threshold, and how many units it leaves unclipped, in the logs of every epoch."""

import warnings
from typing import Any

import keras
import numpy as np

_DIAGNOSTICS = ("gradient_norm", "clipped_fraction")


class ClippingMonitor(keras.callbacks.Callback):
    """Logs `clip_norm`, and `unclipped_fraction` where the strategy releases it.

    `clip_norm` is the norm at the end of the epoch: where a schedule sets it, the one with which
    the epoch's last step clipped, so that an epoch of one norm shows that norm; where it adapts,
    the one to which that step has moved it. Both entries are outputs of the private mechanism: the
    fraction is the noised one that moved the threshold. With groups, `clip_norm` is the joint norm
    (the root of the sum of squares) and `unclipped_fraction` the mean over the groups;
    `model.optimizer.clip_norm` has each group's norm of the next step.

    Args:
        private_diagnostics: whether to log also the mean raw norm (`gradient_norm`) and the true
            share of clipped examples (`clipped_fraction`) of each epoch. These are *not*
            private; use them on data that need no protection.

    Example:

    >>> ClippingMonitor().private_diagnostics
    False
    """

    # Keras may call it from another thread, beside the next step.
    async_safe = True

    def __init__(self, private_diagnostics: bool = False) -> None:
        super().__init__()
        self.private_diagnostics = private_diagnostics

    def prepare(self, model: Any, data: Any) -> None:
        """Called by `fit` before training starts.

        Args:
            model: the private model.
            data: its training data.
        """
        if not self.private_diagnostics:
            return
        warnings.warn(
            "`ClippingMonitor(private_diagnostics=True)` logs raw gradient norms and true clip "
            "fractions. They are not covered by epsilon: do not publish them.",
            stacklevel=4,
        )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keeps the diagnostics out of the bar until the epoch ends.

        With them it is wider than most terminals, and Keras, which goes back to the beginning of a
        line and no further, would leave a line behind at every step.
        """
        for name in _DIAGNOSTICS if logs else ():
            logs.pop(name, None)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the entries to the logs."""
        if logs is None:
            return
        optimizer = self.model.optimizer
        # A query of TensorFlow Privacy tells only the norm of the next step.
        clip_norm = getattr(optimizer, "logged_clip_norm", optimizer.clip_norm)
        if clip_norm is not None:
            logs["clip_norm"] = float(np.linalg.norm(np.atleast_1d(clip_norm)))
        fraction = optimizer.unclipped_fraction
        if fraction is not None:
            logs["unclipped_fraction"] = float(np.mean(fraction))
        # `evaluate` reports every metric of the model, these too, though it clips nothing.
        for name in _DIAGNOSTICS:
            logs.pop(f"val_{name}", None)
