"""The ledger of a model: what training has spent, read out and never lowered.

A mixin without a Keras base. The ledger is among the variables of the model's optimizer. A model
without one, as `load_model(compile=False)` makes it, carries the ledger on its own. Each weight
remembers who holds the ledger of what it has learned: see `weights`.
"""

import dataclasses
import functools
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras

from keras_adaclip.accounting import (
    NO_TUNING,
    STATED_PUBLIC,
    Ledger,
    PrivacyReport,
    PrivacySpent,
    RandomSelection,
    software_versions,
)
from keras_adaclip.backend import keras_private
from keras_adaclip.examination import Findings
from keras_adaclip.gradients import Augmentation, GradientPlan
from keras_adaclip.optimizers import Account
from keras_adaclip.training import weights

if TYPE_CHECKING:
    from keras import Model as _MixedIn
else:
    _MixedIn = object  # Its subclasses are mixed into a Keras model.
_STATE = "_keras_adaclip_state"


@dataclasses.dataclass(eq=False)
class PrivateState:
    """Everything that a private model holds besides its layers, past the tracking of Keras.

    Attributes:
        plan: How the gradients of each layer are computed; None until the model was examined.
        planned_for: What the plan was made for, for examples of one shape and of any length.
        examined: What was found of the model at the shapes of its steps as they are compiled.
        chunk_size: Number of examples that are processed at a time; None takes them all.
        handles_missing: By target, whether the loss has a use for numbers that are not finite.
        remarks: What `fit` says of the training before its first step, once.
        is_drawn: Whether batches are those that this package's sampling makes.
        augmentation: How the latest `fit` augmented its examples, if it did.
        diagnostics: Metrics of raw norms and true clip fractions, while `fit` records them.
        canaries: The `GradientCanaries` of an audit, while `fit` trains with them.
        assigned_by_forward: The variables that a forward pass assigns, whatever the rows are.
        row_of_zeros: Inputs of one example, to compute the values of these variables.
        account: The ledger of a model without an optimizer.
        contributes: Whether steps return the clipped sum of clients instead of applying it.
        reports_metrics: Whether logs hold the loss and metrics of the training rows.
        delta: That of the first `PrivacyCallback` of the latest `fit` with one.
        saved_ledger: The part of the model that Keras saves and loads as its ledger.
    """

    plan: GradientPlan | None = None
    planned_for: Any = None
    examined: Findings = dataclasses.field(default_factory=dict)
    chunk_size: int | None = None
    handles_missing: tuple[bool, ...] = ()
    remarks: list[str] = dataclasses.field(default_factory=list)
    is_drawn: bool = False
    augmentation: Augmentation | None = None
    diagnostics: dict[str, Any] | None = None
    canaries: Any = None
    assigned_by_forward: Sequence[keras.Variable] = ()
    row_of_zeros: Any = None
    account: Account = dataclasses.field(default_factory=Account)
    contributes: bool = False
    delta: float | None = None
    reports_metrics: bool = True
    saved_ledger: Any = None


class PrivacySpending(_MixedIn):
    """The ledger of a private model.

    Attributes:
        privacy_unit: The unit whose privacy the ledger is about.
        pledged_ledger: Minimum ledger written to files saved during a run; None writes the actual
            ledger. A checkpoint chosen among the epochs of a run depends on all of them, later
            ones too.
        tuning: How the model was chosen among others, in words, if its ledger does not count
            that. Saved with the model.
        public_preprocessing: The user's word that what `adapt` has made of data came from public
            data. Saved with the model.
    """

    privacy_unit: str = "example"
    tuning: str = NO_TUNING
    public_preprocessing: bool = False
    pledged_ledger: Ledger | None = None

    @property
    def _private_state(self) -> PrivateState:
        """What training holds of this model, past the tracking of Keras."""
        state: PrivateState | None = vars(self).get(_STATE)
        if state is None:
            state = PrivateState()
            keras_private.set_attribute(self, _STATE, state)
        return state

    @property
    def gradient_plan(self) -> GradientPlan | None:
        """How the gradients of each layer are computed; None until the model was examined."""
        return self._private_state.plan

    @property
    def privacy_ledger(self) -> Ledger:
        """Everything spent on this model and on weights that it shares, with any optimizer."""
        self._refuse_lost_ledger()
        # Another model's training has shaped the weights that it shares with this one.
        ledgers = (account.ledger for account in self._accounts())
        return functools.reduce(Ledger.merge, ledgers)

    @property
    def used_seeds(self) -> frozenset[int]:
        """Every seed of this model's noise and Poisson draws in this process.

        Empty if the operating system drew all of it, so that no other run draws the same.
        """
        return frozenset().union(*(account.used_seeds for account in self._accounts()))

    def _accounts(self) -> list[Account]:
        """Return the accounts of this model, its own first, and of its weights, each once.

        Frozen weights count too, since they have learned from private data.
        """
        optimizer: Any = getattr(self, "optimizer", None)
        own = self._private_state.account if optimizer is None else optimizer.account
        return list(dict.fromkeys([own, *weights.accounts_of(self._parts())]))

    def _refuse_lost_ledger(self) -> None:
        """Raise a `RuntimeError` if the ledger of loaded weights could not be read."""
        lost = self._lost_ledger()
        if lost is not None:
            raise RuntimeError(
                "The privacy spent on these weights is not known: they may come from a file whose "
                f"privacy ledger could not be taken over ({lost}). Build the model again, and load "
                "a file that fits it."
            )

    def _lost_ledger(self) -> str | None:
        """Return why the ledger of this model's weights is unknown; None if it is known."""
        return next((account.lost for account in self._accounts() if account.lost), None)

    def _lose_ledger(self, reason: str) -> None:
        """Let the weights remember for good that their ledger is not known, and why."""
        self._include(Ledger(), self.variables)
        weights.put_on_account(self._parts(), Account(lost=reason))

    def _parts(self) -> list[Any]:
        """Return what remembers the account of its values."""
        return [*self.variables, *keras_private.flatten_layers(self)]

    def _delta_or_default(self, delta: float | None) -> float:
        """Return delta, or if it is None that of a target, of the latest callback, of the data."""
        if delta is not None:
            return delta
        ledger = self.privacy_ledger
        if ledger.promised_delta < 1.0:
            return ledger.promised_delta
        return self._private_state.delta or ledger.budget_delta(None, 0)

    def privacy_spent(self, delta: float | None = None, accountant: str = "pld") -> PrivacySpent:
        """Return the privacy that training has spent so far.

        Warns if the weights are no longer those that training left: epsilon does not cover what
        changed them.

        Args:
            delta: Float in (0, 1), the probability with which the bound may fail. None means the
                one of the plan or of a target, else that of the latest `PrivacyCallback`, else
                `num_examples ** -1.1`. Choose it well below one over the number of examples.
            accountant: `"pld"` (tight) or `"rdp"`.

        Returns:
            Epsilon, and the steps, sampling and neighbouring relation that it is about.

        Raises:
            ValueError: If `delta` is out of range, or None before the first step.
        """
        unchanged = weights.weights_are_unchanged(self.weights)
        if unchanged is False:
            warnings.warn(
                f"The weights of model {self.name!r} are not those that its private training "
                "left: something outside of it has changed them. Epsilon covers the training "
                "alone. It holds for these weights too if the change touched no private data: "
                "`model.declare_public_change('what it was')` says so.",
                stacklevel=2,
            )
        delta = self._delta_or_default(delta)
        spent = PrivacySpent.from_ledger(self.privacy_ledger, delta, accountant)
        return dataclasses.replace(spent, weights_unchanged=unchanged)

    def privacy_report(
        self,
        delta: float | None = None,
        group_sizes: Sequence[int] = (2, 5, 10),
        selection: RandomSelection | None = None,
        *,
        data_description: str | None = None,
        statements: Mapping[str, str] | None = None,
        model_file: str | os.PathLike[str] | None = None,
    ) -> PrivacyReport:
        """Return a report of the privacy that training has spent so far.

        Args:
            delta: Float in (0, 1), the probability with which the bound may fail. None means the
                one of the plan or of a target, else that of the latest `PrivacyCallback`, else
                `num_examples ** -1.1`. Choose it well below one over the number of examples.
            group_sizes: Numbers of examples (or clients) of one person for which the report gives
                epsilon; each takes seconds.
            selection: How this run was chosen from a random number of runs, if it was. The report
                then has the epsilon of the selection too.
            data_description: Which data the model was trained on, in your words.
            statements: What you state on further topics, such as `"trust model"`, by topic. The
                report adds it to what the library knows of the topic.
            model_file: A file that this model was saved to. The report states its name and its
                SHA-256, and does not compare it with the model.

        Returns:
            The report: `print` it, or `save` it as HTML, JSON, Markdown or text.

        Raises:
            OSError: If `model_file` cannot be read.
            ValueError: If `delta` is out of range, or None before the first step.
        """
        return PrivacyReport.from_ledger(
            self.privacy_ledger,
            self._delta_or_default(delta),
            group_sizes=group_sizes,
            selection=selection,
            weights=weights.digests_in_words(self.weights),
            data_description=data_description,
            statements=statements,
            model_file=model_file,
            **self._facts(),
        )

    def declare_public_change(self, reason: str) -> None:
        """State that what has changed the weights since private training touched no private data.

        The present weights then count as those that private training left, and reports name the
        reason. It was not checked. Call it after the change, and before training goes on.

        Args:
            reason: What the change was, in your words: `"rounded to int8"`.

        Raises:
            ValueError: If the reason is no text or empty, or no weight has changed since private
                training.
        """
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"Argument `reason` must be a text. Received: reason={reason!r}")
        weights.declare_public_change(self.weights, " ".join(reason.split()))

    def _facts(self) -> dict[str, Any]:
        """Return what the report says of the model besides its ledger and weights, by argument."""
        optimizer = getattr(self, "optimizer", None)
        if optimizer is None:
            unknown = "not known: the model was loaded without its optimizer"
            facts = {"clipping": unknown, "seeds": unknown}
        else:
            facts = optimizer.described()
            facts["seeds"] += " (the present optimizer)"
        facts["clipping"] += self._remark_on_noise()
        if self.privacy_unit == "example":
            facts["seeds"] += "; a `PoissonDataset` may have its own seed"
        backend_name = keras.backend.backend()
        return {
            **facts,
            "unit": self.privacy_unit,
            "tuning": self.tuning,
            "preprocessing": self._preprocessing_in_words(),
            "public_changes": weights.public_changes(self.weights),
            "model_name": self.name,
            "versions": {
                **software_versions(),
                "keras": keras.__version__,
                "backend": backend_name,
                backend_name: sys.modules[backend_name].__version__,
            },
        }

    def _preprocessing_in_words(self) -> str:
        """Return which layers hold tables made from data, "" for none."""
        if self.public_preprocessing:
            return STATED_PUBLIC
        return ", ".join(layer.name for layer in keras_private.adapted_layers(self))

    def _remark_on_noise(self) -> str:
        """Return a remark on the noise for the report, to be appended to that on clipping."""
        return ""

    def _include_spending_on_shared_weights(self) -> None:
        """Include what other private models have spent on weights that this one shares.

        If two models train the same weights in turns, each includes all that the other has spent.
        """
        self._refuse_lost_ledger()
        if any(other.is_open for other in self._accounts()[1:]):
            raise RuntimeError(
                f"Model {self.name!r} shares weights with a private model whose `fit` is under "
                "way: neither ledger would hold all that they learn. Train it after that `fit` has "
                "returned."
            )
        self._include(Ledger(), self.trainable_variables)

    def _include(self, ledger: Ledger, variables: Sequence[keras.Variable]) -> None:
        """Include a ledger and those of shared weights; some weights remember this account then.

        Args:
            ledger: The ledger.
            variables: The weights. Their layers remember the account too.
        """
        own, *others = self._accounts()
        for each in (ledger, *(other.ledger for other in others)):
            own.include(each)
        own.used_seeds = self.used_seeds
        numbers = {id(variable) for variable in variables}
        layers = [
            layer
            for layer in keras_private.flatten_layers(self)
            if any(id(variable) in numbers for variable in keras_private.own_variables(layer))
        ]
        weights.put_on_account([*variables, *layers], own)
