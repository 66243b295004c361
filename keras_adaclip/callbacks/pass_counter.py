"""Tells the ledger that a new pass over the data begins."""

from typing import Any

import keras


class PassCounter(keras.callbacks.Callback):
    """Starts a new release at the beginning of every epoch.

    `fit` adds it where an epoch is a pass over the data, so that a pass that was cut short never
    lends its remaining steps to the next one.
    """

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Closes the pass that the ledger has open."""
        self.model.optimizer.begin_pass()
