"""Digests that tell whether weights are still those that private training left.

Each weight remembers the SHA-256 of its value at the end of the latest private run of any model. A
digest shows that something has changed a weight, not what changed it. It detects accidents, not
attackers, who can set the digest too.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import keras
import numpy as np
import numpy.typing as npt

from keras_adaclip import backend
from keras_adaclip.accounting import CHANGED, DIGEST_SIZE, UNKNOWN, UNWATCHED, weights_in_words
from keras_adaclip.backend import keras_private

_DIGEST_OF_VARIABLE = "_keras_adaclip_digest"


def mark_changed(weights: Sequence[keras.Variable]) -> None:
    """Mark for good, before a run of steps, the weights that something else has changed."""
    for variable in weights:
        if _is_unchanged(variable) is False:
            _remember(variable, CHANGED)


def remember(weights: Sequence[keras.Variable], take_digests: bool = True) -> None:
    """Remember the weights at the end of a run of steps.

    Args:
        weights: The weights of a model.
        take_digests: Whether digests are taken, which reads all weights once. Otherwise it is
            unknown from here on whether the weights have changed, also after later runs.
    """
    for variable in weights:
        if _remembered(variable) not in (CHANGED, UNWATCHED):
            _remember(variable, _digest(variable) if take_digests else UNWATCHED)


def weights_are_unchanged(weights: Sequence[keras.Variable], in_run: bool) -> bool | None:
    """Return whether all weights are as private training left them; None if unknown.

    Args:
        weights: The weights of a model.
        in_run: Whether private training is under way and the present values are its own.
    """
    if in_run:
        return all(_remembered(variable) != CHANGED for variable in weights)
    unchanged = [_is_unchanged(variable) for variable in weights]
    if False in unchanged:
        return False
    return None if None in unchanged or not unchanged else True


def digests_in_words(weights: Sequence[keras.Variable], are_unchanged: bool | None) -> str:
    """Return the digest of all weights in words, with whether private training left them.

    Args:
        weights: The weights of a model.
        are_unchanged: The result of `weights_are_unchanged`.
    """
    digest = hashlib.sha256(b"".join(_digest(variable) for variable in weights)).hexdigest()
    return weights_in_words(digest, are_unchanged)


def to_array(weights: Sequence[keras.Variable], in_run: bool) -> npt.NDArray[np.uint8]:
    """Return the digests for saving, of shape `(num_weights, 32)`.

    A weight that something else has changed is marked: a file may hold its former value elsewhere.

    Args:
        weights: The weights of a model.
        in_run: Whether private training is under way and the present values are its own.
    """
    digests = [_remembered(variable) for variable in weights]
    if in_run:
        digests = [
            digest if digest in (CHANGED, UNWATCHED) else _digest(variable)
            for digest, variable in zip(digests, weights, strict=True)
        ]
    else:
        digests = [
            CHANGED if _is_unchanged(variable) is False else digest
            for digest, variable in zip(digests, weights, strict=True)
        ]
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
    return hashlib.sha256(backend.array_of(variable).tobytes()).digest()


def _remember(variable: keras.Variable, digest: bytes) -> None:
    """Attach a digest to a weight."""
    keras_private.set_attribute(variable, _DIGEST_OF_VARIABLE, digest)


def _remembered(variable: keras.Variable) -> bytes:
    """Return the digest attached to a weight, `UNKNOWN` if there is none."""
    digest: bytes = getattr(variable, _DIGEST_OF_VARIABLE, UNKNOWN)
    return digest


def _is_unchanged(variable: keras.Variable) -> bool | None:
    """Return whether a weight has the value of its digest; None if unknown."""
    digest = _remembered(variable)
    if digest in (CHANGED, UNWATCHED, UNKNOWN):
        return False if digest == CHANGED else None
    now = _digest(variable)
    return None if now == UNKNOWN else now == digest
