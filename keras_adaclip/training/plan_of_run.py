"""The plan of a `fit`: its noise, its largest batch, and the callbacks that keep to a budget."""

import functools
import warnings
from typing import Any

import keras

from keras_adaclip.accounting import rows_per_unit
from keras_adaclip.callbacks import PrivacyCallback
from keras_adaclip.training.training_data import TrainingData


def planned_run(
    model: Any,
    data: TrainingData,
    callbacks: Any,
    num_epochs: int,
    is_pass: bool,
    can_calibrate: bool = False,
) -> tuple[TrainingData, Any]:
    """Return data and callbacks of a run whose noise and largest batch are chosen.

    Args:
        model: The compiled model.
        data: The training data.
        callbacks: The callbacks of `fit`, which may give a delta.
        num_epochs: The number of epochs.
        is_pass: Whether each epoch begins a new pass over the data.
        can_calibrate: Whether a temperature could follow the last step.

    Raises:
        ValueError: If two deltas are given, the unit changes, or the run cannot be planned.
    """
    optimizer: Any = model.optimizer
    given = flattened(callbacks)
    deltas = [each.delta for each in given if isinstance(each, PrivacyCallback) and each.delta]
    delta = min(deltas, default=None)
    if None not in (delta, optimizer.delta) and delta != optimizer.delta:
        raise ValueError(
            "The optimizer plans for one delta, and a `PrivacyCallback` reports for another. "
            f"Give one of them. Received: {optimizer.delta} and {delta}"
        )
    has_target = optimizer.target_epsilon is not None or any(
        isinstance(each, PrivacyCallback) and each.target_epsilon is not None for each in given
    )
    past = [row for row in model.privacy_ledger if row.steps > 0]
    if has_target and past and bool(rows_per_unit(past)) != bool(data.rows_per_unit):
        raise ValueError(
            "A target for epsilon cannot go on in another unit: the steps so far protect a "
            "person, and this `fit` would protect a row, or the other way round. Give "
            "`unit_ids` to all calls of `fit` or to none, or leave the target out."
        )
    plan = functools.partial(
        optimizer.plan_run,
        model.privacy_ledger,
        num_epochs=num_epochs,
        is_pass=is_pass,
        delta=delta,
        can_calibrate=can_calibrate,
    )
    plan(data.settings)
    if getattr(data.poisson, "max_batch_size", None) is not None and num_epochs > 0:
        rows = optimizer.planned_rows(num_epochs, False, data.settings)
        chosen = model.privacy_ledger.budget_delta(optimizer.delta or delta, data.num_examples)
        data = data.with_max_batch_size(rows, chosen)
        plan(data.settings)
    if optimizer.target_epsilon is not None and num_epochs > 0:
        budget = PrivacyCallback(optimizer.delta or delta, optimizer.target_epsilon)
        callbacks = [budget, *given]
    return data, callbacks


def guard_plan(callbacks: list[keras.callbacks.Callback], optimizer: Any) -> None:
    """Raise for callbacks that set the step size of a plan, and warn of those that cut it short."""
    schedulers = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)
    for callback in callbacks:
        name = type(callback).__name__
        if optimizer.plans_steps and isinstance(callback, schedulers):
            raise ValueError(
                f"`{name}` sets a learning rate, and `{type(optimizer.inner_optimizer).__name__}` "
                "plans the size of each step itself. Nothing was trained. Leave the callback out, "
                "or choose optimizer and learning rate yourself: `DPOptimizer(keras.optimizers."
                "Adam(0.01), target_epsilon=...)`."
            )
        is_plan = optimizer.plans_steps or optimizer.target_epsilon is not None
        if is_plan and isinstance(callback, keras.callbacks.EarlyStopping):
            warnings.warn(
                f"`{name}` may end a run that is planned to its last step: the noise is that of "
                "all steps, so that an early end leaves budget unused, no temperature is "
                "learned, and `PlannedMomentum` comes to rest in the last steps only. Give fewer "
                "`epochs` instead.",
                stacklevel=6,
            )


def flattened(callbacks: Any) -> list[keras.callbacks.Callback]:
    """Return the single callbacks; Keras makes a `CallbackList` of them again."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        if type(callbacks) is not keras.callbacks.CallbackList:
            raise TypeError(
                "Argument `callbacks` must be a list of callbacks or a plain `CallbackList`: `fit` "
                "makes a list of its own, which would drop the methods of a subclass. "
                f"Received: callbacks of type {type(callbacks).__name__}"
            )
        return list(callbacks.callbacks)
    return list(keras.tree.flatten(callbacks or []))
