"""A sum query of TensorFlow Privacy between the clients of a round and any Keras optimizer.

    update = inner optimizer(result / m),  result from the query, which clips, sums and adds noise

with m the expected number of clients.
"""

from collections.abc import Sequence
from typing import Any, Self

import keras
import numpy as np

from keras_adaclip import noise
from keras_adaclip.accounting import LedgerRow
from keras_adaclip.optimizers import AccountedOptimizer, check_microbatch_size

# The ledger states a little less noise than the event, whose float32 numbers have rounding errors.
# Changes of their last digits are no reason for a new row.
_MARGIN, _LOWEST, _HIGHEST = 1.0 - 2.0**-16, 1.0 - 2.0**-14, 1.0 - 2.0**-17


@keras.saving.register_keras_serializable(package="keras_adaclip")
class QueryOptimizer(AccountedOptimizer):
    """Aggregates the rounds of a `FederatedModel` with a sum query of TensorFlow Privacy.

    It replaces `DPOptimizer` in `FederatedModel.compile`, on the TensorFlow backend. A client's
    record is a list of float32 tensors, one for each trainable variable, in their order and with
    their shapes. The result, divided by the expected number of clients, is the server's gradient.

    Args:
        optimizer: Any Keras optimizer for the server: an instance, its name, or its config.
        query: A `GaussianSumQuery`, a `QuantileAdaptiveClipSumQuery`, or a `NestedSumQuery` with a
            list of such queries, one for each trainable variable; or a function without arguments
            that makes one. With a function registered with
            `keras.saving.register_keras_serializable`, `keras.models.load_model` restores the model
            with its optimizer. With a query, compile again after `load_model(compile=False)`, which
            keeps weights and ledger.
        microbatch_size: Number of clients that train at a time; None lets the step decide.
        name: The name of the optimizer.

    Raises:
        ImportError: If TensorFlow Privacy is not installed.
        RuntimeError: On another backend than TensorFlow.
        TypeError: If `query` is not one of these queries, or an argument has the wrong type.
        ValueError: If an argument is out of range; in `fit`, before training, if the query does not
            accept the model's records, its noise has a fixed seed, or a round of it is not a
            Gaussian mechanism.

    Guarantees:
        Each sampled client passes once through the query's `preprocess_record`, as zeros if its
        contribution is not finite, and only the result of `get_noised_result` reaches the weights.
        The ledger counts the event of that call, under the sampling of `fit`, as one Gaussian
        mechanism: with a little less noise than the event had when the epoch began. A round whose
        event has less is not used, and ends training. Clipping and noise are TensorFlow Privacy's
        own and are not checked here: float32 noise from TensorFlow's generator, whose seed has 32
        bits of the operating system for each process. A global seed
        (`keras.utils.set_random_seed`) has no effect on it.

    Example:

    >>> from keras_adaclip.integrations import tensorflow_privacy as queries
    >>> query = queries.GaussianSumQuery(l2_norm_clip=1.0, stddev=1.1)
    >>> queries.QueryOptimizer("sgd", query, microbatch_size=8).microbatch_size
    8

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
        from keras_adaclip.integrations.tensorflow_privacy.tensorflow_queries import QueryRounds

        super().__init__(optimizer, 0.0, name)
        if isinstance(query, dict):
            query = keras.saving.deserialize_keras_object(query)
        if callable(query):
            # A function can be saved, so it is part of the config.
            self.query, query = query, query()
        self.aggregation = QueryRounds(query)
        self.microbatch_size = check_microbatch_size(microbatch_size)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Count the round, and apply the query's result as a gradient.

        Args:
            grads: The sample of a round, from `FederatedModel`'s own step, and nothing else.
            trainable_variables: The variables, in the order of a record.

        Raises:
            ValueError: If `grads` are plain gradients.
        """
        self._refuse_plain_model()
        if not isinstance(grads, self.aggregation.sample) or not self.is_in_a_run:
            raise ValueError(
                "`QueryOptimizer.apply` takes only the sum of the clients in a round of a "
                "`FederatedModel`, inside of `fit`; plain gradients carry no bound on the "
                f"contribution of one client. Received: grads of type {type(grads).__name__}"
            )
        # First: if the rest is interrupted, the round is on the ledger.
        self.account.count_step()
        results = self.aggregation.finished(grads.tensors, self._stated_noise.value)
        gradients = [result / self._divisor.value for result in results]
        self.inner_optimizer.apply(gradients, trainable_variables)

    @property  # type: ignore[misc]
    def noise_multiplier(self) -> float | None:
        """The noise multiplier of the next round; None before the model is built."""
        return self._noise_multiplier_at(0, None) if self.built else None

    @property
    def query_metrics(self) -> dict[str, float]:
        """The query's `derive_metrics`, such as an adaptive norm."""
        return self.aggregation.metrics() if self.built else {}

    @property
    def clip_norm(self) -> float | None:
        """The clipping norm of the next round if the query reports it, else None."""
        return self.query_metrics.get("clip")

    def described(self) -> dict[str, str]:
        """Return how contributions are bounded, and the source of randomness, for a report."""
        return {
            "clipping": f"by the `{type(self.aggregation.query).__name__}` of TensorFlow Privacy",
            "seeds": "noise by TensorFlow Privacy, sampling from the operating system, new for "
            "each run",
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Return the optimizer that `get_config` describes.

        Raises:
            ValueError: If it was given a query instead of a function that makes one.
        """
        if "query" not in config:
            raise ValueError(
                "A query of TensorFlow Privacy cannot be saved. Load the model with "
                "`compile=False`, which keeps weights and privacy ledger, and compile it with a "
                "`QueryOptimizer`. To load all of it, give `QueryOptimizer` a function that makes "
                "the query, registered with `keras.saving.register_keras_serializable`."
            )
        return super().from_config(config, custom_objects)

    def _build_state(self, variables: Sequence[keras.Variable]) -> None:
        """Create key, divisor, stated noise, the state of the query and the ledger."""
        add = self._add_own_variable
        self.aggregation.build([tuple(variable.shape) for variable in variables], add)
        self._key = add("random_key", noise.fresh_key())
        self._divisor = add("divisor", np.ones((), np.float32))
        self._stated_noise = add("stated_noise", np.zeros((), np.float32))
        self._restored_variables = self.aggregation.variables
        self._build_ledger()

    def _noise_multiplier_at(self, step: int, steps_per_epoch: int | None) -> float:
        """Return the noise multiplier to state for the next round, a little below its event's."""
        value = self.aggregation.noise_multiplier()
        if not np.isfinite(value):
            raise ValueError(
                f"The noise of the query over its sensitivity is {value}: its clipping norm has "
                "reached zero, or is not a number. Begin with a new query."
            )
        held = self.open_row.noise_multiplier
        if _LOWEST * value <= held <= _HIGHEST * value:
            return held
        return float(np.float32(_MARGIN * value))

    def _set_noise(self, row: LedgerRow, split: tuple[float, float]) -> None:
        """Set stated noise and divisor to those of the row."""
        self._stated_noise.assign(np.float32(row.noise_multiplier))
        self._divisor.assign(np.float32(row.expected_batch_size))
