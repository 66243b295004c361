"""The best clipping norm of each epoch, found by greedy search.

Source: Lin et al. 2022, "Understanding adaptive gradient clipping in DP-SGD, empirically",
section 4.3.1 and algorithm 1.
"""

import copy
import json
import math
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import keras_tuner
import numpy as np
from keras_tuner.engine.trial import Trial, TrialStatus

from keras_adaclip.accounting import check_integer
from keras_adaclip.clipping import FixedClipping
from keras_adaclip.optimizers import DPOptimizer
from keras_adaclip.schedules import PiecewiseConstant
from keras_adaclip.tuners.greedy.oracle import (
    CHECKPOINT,
    CLIP_NORM,
    EPOCH,
    PARENT,
    GreedyOracle,
    SearchedEpoch,
)
from keras_adaclip.tuners.greedy.power_trend import PowerTrend
from keras_adaclip.tuners.greedy.rule import GreedyRule

_BUILD_CONFIG = "build_config.json"
_INITIAL_WEIGHTS = "initial.weights.h5"
_NOT_PRIVATE = """\
This search is NOT private: it trains many models on its data and chooses among
them by their scores. Search on public data, then train private data with the
schedule that was found."""


class GreedyClipTuner(keras_tuner.Tuner):
    """Finds the best clipping norm of each epoch, one epoch after the other.

    Each trial trains one private epoch with one norm, from the best weights of the epoch before.
    The norms of an epoch are tried from `start` upward, until the objective has dropped by more
    than `max_drop` below the best of the epoch. The best norm and its weights are kept, and the
    next epoch begins. A search that was interrupted continues in the same folder.

    One model is built and compiled for all trials; each trial gives it the weights, the optimizer
    state and the norm to begin with.

    Args:
        hypermodel: function of keras-tuner's `hp`, or a `keras_tuner.HyperModel`, that returns a
            private model, compiled with a `DPOptimizer` with a fixed norm, whose value the search
            replaces. Hyperparameters keep their default values.
        start: positive float, the first norm.
        step: positive float, added from one norm to the next; with `spacing="geometric"` a factor
            above 1.
        max_drop: float from 0, in units of the objective.
        epochs: int from 1, the number of epochs.
        objective: name of a metric in the logs of `fit`, or a `keras_tuner.Objective`.
        max_clip_norm: the largest norm; None for no bound.
        max_trials_per_epoch: int from 1, the largest number of trials of an epoch.
        directory: folder for the files; None for the working directory.
        project_name: name of this search's folder in it.
        spacing: `"linear"` or `"geometric"`.
        overwrite: whether to delete an earlier search in the folder instead of continuing it.

    Raises:
        TypeError: if an argument is not of its kind.
        ValueError: if an argument is out of range, the folder holds a search with other settings,
            or keras-tuner's distributed mode is on: each trial needs the result of the one before.

    Guarantees:
        **The search is not private.** It trains many models on its data and chooses among them by
        their scores, so that the data must be public. The schedule found on public data costs
        private data nothing.

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

    oracle: GreedyOracle

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
        spacing: str = "linear",
        overwrite: bool = False,
    ) -> None:
        if "KERASTUNER_TUNER_ID" in os.environ:
            raise ValueError(
                "A greedy search runs in one process: each trial needs the result of the one "
                "before. Unset the environment variable KERASTUNER_TUNER_ID. "
                f"Received: KERASTUNER_TUNER_ID={os.environ['KERASTUNER_TUNER_ID']!r}"
            )
        rule = GreedyRule(start, step, max_drop, spacing, max_clip_norm, max_trials_per_epoch)
        super().__init__(
            GreedyOracle(rule, check_integer(epochs, "epochs", minimum=1), objective),
            hypermodel,
            directory=None if directory is None else os.fspath(directory),
            project_name=project_name,
            overwrite=overwrite,
        )
        self._model: Any = None
        self._verbose = 1
        self._began = 0.0

    # The search

    def search(self, *fit_args: Any, **fit_kwargs: Any) -> None:
        """Searches, or continues an interrupted search.

        Args:
            *fit_args: arguments for `fit`: the training data.
            **fit_kwargs: arguments for `fit`: validation data, `batch_size`, `callbacks` (each
                trial gets copies). `verbose` is 0 for silence, 1 for one line per trial, 2 for
                Keras's lines too.

        Raises:
            TypeError: if the hypermodel does not return a private model.
            ValueError: if an argument belongs to the search, or the model's norm is not a fixed
                one. Nothing was trained then.
            RuntimeError: if a trial fails, or no norm of an epoch gives a finite objective.
        """
        for name in ("epochs", "initial_epoch"):
            if name in fit_kwargs:
                raise ValueError(
                    f"Argument `{name}` belongs to the search: each trial trains one epoch. Give "
                    f"`epochs` to the tuner. Received: {name}={fit_kwargs[name]!r}"
                )
        verbose = fit_kwargs.pop("verbose", 1)
        self._verbose = 1 if verbose == "auto" else int(verbose)
        self._model, self._began = self._new_model(), time.monotonic()
        if self._verbose > 0:
            print(_NOT_PRIVATE, flush=True)
        super().search(*fit_args, **fit_kwargs)

    def on_search_begin(self) -> None:
        """Writes the state that an interrupted search continues from."""
        self.save()

    def run_trial(self, trial: Trial, *fit_args: Any, **fit_kwargs: Any) -> dict[str, float]:
        """Trains one epoch with one norm, and keeps its weights.

        Raises:
            RuntimeError: if training fails, or the objective is not among its metrics.
        """
        values = trial.hyperparameters.values
        beginning = _Beginning(self._path_of_beginning(values[PARENT]), values[CLIP_NORM])
        callbacks = copy.deepcopy(list(fit_kwargs.pop("callbacks", None) or []))
        try:
            results = self.hypermodel.fit(
                trial.hyperparameters,
                self._model,
                *fit_args,
                **fit_kwargs,
                callbacks=[beginning, *callbacks],
                initial_epoch=values[EPOCH] - 1,
                epochs=values[EPOCH],
                verbose=2 if self._verbose > 1 else 0,
            )
            beginning.check(values[EPOCH])
            metrics = _metrics_of(results, self.oracle.objective)
        except Exception as error:
            raise keras_tuner.errors.FatalRuntimeError(
                f"Epoch {values[EPOCH]} with clip_norm={values[CLIP_NORM]:.6g} failed: {error}\n"
                "Fix the cause, then search in the same folder again: completed trials are kept."
            ) from error
        self._model.save_weights(self._checkpoint(trial.trial_id))
        (Path(self.project_dir) / _BUILD_CONFIG).write_text(
            json.dumps(self._model.get_build_config()), encoding="utf-8"
        )
        return metrics

    def on_trial_end(self, trial: Trial) -> None:
        """Records the trial, and prints its line.

        Raises:
            RuntimeError: if keras-tuner could not record the trial's metrics.
        """
        if trial.status != TrialStatus.COMPLETED:
            raise RuntimeError(trial.message)
        super().on_trial_end(trial)
        if self._verbose > 0:
            values = trial.hyperparameters.values
            epoch = self.oracle.epoch(values[EPOCH])
            best = "none" if epoch.score is None else f"{epoch.score:.4f} at {epoch.threshold:.4g}"
            print(
                f"epoch {values[EPOCH]}/{self.oracle.epochs}  clip_norm {values[CLIP_NORM]:.4g}  "
                f"{self.oracle.objective.name} {epoch.scores[-1]:.4f}  best {best}  "
                f"{time.monotonic() - self._began:.0f} s",
                flush=True,
            )

    def on_search_end(self) -> None:
        """Checks that every epoch has a best norm.

        Raises:
            RuntimeError: if no norm of an epoch gave a finite objective.
        """
        number = len(self.oracle.finished_epochs) + 1
        if number <= self.oracle.epochs:
            tried = self.oracle.epoch(number).thresholds
            raise RuntimeError(
                f"No norm of epoch {number} gave a finite {self.oracle.objective.name}, from "
                f"{tried[0]:.6g} to {tried[-1]:.6g}. Lower the learning rate or the noise, or try "
                "other norms, in another folder."
            )

    # The results

    def best_schedule(self) -> PiecewiseConstant:
        """The best norm of each finished epoch; `save` it, and train other data with it.

        Raises:
            RuntimeError: if no epoch is finished.
        """
        epochs = self.oracle.finished_epochs
        norms = [epoch.threshold for epoch in epochs if epoch.threshold is not None]
        if not norms:
            raise RuntimeError("No epoch is finished yet. Call `search` first.")
        return PiecewiseConstant(norms)

    def searched_epochs(self) -> list[SearchedEpoch]:
        """The norms tried in each finished epoch, with their objectives."""
        return self.oracle.finished_epochs

    def trend(self) -> PowerTrend:
        """The `PowerDecay` that is closest to the best schedule.

        Raises:
            RuntimeError: if no epoch is finished.
            ValueError: if only one epoch is.
        """
        return PowerTrend.of(self.best_schedule())

    def load_model(self, trial: Trial) -> Any:
        """A model with the weights and the optimizer state that a trial ended with.

        A search is not private, and neither is its model: the report of the model and a
        `UserWarning` say so.

        Args:
            trial: a trial whose weights were kept, as `get_best_models` uses them.
        """
        statement = (
            f"The model was chosen among {len(self.oracle.trials)} trials by a search that is not "
            "private: the epsilon of this model does not hold for the data of the search."
        )
        warnings.warn(statement, stacklevel=2)
        model = self._new_model()
        model.optimizer.clipping.clip_norm = trial.hyperparameters.values[CLIP_NORM]
        if not model.built:
            path = Path(self.project_dir) / _BUILD_CONFIG
            model.build_from_config(json.loads(path.read_text("utf-8")))
        model.optimizer.build(model.trainable_variables)
        model.load_weights(self._checkpoint(trial.trial_id))
        model.tuning = f"not counted: {statement}"
        return model

    def results_summary(self, num_trials: int = 10) -> None:
        """Prints the best norm of each finished epoch, and the trend.

        Args:
            num_trials: number of epochs to print, the last ones.
        """
        epochs, oracle = self.oracle.finished_epochs, self.oracle
        print(
            f"Greedy search for clipping norms in {self.project_dir}\n"
            f"{len(epochs)} of {oracle.epochs} epochs are finished, after {len(oracle.trials)} "
            f"trials. Objective: {oracle.objective.name} ({oracle.objective.direction}).\n"
            f"{'epoch':>5}  {'clip_norm':>10}  {'objective':>10}  {'trials':>6}"
        )
        for number, epoch in list(enumerate(epochs, 1))[-num_trials:]:
            numbers = f"{epoch.threshold:>10.4g}  {epoch.score:>10.4f}  {len(epoch.scores):>6}"
            print(f"{number:>5}  {numbers}")
        if len(epochs) > 1:
            print(f"Trend: {self.trend()}")
        print(_NOT_PRIVATE)

    def _new_model(self) -> Any:
        """A new model of the hypermodel, checked."""
        model = self.hypermodel.build(self.oracle.get_space())
        _check_model(model)
        return model

    def _checkpoint(self, trial_id: str) -> Path:
        return Path(self.get_trial_dir(trial_id)) / CHECKPOINT

    def _path_of_beginning(self, parent: str) -> Path:
        """The weights that a trial begins with: the parent's, or the initial ones."""
        return self._checkpoint(parent) if parent else Path(self.project_dir) / _INITIAL_WEIGHTS


class _Beginning(keras.callbacks.Callback):
    """Gives a trial the weights, the optimizer state and the norm that it begins with.

    Args:
        path: file of the weights. The first trial writes it, if it is that of the initial weights.
        clip_norm: the norm, of all groups together.
    """

    def __init__(self, path: Path, clip_norm: float) -> None:
        super().__init__()
        self._path, self._clip_norm = path, clip_norm
        self._epochs: list[int] = []

    def on_train_begin(self, logs: Any = None) -> None:
        """Loads the file, and sets the norm."""
        if self._path.exists():
            self.model.load_weights(self._path)
        else:
            self.model.save_weights(self._path)
        variables = self.model.optimizer.variables
        variable = next(variable for variable in variables if variable.name == "clip_norm")
        num_groups = math.prod(variable.shape)
        variable.assign(np.full(variable.shape, self._clip_norm / math.sqrt(num_groups)))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        self._epochs.append(epoch + 1)

    def check(self, epoch: int) -> None:
        """Raises if the trial has not trained exactly its own epoch.

        Args:
            epoch: number of that epoch, from 1.
        """
        if self._epochs != [epoch]:
            raise ValueError(
                "A trial must train exactly one epoch with the given callbacks. A hypermodel with "
                "its own `fit` must pass `initial_epoch`, `epochs` and `callbacks` on to "
                f"`model.fit`. Received: epochs {self._epochs} instead of [{epoch}]"
            )


def _check_model(model: Any) -> None:
    """Raises if the hypermodel's model has no clipping norm that the search can set."""
    optimizer = getattr(model, "optimizer", None)
    if not isinstance(optimizer, DPOptimizer):
        raise TypeError(
            "The hypermodel must return a private model, such as `keras_adaclip.PrivateModel` or "
            "`keras_adaclip.privatize(model)`, compiled with a "
            "`keras_adaclip.optimizers.DPOptimizer`. "
            f"Received: {type(model).__name__} with optimizer={optimizer!r}"
        )
    clipping = optimizer.clipping
    if not isinstance(clipping, FixedClipping) or isinstance(clipping.clip_norm, list):
        raise ValueError(
            "The search sets a fixed clipping norm, one number, so the hypermodel's optimizer must "
            "have one: `DPOptimizer(..., clipping=1.0)` or `FixedClipping(1.0)`. "
            f"Received: clipping={type(clipping).__name__}({clipping.get_config()})"
        )
    if optimizer.built:
        raise ValueError(
            "The hypermodel's optimizer was used before, and its clipping norm is set already. "
            "Create a new `DPOptimizer` in every call of the hypermodel, and compile with it last."
        )


def _metrics_of(results: Any, objective: Any) -> dict[str, float]:
    """What a hypermodel's `fit` returned, as metrics by name."""
    if isinstance(results, keras.callbacks.History):
        results = {name: values[-1] for name, values in results.history.items()}
    elif not isinstance(results, Mapping):
        results = {objective.name: results}
    if not objective.has_value(results):
        raise ValueError(
            f"The objective {objective.name!r} is not among the metrics that `fit` returned: "
            f"{', '.join(map(repr, results))}. Give `search` validation data, and `objective` "
            "the name of a metric that the model is compiled with."
        )
    metrics = {name: float(value) for name, value in results.items()}
    return {**metrics, objective.name: float(objective.get_value(results))}
