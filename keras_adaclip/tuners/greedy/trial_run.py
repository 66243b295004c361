"""From a trial to its model, to the weights it begins from, and to its metrics."""

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import keras_tuner
from keras_tuner.engine.trial import Trial

from keras_adaclip.tuners.greedy.epoch_search import EPOCH, PARENT, POSITION, REPEAT, SEED
from keras_adaclip.tuners.greedy.greedy_oracle import CHECKPOINT, CLIP_NORM
from keras_adaclip.tuners.greedy.trial_model import (
    begin_from_shared_weights,
    check_model,
    set_seed,
    set_threshold,
)


def trial_model(
    hypermodel: keras_tuner.HyperModel, trial: Trial, project_name: str, is_private: bool
) -> Any:
    """A new model with the trial's threshold, and with noise and draws of its own.

    Args:
        hypermodel: builds the model.
        trial: the trial.
        project_name: the search, so that other searches with the same seeds draw otherwise.
        is_private: whether the data are private; then no seed is used.

    Raises:
        TypeError: where the hypermodel returns no private model.
        ValueError: where its norm cannot be set.
    """
    where = trial.hyperparameters.values
    keras.utils.clear_session()
    if SEED in where:
        keras.utils.set_random_seed(where[SEED])
    model = hypermodel.build(trial.hyperparameters)
    check_model(model)
    set_threshold(model, where[CLIP_NORM])
    seeds = [each for each in (where.get(SEED), model.optimizer.seed) if each is not None]
    if is_private:
        # With a seed, a trial that is run again would draw the same examples under other noise,
        # and two thresholds would share one noise, which their difference lays bare.
        set_seed(model, None)
    elif seeds:
        search = zlib.crc32(project_name.encode())
        set_seed(model, [len(seeds), *seeds, search, where[EPOCH], where[POSITION], where[REPEAT]])
    return model


def begin_trial(model: Any, trial: Trial, project: Path) -> None:
    """Gives a built model the weights that its trial begins from.

    In a later epoch these are the weights, optimizer and ledger that the best trial of the epoch
    before ended with.

    Args:
        model: the model.
        trial: the trial.
        project: the folder of the search.
    """
    parent = trial.hyperparameters.values[PARENT]
    if parent:
        model.load_weights(checkpoint_path(project, parent))
    else:
        begin_from_shared_weights(model, project)


def checkpoint_path(project: Path, trial_id: str) -> Path:
    """Where the weights that a trial ended with are kept, as long as they are.

    Args:
        project: the folder of the search.
        trial_id: the trial.
    """
    return project / f"trial_{trial_id}" / CHECKPOINT


def metrics_of(results: Any, objective: Any) -> dict[str, float]:
    """What a hypermodel's `fit` returned as metrics, the objective among them.

    Args:
        results: Keras's `History`, metrics by name, or the objective alone.
        objective: the search's, from keras-tuner.

    Raises:
        ValueError: where the objective is not among them.
    """
    if isinstance(results, keras.callbacks.History):
        results = {name: values[-1] for name, values in results.history.items()}
    elif not isinstance(results, Mapping):
        results = {objective.name: results}
    if not objective.has_value(results) and objective.name not in results:
        raise ValueError(
            f"The objective {objective.name!r} is not among what `fit` returned: "
            f"{', '.join(map(repr, results))}. Give `search` validation data, and `objective` "
            "the name of a metric that the model is compiled with."
        )
    metrics = {name: float(value) for name, value in results.items()}
    if objective.name not in metrics:
        metrics[objective.name] = float(objective.get_value(results))
    return metrics
