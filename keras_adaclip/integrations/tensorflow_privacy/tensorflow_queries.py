"""Rounds of a query of TensorFlow Privacy: its state, its records and its noise, as graphs.

Only the interface that all its queries share (`DPQuery`) is used here. A round is

    params  = derive_sample_params(state)
    sample  = initial_sample_state(); for each client: accumulate(sample, preprocess(params, x_i))
    result, state, event = get_noised_result(sample, state)

Guarantees:
    Every client that is present passes through `preprocess_record` once; one whose contribution is
    not finite does so as zeros. A round whose event has less noise than was stated for it fails
    before anything of it is used. No global seed reaches the noise: with one, TensorFlow would draw
    the same noise in every process, and again after compiling again.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from keras_adaclip.integrations.tensorflow_privacy.tensorflow_packing import Packing

Tensor = Any
# Takes an event and the state before it; returns the noise multiplier, None if unknown.
NoiseOf = Callable[[Any, Any], Tensor | None]

_UNKNOWN = -1.0
# Quotients of float32: what an event says may be off by that much.
_TOLERANCE = 1.0 - 2.0**-17
# The noise of a tree, and sums without noise: anyone who reads these can subtract the noise.
_SECRET_FIELDS = {"tree_state", "previous_tree_noise", "samples_cumulative_sum"}


@dataclass(frozen=True)
class QuerySample:
    """The sum over the clients of one round, before the noise.

    Args:
        tensors: The query's sample state. Only `QueryRounds` makes it.
    """

    tensors: list[Tensor]


class QueryRounds:
    """The rounds of one query.

    Args:
        query: A `DPQuery`.
        noise_of: Returns the noise multiplier of one round.
    """

    def __init__(self, query: Any, noise_of: NoiseOf) -> None:
        self.query = query
        self._noise_of = noise_of

    def build(self, shapes: Sequence[Sequence[int]]) -> None:
        """Make the query's state, and trace a round of it.

        Args:
            shapes: The shapes of the trainable variables; a record is a list of as many tensors.

        Raises:
            ValueError: If the query's result is not like a record, or its noise has a seed.
        """
        if tf.config.functions_run_eagerly():
            raise ValueError(
                "The noise of a query needs `tf.function`, outside of which a global seed would "
                "reach it. Call `tf.config.run_functions_eagerly(False)`; "
                "`compile(run_eagerly=True)` is fine."
            )
        self._template = [tf.zeros(shape) for shape in shapes]
        sample = self.query.initial_sample_state(self._template)
        self._sample = Packing(sample)
        self._empty = self._sample.flat(sample)
        state = self.query.initial_global_state()
        self._state = Packing(state)
        values = self._state.flat(state)
        self._variables = [
            tf.Variable(value, shape=shape, trainable=False)
            for value, shape in zip(values, self._shapes_of_state(values), strict=True)
        ]
        self._accumulate = tf.function(self._accumulated, autograph=False)
        self._finish = tf.function(self._finished, autograph=False)
        self._try = tf.function(
            lambda: self._released(self.start(), self.state)[2], autograph=False
        )
        records = [tf.TensorSpec((1, *shape)) for shape in shapes]
        for concrete in (
            self._accumulate.get_concrete_function(records, tf.TensorSpec((1,), tf.bool)),
            self._finish.get_concrete_function(self._empty, tf.TensorSpec(())),
        ):
            _refuse_seeds(concrete.graph.as_graph_def(), self.query)

    # A round

    def start(self) -> list[Tensor]:
        """Return the sample state of no client."""
        return [tf.identity(value) for value in self._empty]

    def accumulated(
        self, deltas: Sequence[Tensor], present: Tensor
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """Return the sample state of some clients.

        Args:
            deltas: One tensor of shape `(num_clients, *variable.shape)` for each variable.
            present: Bool of shape `(num_clients,)`, false for padding.

        Returns:
            The sample state; norms of shape `(num_clients, 1)`, zero where not finite; whether
            each client is present and finite, of shape `(num_clients,)`.
        """
        sample, norms, finite = self._accumulate(list(deltas), present)
        return list(sample), norms, finite

    def merged(self, one: Sequence[Tensor], other: Sequence[Tensor]) -> list[Tensor]:
        """Return the sample state of the clients of both."""
        return self._sample.flat(
            self.query.merge_sample_states(self._sample.packed(one), self._sample.packed(other))
        )

    def sample(self, tensors: Sequence[Tensor]) -> QuerySample:
        """Return the argument of `finished`."""
        return QuerySample(list(tensors))

    def finished(self, sample: QuerySample, stated_noise: Tensor) -> list[Tensor]:
        """Return the query's result for a round, and move its state on.

        Args:
            sample: The clients of the round.
            stated_noise: Float32 scalar, the noise multiplier that is accounted; 0 for none.

        Returns:
            Float32 tensors of the shapes of the variables.
        """
        return list(self._finish(sample.tensors, stated_noise))

    # The state

    @property
    def state(self) -> Any:
        """The query's global state, in its own structure."""
        return self._state.packed([variable.read_value() for variable in self._variables])

    @state.setter
    def state(self, state: Any) -> None:
        """Set the query's global state."""
        for variable, value in zip(self._variables, self._state.flat(state), strict=True):
            variable.assign(value)

    def noise_multiplier(self) -> float | None:
        """Return the noise multiplier of the next round, None if it is not known."""
        value = float(self._try())
        return None if value == _UNKNOWN else value

    def metrics(self) -> dict[str, float]:
        """Return the query's metrics, such as its clipping norm, by name."""
        metrics = self.query.derive_metrics(self.state)
        return {str(name): float(value) for name, value in metrics.items()}

    def saved(self) -> dict[str, np.ndarray]:
        """Return the state by name, without the fields that reveal the noise."""
        return {
            name: variable.numpy()
            for name, variable in zip(self._state.names, self._variables, strict=True)
            if not _SECRET_FIELDS.intersection(name.split("/"))
        }

    def check(self, values: Mapping[str, Any]) -> None:
        """Raise a `ValueError` unless `values` are the saved state of a query like this one."""
        present = self.saved()
        if set(values) != set(present) or any(
            np.shape(values[name]) != array.shape for name, array in present.items()
        ):
            raise ValueError(
                f"The saved state is not that of a `{type(self.query).__name__}` as it is given "
                f"here. Expected: {sorted(present)}. Received: {sorted(values)}. Compile with the "
                "query that the model was trained with."
            )

    def load(self, values: Mapping[str, Any]) -> None:
        """Assign what `saved` returned and `check` accepts; the rest of the state stays."""
        for name, variable in zip(self._state.names, self._variables, strict=True):
            if name in values:
                variable.assign(tf.cast(np.asarray(values[name]), variable.dtype))

    # Traced functions

    def _accumulated(self, deltas: list[Tensor], present: Tensor) -> Any:
        """Return what `accumulated` returns."""
        squares = [
            tf.reduce_sum(tf.square(delta), axis=list(range(1, len(delta.shape))))
            for delta in deltas
        ]
        norms = tf.sqrt(tf.add_n(squares))
        finite = tf.logical_and(tf.math.is_finite(norms), present)
        deltas = [
            tf.where(tf.reshape(finite, [-1] + [1] * (len(delta.shape) - 1)), delta, 0.0)
            for delta in deltas
        ]
        with _no_global_seed():
            params = self.query.derive_sample_params(self.state)

            def add_client(sample: list[Tensor], client: list[Tensor]) -> list[Tensor]:
                """Return the sample state with one more client, if it is present."""
                *record, is_present = client

                def added() -> list[Tensor]:
                    """Return the sample state with the client."""
                    return self._sample.flat(
                        self.query.accumulate_preprocessed_record(
                            self._sample.packed(sample),
                            self.query.preprocess_record(params, record),
                        )
                    )

                kept = [tf.identity(value) for value in sample]
                return list(tf.cond(is_present, added, lambda: kept))

            sample = tf.foldl(add_client, [*deltas, present], self.start(), parallel_iterations=1)
        return sample, tf.where(finite, norms, 0.0)[:, None], finite

    def _finished(self, sample: list[Tensor], stated_noise: Tensor) -> list[Tensor]:
        """Return what `finished` returns."""
        results, state, noise = self._released(sample, self.state)
        noise = tf.maximum(noise, 0.0)
        # Not a number is not enough either.
        is_enough = tf.logical_or(stated_noise == 0.0, _TOLERANCE * noise >= stated_noise)
        enough = tf.debugging.Assert(is_enough, [_TOO_LITTLE_NOISE, noise, stated_noise])
        # Within a graph; outside of one it has raised already.
        with tf.control_dependencies([] if enough is None else [enough]):
            results = [tf.identity(tf.cast(value, tf.float32)) for value in results]
            for variable, value in zip(self._variables, state, strict=True):
                variable.assign(value)
        return [
            tf.ensure_shape(value, part.shape)
            for value, part in zip(results, self._template, strict=True)
        ]

    def _released(
        self, sample: list[Tensor], state: Any
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Return the query's result, its next state, and its noise multiplier.

        Raises:
            ValueError: If the result is not like a record.
        """
        with _no_global_seed():
            result, new_state, event = self.query.get_noised_result(
                self._sample.packed(sample), state
            )
            noise = self._noise_of(event, state)
        values = [] if isinstance(result, tf.RaggedTensor) else tf.nest.flatten(result)
        if len(values) != len(self._template) or not all(
            part.shape.is_compatible_with(value.shape)
            for part, value in zip(self._template, values, strict=True)
        ):
            raise ValueError(
                f"The result of a `{type(self.query).__name__}` must be like a record: a list of "
                f"tensors of the shapes {[tuple(part.shape) for part in self._template]}, those of "
                f"the trainable variables. Received: {result}"
            )
        noise = tf.constant(_UNKNOWN) if noise is None else tf.cast(noise, tf.float32)
        return values, self._state.flat(new_state), noise

    def _shapes_of_state(self, values: Sequence[Tensor]) -> list[tf.TensorShape]:
        """Return the shapes that the state can take: that of a tree grows."""

        @tf.function(autograph=False)
        def round_of_none() -> list[Tensor]:
            """Return the state after a round."""
            state = self._state.packed([tf.identity(value) for value in values])
            return self._released(self.start(), state)[1]

        later = round_of_none.get_concrete_function().outputs
        return [
            value.shape.most_specific_compatible_shape(after.shape)
            for value, after in zip(values, later, strict=True)
        ]


_TOO_LITTLE_NOISE = (
    "The query's noise over its sensitivity has fallen, within an epoch, below what the privacy "
    "ledger was opened with, so the round was not used. Noise may change between epochs: give "
    "`fit` fewer `steps_per_epoch`. (Not a number: the clipping norm has reached zero.) Of this "
    "round, and stated:"
)


@contextlib.contextmanager
def _no_global_seed() -> Iterator[None]:
    """Let random operations of the traced graph take their seeds from the operating system."""
    graph = tf.compat.v1.get_default_graph()
    seed, graph.seed = graph.seed, None
    try:
        yield
    finally:
        graph.seed = seed


def _refuse_seeds(graph: Any, query: Any) -> None:
    """Raise a `ValueError` if a random operation of a graph has a fixed seed."""
    functions = [function.node_def for function in graph.library.function]
    for node in (node for nodes in [graph.node, *functions] for node in nodes):
        if any(name in node.attr and node.attr[name].i != 0 for name in ("seed", "seed2")):
            raise ValueError(
                f"The noise of the `{type(query).__name__}` comes from a fixed seed "
                f"({node.op}), so that it would be the same in every process. Give the query no "
                "seed; if it was called before under `tf.random.set_seed` or "
                "`keras.utils.set_random_seed`, train in a fresh process."
            )
