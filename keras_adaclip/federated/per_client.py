"""What a federated model does for single clients: scores and predictions.

A mixin without a Keras base.
"""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import training
from keras_adaclip.backend import keras_private
from keras_adaclip.federated.client_scores import ClientScores
from keras_adaclip.federated.client_sources import copied
from keras_adaclip.federated.clients import ClientData
from keras_adaclip.federated.local_training import with_rows_masked
from keras_adaclip.federated.round_batch import rounded_up
from keras_adaclip.gradients import Batch, call_model
from keras_adaclip.sampling import as_arrays

# Examples in memory at a time, unless one client has more.
_MOST_ROWS = 1 << 16


class PerClient:
    """Scores and predictions of single clients."""

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
        _check_clients(clients)
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
            counts.append(len(keras.tree.flatten(x)[0]))
            scores.append(self._scores(x, y, predictions))
        self.reset_metrics()  # type: ignore[attr-defined]
        values = {name: np.array([each[name] for each in scores]) for name in scores[0]}
        return ClientScores(ids, np.array(counts), values)

    def predict(self, x: Any, batch_size: int | None = None, *args: Any, **kwargs: Any) -> Any:
        """Predict as Keras does, or for the examples of each client.

        Args:
            x: Inputs as for Keras, or `ClientData`.
            batch_size: As for Keras.
            *args: As for Keras.
            **kwargs: As for Keras.

        Returns:
            Predictions as in Keras; with `ClientData`, a dict with those of each client that has
            examples.
        """
        if not isinstance(x, ClientData):
            return super().predict(x, batch_size, *args, **kwargs)  # type: ignore[misc]
        found = self._predictions(x, batch_size)
        return {x.client_ids[position]: predictions for position, _, predictions in found}

    def _predictions(
        self, clients: ClientData, batch_size: int | None, examples_alone: bool = False
    ) -> Iterator[tuple[int, tuple[Any, Any], Any]]:
        """Yield position, examples and predictions of each client with examples.

        Args:
            clients: The clients.
            batch_size: The number of examples to predict at a time.
            examples_alone: Whether None is yielded in the place of the predictions.
        """
        waiting: list[tuple[int, int, tuple[Any, Any]]] = []
        for position in range(len(clients)):
            examples = copied(as_arrays(clients.examples_at(position)))
            if num_rows := len(keras.tree.flatten(examples[0])[0]):
                waiting.append((position, num_rows, examples))
            is_last = position == len(clients) - 1
            if waiting and (is_last or sum(rows for _, rows, _ in waiting) >= _MOST_ROWS):
                found = None
                if not examples_alone:
                    inputs = [x for _, _, (x, _) in waiting]
                    joined = keras.tree.map_structure(lambda *each: np.concatenate(each), *inputs)
                    found = self.predict(joined, batch_size, verbose=0)
                first = 0
                for place, rows, each in waiting:
                    end = first + rows
                    yield place, each, None if found is None else _rows_of(found, slice(first, end))
                    first = end
                waiting.clear()

    def _scores(self, x: Any, y: Any, predictions: Any) -> dict[str, float]:
        """Return loss and metrics of a client's examples."""
        num_rows = len(keras.tree.flatten(x)[0])
        # Of a few sizes, for each of which JAX compiles the operations.
        size = rounded_up(num_rows)

        def padded(value: Any) -> Any:
            """Return rows with copies of the first one behind them, as a tensor."""
            copies = np.repeat(value[:1], size - num_rows, axis=0)
            return ops.convert_to_tensor(np.concatenate([value, copies]))

        present = ops.arange(size) < num_rows
        x, y, predictions = (
            None if part is None else keras.tree.map_structure(padded, part)
            for part in (x, y, predictions)
        )
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


def _check_clients(clients: Any) -> None:
    """Raise a `TypeError` unless the argument is `ClientData`."""
    if not isinstance(clients, ClientData):
        raise TypeError(
            "Argument `clients` must be `keras_adaclip.federated.ClientData`. "
            f"Received: clients of type {type(clients).__name__}"
        )


def _rows_of(values: Any, rows: slice) -> Any:
    """Return some rows of each array."""
    return keras.tree.map_structure(lambda array: array[rows], values)
