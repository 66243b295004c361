"""What makes a Keras model federated: `compile`, `fit` and `train_step`, one step being one round.

A mixin without a Keras base, shared by `FederatedModel`, its functional form and the sequential
one.
"""

from typing import Any

import keras

from keras_adaclip import backend
from keras_adaclip.accounting import Sampling
from keras_adaclip.backend import keras_private
from keras_adaclip.backend.functional_optimizer import functional_optimizer
from keras_adaclip.callbacks import PassCounter
from keras_adaclip.federated.client_data import ClientData
from keras_adaclip.federated.layout import cohort_layout
from keras_adaclip.federated.local_training import LocalTraining
from keras_adaclip.federated.preflight import (
    PADDING_COUNTS,
    refuse_unsound_rounds,
    refuse_unsuited_settings,
)
from keras_adaclip.federated.rounds import training_data_of
from keras_adaclip.federated.settings import FederatedSettings
from keras_adaclip.federated.step import federated_step
from keras_adaclip.gradients import Batch, quicker_calls_of
from keras_adaclip.optimizers import AccountedOptimizer
from keras_adaclip.training import (
    StepIsolation,
    TrainingBase,
    TrainingData,
    metric_issues,
    on_all_devices,
    refuse,
    refuse_clients_of_one_process,
    strings_as_tensors,
    weight_digests,
)


class FederatedTraining(TrainingBase):
    """Federated `compile`, `fit` and `evaluate` for a Keras model class.

    Attributes:
        federated_settings: what `compile` was told of the clients.
        local_training: how each client trains; None until `fit` has prepared the model.
    """

    privacy_unit = "client"
    federated_settings: FederatedSettings | None = None
    local_training: LocalTraining | None = None
    accepted_optimizer = AccountedOptimizer
    _known_of_clients: Any = None

    def compile(
        self,
        optimizer: Any = None,
        client_optimizer: Any = "sgd",
        local_epochs: int = 1,
        client_batch_size: int | None = 20,
        client_examples_limit: int | None = None,
        client_weighting: Any = "uniform",
        proximal_strength: float = 0.0,
        cohort_noise_size: int | None = None,
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile: Any = "auto",
    ) -> None:
        """Configures federated training.

        What was spent under an earlier `compile` is carried over.

        Args:
            optimizer: a `DPOptimizer` around the server's optimizer, which takes minus the mean
                change of the clients' weights for a gradient: `SGD(1.0)` is FedAvg, with momentum
                FedAvgM, `Adam` FedAdam. Its `microbatch_size` is a number of clients. On
                TensorFlow also an `integrations.tensorflow_privacy.QueryOptimizer`.
            client_optimizer: any Keras optimizer; each client begins with a fresh one. What is
                changed of it later (its learning rate) counts from the next `fit` on.
            local_epochs: passes of each client over its own examples.
            client_batch_size: examples in a local batch; None takes all of a client's at once,
                which with one epoch and `SGD` is FedSGD.
            client_examples_limit: at most so many examples of a client take part in a round; None
                takes all.
            client_weighting: `"uniform"`, or `federated.ByExamples(limit, mean)`: by a client's
                examples, up to a bound.
            proximal_strength: mu of FedProx, which draws the clients' weights towards the server's.
            cohort_noise_size: simulates cohorts of so many clients with the smaller ones of `fit`:
                the noise multiplier is made smaller by the ratio of the two, so that the noise in
                the mean is that of the large cohort. What the ledger counts is what ran, with the
                smaller noise: for the epsilon of the large cohort ask `accounting.compute_epsilon`.
            loss: as for Keras.
            loss_weights: as for Keras.
            metrics: as for Keras; during `fit` they are those of the clients' local steps.
            weighted_metrics: as for Keras.
            run_eagerly: as for Keras.
            steps_per_execution: as for Keras (TensorFlow and JAX).
            jit_compile: as for Keras; not on PyTorch.

        Raises:
            TypeError: where an argument is of the wrong type.
            ValueError: where an argument is out of range, or `optimizer` is not a `DPOptimizer`.
        """
        settings = FederatedSettings(
            client_optimizer,
            local_epochs,
            client_batch_size,
            client_examples_limit,
            client_weighting,
            proximal_strength,
            cohort_noise_size,
        )
        optimizer = self._adopted(optimizer)
        if optimizer.aggregation is not None:
            refuse_unsuited_settings(optimizer, settings, jit_compile)
            # Its noise must not be compiled: see `refuse_unsuited_settings`.
            jit_compile = False
        super().compile(  # type: ignore[misc]
            optimizer=optimizer,
            loss=loss,
            loss_weights=loss_weights,
            metrics=metrics,
            weighted_metrics=weighted_metrics,
            run_eagerly=run_eagerly,
            steps_per_execution=steps_per_execution,
            jit_compile=jit_compile,
            auto_scale_loss=False,
        )
        keras_private.set_attribute(self, "federated_settings", settings)
        keras_private.set_attribute(self, "local_training", None)
        self._private_state.isolation = None

    def get_compile_config(self) -> Any:
        """What `compile` was called with, the clients' part included."""
        config = super().get_compile_config()  # type: ignore[misc]
        if config is None or self.federated_settings is None:
            return config
        config.pop("auto_scale_loss", None)
        return {**config, **self.federated_settings.get_config()}

    @property
    def client_optimizer(self) -> keras.optimizers.Optimizer | None:
        """The clients' optimizer, None before `compile`."""
        settings = self.federated_settings
        return None if settings is None else settings.client_optimizer

    @on_all_devices
    def fit(
        self,
        clients: ClientData,
        cohort_size: int = 100,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_data: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
        *,
        sampling: str = "poisson",
    ) -> Any:
        """Trains for some rounds, each of them a step.

        Args:
            clients: the population; its size is taken to be public.
            cohort_size: expected number of clients in a round, by which the noised sum is divided.
            epochs: number of epochs.
            verbose: as for Keras.
            callbacks: as for Keras.
            validation_data: arrays as for Keras, or `ClientData`, whose examples are then taken
                together.
            initial_epoch: as for Keras.
            steps_per_epoch: rounds in an epoch; None takes as many as make up the population,
                `ceil(len(clients) / cohort_size)`.
            validation_steps: as for Keras.
            validation_batch_size: as for Keras.
            validation_freq: as for Keras.
            sampling: `"poisson"`: every client takes part with the same probability, for adding or
                removing one client; `"fixed"`: as many clients at each round, drawn without
                replacement, for replacing one by another, which moves the sum twice as far;
                `"shuffle"`: an epoch goes through the clients once, at most, and is one full
                release without amplification.

        Returns:
            Keras's `History`.

        Raises:
            TypeError: where `clients` is no `ClientData`.
            ValueError: where an argument is out of range, a client comes twice, or the model has a
                part that breaks the guarantee; nothing was trained then.
        """
        self._require_compiled()
        settings = self.federated_settings
        assert settings is not None
        data = training_data_of(
            clients, settings, cohort_size, steps_per_epoch, sampling, self._sampling_seed()
        )
        if isinstance(validation_data, ClientData):
            validation_data = validation_data.all_examples()
        validation_data = strings_as_tensors(validation_data)
        self._prepare_rounds(data)
        cohorts, is_pass = data.poisson, data.sampling is Sampling.SHUFFLE
        pass_counter = PassCounter(lambda: self._open_ledger(data), every_epoch=is_pass)
        with self._run_of_fit(callbacks, data, pass_counter) as ordered:
            return super().fit(  # type: ignore[misc]
                **backend.fit_arguments(cohorts, cohorts.example, self, cohorts.num_open_axes),
                epochs=epochs,
                verbose=verbose,
                callbacks=ordered,
                validation_data=validation_data,
                shuffle=False,
                initial_epoch=initial_epoch,
                validation_steps=validation_steps,
                validation_batch_size=validation_batch_size,
                validation_freq=validation_freq,
            )

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Keras's `evaluate`.

        Args:
            x: inputs as for Keras, or `ClientData`, whose examples are taken together.
            y: targets, none beside `ClientData`.
            *args: as for Keras.
            **kwargs: as for Keras.
        """
        if isinstance(x, ClientData):
            x, y = x.all_examples()
        return super().evaluate(x, y, *args, **kwargs)

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Refuses: a batch does not tell to which client an example belongs."""
        raise NotImplementedError(
            "A federated model trains on clients, and a batch does not tell to which client an "
            "example belongs: call `fit` with `ClientData`. To protect single examples, use "
            "`keras_adaclip.PrivateModel`."
        )

    def train_step(self, *args: Any) -> Any:
        """One round, in the form that the backend's trainer expects.

        Raises:
            ValueError: where it is called outside of `fit`.
        """
        if self.local_training is None:
            raise ValueError(
                "`train_step` was called on a model that `fit` did not prepare, so neither "
                "sampling nor ledger is set up. Call `fit`."
            )
        return backend.train_step(self, federated_step, *args)

    def _remark_on_noise(self) -> str:
        settings = self.federated_settings
        if settings is None or settings.cohort_noise_size is None:
            return ""
        return (
            f"; a simulation of cohorts of {settings.cohort_noise_size:,}: smaller ones ran with "
            "that much less noise, and epsilon is that of what ran"
        )

    def _prepare_rounds(self, data: TrainingData) -> None:
        """Builds and examines the model, sets up local training, then opens the ledger."""
        refuse(self, metric_issues(self))
        rows = data.rows
        keras_private.build_for_training(self, rows.x, rows.y, rows.sample_weight)
        row_counts = data.poisson.row_counts
        finding = refuse_unsound_rounds(self, rows, row_counts)
        self._assign_in_steps(finding.assigned, rows)
        self._prove_isolation(rows, row_counts)
        refuse_clients_of_one_process()
        layout = cohort_layout(self, data.poisson, finding.branches)
        data.poisson.num_padded_clients = layout.num_padded_clients
        data.poisson.num_shards = backend.num_batch_shards()
        self._use_local_training(layout.is_vectorized)
        self._set_in_steps("chunk_size", layout.chunk_size)
        self._include_spending_on_shared_weights()
        weight_digests.mark_changed(self.weights)  # type: ignore[attr-defined]
        self._open_ledger(data)

    def _prove_isolation(self, rows: Batch, row_counts: list[int]) -> None:
        """Examines the model at the shapes of its local batches, where other clients decide them.

        Raises:
            ValueError: where a layer lets the rows that pad a batch count.
        """
        shapes = tuple(tuple(value.shape[1:]) for value in keras.tree.flatten(rows.x))
        state = self._private_state
        if state.isolation is None or shapes != state.planned_shapes:
            state.isolation, state.planned_shapes = StepIsolation(self, PADDING_COUNTS), shapes
        assert self.federated_settings is not None
        # Of batches of one size, padding is the client's own.
        others_decide = self.federated_settings.client_batch_size is None
        state.isolation.prove(rows, row_counts if others_decide else [], others_vary=others_decide)

    def _use_local_training(self, is_vectorized: bool) -> None:
        """Sets up the clients' training, anew where something of it was changed since."""
        settings = self.federated_settings
        assert settings is not None
        calls = {} if is_vectorized else quicker_calls_of(self, in_loop=True)
        known = (is_vectorized, settings.get_config(), frozenset(map(id, calls)))
        if self.local_training is not None and self._known_of_clients == known:
            # Layers may be other than they were.
            if self.local_training.recording is not None:
                self.local_training.recording.clear()
            return
        optimizer = functional_optimizer(settings.client_optimizer)
        optimizer.build(self.trainable_variables)  # type: ignore[attr-defined]
        training = LocalTraining(
            self,
            optimizer,
            settings.proximal_strength,
            is_vectorized,
            calls,
            None if self.run_eagerly else backend.Recording(),  # type: ignore[attr-defined]
        )
        keras_private.set_attribute(self, "local_training", training)
        keras_private.set_attribute(self, "_known_of_clients", known)
        self.train_function = None
