"""The clipping norm and the share of unclipped units in the logs of every epoch."""

import warnings
from typing import Any

import keras
import numpy as np

from keras_adaclip._configurable import Printable

_DIAGNOSTICS = ("gradient_norm", "clipped_fraction")


class ClippingMonitor(Printable, keras.callbacks.Callback):
    """Logs `clip_norm`, and `unclipped_fraction` if the strategy releases it.

    `clip_norm` is the norm at the end of the epoch: if a schedule sets it, the norm with which the
    last step was clipped; if it adapts, the norm after the update of that step. Both entries are
    outputs of the private mechanism: the fraction is the noised one that the update used. With
    groups, `clip_norm` is the joint norm (the root of the sum of squares) and `unclipped_fraction`
    the mean over the groups; `model.optimizer.clip_norm` has each group's norm of the next step.

    Args:
        private_diagnostics: Whether to log also the mean raw norm (`gradient_norm`) and the true
            share of clipped examples (`clipped_fraction`) of each epoch. These are *not* private:
            use them on data that need no protection.

    Example:

    >>> ClippingMonitor().private_diagnostics
    False
    """

    # Keras may call it from another thread, parallel to the next step.
    async_safe = True

    def __init__(self, private_diagnostics: bool = False) -> None:
        super().__init__()
        self.private_diagnostics = private_diagnostics

    def prepare(self, model: Any, data: Any) -> None:
        """Warn of private diagnostics; `fit` calls it before training.

        Args:
            model: The private model.
            data: Its training data.
        """
        if self.private_diagnostics:
            warnings.warn(
                "`ClippingMonitor(private_diagnostics=True)` logs raw gradient norms and true clip "
                "fractions. They are not covered by epsilon: do not publish them.",
                stacklevel=6,
            )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keep the diagnostics out of the progress bar until the epoch ends.

        With them the bar is wider than most terminals, and Keras would print a new line at every
        step.
        """
        for name in _DIAGNOSTICS if logs else ():
            logs.pop(name, None)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add the entries to the logs."""
        if logs is None:
            return
        optimizer = self.model.optimizer
        logs["clip_norm"] = float(np.linalg.norm(np.atleast_1d(optimizer.logged_clip_norm)))
        fraction = optimizer.unclipped_fraction
        if fraction is not None:
            logs["unclipped_fraction"] = float(np.mean(fraction))
        # `evaluate` reports every metric of the model, these too, although it does not clip.
        for name in _DIAGNOSTICS:
            logs.pop(f"val_{name}", None)
