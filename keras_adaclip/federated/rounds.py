"""The rounds of one `fit`: its arguments checked, and what the accountant must know of them."""

import math
from typing import Any

from keras_adaclip.accounting import Sampling, Unit, check_integer
from keras_adaclip.federated.client_data import ClientData
from keras_adaclip.federated.cohort_batches import CohortBatches
from keras_adaclip.federated.settings import FederatedSettings
from keras_adaclip.gradients import Batch
from keras_adaclip.training import TrainingData

_SAMPLING_NAMES = ("poisson", "fixed", "shuffle")


def training_data_of(
    clients: Any,
    settings: FederatedSettings,
    cohort_size: Any,
    steps_per_epoch: Any,
    sampling: str,
    seed: int | None,
) -> TrainingData:
    """The population and the rounds over it, clients taking the place of examples.

    Args:
        clients: the `ClientData`.
        settings: what `compile` was told.
        cohort_size: as of `FederatedModel.fit`.
        steps_per_epoch: as of `FederatedModel.fit`.
        sampling: as of `FederatedModel.fit`.
        seed: of the draws, or None.

    Raises:
        TypeError: where an argument is of the wrong type.
        ValueError: where an argument is out of range, or a client comes twice.
    """
    if not isinstance(clients, ClientData):
        raise TypeError(
            "A federated model trains on `keras_adaclip.federated.ClientData`, which tells to "
            "which client each example belongs: `ClientData.from_arrays(x, y, client_ids)`. To "
            "protect single examples, train a `keras_adaclip.PrivateModel`. "
            f"Received: clients of type {type(clients).__name__}"
        )
    if sampling not in _SAMPLING_NAMES:
        raise ValueError(
            f"Argument `sampling` must be one of {_SAMPLING_NAMES}. Received: sampling={sampling!r}"
        )
    if len(set(clients.client_ids)) < len(clients):
        raise ValueError(
            "Every client must have one entry in `client_ids`: with two it would contribute twice "
            f"to a round. Received: {len(clients):,} entries of "
            f"{len(set(clients.client_ids)):,} clients"
        )
    cohort_size = check_integer(cohort_size, "cohort_size", minimum=1)
    if cohort_size > len(clients):
        raise ValueError(
            f"Argument `cohort_size` must not exceed the number of clients, {len(clients):,}. "
            f"Received: cohort_size={cohort_size}"
        )
    if steps_per_epoch is not None:
        steps_per_epoch = check_integer(steps_per_epoch, "steps_per_epoch", minimum=1)
    rounds = math.ceil(len(clients) / cohort_size)
    if sampling == "shuffle" and (steps_per_epoch or 1) > rounds:
        raise ValueError(
            f"With `sampling='shuffle'` an epoch has at most {rounds:,} rounds, which go "
            f"through the clients once. Received: steps_per_epoch={steps_per_epoch}"
        )
    cohorts = CohortBatches(
        clients,
        cohort_size,
        steps_per_epoch or rounds,
        Sampling[sampling.upper()],
        settings.local_batches,
        seed,
        settings.client_weighting,
    )
    x, y = clients.first_examples()
    return TrainingData(
        sampling=cohorts.sampling,
        expected_batch_size=cohort_size,
        num_examples=len(clients),
        rows=Batch(x, y),
        fit_arguments={"shuffle": False},
        steps_per_epoch=cohorts.num_batches,
        poisson=cohorts,
        is_sampled_by_fit=True,
        unit=Unit.CLIENT,
        noise_scale=_noise_scale(settings.cohort_noise_size, cohort_size),
    )


def _noise_scale(simulated: int | None, cohort_size: int) -> float:
    """The share of the noise multiplier that gives a larger cohort's noise in the mean."""
    if simulated is None:
        return 1.0
    if simulated < cohort_size:
        raise ValueError(
            "Argument `cohort_noise_size` of `compile` simulates a larger cohort than that of "
            f"`fit`. Received: cohort_noise_size={simulated}, cohort_size={cohort_size}"
        )
    return cohort_size / simulated
