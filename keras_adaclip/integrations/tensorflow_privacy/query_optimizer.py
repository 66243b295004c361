"""A query of TensorFlow Privacy between the clients of a round and any Keras optimizer.

    update = inner optimizer(result / m),  result from the query, which clips, sums and adds noise

with m the expected number of clients, unless the query's result is a mean.
"""

from typing import Any, Self

import keras
import numpy as np

from keras_adaclip.integrations.tensorflow_privacy import trees
from keras_adaclip.integrations.tensorflow_privacy.library import is_instance, library_class
from keras_adaclip.integrations.tensorflow_privacy.query_accounting import QueryAccounting
from keras_adaclip.optimizers import check_microbatch_size

_QUERY_PREFIX = "query."
_CLIP_METRICS = ("clip", "current_clip", "tree_agg_dpftrl_clip")


@keras.saving.register_keras_serializable(package="keras_adaclip")
class QueryOptimizer(QueryAccounting):
    """Aggregates the rounds of a `FederatedModel` with a query of TensorFlow Privacy.

    It replaces `DPOptimizer` in `FederatedModel.compile`, on the TensorFlow backend. A client's
    record is a list of float32 tensors, one for each trainable variable, in their order and with
    their shapes; `record_specs`, or the parts of a `NestedQuery`, must match it.

    Args:
        optimizer: Any Keras optimizer for the server: an instance, its name, or its config.
        query: A `tensorflow_privacy.DPQuery`, or a function without arguments that makes one. With
            a function registered with `keras.saving.register_keras_serializable`,
            `keras.models.load_model` restores the model with its optimizer. With a query, compile
            again after `load_model(compile=False)`, which keeps weights and ledger.
        microbatch_size: Number of clients that train at a time; None lets the step decide.
        name: The name of the optimizer.

    Raises:
        ImportError: If TensorFlow Privacy is not installed.
        RuntimeError: On another backend than TensorFlow.
        TypeError: If `query` is not a `DPQuery`, or an argument has the wrong type.
        ValueError: If an argument is out of range, or the query cannot aggregate rounds; in `fit`,
            before training, if the query does not accept the model's records or its noise has a
            fixed seed.

    Guarantees:
        Each sampled client passes once through the query's `preprocess_record`, as zeros if its
        contribution is not finite, and only the result of `get_noised_result` reaches the weights.
        The ledger counts the event of that call, under the sampling of `fit`: Gaussian events (also
        composed ones) as one Gaussian mechanism; residuals of trees, with `sampling="shuffle"`, as
        one for each pass, with the trees restarted at the start of a pass; every other event as a
        release without noise, epsilon infinite, with a warning. Clipping and noise are TensorFlow
        Privacy's own and are not checked here: float32 noise from TensorFlow's generator, whose
        seed has 32 bits of the operating system for each process. A global seed
        (`keras.utils.set_random_seed`) has no effect on it. The query's state is saved with the
        model, except for the noise of trees, which must stay secret.

    Reference:
        McMahan and Andrew 2018, "A general approach to adding differential privacy to iterative
        training procedures".
    """

    diagnostics = ("gradient_norm",)
    # Queries do not report it.
    unclipped_fraction = None
    _plain_model_message = (
        "A `QueryOptimizer` was given to a model that does not know the client of each example, so "
        "training would not be private. Use it with `keras_adaclip.FederatedModel`, or "
        "`keras_adaclip.federate(model)`."
    )

    def __init__(
        self,
        optimizer: Any,
        query: Any,
        *,
        microbatch_size: int | None = None,
        name: str | None = None,
    ) -> None:
        if keras.backend.backend() != "tensorflow":
            raise RuntimeError(
                "The queries of TensorFlow Privacy run on TensorFlow: set the environment variable "
                "KERAS_BACKEND=tensorflow before Keras is imported, or use "
                "`keras_adaclip.optimizers.DPOptimizer`, which runs on each backend. "
                f"Received: backend={keras.backend.backend()!r}"
            )
        super().__init__(optimizer, _check_query(query), name)
        self._given_query = query
        self.microbatch_size = check_microbatch_size(microbatch_size)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Count the round, and apply the query's result as a gradient.

        Args:
            grads: The sample of a round, from `FederatedModel`'s own step, and nothing else.
            trainable_variables: The variables, in the order of a record.

        Raises:
            ValueError: If `grads` are plain gradients.
        """
        from keras_adaclip.integrations.tensorflow_privacy.tensorflow_queries import QuerySample

        self._refuse_plain_model()
        if not isinstance(grads, QuerySample) or not self.is_in_a_run:
            raise ValueError(
                "`QueryOptimizer.apply` takes only the sum of the clients in a round of a "
                "`FederatedModel`, inside of `fit`; plain gradients carry no bound on the "
                f"contribution of one client. Received: grads of type {type(grads).__name__}"
            )
        # First: if the rest is interrupted, the round is on the ledger.
        self._ledger.count_step()
        results = self._rounds.finished(grads, self._stated_noise.value)
        gradients = [result / self._divisor.value for result in results]
        self.inner_optimizer.apply(gradients, trainable_variables)

    # Read-outs

    @property
    def query_metrics(self) -> dict[str, float]:
        """The query's `derive_metrics`, such as an adaptive norm."""
        return self._rounds.metrics() if self.built else {}

    @property
    def clip_norm(self) -> float | None:
        """The clipping norm of the next round if the query reports it, else None."""
        metrics = self.query_metrics
        return next((metrics[name] for name in _CLIP_METRICS if name in metrics), None)

    # Saving

    def save_own_variables(self, store: Any) -> None:
        """Store all variables but the key, and the query's state but the noise of trees."""
        super().save_own_variables(store)
        for name, value in (self._rounds.saved() if self.built else {}).items():
            store[_QUERY_PREFIX + name.replace("/", ".")] = value

    def load_own_variables(self, store: Any) -> None:
        """Load ledger and the state of query and inner optimizer; never lower the ledger.

        Raises:
            ValueError: If the stored state is not that of this optimizer and query.
        """
        arrays = {name: np.asarray(store[name]) for name in store.keys()}  # noqa: SIM118
        state = {
            name.removeprefix(_QUERY_PREFIX).replace(".", "/"): arrays.pop(name)
            for name in [name for name in arrays if name.startswith(_QUERY_PREFIX)]
        }
        is_loaded = self.built and bool(arrays)
        if is_loaded:
            self._rounds.check(state)
        super().load_own_variables(arrays)
        if is_loaded:
            self._rounds.load(state)

    def get_config(self) -> dict[str, Any]:
        """Return every constructor argument under its own name; the query only if a function."""
        is_made = self._given_query is not self._query
        query = keras.saving.serialize_keras_object(self._given_query) if is_made else None
        config = {**super().get_config(), "query": query}
        return {**config, "microbatch_size": self.microbatch_size}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Return the optimizer that `get_config` describes.

        Raises:
            ValueError: If the query was an instance, which cannot be saved.
        """
        if config["query"] is None:
            raise ValueError(
                "The model was saved with a query of TensorFlow Privacy, which cannot be saved. "
                "Load it with `compile=False`, which keeps weights and privacy ledger, and "
                "compile it with a `QueryOptimizer`. To load all of it, give `QueryOptimizer` a "
                "function that makes the query, registered with "
                "`keras.saving.register_keras_serializable`."
            )
        # Only version 0.1 has `clip_norm`.
        kept = {name: value for name, value in config.items() if name != "clip_norm"}
        kept["query"] = keras.saving.deserialize_keras_object(kept["query"], custom_objects)
        return super().from_config(kept, custom_objects)


def _check_query(given: Any) -> Any:
    """Return the query that a user has given, or that the given function makes.

    Raises:
        TypeError: If it is not a query.
        ValueError: If its results cannot be used as those of a round.
    """
    base = library_class("DPQuery")
    query = given if isinstance(given, base) or not callable(given) else given()
    if not isinstance(query, base):
        raise TypeError(
            "Argument `query` must be a `DPQuery` of TensorFlow Privacy, or a function without "
            f"arguments that returns one. Received: query={query!r}"
        )
    inner = trees.unwrapped(query)
    if is_instance(inner, "TreeCumulativeSumQuery", "QAdaClipTreeResSumQuery"):
        raise ValueError(
            f"A `{type(inner).__name__}` is not supported: its results are sums of all rounds so "
            "far, or its clipping norm changes with its tree. Use a `TreeResidualSumQuery`."
        )
    trees.refuse_seed(query)
    return query
