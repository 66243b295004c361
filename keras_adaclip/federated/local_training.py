"""The contribution of a client: the server's weights less those to which it trains them.

    w <- server's weights
    for each local batch:  w <- client optimizer(w, gradient of the mean loss + mu (w - server's))
    contribution = server's weights - w

Each client begins with the server's weights and a fresh optimizer, and meets no other client. Minus
the mean contribution is the mean of the changes, so the server's optimizer takes the contribution
for a gradient (Reddi et al. 2021, "Adaptive federated optimization"). With `mu > 0` this is FedProx
(Li et al. 2020, "Federated optimization in heterogeneous networks").
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_losses, keras_private
from keras_adaclip.examination import ASSIGNED_OUTSIDE, PrivacyIssue, refuse
from keras_adaclip.gradients import Batch, DrawingScope, call_model, tracker_variables

Tensor = Any
# What a batch has for each example.
_TABLES = ("x", "y", "sample_weight")


class LocalTraining:
    """The training of each client.

    Args:
        model: A compiled and built model.
        is_vectorized: Whether clients train side by side, in lanes. Otherwise there is one lane.
        fast_calls: Faster equivalents of the `call` of some layers.
        made_from: Whatever decides whether this training must be made again.

    Attributes:
        recording: Replays local steps where Python's overhead counts; None runs each again.
    """

    def __init__(
        self,
        model: Any,
        is_vectorized: bool,
        fast_calls: Mapping[keras.Layer, Callable[..., Any]],
        made_from: Any,
    ) -> None:
        settings = model.federated_settings
        self.model, self.is_vectorized, self.made_from = model, is_vectorized, made_from
        self.proximal_strength = settings.proximal_strength
        self.recording = None if model.run_eagerly else backend.Recording()
        self._fast_calls = fast_calls
        self._optimizer = keras_private.functional_optimizer(settings.client_optimizer)
        self._optimizer.build(model.trainable_variables)

    def train(
        self,
        cohort: dict[str, Any],
        observe: Callable[..., None],
        start: list[Tensor],
        merged: Callable[..., list[Tensor]],
    ) -> list[Tensor]:
        """Train the clients of a round, and merge their contributions.

        Args:
            cohort: A batch of `CohortBatches`.
            observe: Is called in every local step, with the batch and what `_loss` returns
                of all clients; may assign metrics.
            start: The result of no client at all, tensors of constant shape.
            merged: Takes a result; contributions, that is the server's weights less a client's,
                float32 of shape `(num_lanes, ...)` for each trainable variable; the weights of
                these clients; and whether there is one, both of shape `(num_lanes,)`. Returns the
                result with these clients.
        """
        model = self.model
        cohort = {**cohort, "ends": ops.cast(cohort["ends"], "bool")}
        server = [variable.value for variable in model.trainable_variables]
        fresh = [*server, *(variable.value for variable in self._optimizer.variables)]
        if self.is_vectorized:
            num_lanes = ops.shape(cohort["step"])[0] * ops.shape(cohort["step"])[2]
            fresh = [
                backend.on_all_shards(ops.broadcast_to(value, (num_lanes, *value.shape)))
                for value in fresh
            ]
        # The number of ticks before an event, and before none.
        num_events, until = cohort["num_events"][0], ops.pad(cohort["until"][0], [[1, 0]])
        is_in_python = backend.loops_in_python()
        if is_in_python:
            num_events, until = int(num_events), ops.convert_to_numpy(until).tolist()
        waiting: list[list[Tensor]] = []

        def one_event(event: Any, carry: list[Tensor]) -> list[Tensor]:
            """Train until the event, and merge the contributions of the clients that have ended."""
            own, total = carry[: len(fresh)], carry[len(fresh) :]
            num_ticks = until[event + 1] - until[event]
            own = self._after(own, server, cohort, until[event], num_ticks, observe)
            changes = []
            for before, after in zip(server, own, strict=False):
                after = after if self.is_vectorized else ops.expand_dims(after, 0)
                changes.append(ops.cast(before, "float32") - ops.cast(after, "float32"))
            if is_in_python and not self.is_vectorized:
                # Each event ends one client. Several are merged at once, since operations are slow
                # to call.
                waiting.append(changes)
                if len(waiting) == model._private_state.chunk_size or event == num_events - 1:
                    places = slice(event + 1 - len(waiting), event + 1)
                    weights, ends = (cohort[name][0, places, 0] for name in ("weight", "ends"))
                    changes = [*map(ops.concatenate, zip(*waiting, strict=True))]
                    waiting.clear()
                    total = merged(total, changes, weights, ends)
                return [*fresh, *total]
            ends, weights = (
                ops.reshape(ops.take(cohort[name], event, axis=1), (-1,))
                for name in ("ends", "weight")
            )
            changes = [_where(ends, change, ops.zeros_like(change)) for change in changes]
            total = merged(total, changes, weights, ends)
            # The next client of a lane begins anew. An event may end a client of another process,
            # while this one trains on.
            ended = ends if self.is_vectorized else ends[0]
            own = [_where(ended, new, old) for new, old in zip(fresh, own, strict=True)]
            return [*own, *total]

        changing = [*model.non_trainable_variables, *model.metrics_variables]
        carry = backend.loop_over_chunks(
            one_event, [*fresh, *start], num_events, changing, model.trainable_variables
        )
        return carry[len(fresh) :]

    def _after(
        self,
        own: list[Tensor],
        server: list[Tensor],
        cohort: dict[str, Any],
        first: Any,
        num_ticks: Any,
        observe: Callable[..., None],
    ) -> list[Tensor]:
        """Return weights and optimizer states of all lanes after some ticks.

        Args:
            own: Those before.
            server: The server's weights.
            cohort: A batch of `CohortBatches`.
            first: The first tick.
            num_ticks: The number of ticks.
            observe: See `train`.
        """
        model = self.model
        changing = [*model.non_trainable_variables, *model.metrics_variables]
        structure = [own, changing, server, cohort, 0]
        of_cohort = keras.tree.flatten(cohort)

        def observed_step(values: list[Tensor]) -> list[Tensor]:
            """Return the new carry as a function of everything that the step reads."""
            own, read, server, cohort, tick = keras.tree.pack_sequence_as(structure, values)
            with keras_private.NestedScope(list(zip(changing, read, strict=True))) as scope:
                batch = local_batches(cohort, tick)
                if "y" in batch:
                    given = Batch(None, batch["y"], mask=batch["present"])
                    given = given.without_missing_targets(model._private_state.handles_missing)
                    batch = {**batch, "y": given.y, "present": given.mask}
                own, *observed = self._step(own, server, batch)
                observe(batch, *observed)
                return [*own, *(scope.get_current_value(each) for each in changing)]

        def one_tick(number: Tensor, carry: list[Tensor]) -> list[Tensor]:
            """Take one local step in every lane."""
            tick = ops.convert_to_tensor(first + number, "int32")
            values = [*carry, *server, *of_cohort, tick]
            if self.recording is None or "seeds" in cohort:
                return observed_step(values)  # A record would repeat its random numbers.
            return self.recording.call(observed_step, values)

        carry = [*own, *(ops.convert_to_tensor(variable) for variable in changing)]
        carry = backend.loop_over_chunks(one_tick, carry, num_ticks, [], model.trainable_variables)
        # Assigned once: in Keras an assignment costs more than a small operation.
        for variable, value in zip(changing, carry[len(own) :], strict=True):
            variable.assign(value)
        return carry[: len(own)]

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

            seed = client.get("seeds")
            with contextlib.nullcontext() if seed is None else backend.seeded_outside(seed):
                gradients, observed = backend.gradients_at(loss_at, weights)
            if self.proximal_strength > 0.0:
                gradients = [
                    gradient + self.proximal_strength * ops.cast(weight - start, gradient.dtype)
                    for gradient, weight, start in zip(gradients, weights, server, strict=True)
                ]
            after = self._updated(weights, state, gradients)
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
        trackers = tracker_variables(model)
        # Metrics hold raw sums over other clients: they read as zeros, as trackers begin.
        values = [
            *((each, ops.zeros(each.shape, each.dtype)) for each in model.metrics_variables),
            *((variable, variable.value) for variable in model.non_trainable_variables),
            *zip(model.trainable_variables, weights, strict=True),
        ]
        quicker = keras_private.replaced_calls(self._fast_calls)
        unscaled = keras_losses.without_scaling_for_replicas()
        seed = client.get("seeds")
        scope = keras.StatelessScope(values) if seed is None else DrawingScope(values, seed)
        of_logits = keras_losses.cross_entropies_of_logits(model)
        with scope as inside, quicker, of_logits, unscaled:
            before = [(each, each.value) for each in model.metrics_variables]
            y_pred = keras.tree.map_structure(
                lambda value: with_rows_masked(value, client["present"]),
                call_model(model, client["x"], training=True),
            )
            weights_of_rows = client.get("sample_weight")
            if weights_of_rows is not None:
                # Keras multiplies them by the mask, on PyTorch in place.
                weights_of_rows = weights_of_rows * 1.0
            loss = model.compute_loss(
                x=client["x"],
                y=client.get("y"),
                y_pred=y_pred,
                sample_weight=weights_of_rows,
                training=True,
            )
            increments = [inside.get_current_value(variable) for variable in trackers]
            refuse_lost_updates(model, before)
        masks = [keras_private.mask_of(value) for value in keras.tree.flatten(y_pred)]
        return ops.cast(ops.sum(loss), "float32"), increments, y_pred, masks

    def _updated(
        self, weights: list[Tensor], state: list[Tensor], gradients: list[Tensor]
    ) -> list[Tensor]:
        """Return a client's weights and the variables of its optimizer after an update."""
        variables = [*self.model.trainable_variables, *self._optimizer.variables]
        scope = list(zip(variables, [*weights, *state], strict=True))
        with keras.StatelessScope(scope) as updated:
            self._optimizer.apply(gradients, self.model.trainable_variables)
            return [updated.get_current_value(variable) for variable in variables]


def local_batches(cohort: dict[str, Any], tick: Tensor) -> dict[str, Any]:
    """Return the batch of each lane in one tick.

    Args:
        cohort: A batch of `CohortBatches`.
        tick: The number of the tick.

    Returns:
        `x`, `y` and `sample_weight` of shape `(num_lanes, batch_size, ...)`, the mask `present` of
        shape `(num_lanes, batch_size)`, and the `seeds` of the step.
    """
    steps = ops.take(cohort["step"], tick, axis=1)
    is_active, steps = ops.expand_dims(steps >= 0, -1), ops.maximum(steps, 0)
    rows = _taken(cohort["order"], steps)
    present = _joined(ops.logical_and(rows >= 0, is_active))
    # Padding repeats the first row of the batch: a row of another client could be NaN.
    rows = ops.maximum(ops.where(rows >= 0, rows, rows[..., :1]), 0)
    parts = {name: cohort[name] for name in _TABLES if name in cohort}
    batch = keras.tree.map_structure(lambda table: _joined(_taken(table, rows)), parts)
    if "seeds" in cohort:
        batch["seeds"] = _joined(_taken(cohort["seeds"], steps))
    return {**batch, "present": present}


def _taken(table: Tensor, places: Tensor) -> Tensor:
    """Return rows of each device's table.

    Args:
        table: Of shape `(num_shards, num_rows, ...)`.
        places: Integers of shape `(num_shards, num_lanes, ...)`.
    """
    if backend.num_batch_shards() == 1:
        return ops.expand_dims(ops.take(table[0], places[0], axis=0), 0)
    (found,) = backend.map_units(lambda pair: [ops.take(*pair, axis=0)], [table, places])
    return found


def _joined(value: Tensor) -> Tensor:
    """Return the lanes of all devices along one axis."""
    num_shards, num_lanes, *rest = ops.shape(value)
    return backend.on_all_shards(ops.reshape(value, (num_shards * num_lanes, *rest)))


def _where(kept: Tensor, value: Tensor, other: Tensor) -> Tensor:
    """Return `value` in the lanes that are `kept`, or where `kept` is one bool; else `other`."""
    num_axes = len(kept.shape)
    kept = ops.reshape(kept, (*[-1] * num_axes, *[1] * (len(value.shape) - num_axes)))
    return ops.where(kept, value, other)


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


def refuse_lost_updates(model: keras.Model, before: list[tuple[keras.Variable, Any]]) -> None:
    """Raise for metrics that model or loss have updated in the scope of a client, which ends.

    Args:
        model: The model.
        before: The variables of its metrics, each with its value before.
    """
    kept = set(map(id, tracker_variables(model)))
    assigned = [each for each, value in before if each.value is not value]
    lost = [each for each in assigned if id(each) not in kept]
    refuse(model, [PrivacyIssue(each.path, *ASSIGNED_OUTSIDE) for each in lost])
