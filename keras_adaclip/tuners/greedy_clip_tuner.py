"""The best clipping norm of each epoch, found by greedy search.

Source: Lin et al. 2022, "Understanding adaptive gradient clipping in DP-SGD, empirically",
section 4.3 and algorithm 1.
"""

import copy
import dataclasses
import math
import os
import warnings
from pathlib import Path
from typing import Any

import keras_tuner
import numpy as np
from keras_tuner.engine.trial import Trial

from keras_adaclip import _checks
from keras_adaclip._configurable import printed
from keras_adaclip.clipping import FixedClipping
from keras_adaclip.optimizers import DPOptimizer
from keras_adaclip.schedules import PiecewiseConstant, PowerDecay
from keras_adaclip.tuners import greedy_oracle as greedy

_INITIAL_WEIGHTS = "initial.weights.h5"
_LARGEST_POWER = 10.0
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

    Args:
        hypermodel: A function of keras-tuner's `hp`, or a `keras_tuner.HyperModel`, that returns a
            private model that knows its input shape, compiled with a `DPOptimizer` with a fixed
            norm, which the search replaces. It serves all trials.
        start: A positive float, the first norm.
        step: A positive float, added from one norm to the next; with `spacing="geometric"` a factor
            above 1.
        max_drop: A float from 0, in units of the objective.
        epochs: An int from 1, the number of epochs.
        objective: The name of a metric in the logs of `fit`, or a `keras_tuner.Objective`.
        max_clip_norm: The largest norm; None for no bound.
        max_trials_per_epoch: An int from 1, the largest number of trials of an epoch.
        directory: The folder for the files; None for the working directory.
        project_name: The name of this search's folder in it.
        spacing: `"linear"` or `"geometric"`.
        overwrite: Whether to delete an earlier search in the folder instead of continuing it.

    Raises:
        TypeError: If an argument is not of its kind.
        ValueError: If an argument is out of range, the folder holds a search with other settings,
            or keras-tuner's distributed mode is on.

    Guarantees:
        **The search is not private**: its data must be public. The schedule found there costs
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
    of `fit`, and train private data with `ScheduledClipping(tuner.best_schedule())`.

    Reference:
        Lin et al. 2022, algorithm 1.
    """

    oracle: greedy.GreedyOracle

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
                "before. Unset the environment variable KERASTUNER_TUNER_ID."
            )
        epochs = _checks.check_integer("epochs", epochs, minimum=1)
        rule = greedy.GreedyRule(
            _checks.check_positive("start", start),
            _checks.check_positive("step", step),
            _checks.check_nonnegative("max_drop", max_drop),
            _checks.check_choice("spacing", spacing, ("linear", "geometric")),
            _checks.check_integer("max_trials_per_epoch", max_trials_per_epoch, minimum=1),
            _checks.optional(_checks.check_positive, "max_clip_norm", max_clip_norm),
        )
        super().__init__(
            greedy.GreedyOracle(rule, epochs, objective),
            hypermodel,
            directory=None if directory is None else os.fspath(directory),
            project_name=project_name,
            overwrite=overwrite,
        )
        self._model: Any = None
        self._verbose = 1

    def __repr__(self) -> str:
        oracle = self.oracle
        arguments = {**dataclasses.asdict(oracle.rule), "epochs": oracle.epochs}
        arguments |= {"hypermodel": self.hypermodel, "objective": oracle.objective.name}
        return printed(self, arguments)

    # The search

    def search(self, *fit_args: Any, **fit_kwargs: Any) -> None:
        """Search, or continue an interrupted search.

        Args:
            *fit_args: Arguments for `fit`: the training data.
            **fit_kwargs: Arguments for `fit`: validation data, `batch_size`, `callbacks` (each
                trial gets copies). `verbose` is 0 for silence, 1 for one line per trial, 2 for
                Keras's lines too.

        Raises:
            TypeError: If the hypermodel does not return such a model.
            ValueError: If an argument belongs to the search.
            RuntimeError: If a trial fails, or no norm of an epoch gives a finite objective.
        """
        for name in ("epochs", "initial_epoch"):
            if name in fit_kwargs:
                raise ValueError(
                    f"Argument `{name}` belongs to the search: each trial trains one epoch. Give "
                    f"`epochs` to the tuner. Received: {name}={fit_kwargs[name]!r}"
                )
        verbose = fit_kwargs.pop("verbose", "auto")
        self._verbose = 1 if verbose == "auto" else int(verbose)
        self._model = self._new_model()
        if self._verbose > 0:
            print(_NOT_PRIVATE, flush=True)
        super().search(*fit_args, **fit_kwargs)
        number = len(self.oracle.finished_epochs) + 1
        if number <= self.oracle.epochs:
            tried = self.oracle.epoch(number).thresholds
            raise RuntimeError(
                f"No norm of epoch {number} gave a finite {self.oracle.objective.name}, from "
                f"{tried[0]:.6g} to {tried[-1]:.6g}. Try other settings, in another folder."
            )

    def run_trial(self, trial: Trial, *fit_args: Any, **fit_kwargs: Any) -> dict[str, float]:
        """Train one epoch with one norm, and keep its weights.

        Raises:
            RuntimeError: If training fails.
        """
        values = trial.hyperparameters.values
        epoch, clip_norm = values[greedy.EPOCH], values[greedy.CLIP_NORM]
        callbacks = copy.deepcopy(list(fit_kwargs.pop("callbacks", None) or []))
        try:
            self._prepare(clip_norm)
            history = self.hypermodel.fit(
                trial.hyperparameters,
                self._model,
                *fit_args,
                **fit_kwargs,
                callbacks=callbacks,
                initial_epoch=epoch - 1,
                epochs=epoch,
                verbose=2 if self._verbose > 1 else 0,
            )
            metrics = _metrics_of(history, epoch)
        except Exception as error:
            raise keras_tuner.errors.FatalRuntimeError(
                f"Epoch {epoch} with clip_norm={clip_norm:.6g} failed: {error}\n"
                "Fix the cause, then search in the same folder again: completed trials are kept."
            ) from error
        self._model.save_weights(self._checkpoint(trial.trial_id))
        return metrics

    def on_trial_end(self, trial: Trial) -> None:
        """Record the trial, and print its line."""
        super().on_trial_end(trial)
        if self._verbose > 0:
            values = trial.hyperparameters.values
            number = values[greedy.EPOCH]
            epoch = self.oracle.epoch(number)
            best = "none" if epoch.score is None else f"{epoch.score:.4f} at {epoch.threshold:.4g}"
            print(
                f"epoch {number}/{self.oracle.epochs}  clip_norm {values[greedy.CLIP_NORM]:.4g}  "
                f"{self.oracle.objective.name} {epoch.scores[-1]:.4f}  best {best}",
                flush=True,
            )

    # The results

    def best_schedule(self) -> PiecewiseConstant:
        """Return the best norm of each finished epoch; `save` it to train other data with it.

        Raises:
            RuntimeError: If no epoch is finished.
        """
        norms = [epoch.threshold for epoch in self.oracle.finished_epochs]
        if not norms:
            raise RuntimeError("No epoch is finished yet. Call `search` first.")
        return PiecewiseConstant([norm for norm in norms if norm is not None])

    def searched_epochs(self) -> list[greedy.SearchedEpoch]:
        """Return the norms tried in each finished epoch, with their objectives."""
        return self.oracle.finished_epochs

    def trend(self) -> PowerDecay:
        """Return the `PowerDecay` that is closest to the best schedule.

        It is closest in the logarithms, by least squares (Lin et al. 2022, equation 11). If norms
        grow, its power is 0.

        Raises:
            RuntimeError: If no epoch is finished.
            ValueError: If only one epoch is.
        """
        logarithms = np.log(self.best_schedule().values)
        if len(logarithms) < 2:
            raise ValueError("A trend needs two finished epochs. One is finished.")
        ages = np.log(np.arange(1, len(logarithms) + 1))
        slope = float(np.polyfit(ages, logarithms, 1)[0])
        power = min(max(-slope, 0.0), _LARGEST_POWER)
        return PowerDecay(float(np.exp(np.mean(logarithms + power * ages))), power)

    def load_model(self, trial: Trial) -> Any:
        """Return the model of a trial, which a report and a `UserWarning` call not private.

        Args:
            trial: A trial whose weights were kept, as `get_best_models` uses them.
        """
        statement = (
            f"The model was chosen among {len(self.oracle.trials)} trials by a search that is not "
            "private: the epsilon of this model does not hold for the data of the search."
        )
        warnings.warn(statement, stacklevel=2)
        model = self._new_model()
        # Before the optimizer is built, which happens when weights are loaded.
        model.optimizer.clipping.clip_norm = trial.hyperparameters.values[greedy.CLIP_NORM]
        model.load_weights(self._checkpoint(trial.trial_id))
        model.tuning = f"not counted: {statement}"
        return model

    def results_summary(self, num_trials: int = 10) -> None:
        """Print keras-tuner's summary, of the best trial of each finished epoch.

        Args:
            num_trials: The number of trials to print, the best ones.
        """
        super().results_summary(num_trials)
        print(_NOT_PRIVATE)

    def _new_model(self) -> Any:
        """Return a new model of the hypermodel; raise if it has no norm that the search can set."""
        model = self.hypermodel.build(self.oracle.get_space())
        optimizer = getattr(model, "optimizer", None)
        clipping = getattr(optimizer, "clipping", None)
        has_norm = isinstance(clipping, FixedClipping) and not isinstance(clipping.clip_norm, list)
        is_new = isinstance(optimizer, DPOptimizer) and not optimizer.built and model.built
        if is_new and has_norm and getattr(optimizer, "target_epsilon", None) is None:
            return model
        raise TypeError(
            "The hypermodel must return a new private model in every call, which knows its input "
            "shape and is compiled with a new `DPOptimizer(clipping=1.0, noise_multiplier=...)`: "
            "a `target_epsilon` would be spent in the first epoch. "
            f"Received: {model!r} with optimizer={optimizer!r}"
        )

    def _prepare(self, clip_norm: float) -> None:
        """Give the model the weights, the optimizer state and the norm that a trial begins with.

        Args:
            clip_norm: The norm, of all groups together.
        """
        finished, start = self.oracle.finished_epochs, Path(self.project_dir) / _INITIAL_WEIGHTS
        if finished:
            start = self._checkpoint(str(finished[-1].winner))
        if finished or start.exists():
            self._model.load_weights(start)
        else:
            self._model.save_weights(start)
        variables = self._model.optimizer.variables
        variable = next(variable for variable in variables if variable.name == "clip_norm")
        variable.assign(np.full(variable.shape, clip_norm / math.sqrt(math.prod(variable.shape))))

    def _checkpoint(self, trial_id: str) -> Path:
        """Return the file with the weights of a trial."""
        return Path(self.get_trial_dir(trial_id)) / greedy.CHECKPOINT


def _metrics_of(history: Any, epoch: int) -> dict[str, float]:
    """Return the metrics of a trial; raise unless it has trained exactly its epoch, from 1."""
    trained = getattr(history, "epoch", None)
    if trained != [epoch - 1]:
        raise ValueError(
            "A trial must train exactly one epoch: let `fit` of the hypermodel pass on all "
            "arguments, and return the `History`. "
            f"Received: epochs {trained} instead of [{epoch - 1}]"
        )
    return {name: float(curve[-1]) for name, curve in history.history.items()}
