"""Checks of what a search is told about privacy."""

from keras_adaclip.accounting import check_delta, check_integer


def checked_seed(private: bool, seed: int | None) -> int | None:
    """The seed of a search, of which data that need protection allow none.

    Args:
        private: whether they do.
        seed: integer or None.
    """
    if seed is None:
        return None
    if private:
        raise ValueError(
            "Argument `seed` cannot be combined with `private=True`: the seeds are written to "
            "disk, and whoever has them can subtract the noise. "
            f"Received: seed={seed!r}, private={private!r}"
        )
    return check_integer(seed, "seed")


def checked_delta(private: bool, delta: float | None) -> float | None:
    """Delta, which goes with data that need protection and with no others.

    Args:
        private: whether they do.
        delta: float or None.
    """
    if not isinstance(private, bool):
        raise TypeError(f"Argument `private` must be a truth value. Received: private={private!r}")
    if private and delta is None:
        raise ValueError(
            "Argument `delta` is needed with `private=True`, to report epsilon. "
            "Received: delta=None"
        )
    if not private and delta is not None:
        raise ValueError(
            "Argument `delta` goes with `private=True`: without, nothing is counted. "
            f"Received: delta={delta!r}, private={private!r}"
        )
    return None if delta is None else check_delta(delta)
