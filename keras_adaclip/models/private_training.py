"""What makes a Keras model private: `compile`, `fit` and `train_step`.

A mixin without a Keras base, shared by `PrivateModel`, its functional form and
`PrivateSequential`.
"""

from collections.abc import Callable
from typing import Any

from keras_adaclip import backend
from keras_adaclip.accounting import Sampling
from keras_adaclip.backend import keras_private
from keras_adaclip.callbacks import PassCounter
from keras_adaclip.models.augmenting import checked_augmentation
from keras_adaclip.models.checking import private_summary
from keras_adaclip.models.layout import batch_layout
from keras_adaclip.models.preparation import Preparation
from keras_adaclip.models.step import private_step
from keras_adaclip.sampling import PoissonDataset
from keras_adaclip.training import (
    TrainingData,
    arrays,
    on_all_devices,
    refuse_batch_of_every_replica,
    refuse_disagreement,
    refuse_joined_batches,
    streams,
    training_data,
)

_SAMPLED_IN_PASSES = (Sampling.PASS, Sampling.SHUFFLE)


class PrivateTraining(Preparation):
    """Private `compile`, `fit` and `train_on_batch` for a Keras model class."""

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
            jit_compile: as for Keras; not on PyTorch. On JAX, training steps are compiled also
                with layers that Keras does not compile, such as `RandomZoom`; `run_eagerly=True`
                runs them operation by operation.
            auto_scale_loss: ignored: norms, sums and noise are float32 in every precision.

        Raises:
            ValueError: where `optimizer` is not a `DPOptimizer`.
        """
        optimizer = self._adopted(optimizer)
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
        # Untracked by Keras, so that it stays a plain dictionary.
        keras_private.set_attribute(self, "fitting_chunk_sizes", {})
        self._remember_metrics(metrics, weighted_metrics)

    @on_all_devices
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
        augmentation: Any = None,
        augmentation_multiplicity: int = 1,
    ) -> Any:
        """Trains privately; the arguments are Keras's, and five more.

        With arrays and `sampling="poisson"`, each step draws every example with probability
        `batch_size / len(x)`, and an epoch is `ceil(len(x) / batch_size)` steps. The noised sum
        is divided by `batch_size`, whatever was drawn.

        Args:
            x: arrays (on TensorFlow of strings too), or a data set (which is accounted without
                amplification by sampling, unless it is a `PoissonDataset`).
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
            augmentation: a Keras layer that augments each input alone, at random, and keeps its
                shape, such as `keras.layers.RandomFlip`; None means none.
            augmentation_multiplicity: number of augmented copies of each example, whose gradients
                are averaged *before* clipping (De et al. 2022). They are one contribution, and
                cost no privacy; a step costs as much time as one of so many times the examples.

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
        if arrays.is_array_data(x):
            if validation_split and validation_data is None:
                (x, y, sample_weight), validation_data = arrays.split_off_validation(
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
                seed=self.optimizer.seed,  # type: ignore[attr-defined]
            )
        else:
            streams.refuse_plain_numbers(x)
            refuse_joined_batches(self, x)
            _refuse_array_arguments(
                x,
                y=y,
                sample_weight=sample_weight,
                batch_size=batch_size,
                validation_split=validation_split or None,
            )
            if isinstance(x, PoissonDataset):
                _refuse_dataset_arguments(
                    class_weight=class_weight or None,
                    num_examples=None if num_examples == x.num_examples else num_examples,
                    once_per_pass=once_per_pass or None,
                    sampling=None if sampling == "poisson" else sampling,
                )
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
        validation_data = arrays.strings_as_tensors(validation_data)
        wanted = checked_augmentation(augmentation, augmentation_multiplicity, data.rows)
        self._prepare(data, augmentation=wanted)
        epochs_are_passes = steps_per_epoch is None and data.sampling in _SAMPLED_IN_PASSES
        pass_counter = PassCounter(
            lambda: self._open_ledger(data),
            epochs_are_passes,
            check=lambda: refuse_disagreement(self, data),
        )
        with self._run_of_fit(callbacks, data, pass_counter, wanted) as ordered:
            return super().fit(  # type: ignore[misc]
                **data.with_sizes(batch_layout(self, data).sizes, self),
                **arguments,
                validation_data=validation_data,
                callbacks=ordered,
            )

    @on_all_devices
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
        refuse_batch_of_every_replica(self)
        size = arrays.number_of_rows(x, y, sample_weight)
        rows = arrays.first_rows(x, y, sample_weight)
        data = TrainingData(Sampling.STREAM, size, size, rows)
        # Examining the model takes longer than a step: once after each `compile` is enough here.
        self._prepare(data, examine=False)
        try:
            self.step_isolation.prove_again_between_batches()  # type: ignore[union-attr]
            if class_weight is not None:
                sample_weight = arrays.weights_of_classes(y, class_weight, sample_weight)
            # Keras for PyTorch would hand NumPy arrays on to the step.
            x, y, sample_weight = arrays.as_tensors((x, y, sample_weight))
            with self._training_by_keras():
                return super().train_on_batch(  # type: ignore[misc]
                    x, y, sample_weight=sample_weight, return_dict=return_dict
                )
        finally:
            # Digests would take as long as a step.
            self._end_run(take_digests=False)

    def private_summary(
        self,
        x: Any = None,
        batch_size: int | None = None,
        print_fn: Callable[[str], Any] = print,
    ) -> None:
        """Prints a table that says which way the per-example gradients of each layer take.

        For each layer with trainable weights: the rule, how norms are found (a product of two
        norms, Gram matrices, gradients written out), and what is held of one example in memory.
        Before the first `fit`, the table tells what the layers suggest; `fit` compares it with
        plain gradients on a few rows, and afterwards the table says what was chosen.

        Args:
            x: a few inputs, for models whose input shapes are not known.
            batch_size: the expected batch size, for the memory of a step.
            print_fn: function that takes the text.

        Raises:
            ValueError: where the input shapes are not known.
        """
        private_summary(self, x, batch_size, print_fn)

    def train_step(self, *args: Any) -> Any:
        """One private step, in the form that the backend's trainer expects.

        Raises:
            ValueError: where it is called outside of `fit` and `train_on_batch`.
        """
        if self.gradient_plan is None:
            raise ValueError(
                "`train_step` was called on a model that `fit` or `train_on_batch` did not "
                "prepare, so neither sampling nor ledger is set up. Call one of these."
            )
        return backend.train_step(self, private_step, *args)

    def make_train_function(self, force: bool = False) -> None:
        """As Keras's; the step is compiled as is best on a CPU, where that can be chosen."""
        with backend.compiled_for_cpu():
            super().make_train_function(force=force)


def _refuse_dataset_arguments(**arguments: Any) -> None:
    """Refuses what a `PoissonDataset` has decided: it would be ignored."""
    for name, value in arguments.items():
        if value is not None:
            raise ValueError(
                f"Argument `{name}` cannot be combined with a `PoissonDataset`, which draws its "
                "own batches from its own rows; weights go to `PoissonDataset(sample_weight=...)`. "
                f"Received: {name}={value!r}"
            )


def _refuse_array_arguments(x: Any, **arguments: Any) -> None:
    given = [name for name, value in arguments.items() if value is not None]
    if given:
        raise ValueError(
            f"Argument `{given[0]}` belongs to arrays; with a data set of type "
            f"{type(x).__name__} the data set itself must provide it."
        )
