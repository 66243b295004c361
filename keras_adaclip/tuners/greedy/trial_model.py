"""A hypermodel's model, made ready for one trial: checked, with its threshold and its seed."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_adaclip.clipping import FixedClipping
from keras_adaclip.models.preparation import Preparation
from keras_adaclip.optimizers import DPOptimizer
from keras_adaclip.tuners.project_files import unfinished_path

_INITIAL_WEIGHTS = "initial_weights.npz"


def check_model(model: Any) -> None:
    """Raises where a hypermodel's model has no clipping norm that can be set for a trial.

    Args:
        model: what the hypermodel returned.

    Raises:
        TypeError: where it is no private model.
        ValueError: where it is not compiled with a fixed norm, or has been trained already.
    """
    if not isinstance(model, Preparation):
        raise TypeError(
            "The hypermodel must return a private model, such as `keras_adaclip.PrivateModel` or "
            f"`keras_adaclip.privatize(model)`. Received: {type(model).__name__}"
        )
    optimizer = getattr(model, "optimizer", None)
    if not isinstance(optimizer, DPOptimizer):
        raise ValueError(
            "The hypermodel must compile its model with a `keras_adaclip.optimizers.DPOptimizer`. "
            f"Received: optimizer={optimizer!r}"
        )
    clipping = optimizer.clipping
    if not isinstance(clipping, FixedClipping) or isinstance(clipping.clip_norm, list):
        raise ValueError(
            "The search sets a fixed clipping norm, one number, so the hypermodel's optimizer must "
            "have one: `DPOptimizer(..., clipping=1.0)` or `FixedClipping(1.0)`, of which the "
            f"value is replaced. Received: clipping={type(clipping).__name__}"
            f"({clipping.get_config()})"
        )
    if optimizer.built:
        raise ValueError(
            "The hypermodel's optimizer is in use already, so a threshold can be set no more. Make "
            "a new `DPOptimizer` in every call of the hypermodel, and compile the model with it "
            "last."
        )


def set_threshold(model: Any, clip_norm: float) -> None:
    """Gives a checked model the threshold of a trial.

    The optimizer is not built yet: its variables, its steps and its reports all begin from what is
    set here.

    Args:
        model: the model.
        clip_norm: the threshold.
    """
    model.optimizer.clipping.clip_norm = FixedClipping(clip_norm).clip_norm


def set_seed(model: Any, words: Sequence[int] | None) -> None:
    """Gives a checked model, whose optimizer is not built yet, noise and draws of its own.

    Args:
        model: the model.
        words: integers that the seed is made of; None takes noise and draws from the operating
            system.
    """
    if words is None:
        model.optimizer.seed = None
        return
    state = np.random.SeedSequence(words).generate_state(4).tolist()
    model.optimizer.seed = sum(word << (32 * place) for place, word in enumerate(state))


def begin_from_shared_weights(model: keras.Model, project: str | Path) -> None:
    """Gives a built model the weights that all trials of the first epoch begin from.

    The first trial's own initial weights are kept for the others, whichever worker runs them.

    Args:
        model: the model.
        project: the folder of the search.
    """
    path = Path(project) / _INITIAL_WEIGHTS
    if not path.exists():
        unfinished = unfinished_path(path)
        with unfinished.open("wb") as file:
            np.savez(file, *[_savable(value) for value in model.get_weights()])
        try:
            os.link(unfinished, path)  # fails where another worker came first
        except FileExistsError:
            pass
        finally:
            unfinished.unlink()
    with np.load(path) as kept:
        model.set_weights([kept[f"arr_{number}"] for number in range(len(kept.files))])


def _savable(value: np.ndarray) -> np.ndarray:
    """An array of a kind that NumPy's files know: bfloat16 is none, and fits float32."""
    return value.astype(np.float32) if value.dtype.kind == "V" else value
