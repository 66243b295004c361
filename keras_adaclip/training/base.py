"""The part of a private model that examples and clients share: `compile`, the run of a `fit`.

A mixin without a Keras base.
"""

import logging
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend
from keras_adaclip import callbacks as own_callbacks
from keras_adaclip.accounting import NO_TUNING, rows_per_unit
from keras_adaclip.backend import keras_losses, keras_private
from keras_adaclip.gradients import Batch, mapped
from keras_adaclip.optimizers import NO_LEGACY_FILE, DPOptimizer
from keras_adaclip.sampling import SourceBatches, from_frames, padding
from keras_adaclip.training import run_callbacks, weights
from keras_adaclip.training.plan_of_run import flattened, guard_plan
from keras_adaclip.training.processes import refuse_disagreement
from keras_adaclip.training.saved_state import SavedState
from keras_adaclip.training.step_parts import keeping_metrics_only
from keras_adaclip.training.training_data import TrainingData, for_keras, is_array_data

# The callbacks that are prepared before training and called before the user's.
_OURS = (own_callbacks.PrivacyCallback, own_callbacks.ClippingMonitor, own_callbacks.AuditCallback)
# Of the mechanisms of a run: a noise schedule has one for each epoch.
_MOST_SHOWN = 3
_PRIVATE_LOGS = ("epsilon", "clip_norm", "unclipped_fraction")
# The tuners of keras-tuner that a warning has named the cost of.
_WARNED: weakref.WeakSet[Any] = weakref.WeakSet()


class TrainingBase(SavedState, keras_private.BuiltBeforeFit, keras_private.ToldBeforeEmptied):
    """Compiles a private model, opens and closes the ledger of a run, and surrounds its `fit`."""

    def _adopted(self, optimizer: Any) -> DPOptimizer:
        """Return the optimizer of `compile`, its ledger raised to cover this model's.

        Raises:
            RuntimeError: If a `fit` is under way.
            ValueError: If it is not a `DPOptimizer`.
        """
        if optimizer is not None and not isinstance(optimizer, DPOptimizer):
            optimizer = keras.optimizers.get(optimizer)
        if not isinstance(optimizer, DPOptimizer):
            raise ValueError(
                "A private model must be compiled with a `DPOptimizer`, or training would not be "
                "private. Give `keras_adaclip.optimizers.AutoDPOptimizer(target_epsilon=3.0)`; for "
                "clients, or to choose the parts, `DPOptimizer(optimizer, target_epsilon=3.0)`. "
                f"Received: {optimizer=}"
            )
        present = getattr(self, "optimizer", None)
        if getattr(present, "is_in_a_run", False):
            raise RuntimeError(
                "`compile` was called in the middle of a private `fit`, whose steps the new "
                "optimizer would not count. Compile after `fit` has returned."
            )
        if optimizer is not present:
            optimizer.mark_for_private_model(self)
            optimizer.include_ledger(self.privacy_ledger)
            optimizer.remember_seeds(*self.used_seeds)
        return optimizer

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile as Keras does, with a loss that counts what steps leave out."""
        self._private_state.reports_metrics = kwargs.pop("report_training_metrics", True)
        super().compile(*args, **kwargs)
        keras_private.set_attribute(self, "_loss_tracker", keras_losses.LossOfCounted())

    def _require_compiled(self) -> None:
        """Raise unless the model is compiled and no run with its optimizer is under way."""
        if not self.compiled or not isinstance(self.optimizer, DPOptimizer):
            raise ValueError(
                "Call `compile` with a `keras_adaclip.optimizers.DPOptimizer` before training."
            )
        if self.loss is None and not keras_private.is_own(self, "compute_loss"):
            raise ValueError(
                f"Model {self.name!r} was compiled with no loss, so there is nothing to train for. "
                "Give `compile(optimizer, loss=...)`, or override `compute_loss`, which can take "
                "the place of `add_loss` too. Received: loss=None"
            )
        if self.optimizer.is_in_a_run:
            raise RuntimeError(
                "`fit` or `train_on_batch` was called while a `fit` with the same optimizer is "
                "under way, whose steps would then be counted as the inner one's. Call it after "
                "`fit` has returned."
            )

    def _try_validation(self, validation_data: Any, batch_size: int | None) -> None:
        """Evaluate the first batch of arrays, so that what does not fit is told before a step.

        Metrics and seeds are as before. Data sets are left alone, since reading may use them up,
        and of a source the first batch is read.

        Args:
            validation_data: The argument of Keras's `fit`.
            batch_size: The size of its batches; None for Keras's default.

        Raises:
            ValueError: If model, loss or a metric fails.
        """
        if isinstance(validation_data, SourceBatches):
            validation_data = validation_data[0]
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(validation_data)
        if not is_array_data(x):
            return
        parts = mapped(lambda value: value[: batch_size or 32], (x, y, sample_weight))
        variables = [*self.non_trainable_variables, *self.metrics_variables]
        values = [np.array(backend.array_of(variable)) for variable in variables]
        try:
            with backend.keep_variables([*self.trainable_variables, *variables]):
                self._evaluate_rows(*parts[:2], batch_size, 0, parts[2])
        except Exception as error:  # Backends raise many kinds.
            raise ValueError(
                "The first batch of `validation_data` does not go through model, loss and "
                "metrics, so that `fit` would end after its first epoch. Nothing was trained. Give "
                f"data of the shapes of the training data. ({type(error).__name__}: {error})"
            ) from error
        finally:
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)

    def get_compile_config(self) -> Any:
        """Return the arguments of `compile` as plain values."""
        config = super().get_compile_config()
        if config is None or self._private_state.reports_metrics:
            return config
        return {**config, "report_training_metrics": False}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compile the model as it was compiled when it was saved."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """Keras's metrics, and those of raw norms, clip fractions and canaries during `fit`."""
        state = self._private_state
        audit = [] if state.canaries is None else [state.canaries.metric]
        return [*super().metrics, *(state.diagnostics or {}).values(), *audit]

    def reset_metrics(self) -> None:
        """Reset the metrics as Keras does; they may assign their own variables alone."""
        with keeping_metrics_only(self):
            super().reset_metrics()

    def get_metrics_result(self) -> dict[str, Any]:
        """Return what the metrics tell; they may assign their own variables alone."""
        with keeping_metrics_only(self):
            return dict(super().get_metrics_result())

    def evaluate(
        self, x: Any = None, y: Any = None, batch_size: int | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Evaluate as Keras does, also on frames, sources, and on TensorFlow on arrays of strings.

        A source, such as `keras_adaclip.sampling.from_folder` returns, is read in its order.
        """
        x = for_keras(x, batch_size)
        return super().evaluate(x, from_frames(y), batch_size, *args, **kwargs)

    def _evaluate_rows(self, *args: Any) -> Any:
        """Evaluate what `fit` hands on to Keras."""
        return self.evaluate(*args)

    def predict(self, x: Any, batch_size: int | None = None, *args: Any, **kwargs: Any) -> Any:
        """Predict as Keras does, also from frames, sources, and on TensorFlow arrays of strings.

        Predictions are in the order of a source.
        """
        return super().predict(for_keras(x, batch_size), batch_size, *args, **kwargs)

    def summary(self, *args: Any, print_fn: Callable[[str], Any] | None = None, **kw: Any) -> None:
        """Print Keras's table of layers, and below it a line on privacy.

        The line has the steps that ran, with sampling and noise multiplier (z), and the optimizer.
        It has no epsilon, which depends on delta and may take seconds: see `privacy_spent`.

        Args:
            *args: `line_length` and `positions`, as in Keras.
            print_fn: A function that is called with the table, then with the line on privacy; None
                prints them.
            **kw: Keras's other arguments.
        """
        super().summary(*args, print_fn=print_fn, **kw)
        if print_fn is None:
            # As Keras does with the table.
            is_shown = keras.config.is_interactive_logging_enabled()
            print_fn = print if is_shown else logging.getLogger("absl").info
        optimizer = getattr(self, "optimizer", None)
        compiled = "not compiled" if optimizer is None else f"compiled with {optimizer!r}"
        print_fn(f" Privacy: {self._spent_in_words()}; {compiled}")

    def _spent_in_words(self) -> str:
        """Return the steps that ran, with their sampling and noise."""
        if self._lost_ledger() is not None:
            return "what was spent on the loaded weights is not known"
        rows = [row for row in self.privacy_ledger if row.steps > 0]
        if not rows:
            return "not trained yet"
        words = [*map(str, rows[:_MOST_SHOWN]), *(["..."] if len(rows) > _MOST_SHOWN else [])]
        steps = sum(row.steps for row in rows)
        return f"{steps:,} step{'s' if steps > 1 else ''} ({'; '.join(words)})"

    def _assign_in_steps(self, variables: Sequence[keras.Variable], rows: Batch) -> None:
        """Make each step assign to variables what a forward pass on a row of zeros assigns."""
        state = self._private_state
        zeros = mapped(
            lambda value: padding((1, *value.shape[1:]), ops.convert_to_numpy(value).dtype), rows.x
        )
        if list(map(id, variables)) != list(map(id, state.assigned_by_forward)):
            self.train_function = None
        state.assigned_by_forward = tuple(variables)
        state.row_of_zeros = zeros if variables else None

    def _set_in_steps(self, name: str, value: Any) -> None:
        """Set an option of the step, which is compiled again if the option changes."""
        if value != getattr(self._private_state, name):
            setattr(self._private_state, name, value)
            self.train_function = None

    def test_step(self, *args: Any) -> Any:
        """Evaluate a batch as Keras does, over several workers of TensorFlow too."""
        return backend.logs_for_keras(super().test_step(*args))

    def make_train_function(self, force: bool = False) -> None:
        """Compile the step as Keras does; on JAX also with layers that Keras does not compile."""
        with keras_private.compiled_on_jax(self):
            super().make_train_function(force=force)

    def before_emptied(self) -> None:
        """Let the host see the steps that ran."""
        _ = self.optimizer.ledger

    def _open_ledger(self, data: TrainingData) -> None:
        """Set noise and divisor for a run on `data`, and open the row that counts its steps."""
        counted = getattr(data.poisson, "truncated_to", None) or 0
        if counted != data.max_batch_size:
            raise RuntimeError(
                "The `PoissonDataset` has changed since `fit` began, and would cut its draws in "
                "another way than is accounted for. Use a data set in one `fit` at a time."
            )
        self.optimizer.configure(data.settings)
        self.optimizer.remember_seeds(self.optimizer.seed)
        if data.poisson is not None:
            data.poisson.begin_run(self.privacy_ledger.steps)
            self.optimizer.remember_seeds(data.poisson.seed)

    def _begin_steps(self, data: TrainingData, budgets: Sequence[Any], num_epochs: int) -> None:
        """Open the ledger when the first epoch begins, and plan the steps that are left.

        Args:
            data: The training data.
            budgets: The callbacks that may end the run.
            num_epochs: The number of epochs that are left.
        """
        self._open_ledger(data)
        limits = [budget.steps_left() for budget in budgets]
        if data.steps_per_epoch is not None:
            limits.append(num_epochs * data.steps_per_epoch)
        known = [limit for limit in limits if limit is not None]
        steps = max(min(known), 1) if known else None
        self.optimizer.begin_plan(steps)

    @contextmanager
    def _run_of_steps(self, data: TrainingData, take_digests: bool = True) -> Iterator[None]:
        """Open the ledger, surround Keras's training of a prepared model, and close the ledger.

        Args:
            data: The training data.
            take_digests: Whether digests of the weights are taken at the end.
        """
        try:
            self._include_spending_on_shared_weights()
            if rows_per_unit(self.privacy_ledger) and not data.rows_per_unit:
                warnings.warn(
                    "The steps so far protect a person with several rows, and these steps protect "
                    "single rows: from now on epsilon is that of a row, and no person is "
                    "protected. Give `unit_ids` and `max_rows_per_unit` to each `fit`.",
                    stacklevel=5,
                )
            self._open_ledger(data)
            refuse_disagreement(self, data)
            variables = [*self.variables, *self.optimizer.variables, *self.metrics_variables]
            try:
                weights.begin_run(self.weights)
                with backend.keep_variables(variables), keras_private.built_already(self):
                    yield
            finally:
                weights.end_run(self.weights, take_digests)
        finally:
            self.optimizer.end_run()

    @contextmanager
    def _run_of_fit(
        self, callbacks: Any, data: TrainingData, is_pass: bool, num_epochs: int, verbose: Any
    ) -> Iterator[list[keras.callbacks.Callback]]:
        """Surround Keras's `fit` of a prepared model by the run of its steps.

        Args:
            callbacks: The callbacks given to `fit`.
            data: The training data.
            is_pass: Whether each epoch begins a new pass over the data.
            num_epochs: The number of epochs.
            verbose: As for Keras's `fit`.

        Yields:
            The callbacks in the order in which Keras calls them. Those of this package come first,
            since log entries of a callback reach later ones only.

        Raises:
            ValueError: If a `PrivacyCallback` allows no step, or a `ModelCheckpoint` would write a
                file that cannot hold the ledger.
        """
        given = flattened(callbacks)
        ours = [callback for callback in given if isinstance(callback, _OURS)]
        budgets = [c for c in ours if isinstance(c, own_callbacks.PrivacyCallback)]
        first = run_callbacks.RunOfSteps(data, num_epochs, is_pass, budgets)
        last = run_callbacks.StepCheck(budgets)
        if verbose and not any(isinstance(c, keras.callbacks.ProgbarLogger) for c in given):
            given.append(run_callbacks.BarOfStepsThatRan())
        try:
            self._record_diagnostics(self._wants_diagnostics(ours))
            with self._run_of_steps(data):
                for callback in ours:
                    callback.prepare(self, data)
                self._private_state.delta = next(
                    (each.effective_delta for each in budgets), self._private_state.delta
                )
                _refuse_legacy_checkpoints(given)
                guard_plan(given, self.optimizer)
                _warn_of_monitors(given)
                self._tell_of_search(given)
                others = [c for c in given if not isinstance(c, _OURS)]
                yield [first, *ours, *others, last]
        finally:
            self._record_diagnostics(False)
            self.train_with_canaries(None)

    def _tell_of_search(self, callbacks: list[keras.callbacks.Callback]) -> None:
        """Warn once of a search by keras-tuner's own tuners, and put it into the report.

        These give `fit` a callback; the tuners of this package that count a search do not.
        """
        for callback in callbacks:
            tuner = getattr(callback, "tuner", None)
            if tuner is None or not type(callback).__module__.startswith("keras_tuner."):
                continue
            if self.tuning == NO_TUNING:
                self.tuning = f"not counted: the model is one trial of a {type(tuner).__name__}"
            if tuner not in _WARNED:
                _WARNED.add(tuner)
                warnings.warn(
                    f"`{type(tuner).__name__}` compares private models, and the cost of the search "
                    "is not counted: epsilon is that of one trial, while a choice among trials on "
                    "private data costs up to as much as all of them together. Search on public "
                    "data, or with `keras_adaclip.tuners.PrivateSearch`, which counts the search.",
                    stacklevel=6,
                )

    @staticmethod
    def _wants_diagnostics(callbacks: Any) -> bool:
        """Return whether one of the callbacks asks for raw norms and true clip fractions."""
        return any(getattr(each, "private_diagnostics", False) for each in flattened(callbacks))

    def train_with_canaries(self, canaries: Any) -> None:
        """Add gradient canaries to the steps of this run.

        Args:
            canaries: The `GradientCanaries`, None for none.
        """
        if canaries is not self._private_state.canaries:
            self._private_state.canaries = canaries
            self.train_function = self.test_function = None

    def _record_diagnostics(self, record: bool) -> None:
        """Make the step record raw norms and true clip fractions, which are not private, or not."""
        state = self._private_state
        if record != (state.diagnostics is not None):
            names = ("gradient_norm", "clipped_fraction") if record else ()
            state.diagnostics = {name: keras.metrics.Mean(name=name) for name in names} or None
            self.train_function = self.test_function = None


def _refuse_legacy_checkpoints(callbacks: list[keras.callbacks.Callback]) -> None:
    """Raise for a `ModelCheckpoint` of whole models in HDF5, which `save` would refuse later."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.ModelCheckpoint):
            path = str(callback.filepath)
            if path.endswith(".h5") and not callback.save_weights_only:
                raise ValueError(f"`ModelCheckpoint`: {NO_LEGACY_FILE} Received: filepath={path!r}")


def _warn_of_monitors(callbacks: list[keras.callbacks.Callback]) -> None:
    """Warn of callbacks that steer training by figures that epsilon does not cover."""
    for callback in callbacks:
        monitor = getattr(callback, "monitor", None)
        if not isinstance(monitor, str) or monitor.startswith("val_") or monitor in _PRIVATE_LOGS:
            continue
        warnings.warn(
            f"{type(callback).__name__}(monitor={monitor!r}) steers training by a figure of "
            "the training data that carries no noise, and epsilon does not cover what it "
            "decides. Monitor validation data that are public ('val_...'), or one of "
            f"{', '.join(map(repr, _PRIVATE_LOGS))}.",
            stacklevel=6,
        )
