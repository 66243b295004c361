"""The contribution of a client: the server's weights less those to which it trains them.

    w <- server's weights
    for each local batch:  w <- client optimizer(w, gradient of the mean loss + mu (w - server's))
    contribution = server's weights - w

Each client begins with the server's weights and a fresh optimizer, and meets no other client. Minus
the mean contribution is the mean of the changes, so the server's optimizer takes the contribution
for a gradient (Reddi et al. 2021, "Adaptive federated optimization"). With `mu > 0` this is FedProx
(Li et al. 2020, "Federated optimization in heterogeneous networks").
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients import call_model, tracker_variables

Tensor = Any


@dataclass(frozen=True)
class LocalTraining:
    """The training of each client.

    Args:
        model: A compiled and built model.
        optimizer: The clients' optimizer, a built `functional_optimizer`.
        proximal_strength: mu of FedProx, 0 for none.
        is_vectorized: Whether the clients of a chunk train side by side. Otherwise they train one
            after another; where loops are compiled, a chunk then holds one client.
        fast_calls: Faster equivalents of the `call` of some layers.
        recording: Replays local steps where Python's overhead counts; None runs each again.
        made_from: Whatever decides whether this training must be made again.
    """

    model: keras.Model
    optimizer: Any
    proximal_strength: float
    is_vectorized: bool
    fast_calls: Mapping[keras.Layer, Callable[..., Any]]
    recording: backend.Recording | None
    made_from: Any = None

    def contributions(self, clients: dict[str, Any], observe: Callable[..., None]) -> list[Tensor]:
        """Return the contributions of a chunk of clients.

        Args:
            clients: Their part of a batch of `CohortBatches`.
            observe: Is called in every local step, with the batch and what `_loss` returns
                of all clients; may assign metrics.

        Returns:
            The server's weights less each client's, float32 of shape `(num_clients, ...)`, one for
            each trainable variable.
        """
        if self.is_vectorized or not backend.loops_in_python():
            return self._contributions(clients, observe)
        flat = keras.tree.flatten(clients)
        found = [
            self._contributions(
                keras.tree.pack_sequence_as(clients, [value[row : row + 1] for value in flat]),
                observe,
            )
            for row in range(len(clients["num_steps"]))
        ]
        return found[0] if len(found) == 1 else [*map(ops.concatenate, zip(*found, strict=True))]

    def _contributions(self, clients: dict[str, Any], observe: Callable[..., None]) -> list[Tensor]:
        """Return the contributions of clients side by side, or of one client."""
        model = self.model
        changing = [*model.non_trainable_variables, *model.metrics_variables]
        server = [variable.value for variable in model.trainable_variables]
        own = [*server, *(variable.value for variable in self.optimizer.variables)]
        if self.is_vectorized:
            num_clients = ops.shape(clients["num_steps"])[0]
            own = [_repeated(value, num_clients) for value in own]

        structure = [own, changing, server, clients, 0]
        of_clients = keras.tree.flatten(clients)

        def observed_step(values: list[Tensor]) -> list[Tensor]:
            """Return the new carry as a function of everything that the step reads."""
            own, read, server, clients, number = keras.tree.pack_sequence_as(structure, values)
            with keras.StatelessScope(list(zip(changing, read, strict=True))) as scope:
                batch = local_batch(clients, number)
                own, *observed = self._step(own, server, batch)
                observe(batch, *observed)
                return [*own, *(scope.get_current_value(each) for each in changing)]

        def one_step(number: Tensor, carry: list[Tensor]) -> list[Tensor]:
            """Take one local step."""
            number = ops.convert_to_tensor(number, "int32")
            values = [*carry, *server, *of_clients, number]
            if self.recording is None or "seeds" in clients:
                return observed_step(values)  # A record would repeat its random numbers.
            return self.recording.call(observed_step, values)

        carry = [*own, *(ops.convert_to_tensor(variable) for variable in changing)]
        num_steps = ops.max(clients["num_steps"])
        carry = backend.loop_over_chunks(one_step, carry, num_steps, [], model.trainable_variables)
        # Assigned once: in Keras an assignment costs more than a small operation.
        for variable, value in zip(changing, carry[len(own) :], strict=True):
            variable.assign(value)
        weights = carry[: len(server)]
        if not self.is_vectorized:
            weights = [ops.expand_dims(value, 0) for value in weights]
        return [
            ops.cast(before, "float32") - ops.cast(after, "float32")
            for before, after in zip(server, weights, strict=True)
        ]

    def _step(self, carry: list[Tensor], server: list[Tensor], batch: dict[str, Any]) -> list[Any]:
        """Take one local step with every client of the chunk.

        Args:
            carry: The clients' weights, then the variables of their optimizers. Those of a single
                client have no axis of clients, which would make XLA copy them in every step.
            server: The server's weights.
            batch: A batch of each client.

        Returns:
            The new carry, and of all clients what `_loss` returns of one.
        """
        num_weights = len(server)
        shown: list[Any] = []

        def of_client(values: list[Tensor]) -> list[Tensor]:
            """Return the client's new part of the carry, and what its metrics need."""
            own, client = keras.tree.pack_sequence_as((carry, batch), values)
            weights, state = own[:num_weights], own[num_weights:]

            def loss_at(weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
                """Return the loss, and what the metrics need."""
                loss, *observed = self._loss(weights, client)
                shown[:] = [loss, *observed]
                return loss, keras.tree.flatten(shown)

            gradients, observed = backend.gradients_at(loss_at, weights)
            if self.proximal_strength > 0.0:
                gradients = [
                    gradient + self.proximal_strength * ops.cast(weight - start, gradient.dtype)
                    for gradient, weight, start in zip(gradients, weights, server, strict=True)
                ]
            after = self._updated(weights, state, gradients)
            if self.is_vectorized:
                # A client without further batches keeps its weights while others train. Alone, it
                # takes no further step.
                is_active = ops.any(client["present"])
                pairs = zip(after, own, strict=True)
                after = [ops.where(is_active, new, old) for new, old in pairs]
            return [*after, *observed]

        if self.is_vectorized:
            found = backend.map_units(of_client, keras.tree.flatten((carry, batch)))
        else:
            alone = keras.tree.map_structure(lambda v: ops.reshape(v, ops.shape(v)[1:]), batch)
            found = of_client(keras.tree.flatten((carry, alone)))
            found[len(carry) :] = [ops.expand_dims(value, 0) for value in found[len(carry) :]]
        return [found[: len(carry)], *keras.tree.pack_sequence_as(shown, found[len(carry) :])]

    def _loss(
        self, weights: Sequence[Tensor], client: dict[str, Any]
    ) -> tuple[Tensor, list[Tensor], Any, list[Tensor]]:
        """Return the loss of a client's batch, increments of trackers, predictions and masks."""
        model = self.model
        generators = keras_private.seed_generator_states(model)
        trackers = tracker_variables(model)
        kept = [*model.non_trainable_variables, *model.metrics_variables]
        scope = [
            *((variable, variable.value) for variable in kept),
            *((variable, ops.zeros(variable.shape, variable.dtype)) for variable in trackers),
            *(
                (generator, ops.cast(client["seeds"][number], generator.dtype))
                for number, generator in enumerate(generators)
            ),
            *zip(model.trainable_variables, weights, strict=True),
        ]
        quicker = keras_private.replaced_calls(self.fast_calls)
        unscaled = keras_private.without_scaling_for_replicas()
        with keras.StatelessScope(scope) as inside, quicker, unscaled:
            y_pred = keras.tree.map_structure(
                lambda value: with_rows_masked(value, client["present"]),
                call_model(model, client["x"], training=True),
            )
            loss = model.compute_loss(
                x=client["x"], y=client.get("y"), y_pred=y_pred, training=True
            )
            increments = [inside.get_current_value(variable) for variable in trackers]
        masks = [keras_private.mask_of(value) for value in keras.tree.flatten(y_pred)]
        return ops.cast(ops.sum(loss), "float32"), increments, y_pred, masks

    def _updated(
        self, weights: list[Tensor], state: list[Tensor], gradients: list[Tensor]
    ) -> list[Tensor]:
        """Return a client's weights and the variables of its optimizer after an update."""
        variables = [*self.model.trainable_variables, *self.optimizer.variables]
        scope = list(zip(variables, [*weights, *state], strict=True))
        with keras.StatelessScope(scope) as updated:
            self.optimizer.apply(gradients, self.model.trainable_variables)
            return [updated.get_current_value(variable) for variable in variables]


def local_batch(clients: dict[str, Any], number: Tensor) -> dict[str, Any]:
    """Return the batch of each client at one local step.

    Args:
        clients: Clients as in a batch of `CohortBatches`.
        number: The number of the local step.

    Returns:
        `x` and `y` of shape `(num_clients, batch_size, ...)`, the mask `present` of shape
        `(num_clients, batch_size)`, and the `seeds` of the step.
    """
    num_clients, _, batch_size = ops.shape(clients["order"])
    rows = ops.reshape(ops.take(clients["order"], number, axis=1), (num_clients, batch_size))
    is_active = ops.expand_dims(number < clients["num_steps"], 1)
    present = ops.logical_and(rows >= 0, is_active)
    rows = ops.maximum(rows, 0)

    def take(value: Tensor) -> Tensor:
        """Return the rows of the batch."""
        num_rows, *shape = ops.shape(value)[1:]
        places = rows + ops.expand_dims(ops.arange(num_clients, dtype="int32"), 1) * num_rows
        return ops.take(ops.reshape(value, (num_clients * num_rows, *shape)), places, axis=0)

    parts = {name: clients[name] for name in ("x", "y") if name in clients}
    batch = {**keras.tree.map_structure(take, parts), "present": present}
    if "seeds" in clients:
        seeds = ops.take(clients["seeds"], number, axis=1)
        batch["seeds"] = ops.reshape(seeds, (num_clients, *clients["seeds"].shape[2:]))
    return batch


def with_rows_masked(value: Tensor, present: Tensor) -> Tensor:
    """Return predictions whose mask is false for the rows that hold no example.

    The mask has the shape of a loss of the predictions: all axes but the last.

    Args:
        value: Predictions of shape `(batch_size, ...)`.
        present: Bool of shape `(batch_size,)`.
    """
    mask = keras_private.mask_of(value)
    if mask is None:
        mask = ops.ones_like(value[..., 0] if len(value.shape) > 1 else value, dtype="bool")
    trailing = (1,) * (len(mask.shape) - 1)
    present = ops.reshape(present, (-1, *trailing))
    return keras_private.attach_mask(value, ops.logical_and(mask, present))


def _repeated(value: Tensor, times: int) -> Tensor:
    """Return the value `times` times, along a new first axis."""
    repeated = ops.broadcast_to(ops.expand_dims(value, 0), (times, *value.shape))
    return backend.on_all_shards(repeated)
