"""The loop of a private search: a secret number of independent runs, of which the best one stays.

keras-tuner's own searches draw without replacement, stop when they find nothing new, repeat failed
trials, and end after several failures in a row. Each of these makes the number of runs, or the
distribution of one, depend on the others, and then the theorem does not hold.
"""

import copy
import dataclasses
import math
import secrets
import warnings
from collections.abc import Callable
from typing import Any

import keras
import keras_tuner

from keras_adaclip.accounting import Ledger, RandomSelection, RunBounds
from keras_adaclip.noise import fresh_key
from keras_adaclip.optimizers import Run
from keras_adaclip.tuners.private.account import active_values, new_names
from keras_adaclip.tuners.private.record import (
    FAILED,
    NO_RUN,
    REFUSED,
    RELEASED,
    SearchRecord,
    SearchState,
)
from keras_adaclip.tuners.private.run import CONTINUED, FATAL, SEEDED, RunMonitor, has_seed

# The operating system's randomness: what can be reproduced is no secret.
_RANDOM = secrets.SystemRandom()


@dataclasses.dataclass(frozen=True)
class SearchLoop:
    """Begins a search or continues it, and fixes what is released.

    Args:
        hypermodel: The hypermodel.
        space: Its search space.
        objective: The `keras_tuner.Objective` to choose by.
        bounds: The largest cost of a run.
        selection: The distribution of the number of runs.
        record: The record of the search.
    """

    hypermodel: Any
    space: keras_tuner.HyperParameters
    objective: Any
    bounds: RunBounds
    selection: RandomSelection
    record: SearchRecord

    def run(
        self, settings: dict[str, Any], fit_args: tuple[Any, ...], fit_kwargs: dict[str, Any]
    ) -> None:
        """Run all runs that are left, and end the search.

        Args:
            settings: The settings of the search, as plain values.
            fit_args: The positional arguments of the hypermodel's `fit`.
            fit_kwargs: The named arguments of the hypermodel's `fit`.
        """
        first_ledger = self._checked_build()
        if not self.record.has_begun:
            num_runs = self.selection.draw(_RANDOM)
            self.record.begin(settings, first_ledger, num_runs)
        with warnings.catch_warnings():
            # A warning in every run would tell their number.
            warnings.simplefilter("ignore")
            while self.record.outcome is None:
                state = self.record.state
                if state.num_done < state.num_runs:
                    self._advance(state, fit_args, fit_kwargs)
                elif state.best is not None:
                    best = dict(state.best)
                    self.record.keep_best(best.pop("slot"))
                    self.record.end(RELEASED, best)
                else:
                    self.record.end(FAILED if state.num_runs else NO_RUN)

    def _checked_build(self) -> Ledger:
        """Return the ledger of a new model, once the hypermodel is checked, before any run."""
        model = self.hypermodel.build(self.space.copy())
        ledger = getattr(model, "privacy_ledger", None)
        if not isinstance(ledger, Ledger) or not model.compiled:
            raise TypeError(
                "`hypermodel.build` must return a compiled private model, such as "
                f"`keras_adaclip.privatize` makes. Received: a {type(model).__name__}"
            )
        if has_seed(model):
            raise ValueError(SEEDED)
        if self.record.has_begun and ledger != self.record.first_ledger:
            raise ValueError(CONTINUED)
        if not self.bounds.covers(ledger):
            raise ValueError(
                "The model that `hypermodel.build` returns has spent more already than a run may. "
                "Build a new model each time."
            )
        return ledger

    def _advance(
        self, state: SearchState, fit_args: tuple[Any, ...], fit_kwargs: dict[str, Any]
    ) -> None:
        """Run the next run, or the interrupted one again, and keep its weights if it is best."""
        if state.values is None:
            values = draw_values(self.space, _RANDOM.random)
            # If the run is interrupted, it runs again with the same hyperparameters.
            state = dataclasses.replace(state, values=values)
            self.record.save(state)
        hp = self.space.copy()
        hp.values = dict(state.values or {})
        score, model = self._run_one(hp, fit_args, fit_kwargs)
        if self.record.outcome is not None:
            return
        slot, best = state.free_slot, state.best
        if math.isfinite(score) and (best is None or self._is_better(score, best["score"])):
            model.save_weights(self.record.run_weights(slot))
            best = {
                "hyperparameters": hp.get_config(),
                "score": score,
                "build_config": model.get_build_config(),
                "slot": slot,
            }
        state = SearchState(state.num_runs, state.num_done + 1, None, best)
        self.record.save(state)
        self.record.run_weights(state.free_slot).unlink(missing_ok=True)

    def _run_one(
        self, hp: keras_tuner.HyperParameters, fit_args: tuple[Any, ...], fit_kwargs: dict[str, Any]
    ) -> tuple[float, Any]:
        """Return the score of one run and its model; the score of a failed run is NaN."""
        # With one global seed for all runs, initial weights would depend on the number of runs
        # before, and without a new session so would the names that Keras gives to layers.
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(_RANDOM.getrandbits(32))
        monitor = RunMonitor(self.objective, self.bounds)
        callbacks = [*copy.deepcopy(fit_kwargs["callbacks"]), monitor]
        arguments = {**fit_kwargs, "callbacks": callbacks}
        model, score, problem = None, math.nan, None
        try:
            model = self.hypermodel.build(hp)
            if model.privacy_ledger == self.record.first_ledger:
                score = monitor.score(self.hypermodel.fit(hp, model, *fit_args, **arguments))
            else:
                problem = CONTINUED
        except keras_tuner.errors.FatalError:
            self.record.end(REFUSED, FATAL)
            raise
        except Exception:
            # The run loses. Its error may depend on the data, so it is not told.
            score = math.nan
        # Failed runs must keep to the account too.
        if problem is None and model is not None:
            problem = monitor.problem(model)
        if new := new_names(hp, self.space):
            problem = (
                f"A run has asked for {new}, which the search space does not have, so its "
                "distribution was not fixed before the search. Nothing is released. Declare it in "
                "`declare_hyperparameters` or `hyperparameters`, and begin another search."
            )
        if problem is not None:
            self.record.end(REFUSED, problem)
        elif model is not None and model.built:
            self._carry(model)
        return score, model

    def _carry(self, model: Any) -> None:
        """Add the cost of the search, which contains that of the run, to a model's ledger.

        From here on the model, its files and everything that its weights go into carry that cost.
        """
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        own = model.optimizer.run
        first, second = fresh_key().tolist()
        included = {**own.included, own.identity: own.ledger}
        cost = self.bounds.selected(self.selection)
        model.optimizer.include_run(Run(cost, (first, second), included))

    def _is_better(self, score: float, other: float) -> bool:
        return score > other if self.objective.direction == "max" else score < other


def draw_values(space: keras_tuner.HyperParameters, random: Callable[[], float]) -> dict[str, Any]:
    """Return the hyperparameters of one run, drawn from the distribution that a space declares.

    Args:
        space: The search space.
        random: A function that draws a number between 0 and 1.
    """
    return active_values(space, lambda each: each.prob_to_value(random()))
