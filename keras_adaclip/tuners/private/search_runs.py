"""The runs of a private search: trained, checked against their bound, and told by one number."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import keras
import keras_tuner
from keras_tuner.engine.trial import Trial

from keras_adaclip.accounting import Ledger
from keras_adaclip.tuners.private.private_search_oracle import PrivateSearchOracle
from keras_adaclip.tuners.private.search_privacy import SearchPrivacy, carry
from keras_adaclip.tuners.private.search_record import BUILD_CONFIG, WEIGHTS, WORST, SearchRecord
from keras_adaclip.tuners.private.search_run import SearchRun, overspent

SEEDED = (
    "A run has a `seed`, with which several runs draw the same noise or the same batches: the "
    "theorem needs independent ones. Leave `seed` out of `DPOptimizer` and `PoissonDataset`."
)
CONTINUED = (
    "The model that `build` has returned has spent something else than the first one had: it goes "
    "on from an earlier run, or from what another training has left meanwhile, and runs must be "
    "independent. Nothing is released. Build a new model each time, and begin another search."
)
FATAL = (
    "A run has raised a `FatalError`, which ends the search: running it again would choose among "
    "runs by whether they fail. Nothing is released. Mend what is wrong, and begin another search."
)


class SearchRuns(keras_tuner.Tuner):
    """How a private search makes one run: a part of `PrivateSearch`."""

    _oracle: PrivateSearchOracle
    _objective: keras_tuner.Objective
    _privacy: SearchPrivacy
    _private_diagnostics: bool
    _record: SearchRecord

    def _checked_build(self) -> Ledger:
        """Finds what is wrong with the hypermodel before anything is drawn or spent.

        Returns:
            What a model has spent when it is built.
        """
        model = self.hypermodel.build(self._oracle.get_space())
        if not isinstance(getattr(model, "privacy_ledger", None), Ledger) or not model.compiled:
            raise TypeError(
                "`hypermodel.build` must return a compiled private model, such as "
                f"`keras_adaclip.privatize` makes. Received: a {type(model).__name__}"
            )
        if model.used_seeds or model.optimizer.seed is not None:
            raise ValueError(SEEDED)
        ledger: Ledger = model.privacy_ledger
        if self._record.has_begun and ledger != self._record.first_ledger:
            raise ValueError(CONTINUED)
        if not self._privacy.bounds.covers(ledger):
            raise ValueError(
                "The model that `hypermodel.build` returns has spent more already than a run may. "
                "Build a new model each time."
            )
        return ledger

    def run_trial(self, trial: Trial, *args: Any, **kwargs: Any) -> dict[str, float]:
        """One run, of which keras-tuner gets the objective alone; `WORST` where it failed.

        Raises:
            ValueError: where a run goes on from an earlier one, with private diagnostics only.
        """
        hp = trial.hyperparameters
        num_declared = len(hp.space)
        folder = Path(self.get_trial_dir(trial.trial_id))
        # What an interrupted run has left.
        (folder / WEIGHTS).unlink(missing_ok=True)
        self._begin_independently(trial)
        run = SearchRun(self._objective, self._privacy.bounds)
        callbacks = [*copy.deepcopy(kwargs.pop("callbacks", None) or []), run]
        model = None
        try:
            model = self.hypermodel.build(hp)
            if model.privacy_ledger != self._record.first_ledger:
                self._record.refuse(CONTINUED)
                raise ValueError(CONTINUED)
            results = self.hypermodel.fit(hp, model, *args, callbacks=callbacks, **kwargs)
            value = self._kept(model, results, run, folder)
        except keras_tuner.errors.FatalError:
            self._record.refuse(FATAL)
            raise
        except Exception:
            # keras-tuner would print it, and how many runs fail is as secret as how many there are.
            if self._private_diagnostics:
                raise
            value = math.nan
        finally:
            self._check_run(hp, num_declared, model, run)
        if not math.isfinite(value):
            value = -WORST if self._objective.direction == "max" else WORST
        return {self._objective.name: value}

    def _begin_independently(self, trial: Trial) -> None:
        """Leaves no run what an earlier one has drawn or named.

        With one global seed for all, initial weights would depend on how many runs went before,
        and so would the names that Keras gives to layers.
        """
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(self._oracle.source_of(trial.trial_id).getrandbits(32))

    def _kept(self, model: Any, results: Any, run: SearchRun, folder: Path) -> float:
        """Saves the run's best weights, and returns their score."""
        if not isinstance(results, keras.callbacks.History):
            value = results[self._objective.name] if isinstance(results, dict) else results
        elif run.best_value is None:
            return math.nan
        else:
            value = run.best_value
            run.restore_best()
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        # From here on the model, its files and all that its weights go into cost what the search
        # costs, of which the run itself is a part.
        run.spent = model.privacy_ledger
        carry(model, self._privacy.released_ledger(), holds_own=True)
        model.save_weights(folder / WEIGHTS)
        (folder / BUILD_CONFIG).write_text(json.dumps(model.get_build_config()), "utf-8")
        return float(value)

    def _check_run(
        self, hp: keras_tuner.HyperParameters, num_declared: int, model: Any, run: SearchRun
    ) -> None:
        """Ends the search where a run was not what the account says, failed ones too."""
        if run.refusal is not None:
            self._record.refuse(run.refusal)
        if model is not None:
            spent = model.privacy_ledger if run.spent is None else run.spent
            if not self._privacy.bounds.covers(spent):
                self._record.refuse(overspent(spent, "has spent"))
        if model is not None and (model.used_seeds or model.optimizer.seed is not None):
            self._record.refuse(SEEDED)
        if len(hp.space) > num_declared:
            new = ", ".join(repr(each.name) for each in hp.space[num_declared:])
            self._record.refuse(
                f"A run has asked for {new}, which the search space does not have, so that it was "
                "not drawn from the law that was fixed. Nothing is released. Declare it in "
                "`declare_hyperparameters` or `hyperparameters`, and begin another search."
            )
