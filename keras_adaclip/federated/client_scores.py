"""Scores of single clients, and their table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import training
from keras_adaclip.backend import keras_losses, keras_private
from keras_adaclip.federated.client_sources import copied, num_rows, rows_of
from keras_adaclip.federated.clients import ClientData, checked_clients
from keras_adaclip.federated.local_training import with_rows_masked
from keras_adaclip.federated.round_batch import rounded_up
from keras_adaclip.gradients import Batch, call_model, mapped
from keras_adaclip.sampling import as_arrays

_PERCENTS = (5, 25, 50, 75, 95)


@dataclass(frozen=True)
class ClientScores:
    """What `evaluate_clients` returns: loss and metrics of each client with examples.

    Args:
        client_ids: The ids of the clients.
        num_examples: The number of examples of each, of shape `(num_clients,)`.
        values: For the name of each metric, its value for each client, of shape `(num_clients,)`.

    Example:

    >>> import numpy as np
    >>> scores = ClientScores(["ann", "bob"], np.array([9, 3]), {"loss": np.array([0.5, 0.7])})
    >>> scores["bob"]
    {'num_examples': 3, 'loss': 0.7}
    >>> print(scores)
    2 clients    mean     min      5%     25%     50%     75%     95%     max
    loss          0.6     0.5    0.51    0.55     0.6    0.65    0.69     0.7
    """

    client_ids: Sequence[Any]
    num_examples: np.ndarray
    values: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.client_ids)

    def __getitem__(self, client_id: Any) -> dict[str, Any]:
        """Return the scores of one client, by the name of the metric.

        Raises:
            KeyError: If there is no such client.
        """
        if client_id not in self.client_ids:
            raise KeyError(f"There is no client {client_id!r} with examples.")
        position = list(self.client_ids).index(client_id)
        scores = {name: float(value[position]) for name, value in self.values.items()}
        return {"num_examples": int(self.num_examples[position]), **scores}

    def percentiles(self, percents: Sequence[float] = _PERCENTS) -> dict[str, np.ndarray]:
        """Return percentiles over the clients, each of which counts once.

        Args:
            percents: Numbers from 0 to 100.

        Returns:
            For the name of each metric an array with a value for each of the percents.

        Example:

        >>> import numpy as np
        >>> values = {"accuracy": np.array([0.5, 0.7, 1.0])}
        >>> ClientScores(["a", "b", "c"], np.ones(3), values).percentiles([0, 50])
        {'accuracy': array([0.5, 0.7])}
        """
        return {name: np.nanpercentile(value, percents) for name, value in self.values.items()}

    def __repr__(self) -> str:
        return f"<ClientScores of {self._counted()}: {', '.join(self.values)}>"

    def __str__(self) -> str:
        names = [f"{percent}%" for percent in _PERCENTS]
        table = [[self._counted(), "mean", "min", *names, "max"]]
        for name, found in self.percentiles((0, *_PERCENTS, 100)).items():
            table.append([name, *(f"{v:.4g}" for v in (np.nanmean(self.values[name]), *found))])
        width = max(len(row[0]) for row in table)
        lines = ([name.ljust(width), *(f"{v:>7}" for v in cells)] for name, *cells in table)
        return "\n".join(map(" ".join, lines))

    def _counted(self) -> str:
        """Return the number of clients in words."""
        return f"{len(self):,} client{'' if len(self) == 1 else 's'}"


def scores_of_clients(model: Any, clients: ClientData, batch_size: int) -> ClientScores:
    """Return loss and metrics of each client; see `FederatedTraining.evaluate_clients`."""
    checked_clients(clients)
    if not model.compiled:
        raise ValueError("Call `compile` with a loss before `evaluate_clients`.")
    keras_private.build_for_training(model, *clients.first_examples(), None)
    ids, counts, scores = [], [], []
    for position, client_id in enumerate(clients.client_ids):
        examples = copied(as_arrays(clients.examples_at(position)))
        if count := num_rows(examples):
            ids.append(client_id)
            counts.append(count)
            model.reset_metrics()
            parts = (slice(first, first + batch_size) for first in range(0, count, batch_size))
            *_, logs = (_scores_with(model, *rows_of(examples, part)) for part in parts)
            scores.append(logs)
    model.reset_metrics()
    values = {name: np.array([each[name] for each in scores]) for name in scores[0]}
    return ClientScores(ids, np.array(counts), values)


def _scores_with(model: Any, x: Any, y: Any) -> dict[str, float]:
    """Return loss and metrics of a client so far, with some more of its examples."""
    count = num_rows((x, y))
    # Of a few sizes, for each of which JAX compiles the operations.
    size = rounded_up(count)

    def padded(value: Any) -> Any:
        """Return rows with copies of the first one behind them, as a tensor."""
        copies = np.repeat(value[:1], size - count, axis=0)
        return ops.convert_to_tensor(np.concatenate([value, copies]))

    present = ops.arange(size, dtype="int32") < count
    x, y = mapped(padded, x), mapped(padded, y)
    predictions = keras.tree.map_structure(
        lambda value: with_rows_masked(value, present), call_model(model, x, training=False)
    )
    loss = model.compute_loss(x=x, y=y, y_pred=predictions, training=False)
    keras_losses.loss_tracker(model).update_state(loss, count)
    logs = training.update_metrics(model, Batch(x, y, None, present), predictions)
    return {name: float(ops.convert_to_numpy(value)) for name, value in logs.items()}
