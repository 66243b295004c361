"""The client arguments of `FederatedModel.compile`, checked."""

import functools
from dataclasses import dataclass
from typing import Any

import keras

from keras_adaclip import _checks
from keras_adaclip._configurable import Configurable
from keras_adaclip.optimizers import check_plain_optimizer

# The state of these options is lost when a client's training ends.
_FORBIDDEN_TO_CLIENTS = dict.fromkeys(
    ("gradient_accumulation_steps", "use_ema"),
    "starts again with every round; use a larger `client_batch_size`, or give the option to the "
    "server's optimizer",
)


@keras.saving.register_keras_serializable(package="keras_adaclip")
@dataclass(frozen=True)
class ByExamples(Configurable):
    """Weights of clients by their number of examples, for `compile(client_weighting=...)`.

        weight of client i   v_i = min(n_i, limit) / limit, between 0 and 1
        mean                 (sum_i v_i clip(contribution_i) + noise) / (cohort_size * mean / limit)

    Args:
        limit: The number of examples from which on a client has the full weight.
        mean: The mean over all clients of `min(n_i, limit)`. It counts as public: take a figure
            from elsewhere, or one found privately. A mean that is too small makes the steps larger,
            and never weakens the guarantee.

    Guarantees:
        A weighted contribution is no longer than the clipping norm, so the noise for unweighted
        contributions covers it. The divisor consists of public numbers alone.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range.

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
        limit = _checks.check_integer("limit", self.limit, minimum=1)
        mean = _checks.check_between("mean", _checks.check_positive("mean", self.mean), 0.0, limit)
        self.__dict__.update(limit=limit, mean=mean)

    def weight(self, num_examples: int) -> float:
        """Return the weight of a client, between 0 and 1.

        Args:
            num_examples: The number of examples of the client.
        """
        return min(num_examples, self.limit) / self.limit

    @property
    def scale(self) -> float:
        """The factor on the noised sum over the expected number of clients."""
        return self.limit / self.mean


@dataclass(frozen=True)
class FederatedSettings:
    """The client arguments of `FederatedModel.compile`, under their own names.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range.
    """

    client_optimizer: Any = "sgd"
    local_epochs: int = 1
    client_batch_size: int | None = 20
    client_examples_limit: int | None = None
    client_weighting: Any = "uniform"
    proximal_strength: float = 0.0
    cohort_noise_size: int | None = None

    def __post_init__(self) -> None:
        strength = _checks.check_nonnegative("proximal_strength", self.proximal_strength)
        check_count = functools.partial(_checks.check_integer, minimum=1)
        optimizer = check_plain_optimizer(
            "client_optimizer", self.client_optimizer, _FORBIDDEN_TO_CLIENTS
        )
        self.__dict__.update(
            client_optimizer=optimizer,
            local_epochs=check_count("local_epochs", self.local_epochs),
            client_weighting=_checked_weighting(self.client_weighting),
            proximal_strength=strength,
            **{
                name: _checks.optional(check_count, name, getattr(self, name))
                for name in ("client_batch_size", "client_examples_limit", "cohort_noise_size")
            },
        )

    @property
    def weighting(self) -> ByExamples:
        """The weights of the clients, alike if each counts as one example."""
        return self.client_weighting or ByExamples(limit=1, mean=1)

    def get_config(self) -> dict[str, Any]:
        """Return every argument under its own name, as plain values."""
        serialize = keras.saving.serialize_keras_object
        return {
            **vars(self),
            "client_optimizer": serialize(self.client_optimizer),
            "client_weighting": serialize(self.client_weighting),
        }


def _checked_weighting(weighting: Any) -> ByExamples | None:
    """Return the weighting of the clients; None weighs all alike."""
    if weighting is None or isinstance(weighting, ByExamples):
        return weighting
    if isinstance(weighting, str) and weighting == "uniform":
        return None
    raise ValueError(
        "Argument `client_weighting` must be 'uniform' or a `keras_adaclip.federated.ByExamples("
        "limit, mean)`, whose limit bounds the sensitivity and whose public mean sets the divisor. "
        f"Received: client_weighting={weighting!r}"
    )
