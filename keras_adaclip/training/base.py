"""What must be there before a private step runs: a plan, a layout of batches, an open ledger.

A mixin without a Keras base, between what a model has spent and what trains it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.callbacks import EpochCheck, PassCounter
from keras_adaclip.gradients import Augmentation, Batch, GradientPlan
from keras_adaclip.optimizers import AccountedOptimizer, DPOptimizer
from keras_adaclip.sampling import padding
from keras_adaclip.training import fit_callbacks, weight_digests
from keras_adaclip.training.arrays import strings_as_tensors
from keras_adaclip.training.saved_state import SavedState
from keras_adaclip.training.step_isolation import StepIsolation
from keras_adaclip.training.training_data import TrainingData


class TrainingBase(SavedState):
    """Compiles a private model, opens and closes the ledger of a run, and ends a `fit`.

    Attributes:
        gradient_plan: which way each layer takes; None until the model was examined.
        planned_method: the optimizer's `gradient_method` for which the plan was made.
        planned_shapes: the shapes of one example's inputs for which it was made.
        private_chunk_size: number of examples that are processed at a time; None takes them all.
        private_diagnostics: where raw norms and true clip fractions are recorded, if they are.
        fitting_chunk_sizes: what `microbatch_size="auto"` found, by the size of a batch.
        fit_augmentation: how the running `fit` augments its examples, if it does.
        assigned_by_forward: the variables that a forward pass assigns, whatever the rows are.
        row_of_zeros: inputs of one example, for what these variables are assigned.
        step_isolation: proves that steps keep examples apart; None until the model was examined.
        accepted_optimizer: the class of optimizers that the model can be compiled with.
    """

    accepted_optimizer: type[AccountedOptimizer] = DPOptimizer

    gradient_plan: GradientPlan | None = None
    planned_method: str | None = None
    planned_shapes: tuple[tuple[int, ...], ...] = ()
    private_chunk_size: int | None = None
    private_diagnostics: dict[str, Any] | None = None
    fit_augmentation: Augmentation | None = None
    assigned_by_forward: Sequence[keras.Variable] = ()
    row_of_zeros: Any = None
    step_isolation: StepIsolation | None = None
    fitting_chunk_sizes: Mapping[int, int | None] = MappingProxyType({})

    def _adopted(self, optimizer: Any) -> AccountedOptimizer:
        """The optimizer of `compile`, with all that this model has spent so far.

        Raises:
            ValueError: where it is not a `DPOptimizer`, or another that the model accepts.
        """
        if optimizer is not None and not isinstance(optimizer, AccountedOptimizer):
            optimizer = keras.optimizers.get(optimizer)
        if not isinstance(optimizer, self.accepted_optimizer):
            raise ValueError(
                "A private model must be compiled with a `DPOptimizer`, or training would not be "
                "private. Wrap the optimizer: `keras_adaclip.optimizers.DPOptimizer(optimizer, "
                f"clipping=1.0, noise_multiplier=1.1)`. Received: optimizer={optimizer!r}"
            )
        present = getattr(self, "optimizer", None)
        if getattr(present, "is_in_a_run", False):
            raise RuntimeError(
                "`compile` was called in the middle of a private `fit`, whose steps the new "
                "optimizer would not count. Compile when `fit` has returned."
            )
        if optimizer is not present:
            optimizer.mark_for_private_model(self)
            optimizer.include_run(self._run)
            optimizer.remember_seeds(*self.used_seeds)
        return optimizer

    def _remember_metrics(self, metrics: Any, weighted_metrics: Any) -> None:
        """Keeps the metric objects of `compile`, which Keras looks at only when it builds them."""
        given = keras.tree.flatten([metrics or [], weighted_metrics or []])
        objects = [metric for metric in given if isinstance(metric, keras.metrics.Metric)]
        keras_private.set_attribute(self, "given_metrics", objects)

    def _require_compiled(self) -> None:
        if not self.compiled or not isinstance(self.optimizer, self.accepted_optimizer):  # type: ignore[attr-defined]
            raise ValueError(
                "Call `compile(optimizer=keras_adaclip.optimizers.DPOptimizer(...))` before "
                "training a private model."
            )
        if self.optimizer.is_in_a_run:  # type: ignore[attr-defined]
            raise RuntimeError(
                "`fit` or `train_on_batch` was called while a `fit` with the same optimizer is "
                "under way, whose steps would then be counted as the inner one's. Call it after "
                "`fit` has returned."
            )

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles the model as it was compiled when it was saved."""
        self.compile(  # type: ignore[attr-defined]
            **keras.saving.deserialize_keras_object(config)
        )
        if self.built:  # type: ignore[attr-defined]
            self.optimizer.build(self.trainable_variables)  # type: ignore[attr-defined]

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """Keras's, and while `fit` records them those of raw norms and true clip fractions."""
        return [*super().metrics, *(self.private_diagnostics or {}).values()]  # type: ignore[misc]

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Keras's; on TensorFlow with arrays of strings of any kind too."""
        return super().evaluate(strings_as_tensors(x), *args, **kwargs)  # type: ignore[misc]

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Keras's; on TensorFlow with arrays of strings of any kind too."""
        return super().predict(strings_as_tensors(x), *args, **kwargs)  # type: ignore[misc]

    def _assign_in_steps(self, variables: Sequence[keras.Variable], rows: Batch) -> None:
        """Makes each step assign variables what a forward pass assigns them."""
        zeros = keras.tree.map_structure(
            lambda value: padding((1, *value.shape[1:]), ops.convert_to_numpy(value).dtype), rows.x
        )
        if [id(each) for each in variables] != [id(each) for each in self.assigned_by_forward]:
            self.train_function = None
        # Untracked by Keras, so that nobody takes them for further variables.
        keras_private.set_attribute(self, "assigned_by_forward", tuple(variables))
        keras_private.set_attribute(self, "row_of_zeros", zeros if variables else None)

    def test_step(self, *args: Any) -> Any:
        """Keras's, over several workers of TensorFlow too."""
        return backend.logs_for_keras(super().test_step(*args))  # type: ignore[misc]

    def make_train_function(self, force: bool = False) -> None:
        """As Keras's; on JAX the step is compiled with layers that Keras does not compile too."""
        with keras_private.compiled_on_jax(self):
            super().make_train_function(force=force)  # type: ignore[misc]

    def _open_ledger(self, data: TrainingData) -> None:
        """Sets noise and divisor for a run on `data`, and opens the row that counts its steps."""
        self.optimizer.configure(  # type: ignore[attr-defined]
            data.sampling,
            data.expected_batch_size,
            data.num_examples,
            data.steps_per_release,
            data.steps_per_epoch,
            data.noise_scale,
            data.unit,
        )
        self.optimizer.remember_seeds(self.optimizer.seed)  # type: ignore[attr-defined]
        if data.poisson is not None:
            data.poisson.begin_run(self.privacy_ledger.steps)
            self.optimizer.remember_seeds(data.poisson.seed)  # type: ignore[attr-defined]

    def _end_run(self, take_digests: bool = True) -> None:
        """Closes the ledger of a run, however it ended."""
        self.optimizer.end_run()  # type: ignore[attr-defined]
        weight_digests.remember(self.weights, take_digests)  # type: ignore[attr-defined]

    def _all_variables(self) -> list[keras.Variable]:
        """The variables of model, optimizer and metrics."""
        return [*self.variables, *self.optimizer.variables, *self.metrics_variables]  # type: ignore[attr-defined]

    @contextmanager
    def _training_by_keras(self) -> Iterator[None]:
        """Around Keras's training of a model that was prepared."""
        with backend.keep_variables(self._all_variables()), keras_private.built_already(self):
            yield

    @contextmanager
    def _run_of_fit(
        self,
        callbacks: Any,
        data: TrainingData,
        pass_counter: PassCounter,
        augmentation: Augmentation | None = None,
    ) -> Iterator[Any]:
        """Around Keras's `fit` of a model that was prepared; closes the run, however it ends.

        Args:
            callbacks: what `fit` was given.
            data: what is trained on.
            pass_counter: keeps the ledger.
            augmentation: how the examples are augmented.

        Yields:
            The callbacks to hand to Keras.
        """
        isolation = self.step_isolation
        try:
            assert isolation is not None
            last = EpochCheck(isolation.prove_again)
            if isolation.may_move_within_epochs:
                last.before_execution.append(isolation.prove_again_within_epochs)
            ordered = fit_callbacks.prepared(self, callbacks, data, pass_counter, last)
            self._use_augmentation(augmentation)
            self._record_diagnostics(fit_callbacks.wants_diagnostics(callbacks))
            with self._training_by_keras():
                yield ordered
        finally:
            fit_callbacks.release(callbacks)
            self._use_augmentation(None)
            self._record_diagnostics(False)
            self._end_run()

    def _use_augmentation(self, augmentation: Augmentation | None) -> None:
        """Makes the step augment its examples, or stop it."""
        if augmentation is self.fit_augmentation:
            return
        # Untracked by Keras: the layer is no part of the model.
        keras_private.set_attribute(self, "fit_augmentation", augmentation)
        self.train_function = None

    def _record_diagnostics(self, record: bool) -> None:
        """Makes the step record raw norms and true clip fractions, which are not private."""
        if record == (self.private_diagnostics is not None):
            return
        names = self.optimizer.diagnostics if record else ()  # type: ignore[attr-defined]
        metrics = {name: keras.metrics.Mean(name=name) for name in names}
        # Untracked by Keras, so that they can be taken away again.
        keras_private.set_attribute(self, "private_diagnostics", metrics or None)
        self.train_function = self.test_function = None
