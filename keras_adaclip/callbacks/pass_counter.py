"""Keeps the ledger's view of a `fit`: what runs, with which noise, and where a pass begins."""

import os
from collections.abc import Callable
from typing import Any

import keras


class PassCounter(keras.callbacks.Callback):
    """Opens the ledger when the first epoch begins, and prepares each later one.

    `fit` adds it. A callback such as `BackupAndRestore` loads a checkpoint when training begins,
    and with it the noise, divisor and ledger row of the run that saved it; they are set anew for
    the run at hand. Where an epoch is a pass over the data, a pass that was cut short never lends
    its remaining steps to the next one. A noise schedule moves on with every epoch.

    Args:
        open_ledger: prepares optimizer and ledger for the run.
        every_epoch: whether every epoch begins a new pass.
        check: looks, before each epoch, whether training may go on; raises where it may not.
    """

    def __init__(
        self,
        open_ledger: Callable[[], None],
        every_epoch: bool,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._open_ledger = open_ledger
        self._check = check
        self._every_epoch = every_epoch
        self._is_open = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Opens the ledger, or sets the noise of the epoch and opens its pass."""
        if not self._is_open:
            self._is_open = True
            self._open_ledger()
        else:
            self.model.optimizer.begin_epoch(is_pass=self._every_epoch)
        self._check()


class EpochCheck(keras.callbacks.Callback):
    """Looks before each epoch, after all other callbacks, whether training may go on.

    Args:
        check: raises where it may not.

    Attributes:
        before_execution: the same, but called before each step (or execution of steps).
    """

    def __init__(self, check: Callable[[], None]) -> None:
        super().__init__()
        self._check = check
        self._process = os.getpid()
        self.before_execution: list[Callable[[], None]] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Raises where training may not go on; a process that was forked off goes on alone."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self.model.optimizer.renew_after_fork()
        for check in self.before_execution:
            check()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Raises where training may not go on."""
        self._check()
