"""What a model has spent: its ledger, read out, saved with it and never lowered.

A mixin without a Keras base. The ledger itself is among the variables of the model's optimizer;
a model without one, as `load_model(compile=False)` makes it, carries the ledger on its own.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_adaclip.accounting import (
    LEDGER_KEYS,
    Ledger,
    PrivacyReport,
    PrivacySpent,
    RandomSelection,
)
from keras_adaclip.backend import keras_private
from keras_adaclip.optimizers.ledger_variables import MAX_ROWS, Run

_OPTIMIZER_OF_VARIABLE = "_keras_adaclip_optimizer"


class PrivacySpending:
    """The ledger of a private model.

    Attributes:
        privacy_unit: whose privacy the ledger is about.
        pledged_ledger: what files that are saved from now on carry at least; None means no more
            than what ran. A checkpoint that is chosen among the epochs of a run has seen all of
            them, those after it too.
    """

    privacy_unit: str = "example"
    pledged_ledger: Ledger | None = None
    _carried_run: Run = Run()

    @property
    def privacy_ledger(self) -> Ledger:
        """Everything that was spent on this model, under every optimizer it was compiled with."""
        return self._run.ledger

    @property
    def used_seeds(self) -> frozenset[int]:
        """Every seed that this model's noise and Poisson draws came from in this process.

        Empty where the operating system drew all of it, so that no other run draws the same.
        """
        seeds: frozenset[int] = getattr(getattr(self, "optimizer", None), "used_seeds", frozenset())
        return seeds.union(*(other.used_seeds for other in self._other_optimizers()))

    @property
    def _run(self) -> Run:
        optimizer = getattr(self, "optimizer", None)
        run: Run = self._carried_run if optimizer is None else optimizer.run
        # Weights that another model shares are what that one's training has made of them.
        for other in self._other_optimizers():
            run = run.union_upward(other.run)
        return run

    def _other_optimizers(self) -> list[Any]:
        """The optimizers of private models that trained weights of this one last, each once."""
        own = getattr(self, "optimizer", None)
        # Frozen weights count as well: what was learnt under privacy is in them.
        trained_by = (
            getattr(variable, _OPTIMIZER_OF_VARIABLE, None)
            for variable in self.variables  # type: ignore[attr-defined]
        )
        others = {id(each): each for each in trained_by if each is not None and each is not own}
        return list(others.values())

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

    def privacy_report(
        self,
        delta: float,
        group_sizes: Sequence[int] = (2, 5, 10),
        selection: RandomSelection | None = None,
    ) -> PrivacyReport:
        """What training has spent so far and how, to be printed, saved or sent on.

        Args:
            delta: float in (0, 1), the probability with which the bound may fail; well below
                one over the number of examples.
            group_sizes: for how many examples (or clients) of one person epsilon is given; each
                takes seconds.
            selection: how this run was chosen from a random number of others like it, where it
                was: the report then has the epsilon of that as well.

        Returns:
            The report: `print` it, or `save` it as JSON, Markdown or text.
        """
        ledger = self.privacy_ledger
        described = _described(getattr(self, "optimizer", None))
        described["clipping"] += self._remark_on_noise()
        versions = {"keras": keras.__version__, "backend": keras.backend.backend()}
        return PrivacyReport.from_ledger(
            ledger,
            delta,
            unit=self.privacy_unit,
            group_sizes=group_sizes,
            selection=selection,
            versions=versions,
            **described,
        )

    def _remark_on_noise(self) -> str:
        """What else a report is to say of the noise."""
        return ""

    def _include_spending_on_shared_weights(self) -> None:
        """Takes over what other private models have spent on weights that this one shares.

        Two models that train the same weights in turns each take over all that the other has
        spent, so that some of it counts twice: never too little.
        """
        optimizer: Any = self.optimizer  # type: ignore[attr-defined]
        for other in self._other_optimizers():
            optimizer.include_run(other.run)
            optimizer.remember_seeds(*other.used_seeds)
        for variable in self.trainable_variables:  # type: ignore[attr-defined]
            keras_private.set_attribute(variable, _OPTIMIZER_OF_VARIABLE, optimizer)

    def save_own_variables(self, store: Any) -> None:
        """Saves the ledger with the model, so that it outlives `load_model(compile=False)`."""
        super().save_own_variables(store)  # type: ignore[misc]
        run = self._run
        ledger = run.ledger
        if self.pledged_ledger is not None:
            ledger = ledger.union_upward(self.pledged_ledger, same_run=True)
        rows, noise_multipliers = ledger.to_arrays(MAX_ROWS)
        saved = (rows, noise_multipliers, np.asarray(run.identity, np.int32))
        for key, value in zip(LEDGER_KEYS, saved, strict=True):
            store[key] = value

    def load_own_variables(self, store: Any) -> None:
        """Loads weights and ledger; the ledger of this process is never lowered."""
        names = [name for name in list(store.keys()) if name not in LEDGER_KEYS]
        super().load_own_variables({name: store[name] for name in names})  # type: ignore[misc]
        if len(names) == len(store.keys()):
            return
        rows, noise_multipliers, identity = (np.asarray(store[key]) for key in LEDGER_KEYS)
        first, second = identity.tolist()
        loaded = Run(Ledger.from_arrays(rows, noise_multipliers), (first, second))
        if getattr(self, "optimizer", None) is None:
            self._carried_run = self._carried_run.union_upward(loaded)
        else:
            self.optimizer.include_run(loaded)  # type: ignore[attr-defined]


def _described(optimizer: Any) -> dict[str, str]:
    """Clipping and seeds in words, as far as the optimizer knows them."""
    if optimizer is None:
        unknown = "not known: the model was loaded without its optimizer"
        return {"clipping": unknown, "seeds": unknown}
    described: dict[str, str] = optimizer.described()
    described["seeds"] += " (the present optimizer; a `PoissonDataset` may have its own seed)"
    return described
