"""The callbacks with which `fit` keeps the ledger and its checks in step with the epochs."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import keras


class PassCounter(keras.callbacks.Callback):
    """Opens the ledger when the first epoch begins, and prepares each later epoch.

    A callback such as `BackupAndRestore` loads a checkpoint when training begins, so noise, divisor
    and ledger row are set for this run afterwards. If an epoch is a pass over the data, the next
    epoch begins a new pass even if the last one was cut short. A noise schedule advances with every
    epoch.

    Args:
        open_ledger: a function that prepares optimizer and ledger for the run, given the number of
            epochs that are left.
        every_epoch: whether every epoch begins a new pass.
        check: a function that is called before each epoch and raises if training must stop.
    """

    def __init__(
        self,
        open_ledger: Callable[[int], None],
        every_epoch: bool,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._open_ledger = open_ledger
        self._check = check
        self._every_epoch = every_epoch
        self._is_open = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Open the ledger, or set the noise of the epoch and open its pass."""
        if not self._is_open:
            self._is_open = True
            self._open_ledger(self.params["epochs"] - epoch)
        else:
            self.model.optimizer.begin_epoch(is_pass=self._every_epoch)
        self._check()


class StepCheck(keras.callbacks.Callback):
    """Checks before each execution of steps, after all other callbacks, that training may continue.

    Args:
        checks: Functions that raise if training must stop.
    """

    def __init__(self, checks: Sequence[Callable[[], None]]) -> None:
        super().__init__()
        self._checks, self._process = checks, os.getpid()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Run the checks; give a forked process its own identity and keys."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self.model.optimizer.renew_after_fork()
        for check in self._checks:
            check()
