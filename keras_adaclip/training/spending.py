"""What a model has spent: its ledger, read out and never lowered.

A mixin without a Keras base. The ledger itself is among the variables of the model's optimizer;
a model without one, as `load_model(compile=False)` makes it, carries the ledger on its own. Each
weight remembers who holds the ledger of what it has learnt: another model that is built on the
same weights takes that ledger over.
"""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import keras

from keras_adaclip.accounting import (
    NO_TUNING,
    Ledger,
    PrivacyReport,
    PrivacySpent,
    RandomSelection,
)
from keras_adaclip.backend import keras_private
from keras_adaclip.optimizers import AccountedOptimizer, Run
from keras_adaclip.training.weight_digests import digests_in_words, weights_are_unchanged

_ACCOUNT = "_keras_adaclip_account"


class LoadedAccount:
    """The ledger of weights that were loaded without an optimizer.

    Attributes:
        run: the ledger and whose it is.
        used_seeds: empty: what a file says of seeds is about another process.
    """

    used_seeds: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.run = Run()

    def include_run(self, run: Run) -> None:
        """Raises the ledger to cover another one."""
        AccountedOptimizer.num_inclusions += 1
        self.run = self.run.union_upward(run)


class Holder:
    """Leads from a weight or a layer to who holds its ledger.

    An optimizer itself would be saved and loaded with the layer. Copies of a weight lead to the
    same holder, and pickled ones to the ledger as it was.

    Args:
        account: an optimizer, or a `LoadedAccount`.
    """

    def __init__(self, account: Any) -> None:
        self._account = account

    def __call__(self) -> Any:
        """The account."""
        return self._account

    def __deepcopy__(self, memo: Any) -> "Holder":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        account = LoadedAccount()
        account.run = self._account.run
        return Holder, (account,)


class PrivacySpending:
    """The ledger of a private model.

    Attributes:
        privacy_unit: whose privacy the ledger is about.
        pledged_ledger: what files that are saved from now on carry at least; None means no more
            than what ran. A checkpoint that is chosen among the epochs of a run has seen all of
            them, those after it too.
        tuning: how the model was chosen among others, in words, where its ledger does not count
            that. Not saved.
    """

    privacy_unit: str = "example"
    tuning: str = NO_TUNING
    pledged_ledger: Ledger | None = None
    _loaded_account: LoadedAccount | None = None
    _lost_ledger: str | None = None

    @property
    def privacy_ledger(self) -> Ledger:
        """Everything that was spent on this model, under every optimizer it was compiled with."""
        return self._run.ledger

    @property
    def used_seeds(self) -> frozenset[int]:
        """Every seed that this model's noise and Poisson draws came from in this process.

        Empty where the operating system drew all of it, so that no other run draws the same.
        """
        seeds: frozenset[int] = getattr(self._account(), "used_seeds", frozenset())
        return seeds.union(*(other.used_seeds for other in self._other_accounts()))

    def _account(self) -> Any:
        """Who holds the ledger: the optimizer, or what was loaded without one; None for neither.

        No property: Keras walks through attributes when it loads, and would find the optimizer
        under a second name, where no state was saved, and forget that the first one failed.
        """
        optimizer = getattr(self, "optimizer", None)
        return self._loaded_account if optimizer is None else optimizer

    @property
    def _run(self) -> Run:
        self._refuse_lost_ledger()
        account = self._account()
        run: Run = Run() if account is None else account.run
        # Weights that another model shares are what that one's training has made of them.
        for other in self._other_accounts():
            run = run.union_upward(other.run)
        return run

    def _refuse_lost_ledger(self) -> None:
        if self._lost_ledger is not None:
            raise RuntimeError(
                "What these weights have spent is not known: they may come from a file whose "
                f"privacy ledger could not be taken over ({self._lost_ledger}). Build the model "
                "anew, and load a file that fits it."
            )

    def _other_accounts(self) -> list[Any]:
        """Who else holds the ledger of weights of this model, each once."""
        own = self._account()
        # Frozen weights count as well: what was learnt under privacy is in them. Layers remember
        # it for weights that take the place of trained ones, as those of `quantize` do.
        parts = [*self.variables, *keras_private.flatten_layers(self)]  # type: ignore[attr-defined]
        holders = (getattr(part, _ACCOUNT, lambda: None)() for part in parts)
        others = {id(each): each for each in holders if each is not None and each is not own}
        return list(others.values())

    def privacy_spent(self, delta: float, accountant: str = "pld") -> PrivacySpent:
        """The privacy that training has spent so far.

        Args:
            delta: float in (0, 1), the probability with which the bound may fail; well below
                one over the number of examples.
            accountant: `"pld"` (tight) or `"rdp"`.

        Returns:
            Epsilon, and what it is the epsilon of. Warns where the weights are no longer those
            that training left: epsilon says nothing of what changed them.
        """
        unchanged = self._weights_unchanged()
        if unchanged is False:
            warnings.warn(
                f"The weights of model {self.name!r} are not those that its private training "  # type: ignore[attr-defined]
                "left: something outside of it has changed them. Epsilon covers the training "
                "alone. It holds for these weights too where the change touched no private data.",
                stacklevel=2,
            )
        spent = PrivacySpent.from_ledger(self.privacy_ledger, delta, accountant)
        return dataclasses.replace(spent, weights_unchanged=unchanged)

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
        if self.privacy_unit == "example":
            described["seeds"] += "; a `PoissonDataset` may have its own seed"
        described["weights"] = digests_in_words(self.weights, self._weights_unchanged())  # type: ignore[attr-defined]
        versions = {"keras": keras.__version__, "backend": keras.backend.backend()}
        return PrivacyReport.from_ledger(
            ledger,
            delta,
            unit=self.privacy_unit,
            group_sizes=group_sizes,
            selection=selection,
            tuning=self.tuning,
            versions=versions,
            **described,
        )

    def _remark_on_noise(self) -> str:
        """What else a report is to say of the noise."""
        return ""

    def _weights_unchanged(self) -> bool | None:
        """Whether the weights are those that private training left; None where not known."""
        in_run = getattr(self._account(), "is_in_a_run", False)
        return weights_are_unchanged(self.weights, in_run)  # type: ignore[attr-defined]

    def _include_spending_on_shared_weights(self) -> None:
        """Takes over what other private models have spent on weights that this one shares.

        Two models that train the same weights in turns each take over all that the other has
        spent, so that some of it counts twice: never too little.
        """
        self._refuse_lost_ledger()
        optimizer: Any = self.optimizer  # type: ignore[attr-defined]
        others = self._other_accounts()
        if any(getattr(other, "is_in_a_run", False) for other in others):
            raise RuntimeError(
                f"Model {self.name!r} shares weights with a private model whose `fit` is under "  # type: ignore[attr-defined]
                "way: neither ledger would hold all that they learn. Train it when that `fit` has "
                "returned."
            )
        for other in others:
            optimizer.include_run(other.run)
            optimizer.remember_seeds(*other.used_seeds)
        self._put_on_account(self.trainable_variables)  # type: ignore[attr-defined]

    def _put_on_account(self, variables: Sequence[keras.Variable]) -> None:
        """Lets weights and their layers remember that the ledger of what they learnt is here."""
        numbers = {id(variable) for variable in variables}
        layers = [
            layer
            for layer in keras_private.flatten_layers(self)
            if any(id(variable) in numbers for variable in keras_private.own_variables(layer))
        ]
        holder = Holder(self._account())
        for part in (*variables, *layers):
            keras_private.set_attribute(part, _ACCOUNT, holder)

    def _include_loaded(self, run: Run) -> None:
        """Takes over the ledger of weights that were loaded, and of those that they replaced."""
        if self._account() is None:
            keras_private.set_attribute(self, "_loaded_account", LoadedAccount())
        for each in (run, *(other.run for other in self._other_accounts())):
            self._account().include_run(each)
        self._put_on_account(self.variables)  # type: ignore[attr-defined]


def _described(optimizer: Any) -> dict[str, str]:
    """Clipping and seeds in words, as far as the optimizer knows them."""
    if optimizer is None:
        unknown = "not known: the model was loaded without its optimizer"
        return {"clipping": unknown, "seeds": unknown}
    described: dict[str, str] = optimizer.described()
    described["seeds"] += " (the present optimizer)"
    return described
