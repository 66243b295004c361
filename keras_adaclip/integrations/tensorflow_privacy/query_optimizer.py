"""A query of TensorFlow Privacy between the clients of a round and any Keras optimizer.

    update = inner optimizer(result / m),  result from the query, which clips, sums and noises

with m the expected number of clients, where the query's result is not a mean already.
"""

from collections.abc import Sequence
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend, noise
from keras_adaclip.accounting import check_real
from keras_adaclip.integrations.tensorflow_privacy.checking import (
    checked_query,
    refuse_other_backends,
)
from keras_adaclip.integrations.tensorflow_privacy.integer_records import (
    IntegerRecords,
    needs_integers,
)
from keras_adaclip.integrations.tensorflow_privacy.query_accounting import QueryAccounting
from keras_adaclip.optimizers import (
    checked_inner_optimizer,
    checked_microbatch_size,
    save_arrays,
    saved_arrays,
    with_objects,
)

Tensor = Any
_KEY_OF_QUERY = "query."
_CLIP_METRICS = ("clip", "current_clip", "tree_agg_dpftrl_clip")
_STREAM_OF_AUGMENTATION = 2


@keras.saving.register_keras_serializable(package="keras_adaclip")
class QueryOptimizer(QueryAccounting):
    """Lets a query of TensorFlow Privacy aggregate the rounds of a `FederatedModel`.

    In the place of `DPOptimizer` in `FederatedModel.compile`, on the TensorFlow backend. A client's
    record is a list of float32 tensors, one for each trainable variable and of its shape, in
    their order: what `record_specs`, or the parts of a `NestedQuery`, must match.

    Args:
        optimizer: any Keras optimizer for the server: an instance, its name, or its config.
        query: a `tensorflow_privacy.DPQuery`, or a function without arguments that makes one. A
            function registered with `keras.saving.register_keras_serializable` lets
            `keras.models.load_model` restore the model with its optimizer; with a query, compile
            anew after `load_model(compile=False)`, which keeps weights and ledger.
        clip_norm: positive float, for the queries of integers only (`DiscreteGaussianSumQuery`,
            `DistributedDiscreteGaussianSumQuery`, `DistributedSkellamSumQuery`), which do not clip:
            the L2 norm to which a client's change is clipped, in units of the weights. It is
            then rounded at random to the finest grid on which the query's norm bound holds.
        microbatch_size: number of clients that train at a time; None lets the step decide.
        name: name of the optimizer.

    Raises:
        ImportError: where TensorFlow Privacy is not installed.
        RuntimeError: on another backend than TensorFlow.
        TypeError: where `query` is no `DPQuery`, or an argument is of the wrong type.
        ValueError: where an argument is out of range or does not go with the query; in `fit`,
            before training, where the query does not take the model's records or its noise has a
            fixed seed.

    Guarantees:
        Each client that is drawn passes once through the query's `preprocess_record`, as zeros
        where its contribution is not finite, and only what `get_noised_result` returns touches the
        weights. The event of that call is what the ledger counts, under the sampling of `fit`:
        Gaussian events (also composed ones) as one Gaussian mechanism; residuals of trees, with
        `sampling="shuffle"`, as one a pass, the trees restarted where a pass begins; every other
        event as a release without noise, epsilon infinite, with a warning. The clipping and
        the noise are TensorFlow Privacy's own, and are not checked here: float32 noise from
        TensorFlow's generator, whose seed has 32 bits of the operating system for each process.
        A global seed (`keras.utils.set_random_seed`) does not reach it.
        The query's state is saved with the model, but for the noise of trees, which would
        lay it bare.

    Reference:
        McMahan and Andrew 2018, "A general approach to adding differential privacy to iterative
        training procedures".
    """

    diagnostics = ("gradient_norm",)

    def __init__(
        self,
        optimizer: Any,
        query: Any,
        *,
        clip_norm: float | None = None,
        microbatch_size: int | None = None,
        name: str | None = None,
    ) -> None:
        refuse_other_backends()
        super().__init__(checked_inner_optimizer(optimizer), checked_query(query), name)
        self._given_query = query
        self._clip_norm = _checked_clip_norm(clip_norm, self._query)
        self.microbatch_size = checked_microbatch_size(microbatch_size)

    # Keras's optimizer protocol

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Creates the variables of the inner optimizer, the query's state and the ledger.

        Args:
            variables: the trainable variables.

        Raises:
            ValueError: where no `FederatedModel` was compiled with this optimizer, or the query
                does not go with the variables.
        """
        self._refuse_plain_model()
        if self.built:
            return
        if not self.inner_optimizer.built:
            self.inner_optimizer.build(variables)
        self._build_noise()
        shapes = [tuple(variable.shape) for variable in variables]
        if self._clip_norm is not None:
            num_weights = sum(int(np.prod(shape)) for shape in shapes)
            self._grid = IntegerRecords.of(self._query, self._clip_norm, num_weights)
        self._rounds.build(shapes, self._grid)
        self._build_ledger()
        self._built_for = [id(variable) for variable in variables]
        super().build(variables)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Takes the query's result for a gradient, and counts the round.

        Args:
            grads: the sample of a round, from `FederatedModel`'s own step, and nothing else.
            trainable_variables: the variables, in the order of a record.

        Raises:
            ValueError: where `grads` are plain gradients.
        """
        from keras_adaclip.integrations.tensorflow_privacy.tensorflow_queries import QuerySample

        self._refuse_plain_model()
        if not isinstance(grads, QuerySample) or not self._is_configured:
            raise ValueError(
                "`QueryOptimizer.apply` takes only what the clients of a `FederatedModel`'s round "
                "add up to, inside of `fit`; plain gradients carry no bound on what one client "
                f"contributed. Received: grads of type {type(grads).__name__}"
            )
        # First: whatever interrupts the rest, the round is on the ledger.
        self._ledger.count_step()
        results = self._rounds.finished(grads, self._stated_noise.value)
        gradients = [result / self._divisor.value for result in results]
        self.inner_optimizer.apply(gradients, trainable_variables)

    # What is read out

    @property
    def query_metrics(self) -> dict[str, float]:
        """What the query tells of its state (`derive_metrics`), such as an adaptive norm."""
        return self._rounds.metrics() if self.built else {}

    @property
    def clip_norm(self) -> float | None:
        """The clipping norm of the next round, where the query tells it; else None."""
        metrics = self.query_metrics
        return next((metrics[name] for name in _CLIP_METRICS if name in metrics), self._clip_norm)

    @property
    def unclipped_fraction(self) -> None:
        """Queries do not tell it."""
        return None

    @property
    def augmentation_seed(self) -> Tensor:
        """Two integers, new for each step, for random numbers other than noise."""
        step = ops.cast(self.iterations.value, "int32")
        draw = backend.gaussian((2,), self._key.value, step, _STREAM_OF_AUGMENTATION)
        return ops.cast(ops.abs(draw) * 2.0**24, "int32")

    # Saving

    def save_own_variables(self, store: Any) -> None:
        """Stores all variables but the key, and the query's state but for the noise of trees."""
        save_arrays(store, self.variables, self.secret_variables)
        for name, value in (self._rounds.saved() if self.built else {}).items():
            store[_KEY_OF_QUERY + name.replace("/", ".")] = value

    def load_own_variables(self, store: Any) -> None:
        """Loads ledger, query's and inner optimizer's state; never lowers the ledger.

        Of a model that was saved without an optimizer there is nothing to load.

        Raises:
            ValueError: where what is stored is not of this optimizer and query.
        """
        names = list(store.keys())
        if not names:
            return
        of_query = {name for name in names if name.startswith(_KEY_OF_QUERY)}
        values = saved_arrays(
            {name: store[name] for name in names if name not in of_query},
            self.variables,
            self.name,
        )
        state = {
            name.removeprefix(_KEY_OF_QUERY).replace(".", "/"): np.asarray(store[name])
            for name in of_query
        }
        if self.built:
            self._rounds.check(state)
        self.set_values(values)
        if self.built:
            self._rounds.load(state)

    def get_config(self) -> dict[str, Any]:
        """Every constructor argument under its own name; None for a query that no function made."""
        serialize = keras.saving.serialize_keras_object
        is_made = self._given_query is not self._query
        return {
            "optimizer": serialize(self.inner_optimizer),
            "query": serialize(self._given_query) if is_made else None,
            "clip_norm": self._clip_norm,
            "microbatch_size": self.microbatch_size,
            **super().get_config(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """The optimizer that `get_config` describes.

        Raises:
            ValueError: where the query was an instance, which no file can hold.
        """
        if config["query"] is None:
            raise ValueError(
                "The model was saved with a query of TensorFlow Privacy, which no file can hold. "
                "Load it with `compile=False`, which keeps weights and privacy ledger, and "
                "compile it with a `QueryOptimizer`; to have all of it loaded, give "
                "`QueryOptimizer` a function that makes the query, registered with "
                "`keras.saving.register_keras_serializable`."
            )
        return cls(**with_objects(config, ("query",), custom_objects))

    def _secret_variables(self) -> list[keras.Variable]:
        return [self._key]

    def _restored_variables(self) -> list[keras.Variable]:
        return list(self.inner_optimizer.variables)

    def _renew_secrets(self) -> None:
        self._heeds_seed = False
        self._key.assign(noise.fresh_key())

    def _retire_secrets(self) -> None:
        self._key.assign(noise.next_key(backend.array_of(self._key)))

    def _refuse_plain_model(self) -> None:
        if not self._is_for_private_model:
            raise ValueError(
                "A `QueryOptimizer` was given to a model that does not know whose each example "
                "is, so training would not be private. Use it with "
                "`keras_adaclip.FederatedModel`, or `keras_adaclip.federate(model)`."
            )


def _checked_clip_norm(value: Any, query: Any) -> float | None:
    """The clipping norm as a float, where the query adds up integers."""
    name = type(query).__name__
    if not needs_integers(query):
        if value is not None:
            raise ValueError(
                "Argument `clip_norm` is for queries of integers; a "
                f"`{name}` clips by itself. Received: clip_norm={value!r}"
            )
        return None
    if value is None:
        raise ValueError(
            f"A `{name}` adds up integers and does not clip: give `clip_norm`, the norm to which "
            "a client's change is clipped before it is rounded."
        )
    number = check_real(value, "clip_norm")
    if number <= 0.0:
        raise ValueError(f"Argument `clip_norm` must be positive. Received: clip_norm={number}")
    return number
