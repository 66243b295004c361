"""Scores of single clients, and their table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import training
from keras_adaclip.backend import keras_private
from keras_adaclip.federated.client_sources import Examples, copied, joined, num_rows, rows_of
from keras_adaclip.federated.clients import ClientData, checked_clients
from keras_adaclip.federated.local_training import with_rows_masked
from keras_adaclip.federated.round_batch import rounded_up
from keras_adaclip.gradients import Batch, call_model, mapped
from keras_adaclip.sampling import as_arrays

# Examples in memory at a time, unless one client has more.
_MOST_ROWS = 1 << 16
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
    2 clients  mean    min  5%    25%   50%  75%   95%   max
    loss       0.6     0.5  0.51  0.55  0.6  0.65  0.69  0.7
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
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = (
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        )
        return "\n".join(lines)

    def _counted(self) -> str:
        """Return the number of clients in words."""
        return f"{len(self):,} client{'' if len(self) == 1 else 's'}"


class PerClient:
    """Scores of single clients."""

    def evaluate_clients(self, clients: ClientData, batch_size: int | None = None) -> ClientScores:
        """Return loss and metrics of each client, for a look at whom the model serves badly.

        They are computed from raw data, and are not private. Clients without examples are left out.

        Args:
            clients: The clients.
            batch_size: The number of examples to predict at a time; None means 32.

        Raises:
            TypeError: If `clients` is no `ClientData`.
            ValueError: If the model is not compiled.
        """
        checked_clients(clients)
        if not self.compiled:  # type: ignore[attr-defined]
            raise ValueError("Call `compile` with a loss before `evaluate_clients`.")
        x, y = clients.first_examples()
        keras_private.build_for_training(self, x, y, None)
        x = keras.tree.map_structure(ops.convert_to_tensor, x)
        outputs = keras.tree.flatten(call_model(self, x, training=False))
        # Keras's `predict` drops masks, which losses and metrics heed.
        is_masked = any(keras_private.mask_of(output) is not None for output in outputs)
        ids, counts, scores = [], [], []
        for position, (x, y), predictions in self._predictions(clients, batch_size, is_masked):
            ids.append(clients.client_ids[position])
            counts.append(num_rows((x, y)))
            scores.append(self._scores(x, y, predictions))
        self.reset_metrics()  # type: ignore[attr-defined]
        values = {name: np.array([each[name] for each in scores]) for name in scores[0]}
        return ClientScores(ids, np.array(counts), values)

    def _predictions(
        self, clients: ClientData, batch_size: int | None, examples_alone: bool = False
    ) -> Iterator[tuple[int, Examples, Any]]:
        """Yield position, examples and predictions of each client with examples.

        Args:
            clients: The clients.
            batch_size: The number of examples to predict at a time.
            examples_alone: Whether None is yielded in the place of the predictions.
        """
        waiting: list[tuple[int, Examples]] = []
        num_waiting = 0
        for position in range(len(clients)):
            examples = copied(as_arrays(clients.examples_at(position)))
            if num_rows(examples) > 0:
                waiting.append((position, examples))
                num_waiting += num_rows(examples)
            if not waiting or (num_waiting < _MOST_ROWS and position < len(clients) - 1):
                continue
            found = None
            if not examples_alone:
                inputs, _ = joined((x, None) for _, (x, _) in waiting)
                found = self.predict(inputs, batch_size, verbose=0)  # type: ignore[attr-defined]
            first = 0
            for place, examples in waiting:
                end = first + num_rows(examples)
                yield place, examples, rows_of((found, None), slice(first, end))[0]
                first = end
            waiting, num_waiting = [], 0

    def _scores(self, x: Any, y: Any, predictions: Any) -> dict[str, float]:
        """Return loss and metrics of a client's examples."""
        count = num_rows((x, y))
        # Of a few sizes, for each of which JAX compiles the operations.
        size = rounded_up(count)

        def padded(value: Any) -> Any:
            """Return rows with copies of the first one behind them, as a tensor."""
            copies = np.repeat(value[:1], size - count, axis=0)
            return ops.convert_to_tensor(np.concatenate([value, copies]))

        present = ops.arange(size) < count
        x, y, predictions = (mapped(padded, part) for part in (x, y, predictions))
        if predictions is None:
            predictions = call_model(self, x, training=False)
        predictions = keras.tree.map_structure(
            lambda value: with_rows_masked(value, present), predictions
        )
        self.reset_metrics()  # type: ignore[attr-defined]
        loss = self.compute_loss(x=x, y=y, y_pred=predictions, training=False)  # type: ignore[attr-defined]
        keras_private.loss_tracker(self).update_state(loss)
        logs = training.update_metrics(self, Batch(x, y, None, present), predictions)
        return {name: float(ops.convert_to_numpy(value)) for name, value in logs.items()}
