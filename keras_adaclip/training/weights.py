"""What a weight remembers of its training: whose ledger counts it, its digest, public changes.

Another model that is built on the same weights finds their ledger by them. Layers remember it too,
for weights that replace trained ones, as those of `quantize` do.

The digest is the SHA-256 of the value at the end of the latest private run of any model. It shows
that something has changed a weight, not what changed it. It detects accidents, not attackers, who
can set the digest too.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from keras_adaclip import backend
from keras_adaclip.accounting import CHANGED, DIGEST_SIZE, UNKNOWN, UNWATCHED, weights_in_words
from keras_adaclip.backend import keras_private
from keras_adaclip.optimizers import Account

_ACCOUNT, _DIGEST = "_keras_adaclip_account", "_keras_adaclip_digest"
_PUBLIC = "_keras_adaclip_public_changes"
# The mark of a weight that private training changes at present.
_IN_RUN = bytes([1]) * DIGEST_SIZE


def put_on_account(parts: Iterable[Any], account: Account) -> None:
    """Let weights and layers remember an account, unless their ledger is not known.

    Args:
        parts: The weights and layers.
        account: That of an optimizer, or of loaded weights.
    """
    for part in parts:
        present = getattr(part, _ACCOUNT, None)
        if present is None or present.lost is None:
            keras_private.set_attribute(part, _ACCOUNT, account)


def accounts_of(parts: Iterable[Any]) -> list[Account]:
    """Return the accounts that weights and layers remember, each once."""
    found = (getattr(part, _ACCOUNT, None) for part in parts)
    return list(dict.fromkeys(each for each in found if each is not None))


def begin_run(weights: Sequence[keras.Variable]) -> None:
    """Note that private training changes the weights from here on.

    Those that something else has changed before are marked for good.
    """
    # All digests first: where taking them is interrupted, nothing is marked.
    for variable, unchanged in [(each, _is_unchanged(each)) for each in weights]:
        if unchanged is False:
            _remember(variable, CHANGED)
        elif _remembered(variable) != UNWATCHED:
            _remember(variable, _IN_RUN)


def end_run(weights: Sequence[keras.Variable], take_digests: bool = True) -> None:
    """Remember the weights at the end of a run of steps, those that `begin_run` has marked.

    Args:
        weights: The weights of a model.
        take_digests: Whether digests are taken, which reads all weights once. Otherwise it is
            unknown from here on whether the weights have changed, also after later runs.
    """
    changed = [variable for variable in weights if _remembered(variable) == _IN_RUN]
    for variable in changed:  # Where taking digests is interrupted, this stays.
        _remember(variable, UNWATCHED)
    for variable in changed if take_digests else ():
        _remember(variable, _digest(variable))


def weights_are_unchanged(weights: Sequence[keras.Variable]) -> bool | None:
    """Return whether all weights are as private training left them; None if unknown."""
    unchanged = [_is_unchanged(variable) for variable in weights]
    if False in unchanged:
        return False
    return None if None in unchanged or not unchanged else True


def declare_public_change(weights: Sequence[keras.Variable], reason: str) -> None:
    """Remember the present values of changed weights as those that training left, and the reason.

    Args:
        weights: The weights of a model.
        reason: Why the change touched no private data, in the user's words.

    Raises:
        ValueError: If no weight has changed since private training.
    """
    changed = [variable for variable in weights if _is_unchanged(variable) is False]
    if not changed:
        raise ValueError(
            "No weight is known to have changed since private training. Declare a public change "
            f"after it, and before training goes on. Received: reason={reason!r}"
        )
    for variable in changed:
        _remember(variable, _digest(variable))
    note_public_changes(changed, reason)


def note_public_changes(weights: Sequence[keras.Variable], reasons: str) -> None:
    """Let weights remember public changes, in words."""
    for variable in weights if reasons else ():
        noted = (*getattr(variable, _PUBLIC, ()), *reasons.split("; "))
        keras_private.set_attribute(variable, _PUBLIC, tuple(dict.fromkeys(noted)))


def public_changes(weights: Sequence[keras.Variable]) -> str:
    """Return the public changes that weights remember, in words; empty if there are none."""
    noted = (reason for variable in weights for reason in getattr(variable, _PUBLIC, ()))
    return "; ".join(dict.fromkeys(noted))


def digests_in_words(weights: Sequence[keras.Variable]) -> str:
    """Return the digest of all weights in words, with whether private training left them."""
    digest = hashlib.sha256(b"".join(_digest(variable) for variable in weights)).hexdigest()
    return weights_in_words(digest, weights_are_unchanged(weights))


def to_array(model: keras.Model) -> npt.NDArray[np.uint8]:
    """Return the digests for saving, of shape `(num_weights, 32)`.

    A weight that something else has changed is marked: a file may hold its former value elsewhere.
    Layers with LoRA save other weights than they have, which compute the same.

    Args:
        model: The model.
    """
    layers = keras_private.flatten_layers(model)
    adapted = [layer for layer in layers if getattr(layer, "lora_enabled", False)]
    rewritten = {id(each) for layer in adapted for each in layer.weights}

    def saved(variable: keras.Variable) -> bytes:
        """Return the digest to save of a weight."""
        digest = _remembered(variable)
        if id(variable) in rewritten and digest != CHANGED:
            return UNKNOWN
        if digest == _IN_RUN:
            return _digest(variable)
        return CHANGED if _is_unchanged(variable) is False else digest

    digests = map(saved, model.weights)
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_SIZE)


def from_array(weights: Sequence[keras.Variable], digests: npt.NDArray[np.uint8] | None) -> None:
    """Remember the digests of weights that come from a file.

    Args:
        weights: The weights of a model.
        digests: The result of `to_array`; None if the file has none.
    """
    known = [] if digests is None else [row.tobytes() for row in digests]
    if len(known) != len(weights):
        known = [UNKNOWN] * len(weights)
    for variable, digest in zip(weights, known, strict=True):
        if digest in (CHANGED, UNWATCHED) or _remembered(variable) != _IN_RUN:
            _remember(variable, digest)


@contextmanager
def loading_some(weights: Sequence[keras.Variable]) -> Iterator[None]:
    """Keep the digests of weights that a file does not fit, while it is loaded."""
    before = [(_digest(variable), _remembered(variable)) for variable in weights]
    yield
    for variable, (digest, remembered) in zip(weights, before, strict=True):
        now = _digest(variable)
        if now == digest and now != _remembered(variable):
            _remember(variable, remembered)


def _digest(variable: keras.Variable) -> bytes:
    """Return the SHA-256 of a weight, `UNKNOWN` if this process does not hold all of it."""
    if keras_private.is_empty(variable) or not backend.is_whole_in_each_process(variable):
        return UNKNOWN
    array = np.ascontiguousarray(backend.array_of(variable))
    return hashlib.sha256(array.view(np.uint8).data).digest()


def _remember(variable: keras.Variable, digest: bytes) -> None:
    """Attach a digest to a weight."""
    keras_private.set_attribute(variable, _DIGEST, digest)


def _remembered(variable: keras.Variable) -> bytes:
    """Return the digest attached to a weight, `UNKNOWN` if there is none."""
    digest: bytes = getattr(variable, _DIGEST, UNKNOWN)
    return digest


def _is_unchanged(variable: keras.Variable) -> bool | None:
    """Return whether a weight has the value of its digest; None if unknown."""
    digest = _remembered(variable)
    if digest in (CHANGED, UNWATCHED, UNKNOWN, _IN_RUN):
        return {CHANGED: False, _IN_RUN: True}.get(digest)
    now = _digest(variable)
    return None if now == UNKNOWN else now == digest
