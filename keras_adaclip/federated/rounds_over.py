"""The rounds over a population, with the facts of them that the ledger needs."""

import math
from typing import Any

from keras_adaclip._checks import check_batch_size, check_choice, check_integer
from keras_adaclip.accounting import Sampling, Unit
from keras_adaclip.federated.client_share import first_rows, share_of_this_process
from keras_adaclip.federated.clients import ClientData
from keras_adaclip.federated.cohorts import CohortBatches
from keras_adaclip.federated.settings import FederatedSettings
from keras_adaclip.training import TrainingData

# The expected number of clients in a round, and of rounds that make up the population at least.
_USUAL_COHORT, _LEAST_TURNS = 100, 4


def rounds_over(
    clients: Any,
    settings: FederatedSettings,
    cohort_size: Any,
    steps_per_epoch: Any,
    sampling: str,
    seed: int | None,
    class_weight: dict[int, float] | None = None,
) -> TrainingData:
    """Return the rounds over a population; the arguments are those of `FederatedModel.fit`.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range, or a client comes twice.
    """
    if not isinstance(clients, ClientData):
        raise TypeError(
            "A federated model trains on `keras_adaclip.federated.ClientData`, which says to which "
            "client each example belongs: `ClientData.from_arrays(x, y, client_ids)`. To protect "
            "single examples, train a `keras_adaclip.PrivateModel`. "
            f"Received: clients of type {type(clients).__name__}"
        )
    num_ids = len(set(clients.client_ids))
    if num_ids < len(clients):
        raise ValueError(
            "Every client must have one entry in `client_ids`: with two it would contribute twice "
            f"to a round. Received: {len(clients):,} entries of {num_ids:,} clients"
        )
    alike: dict[str, Any] = {
        **settings.as_compared,
        "sampling": sampling,
        "cohort_size": cohort_size,
    }
    alike |= {"steps_per_epoch": steps_per_epoch, "seed": seed, "class_weight": class_weight}
    share = share_of_this_process(clients, alike)
    num_clients = share.num_clients
    check_choice("sampling", sampling, ("poisson", "fixed", "shuffle"))
    kind = Sampling[sampling.upper()]
    if cohort_size is None:
        cohort_size = usual_cohort_size(num_clients)
    cohort_size = check_batch_size(cohort_size, num_clients, "cohort_size")
    rounds = math.ceil(num_clients / cohort_size)
    if steps_per_epoch is not None:
        # A shuffled epoch goes through the clients once.
        limit = {"maximum": rounds} if kind is Sampling.SHUFFLE else {}
        rounds = check_integer("steps_per_epoch", steps_per_epoch, minimum=1, **limit)
    # The simulated cohort is at least as large as that of `fit`.
    noise_size = settings.cohort_noise_size or cohort_size
    noise_size = check_integer("cohort_noise_size", noise_size, minimum=cohort_size)
    return TrainingData(
        sampling=kind,
        expected_batch_size=cohort_size,
        num_examples=num_clients,
        rows=first_rows(clients, share),
        steps_per_epoch=rounds,
        poisson=CohortBatches(
            clients, cohort_size, rounds, kind, settings, seed, class_weight, share
        ),
        unit=Unit.CLIENT,
        noise_scale=cohort_size / noise_size,
    )


def usual_cohort_size(num_clients: int) -> int:
    """Return the cohort size that is used if none is given.

    Args:
        num_clients: The number of clients.

    Example:

    >>> usual_cohort_size(40), usual_cohort_size(1_000)
    (10, 100)
    """
    return min(_USUAL_COHORT, max(num_clients // _LEAST_TURNS, 1))
