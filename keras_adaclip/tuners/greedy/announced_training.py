"""Refuses training that a private trial was not told of, before it runs."""

import functools
import inspect
from typing import Any

import keras

from keras_adaclip.backend import keras_private
from keras_adaclip.models import fit_callbacks


def refuse_other_training(model: Any, announcing: keras.callbacks.Callback) -> None:
    """Lets a model train in a `fit` with this callback only, on all of the data that it is given.

    What finds a way around, such as a training loop of its own, is counted when the trial ends.

    Args:
        model: the model of a trial.
        announcing: the callback that counts an epoch before its first step.
    """
    fit = model.fit
    signature = inspect.signature(fit)

    @functools.wraps(fit)
    def announced_fit(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        if all(each is not announcing for each in fit_callbacks.flattened(given.get("callbacks"))):
            raise ValueError(
                "A trial on private data trains one epoch, which is counted before it runs, and "
                "something else was about to train its model. A hypermodel with a `fit` of its own "
                "must hand `initial_epoch`, `epochs` and `callbacks` on to `model.fit`, and "
                "callbacks must not train. Received: a call of `fit` without the callbacks"
            )
        refuse_validation_split(given)
        return fit(*args, **kwargs)

    def no_train_on_batch(*args: Any, **kwargs: Any) -> Any:
        raise ValueError(
            "A trial on private data trains one epoch, which is counted before it runs: its model "
            "has no other training. Received: a call of `train_on_batch`"
        )

    keras_private.set_attribute(model, "fit", announced_fit)
    keras_private.set_attribute(model, "train_on_batch", no_train_on_batch)


def refuse_validation_split(arguments: Any) -> None:
    """Raises where validation data would be taken from private training data.

    Args:
        arguments: those of `fit`, by name.

    Raises:
        ValueError: where `validation_split` is among them.
    """
    if arguments.get("validation_split"):
        raise ValueError(
            "Argument `validation_split` would take the validation data from the private data, of "
            "which the scores of the trials would tell. Give `validation_data`. "
            f"Received: validation_split={arguments['validation_split']!r}"
        )
