"""What one client contributes: the server's weights less those that it trains to.

    w <- server's weights
    for each local batch:  w <- client optimizer(w, gradient of the mean loss + mu (w - server's))
    contribution = server's weights - w

Each client begins with the server's weights and a fresh optimizer, and meets no other client. Minus
the mean contribution is the mean of the changes, so the server's optimizer takes the contribution
for a gradient (Reddi et al. 2021, "Adaptive federated optimization"). With `mu > 0` it is FedProx
(Li et al. 2020, "Federated optimization in heterogeneous networks").
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.federated.client_batch import ClientBatch, LocalBatch
from keras_adaclip.federated.local_step import LocalStep, with_rows_masked
from keras_adaclip.gradients import call_model

Tensor = Any
# Draws of random numbers in one local step stay below this, so that no two steps share any.
_DRAWS_OF_A_STEP = 4096


@dataclass(frozen=True)
class LocalTraining:
    """How each client trains.

    Args:
        model: a compiled and built model.
        optimizer: the clients' optimizer, a `functional_optimizer` that was built.
        proximal_strength: mu of FedProx, 0 for none.
        is_vectorized: whether the clients of a chunk train side by side; otherwise one after
            another, and a chunk holds one client where the backend does not loop in Python.
        quicker_calls: for some layers, what does the same as their `call` in less time.
        recording: repeats local steps where Python's part of them counts; None runs each anew.
    """

    model: keras.Model
    optimizer: Any
    proximal_strength: float
    is_vectorized: bool
    quicker_calls: Mapping[keras.layers.Layer, Callable[..., Any]] = field(default_factory=dict)
    recording: backend.Recording | None = None

    def contributions(
        self,
        clients: ClientBatch,
        seed: Tensor | None,
        observe: Callable[[LocalStep], None],
    ) -> list[Tensor]:
        """Trains the clients of a chunk.

        Args:
            clients: their data.
            seed: two integers for the layers' random numbers, which are this round's and this
                chunk's alone; None for a model that draws none.
            observe: is shown every local step, and may assign metrics.

        Returns:
            The server's weights less each client's, float32 of shape `(num_clients, ...)`, one for
            each trainable variable.
        """
        num_clients, leaves = clients.num_clients, clients.leaves
        seeds = self._seeds_of_clients(seed, num_clients)
        changing = [*self.model.non_trainable_variables, *self.model.metrics_variables]
        in_python = backend.loops_in_python() and not self.is_vectorized

        def trained(leaves: list[Tensor], seeds: list[Tensor], num_steps: Any) -> list[Tensor]:
            return self._trained(clients, leaves, seeds, num_steps, changing, observe)

        if in_python and num_clients > 1:
            singles = [
                trained(_one_of(leaves, number), _one_of(seeds, number), num_steps)
                for number, num_steps in enumerate(ops.convert_to_numpy(clients.num_steps))
            ]
            weights = [ops.concatenate(parts, axis=0) for parts in zip(*singles, strict=True)]
        else:
            weights = trained(leaves, seeds, clients.most_steps)
        return [
            ops.cast(variable.value, "float32") - ops.cast(after, "float32")
            for variable, after in zip(self.model.trainable_variables, weights, strict=True)
        ]

    def _trained(
        self,
        clients: ClientBatch,
        leaves: list[Tensor],
        seeds: list[Tensor],
        num_steps: Any,
        changing: list[keras.Variable],
        observe: Callable[[LocalStep], None],
    ) -> list[Tensor]:
        """Trains clients side by side, or a single one.

        Args:
            clients: of the same structure as these.
            leaves: their data.
            seeds: for each seed generator, a state of each client.
            num_steps: the largest number of local steps.
            changing: the variables that a step may assign.
            observe: is shown every local step.

        Returns:
            The weights of each client, of shape `(num_clients, ...)`.
        """
        server = [variable.value for variable in self.model.trainable_variables]
        own = [*server, *(variable.value for variable in self.optimizer.variables)]
        if self.is_vectorized:
            num_clients = ops.shape(leaves[0])[0]
            own = [_repeated(value, num_clients) for value in own]

        def one_step(number: Tensor, carry: list[Tensor]) -> list[Tensor]:
            number = ops.convert_to_tensor(number, "int32")
            parts = [carry[: len(own)], carry[len(own) :], server, seeds, leaves, [number]]

            def observed_step(values: list[Tensor]) -> list[Tensor]:
                """The step as a function of all that it reads."""
                own, read, server, seeds, leaves, (number,) = _split(values, parts)
                batch = clients.with_leaves(leaves).local_batch(number)
                moved = [self._moved(state, number) for state in seeds]
                with keras.StatelessScope(list(zip(changing, read, strict=True))) as scope:
                    own, observed = self._step(own, server, batch, moved)
                    observe(observed)
                    return [*own, *(scope.get_current_value(each) for each in changing)]

            values = [value for part in parts for value in part]
            if self.recording is None or seeds:  # a record would repeat its random numbers
                return observed_step(values)
            return self.recording.call(observed_step, values)

        carry = [*own, *(ops.convert_to_tensor(variable) for variable in changing)]
        carry = backend.loop_over_chunks(
            one_step, carry, num_steps, [], self.model.trainable_variables
        )
        # Assigned once: in Keras that costs more than a small operation does.
        for variable, value in zip(changing, carry[len(own) :], strict=True):
            variable.assign(value)
        weights = carry[: len(server)]
        return weights if self.is_vectorized else [ops.expand_dims(value, 0) for value in weights]

    def _step(
        self,
        carry: list[Tensor],
        server: list[Tensor],
        batch: LocalBatch,
        seeds: list[Tensor],
    ) -> tuple[list[Tensor], LocalStep]:
        """One local step of every client of the chunk.

        Args:
            carry: the clients' weights, then the variables of their optimizers; of a single client
                without the axis of clients, which would make XLA copy them in every step.
            server: the server's weights.
            batch: a batch of each client.
            seeds: for each seed generator, a state of each client in this step.
        """
        model, optimizer = self.model, self.optimizer
        trainable = model.trainable_variables
        generators = keras_private.seed_generator_states(model)
        trackers = [
            variable
            for metric in keras_private.output_loss_trackers(model)
            for variable in metric.variables
        ]
        kept = [
            (variable, variable.value)
            for variable in [*model.non_trainable_variables, *model.metrics_variables]
        ]
        kept += [(variable, ops.zeros(variable.shape, variable.dtype)) for variable in trackers]
        of_predictions: list[Any] = []

        def of_client(values: list[Tensor]) -> list[Tensor]:
            values = list(values)
            weights, values = values[: len(trainable)], values[len(trainable) :]
            state, values = values[: len(optimizer.variables)], values[len(optimizer.variables) :]
            states, values = values[: len(generators)], values[len(generators) :]
            x, y, present = batch.packed(values)
            drawn = list(zip(generators, states, strict=True))

            def loss_at(weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
                scope = [*kept, *drawn, *zip(trainable, weights, strict=True)]
                quicker = keras_private.replaced_calls(self.quicker_calls)
                unscaled = keras_private.without_scaling_for_replicas()
                with keras.StatelessScope(scope) as inside, quicker, unscaled:
                    y_pred = call_model(model, x, training=True)
                    y_pred = keras.tree.map_structure(
                        lambda value: with_rows_masked(value, present), y_pred
                    )
                    loss = model.compute_loss(x=x, y=y, y_pred=y_pred, training=True)
                    increments = [inside.get_current_value(variable) for variable in trackers]
                flat = keras.tree.flatten(y_pred)
                masks = [keras_private.mask_of(value) for value in flat]
                of_predictions[:] = [y_pred]
                loss = ops.cast(ops.sum(loss), "float32")
                return loss, [loss, *increments, *flat, *masks]

            gradients, shown = backend.gradients_at(loss_at, weights)
            if self.proximal_strength > 0.0:
                gradients = [
                    gradient + self.proximal_strength * ops.cast(weight - start, gradient.dtype)
                    for gradient, weight, start in zip(gradients, weights, server, strict=True)
                ]
            scope = [
                *zip(trainable, weights, strict=True),
                *zip(optimizer.variables, state, strict=True),
            ]
            with keras.StatelessScope(scope) as updated:
                optimizer.apply(gradients, trainable)
                after = [
                    updated.get_current_value(variable)
                    for variable in [*trainable, *optimizer.variables]
                ]
            if self.is_vectorized:
                # Beside clients with more batches, one that has no further stays as it is. Alone,
                # it takes no further step.
                is_active = ops.any(present)
                pairs = zip(after, [*weights, *state], strict=True)
                after = [ops.where(is_active, new, old) for new, old in pairs]
            return [*after, *shown]

        carry, (losses, *shown) = self._for_each(carry, [*seeds, *batch.leaves], of_client)
        increments, shown = shown[: len(trackers)], shown[len(trackers) :]
        (y_pred,) = of_predictions
        half = len(shown) // 2
        return carry, LocalStep(
            batch,
            losses,
            increments,
            keras.tree.pack_sequence_as(y_pred, shown[:half]),
            shown[half:],
        )

    def _for_each(
        self,
        carry: list[Tensor],
        values: list[Tensor],
        function: Callable[[list[Tensor]], list[Tensor]],
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Applies a function to each client of the chunk.

        Args:
            carry: as `_step` has it.
            values: of the clients, the first axis being theirs.
            function: of both, for one client; what it returns begins with the new `carry`.

        Returns:
            The new `carry`, and the rest of what `function` returned, by client.
        """
        if self.is_vectorized:
            found = backend.map_units(function, [*carry, *values])
            return found[: len(carry)], found[len(carry) :]
        alone = [ops.reshape(value, ops.shape(value)[1:]) for value in values]
        found = function([*carry, *alone])
        return found[: len(carry)], [ops.expand_dims(value, 0) for value in found[len(carry) :]]

    def _seeds_of_clients(self, seed: Tensor | None, num_clients: int) -> list[Tensor]:
        """For each seed generator, a state of each client."""
        if seed is None:
            return []
        numbers = ops.arange(num_clients, dtype="int32")
        seeds = []
        for number, _ in enumerate(keras_private.seed_generator_states(self.model)):
            of_generator = seed + ops.stack(
                [ops.full((), 104_729 * number, "int32"), ops.zeros((), "int32")]
            )
            of_clients = ops.stack([15_485_863 * numbers, ops.zeros_like(numbers)], axis=1)
            seeds.append(of_generator[None] + of_clients)
        return seeds

    def _moved(self, state: Tensor, number: Tensor) -> Tensor:
        """The states as they are at a local step."""
        step = ops.stack([ops.zeros((), "int32"), _DRAWS_OF_A_STEP * ops.cast(number, "int32")])
        (generator, *_) = keras_private.seed_generator_states(self.model)
        return ops.cast(ops.abs(state + step[None]), generator.dtype)


def _one_of(values: list[Tensor], number: int) -> list[Tensor]:
    """One client's part of each."""
    return [value[number : number + 1] for value in values]


def _split(values: list[Tensor], like: list[list[Tensor]]) -> list[list[Tensor]]:
    """Lists as long as those of `like`, from one that holds them one after the other."""
    remaining = iter(values)
    return [[next(remaining) for _ in part] for part in like]


def _repeated(value: Tensor, times: int) -> Tensor:
    """The value `times` times, along a new first axis."""
    repeated = ops.broadcast_to(ops.expand_dims(value, 0), (times, *value.shape))
    return backend.on_all_shards(repeated)
