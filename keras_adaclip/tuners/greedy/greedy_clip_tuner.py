"""The clipping norm of each epoch, by trying.

Source: Lin et al. 2022, "Understanding adaptive gradient clipping in DP-SGD, empirically",
section 4.3.1 and algorithm 1.
"""

import copy
import json
import os
from pathlib import Path
from typing import Any

import keras_tuner
from keras_tuner.engine.trial import Trial, TrialStatus

from keras_adaclip.accounting import check_integer
from keras_adaclip.tuners.greedy.epoch_search import EPOCH
from keras_adaclip.tuners.greedy.fit_arguments import check_fit_arguments
from keras_adaclip.tuners.greedy.greedy_oracle import CLIP_NORM, GreedyOracle
from keras_adaclip.tuners.greedy.greedy_results import BUILD_CONFIG, GreedyResults
from keras_adaclip.tuners.greedy.greedy_search import GreedyRule
from keras_adaclip.tuners.greedy.greedy_summary import privacy_statement, statement_of_all
from keras_adaclip.tuners.greedy.privacy_arguments import checked_delta, checked_seed
from keras_adaclip.tuners.greedy.progress import Progress
from keras_adaclip.tuners.greedy.trial_epoch import TrialEpoch
from keras_adaclip.tuners.greedy.trial_model import check_model
from keras_adaclip.tuners.greedy.trial_run import (
    begin_trial,
    checkpoint_path,
    metrics_of,
    trial_model,
)
from keras_adaclip.tuners.greedy.trial_spending import RunSpending, refuse_to_forget
from keras_adaclip.tuners.greedy.waiting import Waiting
from keras_adaclip.tuners.private.search_arguments import checked_objective
from keras_adaclip.tuners.project_files import write_whole


class GreedyClipTuner(GreedyResults, keras_tuner.Tuner):
    """Finds the best clipping norm of each epoch, one epoch after the other.

    Each trial trains one private epoch with one threshold, from the best weights of the epoch
    before. The thresholds of an epoch are tried from `start` upward, until the objective has
    dropped by more than `max_drop` below the best of the epoch; the best threshold and its weights
    are kept, and the next epoch begins. Searching in the same folder again goes on where an
    earlier search stopped.

    Args:
        hypermodel: function of keras-tuner's `hp`, or a `keras_tuner.HyperModel`, that returns a
            private model, compiled with a `DPOptimizer` with a fixed norm, of which the value is
            replaced (and is `hp.get("clip_norm")`). Its other hyperparameters keep their defaults.
        start: positive float, the first threshold.
        step: positive float, what is added each time; with `spacing="geometric"` the factor,
            above 1.
        max_drop: float from 0, in units of the objective.
        epochs: int from 1, the number of epochs.
        objective: name of a metric in the logs of `fit`, or a `keras_tuner.Objective` with a
            direction. Use public validation data; with `private=True` the name must begin with
            `"val_"`.
        max_clip_norm: the largest threshold; None for no bound.
        max_trials_per_epoch: int, the most trials of an epoch, repeats and refinements included.
        directory: folder for the files; None for the working directory.
        project_name: name of this search's folder in it.
        repeats: int from 1, trials of each threshold with other noise and other draws; their
            objectives are averaged, and the weights of the best of them are kept.
        spacing: `"linear"` or `"geometric"`.
        refinements: int from 0 to 20; so often the spacing around the best threshold is halved.
        private: whether the training data need protection.
        delta: float in (0, 1), for epsilon; needed with `private=True`, and only then.
        seed: integer that the seeds of the trials are derived from, which makes the first weights
            and the draws of examples repeatable, and the noise of the first epoch (later ones
            begin from a checkpoint, and that draws its noise anew). None leaves both to the
            operating system, or to the seed of the hypermodel's optimizer and the trial. Not with
            `private=True`, where all of it comes from the operating system: the seeds are written
            to disk.
        overwrite: whether to begin anew where the folder holds a search, unless that was one on
            private data: what it has spent would be forgotten.

    Raises:
        TypeError: where an argument is not of its kind.
        ValueError: where an argument is out of range, or the folder holds a search with other
            settings.

    Guarantees:
        **The search is not private.** It trains many models on the data and chooses by their
        scores, so what it finds must come from public data, unless all of it is paid for. With
        `private=True`, `privacy_spent` adds up every trial that was begun, those that lost, failed
        or were interrupted included, each as a whole epoch and on disk before its first step. It
        covers the schedule and the weights of all trials, for public validation data. What a
        hypermodel's own `fit` or a callback trains besides is refused, or counted when the trial
        ends. The models that `get_best_models` gives carry all of that. The ledger in a trial's own
        files holds the epochs that led to its weights, and nothing of the others.

    Example:

    >>> import keras
    >>> import keras_adaclip as ka
    >>> def build(hp):
    ...     model = ka.PrivateSequential([keras.Input((4,)), keras.layers.Dense(2)])
    ...     optimizer = ka.optimizers.DPOptimizer("sgd", clipping=1.0, noise_multiplier=1.0)
    ...     model.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
    ...     return model
    >>> import tempfile
    >>> tuner = GreedyClipTuner(
    ...     build, start=0.1, step=0.1, epochs=3, objective="val_mae", directory=tempfile.mkdtemp()
    ... )
    >>> tuner.oracle.objective.direction
    'min'

    Then `tuner.search(x, y, validation_data=(x_val, y_val), batch_size=256)`, with the arguments
    of `fit`, and `tuner.best_schedule().save("schedule.json")`. Another data set is trained with
    `ScheduledClipping(PiecewiseConstant.load("schedule.json"))`.

    Reference:
        Lin et al. 2022, algorithm 1.
    """

    def __init__(
        self,
        hypermodel: Any,
        start: float = 0.05,
        step: float = 0.01,
        max_drop: float = 0.02,
        epochs: int = 10,
        objective: Any = "val_accuracy",
        max_clip_norm: float | None = None,
        max_trials_per_epoch: int = 200,
        directory: str | os.PathLike[str] | None = None,
        project_name: str | None = None,
        *,
        repeats: int = 1,
        spacing: str = "linear",
        refinements: int = 0,
        private: bool = False,
        delta: float | None = None,
        seed: int | None = None,
        overwrite: bool = False,
    ) -> None:
        repeats = check_integer(repeats, "repeats", minimum=1)
        most = check_integer(max_trials_per_epoch, "max_trials_per_epoch", minimum=repeats)
        self.delta = checked_delta(private, delta)
        rule = GreedyRule(
            start, step, max_drop, spacing, max_clip_norm, most // repeats, refinements
        )
        self._greedy = GreedyOracle(
            rule,
            check_integer(epochs, "epochs", minimum=1),
            checked_objective(objective) if private else objective,
            repeats,
            private,
            checked_seed(private, seed),
        )
        self._verbose = 1
        self._waiting = Waiting()
        if overwrite:
            refuse_to_forget(Path(directory or ".") / (project_name or "untitled_project"))
        super().__init__(
            self._greedy,
            hypermodel,
            directory=None if directory is None else os.fspath(directory),
            project_name=project_name,
            overwrite=overwrite,
        )
        # keras-tuner looks for a file that a search which died in its first trial, or ran under
        # another tuner's name, has not left.
        found = (Path(self.project_dir) / "oracle.json").exists()
        if found and not self._is_client and not self._greedy.is_reloaded:
            self._greedy.reload()

    # The search

    def search(self, *fit_args: Any, **fit_kwargs: Any) -> None:
        """Searches, or goes on with a search that was interrupted.

        Args:
            *fit_args: arguments for `fit`: the training data.
            **fit_kwargs: arguments for `fit`: validation data, `batch_size`, `callbacks` (each
                trial gets copies). `verbose` is 0 for silence, 1 for a line a trial, 2 for Keras's
                lines too.

        Raises:
            ValueError: where an argument is the search's own, private data are drawn with a seed or
                validated on, or the hypermodel's model has no norm to set; nothing was trained
                then.
            RuntimeError: where a trial failed, or no threshold of an epoch gave a finite objective.
        """
        check_fit_arguments(fit_args, fit_kwargs, self._greedy.is_private)
        verbose = fit_kwargs.pop("verbose", 1)
        self._verbose = 1 if verbose == "auto" else int(verbose)
        if not self._is_client:
            shown = self._verbose > 0
            objective = self._greedy.objective.name
            self._greedy.progress = Progress(self._greedy.epochs, objective) if shown else None
            self._greedy.retry_unfinished()
            if shown:
                print(privacy_statement(self._greedy.is_private), flush=True)
        check_model(self.hypermodel.build(self.oracle.get_space()))
        super().search(*fit_args, **fit_kwargs)

    def on_search_begin(self) -> None:
        """Leaves on disk what a search that dies in its first trial is resumed from."""
        self.save()

    def pre_create_trial(self) -> None:
        """Waits a little where the oracle had nothing to do a moment ago."""
        self._waiting.ask()

    def on_trial_begin(self, trial: Trial) -> None:
        """Notes that the oracle had something to do."""
        self._waiting.has_trial()

    def on_trial_end(self, trial: Trial) -> None:
        """As of keras-tuner; says why a trial failed, which a chief is not told."""
        if trial.status != TrialStatus.COMPLETED:
            print(f"Trial {trial.trial_id} failed:\n{trial.message}", flush=True)
        super().on_trial_end(trial)

    def on_search_end(self) -> None:
        """Raises where the search could not be finished; says what it has spent.

        Raises:
            RuntimeError: where a trial failed, or no threshold of an epoch gave a finite objective.
        """
        oracle = self._state()
        if oracle.failure is not None:
            raise RuntimeError(oracle.failure)
        if oracle.is_private and self._verbose > 0:
            print(statement_of_all(self.privacy_spent()), flush=True)

    def run_trial(self, trial: Trial, *fit_args: Any, **fit_kwargs: Any) -> dict[str, float]:
        """Trains one epoch with one threshold, and keeps its weights."""
        where = trial.hyperparameters.values
        folder = Path(self.get_trial_dir(trial.trial_id))
        project = Path(self.project_dir)
        spending = RunSpending(folder) if self._greedy.is_private else None
        if spending is not None:
            spending.add(())  # an account there is, though the hypermodel may fail
        model = trial_model(self.hypermodel, trial, self.project_name, self._greedy.is_private)
        epoch = TrialEpoch(
            where[EPOCH],
            where[CLIP_NORM],
            lambda model: begin_trial(model, trial, project),
            spending,
        )
        epoch.take_over(model)
        callbacks = [epoch, *copy.deepcopy(list(fit_kwargs.pop("callbacks", None) or []))]
        try:
            results = self.hypermodel.fit(
                trial.hyperparameters,
                model,
                *fit_args,
                **fit_kwargs,
                callbacks=callbacks,
                initial_epoch=where[EPOCH] - 1,
                epochs=where[EPOCH],
                verbose=2 if self._verbose > 1 else 0,
            )
        finally:
            epoch.count_unannounced(model)
        epoch.check(model)
        metrics = metrics_of(results, self.oracle.objective)
        model.save_weights(checkpoint_path(project, trial.trial_id))
        write_whole(project / BUILD_CONFIG, json.dumps(model.get_build_config()))
        return metrics

    def save(self) -> None:
        """Writes the state, whole or not at all."""
        if not self._is_client:
            self._greedy.save()
        write_whole(self._get_tuner_fname(), json.dumps(self.get_state()))

    @property
    def _is_client(self) -> bool:
        """Whether another process has the oracle."""
        return bool(self._is_worker())

    def _state(self) -> GreedyOracle:
        """The oracle, or in a worker what the chief's one has written."""
        if self._is_client and (Path(self.project_dir) / "oracle.json").exists():
            self._greedy.reload()
        return self._greedy
