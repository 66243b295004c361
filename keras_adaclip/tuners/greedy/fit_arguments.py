"""What a greedy search is given for `fit`: refused before a trial is begun."""

from collections.abc import Mapping
from typing import Any

from keras_adaclip.sampling import PoissonDataset
from keras_adaclip.tuners.greedy.announced_training import refuse_validation_split

_OURS = ("epochs", "initial_epoch")


def check_fit_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any], is_private: bool) -> None:
    """Raises where an argument is the search's own, or would break what it says of privacy.

    Args:
        args: what `search` was given by position.
        kwargs: what it was given by name.
        is_private: whether the data are private.

    Raises:
        ValueError: where there is such an argument.
    """
    given = [name for name in _OURS if name in kwargs]
    if given:
        raise ValueError(
            f"Argument `{given[0]}` is set by the search, one epoch a trial. Give `epochs` to "
            f"the tuner. Received: {given[0]}={kwargs[given[0]]!r}"
        )
    if not is_private:
        return
    refuse_validation_split(kwargs)
    x = args[0] if args else kwargs.get("x")
    if isinstance(x, PoissonDataset) and x.seed is not None:
        raise ValueError(
            "Argument `x` must draw its examples from the operating system with `private=True`: "
            "with a seed, all trials would draw the same ones, which costs more than is counted. "
            "Received: a `PoissonDataset` with a seed"
        )
