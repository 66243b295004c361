"""What a model has spent: its ledger, read out, saved with it and never lowered.

A mixin without a Keras base. The ledger itself is among the variables of the model's optimizer;
a model without one, as `load_model(compile=False)` makes it, carries the ledger on its own.
"""

from typing import Any

import numpy as np

from keras_adaclip.accounting import Ledger, PrivacySpent
from keras_adaclip.backend import keras_private
from keras_adaclip.optimizers.ledger_variables import MAX_ROWS, Run

_OPTIMIZER_OF_VARIABLE = "_keras_adaclip_optimizer"
_LEDGER_KEYS = ("privacy_ledger_rows", "privacy_ledger_noise", "privacy_ledger_identity")


class PrivacySpending:
    """The ledger of a private model."""

    _carried_run: Run = Run()

    @property
    def privacy_ledger(self) -> Ledger:
        """Everything that was spent on this model, under every optimizer it was compiled with."""
        return self._run.ledger

    @property
    def _run(self) -> Run:
        optimizer = getattr(self, "optimizer", None)
        return self._carried_run if optimizer is None else optimizer.run

    def privacy_spent(self, delta: float, accountant: str = "pld") -> PrivacySpent:
        """The privacy that training has spent so far.

        Args:
            delta: float in (0, 1), the probability with which the bound may fail; well below
                one over the number of examples.
            accountant: `"pld"` (tight) or `"rdp"`.

        Returns:
            Epsilon, and what it is the epsilon of.
        """
        return PrivacySpent.from_ledger(self.privacy_ledger, delta, accountant)

    def _include_spending_on_shared_weights(self) -> None:
        """Takes over what other private models have spent on weights that this one shares.

        Two models that train the same weights in turns each take over all that the other has
        spent, so that some of it counts twice: never too little.
        """
        optimizer: Any = self.optimizer  # type: ignore[attr-defined]
        for variable in self.trainable_variables:  # type: ignore[attr-defined]
            trained_by = getattr(variable, _OPTIMIZER_OF_VARIABLE, None)
            if trained_by is not None and trained_by is not optimizer:
                optimizer.include_run(trained_by.run)
            keras_private.set_attribute(variable, _OPTIMIZER_OF_VARIABLE, optimizer)

    def save_own_variables(self, store: Any) -> None:
        """Saves the ledger with the model, so that it outlives `load_model(compile=False)`."""
        super().save_own_variables(store)  # type: ignore[misc]
        run = self._run
        rows, noise_multipliers = run.ledger.to_arrays(MAX_ROWS)
        saved = (rows, noise_multipliers, np.asarray(run.identity, np.int32))
        for key, value in zip(_LEDGER_KEYS, saved, strict=True):
            store[key] = value

    def load_own_variables(self, store: Any) -> None:
        """Loads weights and ledger; the ledger of this process is never lowered."""
        names = [name for name in list(store.keys()) if name not in _LEDGER_KEYS]
        super().load_own_variables({name: store[name] for name in names})  # type: ignore[misc]
        if len(names) == len(store.keys()):
            return
        rows, noise_multipliers, identity = (np.asarray(store[key]) for key in _LEDGER_KEYS)
        first, second = identity.tolist()
        loaded = Run(Ledger.from_arrays(rows, noise_multipliers), (first, second))
        if getattr(self, "optimizer", None) is None:
            self._carried_run = self._carried_run.union_upward(loaded)
        else:
            self.optimizer.include_run(loaded)  # type: ignore[attr-defined]
