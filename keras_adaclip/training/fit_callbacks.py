"""The callbacks of a private `fit`: those of this package prepared and put first."""

import warnings
from typing import Any

import keras

from keras_adaclip.callbacks import (
    AuditCallback,
    ClippingMonitor,
    EpochCheck,
    PassCounter,
    PrivacyCallback,
)
from keras_adaclip.optimizers import NO_LEGACY_FILE

_OURS = (PrivacyCallback, ClippingMonitor, AuditCallback)
_PRIVATE_LOGS = ("epsilon", "clip_norm", "unclipped_fraction")


def wants_diagnostics(callbacks: Any) -> bool:
    """Return whether a callback asks for raw norms and true clip fractions."""
    return any(
        isinstance(callback, ClippingMonitor) and callback.private_diagnostics
        for callback in _flattened(callbacks)
    )


def prepared(
    model: keras.Model,
    callbacks: Any,
    data: Any,
    pass_counter: PassCounter,
    last: EpochCheck,
) -> list[keras.callbacks.Callback]:
    """Return the callbacks in the order in which Keras is to call them.

    Those of this package come first, since log entries of a callback reach later ones only.

    Args:
        model: The private model, its ledger open.
        callbacks: The callbacks given to `fit`.
        data: The training data.
        pass_counter: Keeps the ledger; it comes before all others.
        last: Comes after all others.

    Raises:
        ValueError: If a `PrivacyCallback` allows no step, or a `ModelCheckpoint` would write a file
            that cannot hold the ledger.
    """
    given = _flattened(callbacks)
    ours = [c for c in given if isinstance(c, _OURS)]
    for callback in ours:
        callback.prepare(model, data)
    _refuse_legacy_checkpoints(given)
    _warn_of_monitors(given)
    last.before_execution += [c.count_again for c in ours if isinstance(c, PrivacyCallback)]
    ordered = [pass_counter, *ours, *(c for c in given if not isinstance(c, _OURS))]
    ordered.append(last)
    return ordered


def _flattened(callbacks: Any) -> list[keras.callbacks.Callback]:
    """Return the single callbacks; Keras makes a `CallbackList` of them again."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        if type(callbacks) is not keras.callbacks.CallbackList:
            raise TypeError(
                "Argument `callbacks` must be a list of callbacks or a `CallbackList`, of which no "
                "method is overridden: `fit` makes a list of its own. "
                f"Received: callbacks of type {type(callbacks).__name__}"
            )
        return list(callbacks.callbacks)
    return list(keras.tree.flatten(callbacks or []))


def _refuse_legacy_checkpoints(callbacks: list[keras.callbacks.Callback]) -> None:
    """Raise before training for a checkpoint that `save` would refuse in the middle of it."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.ModelCheckpoint):
            path = str(callback.filepath)
            if path.endswith(".h5") and not callback.save_weights_only:
                raise ValueError(f"`ModelCheckpoint`: {NO_LEGACY_FILE} Received: filepath={path!r}")


def _warn_of_monitors(callbacks: list[keras.callbacks.Callback]) -> None:
    """Warn of callbacks that steer training by figures that epsilon does not cover."""
    for callback in callbacks:
        monitor = getattr(callback, "monitor", None)
        if not isinstance(monitor, str) or monitor.startswith("val_") or monitor in _PRIVATE_LOGS:
            continue
        warnings.warn(
            f"{type(callback).__name__}(monitor={monitor!r}) steers training by a figure of "
            "the training data that carries no noise, and epsilon does not cover what it "
            "decides. Monitor validation data that are public ('val_...'), or one of "
            f"{', '.join(map(repr, _PRIVATE_LOGS))}.",
            stacklevel=4,
        )
