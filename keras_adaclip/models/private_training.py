"""What makes a Keras model private: `compile`, `fit`, `train_step` and the ledger.

A mixin without a Keras base, shared by `PrivateModel`, its functional form and
`PrivateSequential`.
"""

from typing import Any

import keras
import numpy as np

from keras_adaclip import backend
from keras_adaclip.accounting import Ledger, PrivacySpent, Sampling
from keras_adaclip.backend import keras_private
from keras_adaclip.callbacks import ClippingMonitor, PassCounter, PrivacyCallback
from keras_adaclip.gradients import GradientPlan, make_plan
from keras_adaclip.models import training_data
from keras_adaclip.models.preflight import refuse_unsound
from keras_adaclip.models.step import private_step
from keras_adaclip.models.training_data import TrainingData
from keras_adaclip.optimizers import DPOptimizer
from keras_adaclip.optimizers.ledger_variables import MAX_ROWS, Run
from keras_adaclip.sampling import PoissonDataset

_LEDGER_KEYS = ("privacy_ledger_rows", "privacy_ledger_noise", "privacy_ledger_identity")


class PrivateTraining:
    """Private `compile`, `fit` and `train_on_batch` for a Keras model class."""

    gradient_plan: GradientPlan | None = None
    chunk_size: int | None = None
    diagnostic_metrics: dict[str, Any] | None = None
    _carried_run: Run = Run()

    def compile(
        self,
        optimizer: Any = None,
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile: Any = "auto",
        auto_scale_loss: bool = False,
    ) -> None:
        """Configures private training; the arguments are Keras's.

        What was spent under an earlier `compile` is carried over.

        Args:
            optimizer: a `DPOptimizer`.
            loss: as for Keras; it is evaluated for each example alone.
            loss_weights: as for Keras.
            metrics: as for Keras.
            weighted_metrics: as for Keras.
            run_eagerly: as for Keras.
            steps_per_execution: as for Keras (TensorFlow and JAX).
            jit_compile: as for Keras; not on PyTorch.
            auto_scale_loss: ignored: norms, sums and noise are float32 in every precision.

        Raises:
            ValueError: where `optimizer` is not a `DPOptimizer`.
        """
        if optimizer is not None and not isinstance(optimizer, DPOptimizer):
            optimizer = keras.optimizers.get(optimizer)
        if not isinstance(optimizer, DPOptimizer):
            raise ValueError(
                "A private model must be compiled with a `DPOptimizer`, or training would not be "
                "private. Wrap the optimizer: `keras_adaclip.optimizers.DPOptimizer(optimizer, "
                f"clipping=1.0, noise_multiplier=1.1)`. Received: optimizer={optimizer!r}"
            )
        if optimizer is not getattr(self, "optimizer", None):
            optimizer.mark_for_private_model()
            optimizer.include_run(self._run)
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
        self.gradient_plan = None

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles the model as it was compiled when it was saved."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:  # type: ignore[attr-defined]
            self.optimizer.build(self.trainable_variables)  # type: ignore[attr-defined]

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: Any = True,
        class_weight: dict[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
        *,
        sampling: str = "poisson",
        num_examples: int | None = None,
        once_per_pass: bool = False,
    ) -> Any:
        """Trains privately; the arguments are Keras's, and three more.

        With arrays and `sampling="poisson"`, each step draws every example with probability
        `batch_size / len(x)`, and an epoch is `ceil(len(x) / batch_size)` steps. The noised sum
        is divided by `batch_size`, whatever was drawn.

        Args:
            x: arrays, or a data set (which is accounted without amplification by sampling,
                unless it is a `PoissonDataset`).
            y: targets.
            batch_size: expected number of examples in a step, 32 by default.
            epochs: as for Keras.
            verbose: as for Keras.
            callbacks: as for Keras.
            validation_split: as for Keras; the training part counts as the private data.
            validation_data: as for Keras.
            shuffle: as for Keras, with `sampling="shuffle"` and data sets.
            class_weight: as for Keras.
            sample_weight: as for Keras; weights act before clipping, so no weight lets one
                example contribute more.
            initial_epoch: as for Keras.
            steps_per_epoch: as for Keras.
            validation_steps: as for Keras.
            validation_batch_size: as for Keras.
            validation_freq: as for Keras.
            sampling: `"poisson"`, or `"shuffle"` (Keras's own order, no amplification).
            num_examples: number of examples in a data set that does not tell.
            once_per_pass: your word that one pass over a data set holds each example at most
                once; then a pass is one release, otherwise every step is.

        Returns:
            Keras's `History`.

        Raises:
            ValueError: where an argument is out of range, or the model has a part that breaks
                the guarantee; nothing was trained then.
        """
        self._require_compiled()
        arguments = {
            "epochs": epochs,
            "verbose": verbose,
            "initial_epoch": initial_epoch,
            "validation_steps": validation_steps,
            "validation_batch_size": validation_batch_size,
            "validation_freq": validation_freq,
        }
        if training_data.is_array_data(x):
            if validation_split and validation_data is None:
                (x, y, sample_weight), validation_data = training_data.split_off_validation(
                    x, y, sample_weight, validation_split
                )
            if validation_batch_size is None:
                arguments["validation_batch_size"] = batch_size
            data = training_data.from_arrays(
                x,
                y,
                sample_weight,
                class_weight,
                batch_size=batch_size,
                sampling=sampling,
                steps_per_epoch=steps_per_epoch,
                shuffle=shuffle,
                seed=self._sampling_seed(),
            )
        else:
            _refuse_array_arguments(
                x, y=y, sample_weight=sample_weight, batch_size=batch_size,
                validation_split=validation_split or None,
            )
            if isinstance(x, PoissonDataset):
                data = training_data.from_poisson(x, steps_per_epoch)
            else:
                data = training_data.from_foreign(
                    x,
                    class_weight,
                    num_examples=num_examples,
                    once_per_pass=once_per_pass,
                    steps_per_epoch=steps_per_epoch,
                    shuffle=shuffle,
                )
        self._prepare(data)
        with_passes = steps_per_epoch is None and data.sampling in (
            Sampling.PASS,
            Sampling.SHUFFLE,
        )
        return super().fit(  # type: ignore[misc]
            **data.with_layout(self._layout_chunk_size(data)),
            **arguments,
            validation_data=validation_data,
            callbacks=self._ordered_callbacks(callbacks, with_passes, data),
        )

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: dict[int, float] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Trains on one batch, accounted as one full release of it; as Keras's otherwise."""
        self._require_compiled()
        parts = {"x": x, "y": y, "sample_weight": sample_weight}
        parts = {name: part for name, part in parts.items() if part is not None}
        size = training_data.common_length(parts)
        rows = training_data.first_rows(x, y, sample_weight)
        self._prepare(TrainingData(Sampling.STREAM, size, size, rows))
        return super().train_on_batch(  # type: ignore[misc]
            x, y, sample_weight=sample_weight, class_weight=class_weight, return_dict=return_dict
        )

    def train_step(self, *args: Any) -> Any:
        """One private step, in the form that the backend's trainer expects."""
        if self.gradient_plan is None:
            raise ValueError(
                "`train_step` was called on a model that `fit` or `train_on_batch` did not "
                "prepare, so neither sampling nor ledger is set up. Call one of these."
            )
        return backend.train_step(self, private_step, *args)

    # The ledger

    @property
    def privacy_ledger(self) -> Ledger:
        """Everything that was spent on this model, under every optimizer it was compiled with."""
        return self._run.ledger

    @property
    def _run(self) -> Run:
        optimizer = getattr(self, "optimizer", None)
        return self._carried_run if optimizer is None else optimizer.run

    def privacy_spent(self, delta: float, accountant: str = "pld") -> PrivacySpent:
        """The privacy that training has spent so far.

        Args:
            delta: float in (0, 1), the probability with which the bound may fail; well below
                one over the number of examples.
            accountant: `"pld"` (tight) or `"rdp"`.

        Returns:
            Epsilon, and what it is the epsilon of.
        """
        return PrivacySpent.from_ledger(self.privacy_ledger, delta, accountant)

    def save_own_variables(self, store: Any) -> None:
        """Saves the ledger with the model, so that it outlives `load_model(compile=False)`."""
        super().save_own_variables(store)  # type: ignore[misc]
        run = self._run
        rows, noise_multipliers = run.ledger.to_arrays(MAX_ROWS)
        saved = (rows, noise_multipliers, np.asarray(run.identity, np.int32))
        for key, value in zip(_LEDGER_KEYS, saved, strict=True):
            store[key] = value

    def load_own_variables(self, store: Any) -> None:
        """Loads weights and ledger; the ledger of this process is never lowered."""
        names = [name for name in store.keys() if name not in _LEDGER_KEYS]
        super().load_own_variables({name: store[name] for name in names})  # type: ignore[misc]
        if len(names) == len(store.keys()):
            return
        rows, noise_multipliers, identity = (np.asarray(store[key]) for key in _LEDGER_KEYS)
        loaded = Run(Ledger.from_arrays(rows, noise_multipliers), (int(identity[0]), int(identity[1])))
        if getattr(self, "optimizer", None) is None:
            self._carried_run = self._carried_run.union_upward(loaded)
        else:
            self.optimizer.include_run(loaded)

    def track_diagnostics(self) -> None:
        """Makes the training step record raw norms and true clip fractions, which are not private."""
        if self.diagnostic_metrics is None:
            self.diagnostic_metrics = {
                name: keras.metrics.Mean(name=name)
                for name in ("gradient_norm", "clipped_fraction")
            }
            self.train_function = None

    # Preparation

    def _require_compiled(self) -> None:
        if not self.compiled or not isinstance(self.optimizer, DPOptimizer):  # type: ignore[attr-defined]
            raise ValueError(
                "Call `compile(optimizer=keras_adaclip.optimizers.DPOptimizer(...))` before "
                "training a private model."
            )

    def _prepare(self, data: TrainingData) -> None:
        """Builds, examines and plans the model, then opens the ledger; trains nothing."""
        keras_private.build_for_training(
            self, data.rows.x, data.rows.y, data.rows.sample_weight
        )
        refuse_unsound(self, data)
        if self.gradient_plan is None:
            self.gradient_plan = make_plan(self, data.rows)
            self.train_function = None
        chunk_size = self._layout_chunk_size(data) or self.optimizer.microbatch_size  # type: ignore[attr-defined]
        if chunk_size != self.chunk_size:
            self.chunk_size = chunk_size
            self.train_function = None
        self.optimizer.configure(  # type: ignore[attr-defined]
            data.sampling, data.expected_batch_size, data.num_examples, data.steps_per_release
        )

    def _layout_chunk_size(self, data: TrainingData) -> int | None:
        """Rows that are processed at a time where all batches must have one shape."""
        if data.poisson is None or not backend.needs_fixed_shapes(self):
            return None
        microbatch_size: int | None = self.optimizer.microbatch_size  # type: ignore[attr-defined]
        if microbatch_size is not None:
            return microbatch_size
        eighth = max(data.expected_batch_size // 8, 1)
        return min(max(1 << (eighth - 1).bit_length(), 8), 128)

    def _sampling_seed(self) -> int | None:
        """None, or a seed that differs between any two calls of `fit` with one optimizer seed."""
        seed: int | None = self.optimizer.seed  # type: ignore[attr-defined]
        return None if seed is None else seed + (self.privacy_ledger.steps << 32)

    def _ordered_callbacks(self, callbacks: Any, with_passes: bool, data: TrainingData) -> Any:
        """Our callbacks first, since what a callback writes into the logs reaches later ones."""
        is_list = isinstance(callbacks, keras.callbacks.CallbackList)
        given = list(callbacks.callbacks if is_list else keras.tree.flatten(callbacks or []))
        ours = [c for c in given if isinstance(c, (PrivacyCallback, ClippingMonitor))]
        for callback in ours:
            callback.prepare(self, data)
        if with_passes:
            ours.insert(0, PassCounter())
        ordered = [*ours, *(c for c in given if all(c is not our for our in ours))]
        if not is_list:
            return ordered
        callbacks.callbacks[:] = ordered
        for callback in ours:
            callback.set_model(self)
        return callbacks


def _refuse_array_arguments(x: Any, **arguments: Any) -> None:
    given = [name for name, value in arguments.items() if value is not None]
    if given:
        raise ValueError(
            f"Argument `{given[0]}` belongs to arrays; with a data set of type "
            f"{type(x).__name__} the data set itself must provide it."
        )
