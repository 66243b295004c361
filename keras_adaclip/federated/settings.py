"""What `FederatedModel.compile` is told besides Keras's arguments, checked."""

from dataclasses import dataclass
from typing import Any

import keras

from keras_adaclip.accounting import check_integer, check_real
from keras_adaclip.federated.cohort_batches import LocalBatches
from keras_adaclip.federated.weighting import checked_weighting
from keras_adaclip.optimizers import check_plain_optimizer

_FORBIDDEN_TO_CLIENTS = {
    "gradient_accumulation_steps": "would accumulate gradients that are lost when a client's "
    "training ends; use a larger `client_batch_size`",
}


@dataclass(frozen=True)
class FederatedSettings:
    """How clients train; the arguments are those of `FederatedModel.compile`.

    Raises:
        TypeError: where an argument is of the wrong type.
        ValueError: where an argument is out of range.
    """

    client_optimizer: Any
    local_epochs: int = 1
    client_batch_size: int | None = 20
    client_examples_limit: int | None = None
    client_weighting: Any = "uniform"
    proximal_strength: float = 0.0
    cohort_noise_size: int | None = None

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            "client_optimizer": _checked_client_optimizer(self.client_optimizer),
            "local_epochs": check_integer(self.local_epochs, "local_epochs", minimum=1),
            "client_weighting": checked_weighting(self.client_weighting),
            "proximal_strength": check_real(self.proximal_strength, "proximal_strength"),
        }
        for name in ("client_batch_size", "client_examples_limit", "cohort_noise_size"):
            value = getattr(self, name)
            checked[name] = None if value is None else check_integer(value, name, minimum=1)
        if checked["proximal_strength"] < 0.0:
            raise ValueError(
                "Argument `proximal_strength` must not be negative. "
                f"Received: proximal_strength={self.proximal_strength}"
            )
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def local_batches(self) -> LocalBatches:
        """How each client goes through its examples."""
        return LocalBatches(self.local_epochs, self.client_batch_size, self.client_examples_limit)

    def get_config(self) -> dict[str, Any]:
        """Every argument under its own name, as plain values."""
        return {
            "client_optimizer": keras.saving.serialize_keras_object(self.client_optimizer),
            "local_epochs": self.local_epochs,
            "client_batch_size": self.client_batch_size,
            "client_examples_limit": self.client_examples_limit,
            "client_weighting": keras.saving.serialize_keras_object(self.client_weighting),
            "proximal_strength": self.proximal_strength,
            "cohort_noise_size": self.cohort_noise_size,
        }


def _checked_client_optimizer(optimizer: Any) -> keras.optimizers.Optimizer:
    optimizer = check_plain_optimizer("client_optimizer", optimizer, _FORBIDDEN_TO_CLIENTS)
    if getattr(optimizer, "use_ema", False):
        raise ValueError(
            "Argument `client_optimizer` must not keep a moving average of the weights, which "
            "would begin anew with every round. Give `use_ema=True` to the server's optimizer."
        )
    return optimizer
