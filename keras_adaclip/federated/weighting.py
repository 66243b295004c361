"""How much each client counts: all alike, or by its number of examples up to a bound.

    weight of client i   v_i = min(n_i, limit) / limit, between 0 and 1
    mean                 (sum_i v_i clip(contribution_i) + noise) / (cohort_size * mean / limit)

Guarantees:
    A weighted contribution is no longer than the clipping norm, so the noise that covers unweighted
    ones covers it. The divisor is made of public numbers alone.
"""

from dataclasses import dataclass
from typing import Any

import keras

from keras_adaclip.accounting import check_integer, check_real


@keras.saving.register_keras_serializable(package="keras_adaclip")
@dataclass(frozen=True)
class ByExamples:
    """Weighs clients by their examples, for `FederatedModel.compile(client_weighting=...)`.

    Args:
        limit: how many examples of a client count at most; a client that has them all weighs as
            much as any may.
        mean: the mean over all clients of the number of examples that count. It is taken to be
            public: a figure from elsewhere, or found privately. One that is too small makes the
            steps larger, never the guarantee weaker.

    Raises:
        TypeError: where an argument is of the wrong type.
        ValueError: where an argument is out of range.

    Example:

    >>> weighting = ByExamples(limit=100, mean=60)
    >>> weighting.weight(50), weighting.weight(1000), round(weighting.scale, 3)
    (0.5, 1.0, 1.667)

    Reference:
        McMahan et al. 2018, "Learning differentially private recurrent language models", section 2.
    """

    limit: int
    mean: float

    def __post_init__(self) -> None:
        limit = check_integer(self.limit, "limit", minimum=1)
        mean = check_real(self.mean, "mean")
        if not 0.0 < mean <= limit:
            raise ValueError(
                f"Argument `mean` must lie above 0 and not above `limit`, {limit}. "
                f"Received: mean={self.mean}"
            )
        object.__setattr__(self, "limit", limit)
        object.__setattr__(self, "mean", mean)

    def weight(self, num_examples: int) -> float:
        """The weight of a client, between 0 and 1.

        Args:
            num_examples: how many examples the client has.
        """
        return min(num_examples, self.limit) / self.limit

    @property
    def scale(self) -> float:
        """What the noised mean over the expected number of clients is multiplied by."""
        return self.limit / self.mean

    def get_config(self) -> dict[str, Any]:
        """Every argument under its own name."""
        return {"limit": self.limit, "mean": self.mean}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ByExamples":
        """The weighting that `get_config` describes.

        Args:
            config: what `get_config` returned.
        """
        return cls(**config)


def checked_weighting(weighting: Any) -> ByExamples | None:
    """Returns what a user gave as `client_weighting`; None stands for all alike.

    Raises:
        ValueError: where it is no weighting, or one without a bound.
    """
    if isinstance(weighting, dict):
        weighting = keras.saving.deserialize_keras_object(weighting)
    if weighting is None or isinstance(weighting, ByExamples):
        return weighting
    if isinstance(weighting, str) and weighting == "uniform":
        return None
    if isinstance(weighting, str) and weighting == "examples":
        raise ValueError(
            "Weights by examples need a bound, which enters the sensitivity, and a public mean, "
            "which the sum is divided by: `client_weighting=keras_adaclip.federated.ByExamples("
            "limit=100, mean=60)`. Received: client_weighting='examples'"
        )
    raise ValueError(
        "Argument `client_weighting` must be 'uniform' or a `keras_adaclip.federated.ByExamples`. "
        f"Received: client_weighting={weighting!r}"
    )
