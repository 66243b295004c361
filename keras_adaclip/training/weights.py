"""What a weight remembers of its training: whose ledger counts it, and its digest.

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
from keras_adaclip.accounting import (
    CHANGED,
    DIGEST_SIZE,
    UNKNOWN,
    UNWATCHED,
    Ledger,
    weights_in_words,
)
from keras_adaclip.backend import keras_private
from keras_adaclip.optimizers import AccountedOptimizer

_ACCOUNT, _DIGEST = "_keras_adaclip_account", "_keras_adaclip_digest"


class LoadedAccount:
    """The ledger of weights that have no optimizer, such as loaded ones.

    Args:
        ledger: The ledger.
        lost: Why the ledger of these weights is not known; None if it is known.

    Attributes:
        used_seeds: Empty, since the seeds of a file belong to another process.
        is_in_a_run: False: no training is under way.
    """

    used_seeds: frozenset[int] = frozenset()
    is_in_a_run = False

    def __init__(self, ledger: Ledger | None = None, lost: str | None = None) -> None:
        self.ledger, self.lost = ledger or Ledger(), lost

    def include_ledger(self, ledger: Ledger) -> None:
        """Raise the ledger to cover another one."""
        AccountedOptimizer.num_inclusions += 1
        self.ledger = self.ledger.merge(ledger)


class _Holder:
    """A link from a weight or a layer to an account.

    An optimizer itself would be saved and loaded with the layer. Copies of a weight lead to the
    same account, and pickled ones to the ledger as it was.
    """

    def __init__(self, account: Any) -> None:
        self.account = account

    def __deepcopy__(self, memo: Any) -> "_Holder":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _Holder, (LoadedAccount(self.account.ledger, self.account.lost),)


def put_on_account(parts: Iterable[Any], account: Any) -> None:
    """Let weights and layers remember an account, unless their ledger is not known.

    Args:
        parts: The weights and layers.
        account: An optimizer, or a `LoadedAccount`.
    """
    holder = _Holder(account)
    for part in parts:
        present = getattr(part, _ACCOUNT, None)
        if present is None or present.account.lost is None:
            keras_private.set_attribute(part, _ACCOUNT, holder)


def accounts_of(parts: Iterable[Any]) -> list[Any]:
    """Return the accounts that weights and layers remember, each once."""
    holders = (getattr(part, _ACCOUNT, None) for part in parts)
    return list({id(each.account): each.account for each in holders if each is not None}.values())


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

    def saved(variable: keras.Variable) -> bytes:
        """Return the digest to save of a weight."""
        digest = _remembered(variable)
        if in_run:
            return digest if digest in (CHANGED, UNWATCHED) else _digest(variable)
        return CHANGED if _is_unchanged(variable) is False else digest

    digests = map(saved, weights)
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
    keras_private.set_attribute(variable, _DIGEST, digest)


def _remembered(variable: keras.Variable) -> bytes:
    """Return the digest attached to a weight, `UNKNOWN` if there is none."""
    digest: bytes = getattr(variable, _DIGEST, UNKNOWN)
    return digest


def _is_unchanged(variable: keras.Variable) -> bool | None:
    """Return whether a weight has the value of its digest; None if unknown."""
    digest = _remembered(variable)
    if digest in (CHANGED, UNWATCHED, UNKNOWN):
        return False if digest == CHANGED else None
    now = _digest(variable)
    return None if now == UNKNOWN else now == digest
