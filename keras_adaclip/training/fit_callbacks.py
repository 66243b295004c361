"""The callbacks of a private `fit`: ours prepared and put first."""

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


def flattened(callbacks: Any) -> list[keras.callbacks.Callback]:
    """The single callbacks in what `fit(callbacks=...)` was given."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return list(keras.tree.flatten(callbacks or []))


_OF_ONE_FIT = (PassCounter, EpochCheck)
_OURS = (PrivacyCallback, ClippingMonitor, AuditCallback)
_PRIVATE_LOGS = ("epsilon", "clip_norm", "unclipped_fraction")


def _warn_of_monitors(callbacks: list[keras.callbacks.Callback]) -> None:
    """Warns of callbacks that steer training by what epsilon does not cover."""
    for callback in callbacks:
        monitor = getattr(callback, "monitor", None)
        if isinstance(monitor, str) and not monitor.startswith("val_"):
            if monitor in _PRIVATE_LOGS:
                continue
            warnings.warn(
                f"{type(callback).__name__}(monitor={monitor!r}) steers training by a figure of "
                "the training data that carries no noise, and epsilon does not cover what it "
                "decides. Monitor validation data that are public ('val_...'), or one of "
                f"{', '.join(map(repr, _PRIVATE_LOGS))}.",
                stacklevel=4,
            )


def _refuse_legacy_checkpoints(callbacks: list[keras.callbacks.Callback]) -> None:
    """Refuses, before training, a checkpoint that `save` would refuse in the middle of it."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.ModelCheckpoint):
            path = str(callback.filepath)
            if not callback.save_weights_only and path.endswith(".h5"):
                raise ValueError(
                    "`ModelCheckpoint` would save the private model as an HDF5 file, which cannot "
                    "hold its privacy ledger. Use a path that ends with '.keras', or "
                    "`save_weights_only=True` and one that ends with '.weights.h5'. "
                    f"Received: filepath={path!r}"
                )


def wants_diagnostics(callbacks: Any) -> bool:
    """Whether a callback asks for raw norms and true clip fractions."""
    return any(
        isinstance(callback, ClippingMonitor) and callback.private_diagnostics
        for callback in flattened(callbacks)
    )


def prepared(
    model: keras.Model,
    callbacks: Any,
    data: Any,
    pass_counter: PassCounter,
    last: EpochCheck,
) -> Any:
    """The callbacks in the order in which Keras is to call them.

    Ours come first, since what a callback writes into the logs reaches later ones only.

    Args:
        model: the private model, its ledger open.
        callbacks: what `fit` was given.
        data: the training data.
        pass_counter: keeps the ledger; it comes before all others.
        last: comes after all others.

    Returns:
        What to hand to Keras's `fit`.

    Raises:
        ValueError: where a `PrivacyCallback` allows no step, or a callback would save the model in
            a file that cannot hold its ledger.
    """
    # A list that the caller keeps still holds the counter of the `fit` before.
    given = [c for c in flattened(callbacks) if not isinstance(c, _OF_ONE_FIT)]
    ours = [c for c in given if isinstance(c, _OURS)]
    for callback in ours:
        callback.prepare(model, data)
    _refuse_legacy_checkpoints(given)
    _warn_of_monitors(given)
    ours.insert(0, pass_counter)
    ordered = [*ours, *(c for c in given if all(c is not our for our in ours))]
    ordered.append(last)
    last.before_execution += [c.count_again for c in ours if isinstance(c, PrivacyCallback)]
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        return ordered
    callbacks.callbacks[:] = ordered
    for callback in [*ours, last]:
        callback.set_model(model)
    return callbacks


def release(callbacks: Any) -> None:
    """Takes the counter of a `fit` that has ended out of a list that the caller keeps.

    Args:
        callbacks: what `fit` was given.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        kept = [c for c in callbacks.callbacks if not isinstance(c, _OF_ONE_FIT)]
        callbacks.callbacks[:] = kept
