"""Federated `compile`, `fit` and `train_step`, one step being one round.

`FederatedTraining` is a mixin without a Keras base, shared by the functional, the subclassed and
the sequential model.
"""

from typing import Any

import keras
import numpy as np

from keras_adaclip import backend, examination, training
from keras_adaclip._checks import check_between_0_and_1
from keras_adaclip.accounting import Sampling
from keras_adaclip.backend import keras_private
from keras_adaclip.federated import preparation
from keras_adaclip.federated.client_scores import ClientScores, scores_of_clients
from keras_adaclip.federated.clients import ClientData, checked_clients
from keras_adaclip.federated.cohorts import CohortBatches
from keras_adaclip.federated.local_training import LocalTraining
from keras_adaclip.federated.round import contribution_step, federated_step
from keras_adaclip.federated.settings import FederatedSettings
from keras_adaclip.gradients import fast_calls_of
from keras_adaclip.optimizers import AutoDPOptimizer
from keras_adaclip.sampling import as_arrays


class FederatedTraining(training.TrainingBase):
    """Federated `compile`, `fit` and `evaluate` for a Keras model class.

    Attributes:
        federated_settings: The client arguments of `compile`.
        local_training: The training of each client; None until `fit` has prepared the model.
    """

    privacy_unit = "client"
    federated_settings: Any = None
    local_training: LocalTraining | None = None

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
        metrics: Any = None,
        jit_compile: Any = "auto",
        **keras_arguments: Any,
    ) -> None:
        """Configure federated training. What was spent before is carried over.

        Args:
            optimizer: A `DPOptimizer` around the server's optimizer, which takes minus the mean
                change of the clients' weights for a gradient: `SGD(1.0)` is FedAvg, with momentum
                FedAvgM, `Adam` FedAdam. Its `microbatch_size` is a number of clients.
            client_optimizer: Any Keras optimizer; each client begins with a fresh copy. A later
                change of it, such as of its learning rate, takes effect at the next `fit`.
            local_epochs: The number of passes of each client over its own examples.
            client_batch_size: The number of examples in a local batch. None takes all examples of
                a client at once, which with one epoch and `SGD` is FedSGD.
            client_examples_limit: The number of examples of a client that take part in a round at
                most, drawn again in each round; None takes all.
            client_weighting: `"uniform"`, or `federated.ByExamples(limit, mean)` to weight clients
                by their number of examples, up to a bound.
            proximal_strength: Mu of FedProx, which draws the clients' weights towards the server's.
            cohort_noise_size: The size of a large cohort to simulate with the smaller cohorts of
                `fit`: the noise multiplier is reduced by the ratio of the two, so that the noise in
                the mean is that of the large cohort. The ledger counts what ran, with the smaller
                noise. For the epsilon of the large cohort, call `accounting.compute_epsilon`.
            loss: As for Keras.
            metrics: As for Keras. During `fit` they are those of the clients' local steps.
            jit_compile: As for Keras; not on PyTorch.
            **keras_arguments: `report_training_metrics`, as for `PrivateModel`; `loss_weights`,
                `weighted_metrics`, `run_eagerly` and `steps_per_execution`, as for Keras.

        Raises:
            TypeError: If an argument is of the wrong type.
            ValueError: If an argument is out of range, or `optimizer` is not a `DPOptimizer`.
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
        if isinstance(optimizer, dict):
            optimizer = keras.optimizers.get(optimizer)
        if isinstance(optimizer, AutoDPOptimizer):
            raise ValueError(
                "`AutoDPOptimizer` plans training on single examples. Over clients, give "
                "`DPOptimizer(optimizer, clipping, target_epsilon=...)`, which plans the noise of "
                "the rounds."
            )
        optimizer = self._adopted(optimizer)
        if cohort_noise_size is not None and optimizer.target_epsilon is not None:
            raise ValueError(
                "`cohort_noise_size` simulates a large cohort with less noise than a "
                "`target_epsilon` allows. Leave one of the two out."
            )
        super().compile(
            optimizer=optimizer,
            loss=loss,
            metrics=metrics,
            jit_compile=jit_compile,
            auto_scale_loss=False,
            **keras_arguments,
        )
        keras_private.set_attribute(self, "federated_settings", settings)
        keras_private.set_attribute(self, "local_training", None)
        self._private_state.examined.clear()

    def get_compile_config(self) -> Any:
        """Return the arguments of `compile` as plain values."""
        config = super().get_compile_config()
        if config is None or self.federated_settings is None:
            return config
        config.pop("auto_scale_loss", None)
        return {**config, **self.federated_settings.get_config()}

    @training.on_all_devices
    def fit(
        self,
        clients: ClientData,
        cohort_size: int | None = None,
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
        validation_split: float = 0.0,
        class_weight: dict[int, float] | None = None,
        input_ranges: Any = None,
    ) -> Any:
        """Train for some rounds, each of them a step, and return Keras's `History`.

        Its `ended_early` says why a `PrivacyCallback` has ended training before the last round; it
        is None otherwise.

        Args:
            clients: The population; its size counts as public.
            cohort_size: The expected number of clients in a round, which divides the noised sum.
                None means 100, or a quarter of the clients if these are fewer than 400.
            epochs: The number of epochs.
            verbose: As for Keras.
            callbacks: As for Keras.
            validation_data: Arrays as for Keras, or `ClientData`, whose examples are pooled.
            initial_epoch: As for Keras.
            steps_per_epoch: The number of rounds in an epoch. None takes as many as make up the
                population, `ceil(len(clients) / cohort_size)`.
            validation_steps: As for Keras.
            validation_batch_size: As for Keras.
            validation_freq: As for Keras.
            sampling: `"poisson"`: every client takes part with the same probability; the guarantee
                is for adding or removing one client. `"fixed"`: every round draws the same number
                of clients without replacement; the guarantee is for replacing one client by
                another, which moves the sum twice as far. `"shuffle"`: an epoch goes through the
                clients once at most, and is one full release without amplification.
            validation_split: Share of the *clients* that is held out for validation, in [0, 1): the
                same ones in every `fit` on these clients. They are not protected. The other clients
                are the population.
            class_weight: As for Keras, in the loss of the clients' local steps.
            input_ranges: Public ranges of the inputs, as for `PrivateModel.fit`.

        Raises:
            TypeError: If `clients` is no `ClientData`.
            ValueError: If an argument is out of range, a client comes twice, or a part of the model
                breaks the guarantee. Nothing was trained then.
        """
        self._require_compiled()
        settings = self.federated_settings
        seed = self.optimizer.sampling_seed
        validation_split = check_between_0_and_1("validation_split", validation_split, with_0=True)
        if validation_split and validation_data is None:
            clients, validation_data = checked_clients(clients).split(validation_split, seed=0)
        rounds: dict[str, Any] = {"cohort_size": cohort_size, "sampling": sampling}
        rounds |= {"steps_per_epoch": steps_per_epoch, "seed": seed, "class_weight": class_weight}
        training.refuse_other_settings(self, clients=settings.get_config(), rounds=rounds)
        x, y = checked_clients(clients).first_examples() if class_weight else (None, None)
        del rounds["class_weight"]
        rounds["class_weights"] = training.ClassWeights.of_fit(
            self, class_weight, *as_arrays((x, y))
        )
        cohorts = CohortBatches(clients, settings, **rounds)
        data = cohorts.data
        if isinstance(validation_data, ClientData):
            validation_data = validation_data.all_examples()
        validation_data = training.for_keras(validation_data, validation_batch_size)
        self._prepare_rounds(data, input_ranges)
        self._try_validation(validation_data, validation_batch_size)
        is_pass, num_epochs = data.sampling is Sampling.SHUFFLE, epochs - initial_epoch
        data, callbacks = training.planned_run(self, data, callbacks, num_epochs, is_pass)
        with self._run_of_fit(callbacks, data, is_pass, num_epochs, verbose) as ordered:
            return super().fit(
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
        """Evaluate as Keras does, on arrays or on the pooled examples of `ClientData`.

        Args:
            x: Inputs as for Keras, or `ClientData`.
            y: Targets; None with `ClientData`.
            *args: As for Keras.
            **kwargs: As for Keras.
        """
        if isinstance(x, ClientData):
            x, y = x.all_examples()
        return super().evaluate(x, y, *args, **kwargs)

    def evaluate_clients(self, clients: ClientData, batch_size: int | None = None) -> ClientScores:
        """Return loss and metrics of each client, for a look at whom the model serves badly.

        They are computed from raw data, and are not private. Clients without examples are left out.

        Args:
            clients: The clients.
            batch_size: The number of examples to predict at a time; None means 1,024.

        Raises:
            TypeError: If `clients` is no `ClientData`.
            ValueError: If the model is not compiled.
        """
        return scores_of_clients(self, clients, batch_size or 1024)

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Raise `NotImplementedError`: a batch does not say which client an example belongs to."""
        raise NotImplementedError(
            "A federated model trains on clients, and a batch does not say to which client an "
            "example belongs: call `fit` with `ClientData`. To protect single examples, use "
            "`keras_adaclip.PrivateModel`."
        )

    def train_step(self, *args: Any) -> Any:
        """Take one round, in the form that the backend's trainer expects.

        Raises:
            ValueError: If it is called outside of `fit`.
        """
        if self.local_training is None:
            raise ValueError(
                "`train_step` was called on a model that `fit` did not prepare, so neither "
                "sampling nor ledger is set up. Call `fit`."
            )
        step = contribution_step if self._private_state.contributes else federated_step
        return backend.train_step(self, step, *args)

    def prepare_node(self, data: training.TrainingData) -> None:
        """Prepare the model to train the clients of a node, for `contribute`.

        Args:
            data: Made-up rows to examine the model with, and the batches of the clients.

        Raises:
            ValueError: As for `fit`; or if a layer assigns its state.
        """
        self._require_compiled()
        optimizer: Any = self.optimizer
        self._prepare_rounds(data)
        if assigned := self._private_state.assigned_by_forward:
            raise ValueError(
                "Over nodes, the server runs no layer, and this model has a layer that assigns its "
                "state in each step. Leave it out, or train in one process. "
                f"Received: {', '.join(variable.path for variable in assigned)}"
            )
        optimizer.build(self.trainable_variables)
        self._set_in_steps("contributes", True)

    def contribute(self, batch: dict[str, Any]) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the clipped sum of the clients of a batch, and the sum of their statistics.

        Nothing is noised, counted or applied.

        Args:
            batch: A batch of the clients of `prepare_node`.

        Raises:
            RuntimeError: If `fit` has prepared the model for something else since.
        """
        if not self._private_state.contributes:
            raise RuntimeError(
                "The model was trained by `fit` since it was prepared for a node. Make the "
                "`NodeTraining` again."
            )
        batch = keras.tree.map_structure(keras.ops.convert_to_tensor, batch)
        variables = [*self.variables, *self.optimizer.variables, *self.metrics_variables]
        with backend.keep_variables(variables), keras_private.built_already(self):
            logs = super().train_on_batch(batch, return_dict=True)
        shapes = [(-1,), *(tuple(variable.shape) for variable in self.trainable_variables)]
        # Keras makes a float of an array with one number.
        statistics, *sums = (
            np.reshape(keras.ops.convert_to_numpy(logs[str(n)]), shape).astype(np.float32)
            for n, shape in enumerate(shapes)
        )
        return sums, statistics

    def _remark_on_noise(self) -> str:
        """Return a remark on simulated cohorts for the report."""
        settings = self.federated_settings
        if settings is None or settings.cohort_noise_size is None:
            return ""
        return (
            f"; a simulation of cohorts of {settings.cohort_noise_size:,}: smaller cohorts ran "
            "with that much less noise, and epsilon is that of what ran"
        )

    def _prepare_rounds(self, data: training.TrainingData, input_ranges: Any = None) -> None:
        """Build and examine the model, and set up local training."""
        examination.refuse(self, examination.metric_issues(self))
        self._set_in_steps("contributes", False)
        rows, cohorts = data.rows, data.poisson
        keras_private.build_for_training(self, rows.x, rows.y, rows.sample_weight)
        state, shapes = self._private_state, [each.shape[1:] for each in keras.tree.flatten(rows.x)]
        kinds = shapes, keras_private.flatten_layers(self)
        if self.train_function is None or state.planned_for != kinds:
            state.examined.clear()
            state.planned_for = kinds
        sample = examination.SampleRows(self, rows, data.known or rows, input_ranges)
        state.remarks = [*map(str, examination.notes(self, None))]
        finding = preparation.refuse_unsound_rounds(self, sample, cohorts.row_counts)
        self._assign_in_steps(finding.assigned, rows)
        chunk_size, is_vectorized = preparation.lanes_of(self, cohorts, finding.branches)
        self._use_local_training(is_vectorized)
        self._set_in_steps("chunk_size", chunk_size)

    def _use_local_training(self, is_vectorized: bool) -> None:
        """Set up the clients' training, again if anything has changed since the last `fit`."""
        calls = {} if is_vectorized else fast_calls_of(self, in_loop=True)
        config = self.federated_settings.get_config()
        made_from = (is_vectorized, config, frozenset(map(id, calls)))
        present = self.local_training
        if present is not None and present.made_from == made_from:
            if present.recording is not None:
                present.recording.clear()  # Layers may have changed.
            return
        training = LocalTraining(self, is_vectorized, calls, made_from)
        keras_private.set_attribute(self, "local_training", training)
        self.train_function = None
