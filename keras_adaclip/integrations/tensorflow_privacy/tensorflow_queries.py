"""Rounds of a sum query of TensorFlow Privacy, as graphs: its state, its records and its noise.

Only the interface that all its queries share (`DPQuery`) is used here. A round is

    params  = derive_sample_params(state)
    sample  = initial_sample_state(); for each client: accumulate(sample, preprocess(params, x_i))
    result, state, event = get_noised_result(sample, state)

Gaussian mechanisms on the same clients are one Gaussian mechanism. With noise multipliers z_k,

    z = (sum_k z_k^-2)^(-1/2)

since each sum, divided by its sensitivity, is a coordinate of one vector that moves by at most
sqrt(K), and scaling each by its noise leaves N(0, I). So the ledger composes, under Poisson
sampling, `PoissonSampledDpEvent(q, ComposedDpEvent([GaussianDpEvent(z_k), ...]))`, as one
`PoissonSampledDpEvent(q, GaussianDpEvent(z))`: exactly, and for every accountant.

Guarantees:
    Every client that is present passes through `preprocess_record` once; one whose contribution is
    not finite does so as zeros. A round whose event has less noise than was stated for it fails
    before anything of it is used. No global seed reaches the noise: with one, TensorFlow would draw
    the same noise in every process, and again after compiling again.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dp_accounting as dp
import keras
import numpy as np

# Release 0.9.0 would also import its Keras parts, which need an older Keras.
sys.skip_tf_privacy_import = True  # type: ignore[attr-defined]
try:
    import tensorflow as tf
    from tensorflow_privacy.privacy.dp_query.gaussian_query import GaussianSumQuery
    from tensorflow_privacy.privacy.dp_query.nested_query import NestedSumQuery
    from tensorflow_privacy.privacy.dp_query.quantile_adaptive_clip_sum_query import (
        QuantileAdaptiveClipSumQuery,
    )
except ImportError as error:
    raise ImportError(
        "TensorFlow Privacy is needed for `keras_adaclip.integrations.tensorflow_privacy`: "
        "pip install keras-adaclip[tensorflow,tensorflow-privacy], on Python 3.11, in an "
        "environment of its own, since it pins old releases of NumPy and dp-accounting."
    ) from error

Tensor = Any
# Quotients of float32: what an event says may be off by that much.
_TOLERANCE = 1.0 - 2.0**-17
_TOO_LITTLE_NOISE = (
    "The query's noise over its sensitivity has fallen below what the ledger counts in this epoch, "
    "so the round was not used. If it is not a number, the clipping norm has reached zero. Else "
    "give `fit` fewer `steps_per_epoch`. Noise of this round, and counted:"
)


@dataclass(frozen=True)
class QuerySample:
    """The sum over the clients of one round, before the noise.

    Args:
        tensors: The query's sample state.
    """

    tensors: list[Tensor]


class QueryRounds:
    """The rounds of one query.

    Args:
        query: A sum query.

    Attributes:
        variables: The query's global state, after `build`.
        accumulated: `_accumulated` in a graph.
        finished: `_finished` in a graph.
        sample: Wraps the sample state of all clients of a round.

    Raises:
        TypeError: If the query is not one of those that are supported.
    """

    sample = QuerySample

    def __init__(self, query: Any) -> None:
        if not isinstance(query, (GaussianSumQuery, NestedSumQuery, QuantileAdaptiveClipSumQuery)):
            raise TypeError(
                "Argument `query` must be a `GaussianSumQuery` or `QuantileAdaptiveClipSumQuery` "
                "of TensorFlow Privacy, a `NestedSumQuery` of these, or a function without "
                "arguments that returns one. For a mean (`NormalizedQuery`) give the query of its "
                "sum, which is divided by the expected number of clients. Noise that is summed "
                f"over a tree is not supported. Received: query={query!r}"
            )
        self.query = query
        self.accumulated = _without_global_seed(self._accumulated)
        self.finished = _without_global_seed(self._finished)
        self._try = _without_global_seed(lambda: self._released(self.start())[2])

    def build(
        self,
        shapes: list[tuple[int, ...]],
        add_variable: Callable[[str, np.ndarray], keras.Variable],
    ) -> None:
        """Make the query's state, and trace a round of it.

        Args:
            shapes: The shapes of the trainable variables; a record is a list of as many tensors.
            add_variable: Creates a variable of the optimizer from a name and an array.

        Raises:
            ValueError: If the query's result is not like a record, its noise has a seed, or its
                event is not a Gaussian mechanism.
        """
        if tf.config.functions_run_eagerly():
            raise ValueError(
                "The noise of a query needs `tf.function`, outside of which a global seed would "
                "reach it. Call `tf.config.run_functions_eagerly(False)`; "
                "`compile(run_eagerly=True)` is fine."
            )
        query = self.query
        unlike_a_record = ValueError(
            "The query must take and return a list of tensors like the trainable variables, of the "
            f"shapes {shapes}. A `NestedSumQuery` needs a list of {len(shapes)} queries."
        )
        try:
            self._no_client = query.initial_sample_state([tf.zeros(shape) for shape in shapes])
        except (TypeError, ValueError) as error:
            raise unlike_a_record from error
        self._first_state = query.initial_global_state()
        self.variables = [
            add_variable(f"query_state_{number}", np.asarray(value))
            for number, value in enumerate(tf.nest.flatten(self._first_state))
        ]
        clients = [tf.TensorSpec((1, *shape)) for shape in shapes], tf.TensorSpec((1,), tf.bool)
        finished = self.finished.get_concrete_function(self.start(), tf.TensorSpec(()))
        if [tuple(shape) for shape in finished.output_shapes] != shapes:
            raise unlike_a_record
        _refuse_seeds(self.accumulated.get_concrete_function(self.start(), *clients), query)
        _refuse_seeds(finished, query)

    def start(self) -> list[Tensor]:
        """Return the sample state of no client."""
        return [tf.identity(value) for value in tf.nest.flatten(self._no_client)]

    def noise_multiplier(self) -> float:
        """Return the noise multiplier of the next round."""
        return float(self._try())

    def metrics(self) -> dict[str, float]:
        """Return the query's metrics, such as its clipping norm, by name."""
        metrics = self.query.derive_metrics(self._state())
        return {str(name): float(value) for name, value in metrics.items()}

    def _state(self) -> Any:
        """Return the query's global state, in its own structure."""
        values = [tf.convert_to_tensor(variable.value) for variable in self.variables]
        return tf.nest.pack_sequence_as(self._first_state, values)

    def _accumulated(
        self, sample: list[Tensor], deltas: list[Tensor], present: Tensor
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """Return the sample state with some more clients.

        Args:
            sample: The sample state so far.
            deltas: One tensor of shape `(num_clients, *variable.shape)` for each variable.
            present: Bool of shape `(num_clients,)`, false for padding.

        Returns:
            The sample state; norms of shape `(num_clients, 1)`, zero where not finite; whether
            each client is present and finite, of shape `(num_clients,)`.
        """
        squares = [tf.reduce_sum(tf.square(each), range(1, len(each.shape))) for each in deltas]
        norms = tf.sqrt(tf.add_n(squares))
        finite = tf.math.is_finite(norms)
        params = self.query.derive_sample_params(self._state())

        def with_client(sample: list[Tensor], client: list[Tensor]) -> list[Tensor]:
            """Return the sample state with one more client."""
            *record, is_finite = client
            record = [tf.where(is_finite, part, 0.0) for part in record]
            state = tf.nest.pack_sequence_as(self._no_client, sample)
            preprocessed = self.query.preprocess_record(params, record)
            return tf.nest.flatten(self.query.accumulate_preprocessed_record(state, preprocessed))

        clients = [tf.boolean_mask(each, present) for each in [*deltas, finite]]
        sample = tf.foldl(with_client, clients, sample, parallel_iterations=1)
        return sample, tf.where(finite, norms, 0.0)[:, None], tf.logical_and(finite, present)

    def _finished(self, sample: list[Tensor], stated_noise: Tensor) -> list[Tensor]:
        """Return the query's result for a round, and move its state on.

        Args:
            sample: The sample state of all clients of the round.
            stated_noise: Float32 scalar, the noise multiplier that is accounted.

        Returns:
            Tensors of the shapes of the variables.
        """
        result, state, noise = self._released(sample)
        # Not a number is not enough either.
        is_enough = _TOLERANCE * noise >= stated_noise
        message = [_TOO_LITTLE_NOISE, noise, stated_noise]
        with tf.control_dependencies([tf.debugging.Assert(is_enough, message)]):
            for variable, value in zip(self.variables, state, strict=True):
                variable.assign(tf.identity(value))
            return [tf.identity(value) for value in result]

    def _released(self, sample: list[Tensor]) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Return the query's result, its next state, and its noise multiplier."""
        sample = tf.nest.pack_sequence_as(self._no_client, sample)
        result, state, event = self.query.get_noised_result(sample, self._state())
        noise = tf.cast(tf.math.rsqrt(_precision(event)), tf.float32)
        return tf.nest.flatten(result), tf.nest.flatten(state), noise


def _precision(event: Any) -> Tensor:
    """Return z^-2 of a round's event, in float64, where no square overflows.

    Raises:
        ValueError: If the event is not known to be a Gaussian mechanism.
    """
    if isinstance(event, dp.ComposedDpEvent):
        return sum(map(_precision, event.events), tf.zeros((), tf.float64))
    if isinstance(event, dp.GaussianDpEvent):
        return 1.0 / tf.square(tf.cast(event.noise_multiplier, tf.float64))
    raise ValueError(
        "A round of the query is not a Gaussian mechanism, which alone is accounted here. Give a "
        "query of `GaussianSumQuery` and `QuantileAdaptiveClipSumQuery` alone, or use "
        f"`DPOptimizer`. Received: {event}"
    )


def _without_global_seed(function: Callable[..., Any]) -> Any:
    """Return a function in a graph whose random operations are seeded by the operating system."""

    def traced(*arguments: Any) -> Any:
        """Trace the function."""
        tf.compat.v1.get_default_graph().seed = None
        return function(*arguments)

    return tf.function(traced, autograph=False)


def _refuse_seeds(traced: Any, query: Any) -> None:
    """Raise a `ValueError` if a random operation of a graph has a fixed seed."""
    graph = traced.graph.as_graph_def()
    functions = [function.node_def for function in graph.library.function]
    for node in (node for nodes in [graph.node, *functions] for node in nodes):
        if any(name in node.attr and node.attr[name].i != 0 for name in ("seed", "seed2")):
            raise ValueError(
                f"The noise of the `{type(query).__name__}` comes from a fixed seed ({node.op}), "
                "so that it would be the same in every process. Give the query no seed."
            )
