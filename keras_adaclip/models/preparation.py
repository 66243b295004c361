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
from keras_adaclip.gradients import Augmentation, Batch, GradientPlan, make_plan
from keras_adaclip.models import weight_digests
from keras_adaclip.models.arrays import strings_as_tensors
from keras_adaclip.models.layout import batch_layout, step_sizes
from keras_adaclip.models.preflight import (
    refuse_uneven_batches,
    refuse_unsound_parts,
    refuse_unsound_training,
)
from keras_adaclip.models.processes import (
    refuse_data_of_one_process,
    refuse_disagreement,
    refuse_other_settings,
)
from keras_adaclip.models.saved_state import SavedState
from keras_adaclip.models.step_isolation import StepIsolation
from keras_adaclip.models.training_data import TrainingData
from keras_adaclip.optimizers import DPOptimizer
from keras_adaclip.optimizers.accounted_optimizer import AccountedOptimizer
from keras_adaclip.sampling import padding, seed_of_run


class Preparation(SavedState):
    """Examines a private model and sets it up for a run of steps.

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

    def _prepare(
        self,
        data: TrainingData,
        examine: bool = True,
        augmentation: Augmentation | None = None,
    ) -> None:
        """Builds, examines and plans the model, then opens the ledger; trains nothing.

        Args:
            data: what is trained on.
            examine: whether the model is examined in any case; otherwise only where it was not
                yet, or for inputs with other numbers of axes, for which it may do something else.
            augmentation: how the examples are augmented.
        """
        refuse_unsound_parts(self)
        refuse_uneven_batches(data)
        refuse_data_of_one_process(data)
        refuse_other_settings(self)
        self._examine(data, examine, augmentation)
        self._include_spending_on_shared_weights()
        weight_digests.mark_changed(self.weights)  # type: ignore[attr-defined]
        self._open_ledger(data)
        try:
            refuse_disagreement(self, data)
        except ValueError:
            self.optimizer.end_run()  # type: ignore[attr-defined]
            raise

    def _examine(
        self, data: TrainingData, examine: bool, augmentation: Augmentation | None
    ) -> None:
        """Builds and plans the model, and finds out in what pieces its steps run."""
        shapes = tuple(tuple(value.shape[1:]) for value in keras.tree.flatten(data.rows.x))
        is_planned = shapes == self.planned_shapes
        if not examine:
            is_planned = list(map(len, shapes)) == list(map(len, self.planned_shapes))
            examine = self.gradient_plan is None or not is_planned
        keras_private.build_for_training(self, data.rows.x, data.rows.y, data.rows.sample_weight)
        plan = self.gradient_plan
        # Should the model be refused, no plan is left with which it could be trained.
        self.gradient_plan = None
        finding = refuse_unsound_training(self, data.rows if examine else None)
        is_repeatable = finding is None or finding.is_repeatable
        if finding is not None:
            self._assign_in_steps(finding.assigned, data.rows)
        method = self.optimizer.gradient_method  # type: ignore[attr-defined]
        is_sound = plan is not None and (is_repeatable or plan.is_one_by_one)
        if not (is_sound and is_planned) or method != self.planned_method:
            plan = make_plan(self, data.rows, method, is_repeatable)
            self.planned_method = method
            keras_private.set_attribute(self, "step_isolation", StepIsolation(self))
            # Untracked by Keras, so that it stays a plain tuple.
            keras_private.set_attribute(self, "planned_shapes", shapes)
            self.train_function = None
        self.gradient_plan = plan
        try:
            layout = batch_layout(self, data)
            assert self.step_isolation is not None
            self.step_isolation.prove(
                data.rows,
                step_sizes(self, data, layout),
                augmentation,
                others_vary=backend.slices_any_size(self),
            )
        except BaseException:
            self.gradient_plan = None
            raise
        chunk_size = layout.chunk_size
        if chunk_size != self.private_chunk_size:
            self.private_chunk_size = chunk_size
            self.train_function = None

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
        if data.poisson is None:
            return
        if data.is_sampled_by_fit:
            # A checkpoint that was loaded meanwhile has moved the number of steps.
            data.poisson.seed = self._sampling_seed()
        else:
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

    def _sampling_seed(self) -> int | None:
        """None, or a seed that differs between any two calls of `fit` with one optimizer seed."""
        seed: int | None = self.optimizer.seed  # type: ignore[attr-defined]
        return seed_of_run(seed, self.privacy_ledger.steps)

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
