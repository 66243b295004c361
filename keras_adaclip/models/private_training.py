"""Private `compile`, `fit`, `train_on_batch` and `train_step` of a Keras model.

A mixin without a Keras base, shared by `PrivateModel`, its functional form and
`PrivateSequential`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras

from keras_adaclip import backend, examination, training
from keras_adaclip.accounting import Sampling
from keras_adaclip.backend import keras_losses, keras_private
from keras_adaclip.gradients import (
    MOST_DRAWN_ROWS,
    MOST_ROWS,
    Batch,
    make_plan,
    mapped,
    suggested_plan,
)
from keras_adaclip.models.checking import checked_augmentation, summary, warn_of_lost_weights
from keras_adaclip.models.layout import BatchLayout, batch_layout, step_sizes
from keras_adaclip.models.step import private_step
from keras_adaclip.models.temperature import (
    SENSITIVITY,
    divide_logits,
    sums_of_gaps,
    temperature_at,
)
from keras_adaclip.sampling import from_frames, written_out
from keras_adaclip.training import training_data


class PrivateTraining(training.TrainingBase):
    """Trains a Keras model on clipped and noised gradients of single examples."""

    def compile(
        self,
        optimizer: Any = None,
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        **options: Any,
    ) -> None:
        """Configure private training; the arguments are Keras's.

        The privacy spent under an earlier `compile` is carried over.

        Args:
            optimizer: A `DPOptimizer`.
            loss: As for Keras; it is evaluated for each example alone.
            loss_weights: As for Keras.
            metrics: As for Keras.
            weighted_metrics: As for Keras.
            **options: `run_eagerly`, `steps_per_execution` (TensorFlow and JAX) and `jit_compile`
                (not on PyTorch), as for Keras. `report_training_metrics=False` leaves the loss and
                metrics of the training rows, which epsilon does not cover, out of logs, `History`
                and the bar. On JAX, training steps are compiled also with layers
                that Keras does not compile, such as `RandomZoom`; `run_eagerly=True` runs them
                operation by operation. `auto_scale_loss` is ignored: norms, sums and noise are
                float32 in every precision.

        Raises:
            ValueError: If `optimizer` is not a `DPOptimizer`.
        """
        options["auto_scale_loss"] = False
        given = (loss, loss_weights, metrics, weighted_metrics)
        super().compile(self._adopted(optimizer), *given, **options)
        self._private_state.plan = None

    @training.on_all_devices
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
        input_ranges: Any = None,
        unit_ids: Any = None,
        max_rows_per_unit: int | None = None,
    ) -> Any:
        """Train privately; the arguments are Keras's, and eight more.

        With arrays and `sampling="poisson"`, each step draws every example with probability
        `batch_size / len(x)`, and an epoch is `ceil(len(x) / batch_size)` steps. The noised sum
        is divided by `batch_size`, not by the number drawn.

        Args:
            x: Arrays, lists or frames of numbers (on TensorFlow also of strings), sparse matrices
                of SciPy (of which each step writes out its rows; with `sampling="shuffle"` all are
                written out), a source of single examples that are read by number, such as
                `keras_adaclip.sampling.from_folder` returns, or a data set (which is accounted
                without amplification by sampling, unless it is a `PoissonDataset`).
            y: Targets.
            batch_size: Expected number of examples in a step; None means 32 (all, of fewer), or
                what an `AutoDPOptimizer` plans.
            epochs: As for Keras.
            verbose: As for Keras.
            callbacks: As for Keras.
            validation_split: As for Keras, with arrays. The rows that are held out are not
                protected, and their number counts as public.
            validation_data: As for Keras, or a source, which is read in its order.
            shuffle: As for Keras, with `sampling="shuffle"` and data sets.
            class_weight: As for Keras.
            sample_weight: As for Keras; weights act before clipping, so no weight lets one
                example contribute more.
            initial_epoch: As for Keras.
            steps_per_epoch: As for Keras.
            validation_steps: As for Keras.
            validation_batch_size: As for Keras.
            validation_freq: As for Keras.
            sampling: `"poisson"`, or `"shuffle"` (Keras's own order, no amplification).
            num_examples: Number of examples; required if the data set has no length.
            once_per_pass: Assert that a pass over the data set contains each example at most
                once. A pass is then one release; otherwise every step is.
            augmentation: A Keras layer that augments each input alone, at random, and keeps its
                shape, such as `keras.layers.RandomFlip`; None for no augmentation.
            augmentation_multiplicity: Number of augmented copies of each example, whose gradients
                are averaged *before* clipping (De et al. 2022). They are one contribution and cost
                no privacy. The time of a step grows in proportion.
            input_ranges: Public ranges of the inputs: the structure of `x`, with a pair `(lowest,
                highest)` in the place of each array, numbers or arrays that broadcast to the shape
                of one example; None where nothing is said. The model is examined on made-up rows
                within them. Without them, rows are also drawn within the range of each column of
                the data, which may decide whether `fit` refuses, and nothing else.
            unit_ids: Whose the rows of arrays are: an integer or a string for each row, the same
                for all rows of a person, in each `fit`; None protects single rows. Epsilon is then
                that of a person, and ids are not kept. Use `validation_data` of other people
                instead of `validation_split`. One process only.
            max_rows_per_unit: The most rows of a person that train, from 1 to 100,000; the others
                are left out, chosen at random in each `fit`. Required with `unit_ids`. Each row
                that stays is drawn by itself, and their number counts as public.

        Returns:
            Keras's `History`. Its `ended_early` says why a `PrivacyCallback` has ended training
            before the last step; it is None otherwise.

        Raises:
            ValueError: If an argument is out of range, or the model has a part that breaks the
                guarantee. Nothing was trained then.
        """
        self._require_compiled()
        num_epochs, optimizer = epochs - initial_epoch, self.optimizer
        draws = training_data.DrawsOfFit(
            batch_size=batch_size,
            class_weight=class_weight,
            model=self,
            num_epochs=epochs,
            num_examples=num_examples,
            once_per_pass=once_per_pass,
            sampling=sampling,
            shuffle=shuffle,
            steps_per_epoch=steps_per_epoch,
            validation_split=validation_split,
            unit_ids=unit_ids,
            max_rows_per_unit=max_rows_per_unit,
        )
        x, y, sample_weight = map(from_frames, (x, y, sample_weight))
        validation_batch_size = validation_batch_size or batch_size
        if training_data.is_array_data(x):
            if validation_split and validation_data is None:
                (x, y, sample_weight), validation_data = training_data.split_off_validation(
                    x, y, sample_weight, validation_split
                )
            data = draws.from_arrays(x, y, sample_weight, optimizer)
        else:
            training.processes.refuse_joined_batches(self, x)
            data = draws.from_data_set(x, y=y, sample_weight=sample_weight)
        if optimizer.plan_clipping(class_weight):
            self.train_function = None
        warn_of_lost_weights(optimizer.clipping, class_weight, data.rows.sample_weight)
        self._set_in_steps(
            "augmentation", checked_augmentation(augmentation, augmentation_multiplicity, data.rows)
        )
        # The layer may have changed since the last `fit`, where it is not compiled.
        if augmentation is not None or self._wants_diagnostics(callbacks):
            self.train_function = None
        sizes = self._prepare(data, input_ranges)
        validation_data = training_data.for_keras(validation_data, validation_batch_size)
        self._try_validation(validation_data, validation_batch_size)
        data.warn_of_rows(self._private_state.handles_missing)
        examined = data
        can_calibrate = optimizer.learns_temperature and (
            self._layer_to_calibrate(examined) is not None
        )
        is_weighted = class_weight or data.rows.sample_weight is not None
        if optimizer.learns_temperature and is_weighted and keras_losses.layer_of_logits(self):
            self._private_state.remarks.append(
                "No temperature is learned where rows have weights: probabilities are those of the "
                "weighted rows, and not calibrated."
            )
        data, callbacks = training.planned_run(
            self, examined, callbacks, num_epochs, data.epoch_is_pass, can_calibrate
        )
        if data.max_batch_size != examined.max_batch_size:
            # The plan has chosen the largest batch, and with it the shapes of the steps.
            sizes = self._prepare(data, input_ranges, is_new=False)
        with self._run_of_fit(callbacks, data, data.epoch_is_pass, num_epochs, verbose) as ordered:
            return super().fit(
                **data.with_sizes(sizes, self),
                epochs=epochs,
                verbose=verbose,
                callbacks=ordered,
                validation_data=validation_data,
                initial_epoch=initial_epoch,
                validation_steps=validation_steps,
                validation_batch_size=validation_batch_size,
                validation_freq=validation_freq,
            )

    @training.on_all_devices
    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: dict[int, float] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Train on one batch as Keras does, accounted as one full release of it."""
        self._require_compiled()
        self.optimizer.refuse_single_steps()
        training.processes.refuse_batch_of_every_replica(self)
        x, y, sample_weight = map(written_out, map(from_frames, (x, y, sample_weight)))
        size, rows = training_data.rows_of(x, y, sample_weight)
        weights = training_data.ClassWeights.of_fit(self, class_weight, rows.x, y)
        if weights is not None:
            sample_weight = weights.of(y, sample_weight)
            rows = dataclasses.replace(rows, sample_weight=sample_weight[:3])
        data = training.TrainingData(
            sampling=Sampling.STREAM,
            expected_batch_size=size,
            num_examples=size,
            rows=rows,
            known=Batch(x, y),
        )
        self._set_in_steps("augmentation", None)
        # Planning and examining take longer than a step.
        self._prepare(data, any_length=True)
        # Digests would take as long as a step.
        with self._run_of_steps(data, take_digests=False):
            # Keras for PyTorch would hand NumPy arrays on to the step.
            x, y, sample_weight = mapped(keras.ops.convert_to_tensor, (x, y, sample_weight))
            return super().train_on_batch(
                x, y, sample_weight=sample_weight, return_dict=return_dict
            )

    def _prepare(
        self,
        data: training.TrainingData,
        input_ranges: Any = None,
        any_length: bool = False,
        is_new: bool = True,
    ) -> tuple[int, ...]:
        """Build, plan and examine the model, and choose the shapes of its steps; train nothing.

        Args:
            data: The training data.
            input_ranges: As for `fit`.
            any_length: Whether a plan for examples of other lengths may be used.
            is_new: Whether the steps may be compiled otherwise than the model was examined for.

        Returns:
            The numbers of rows that batches are padded to.
        """
        examination.refuse_unsupported(self)
        examination.refuse(self, examination.issues_of_parts(self))
        training.processes.refuse_uneven_batches(data)
        training.processes.refuse_data_of_one_process(data)
        training.processes.refuse_other_settings(self)
        state, rows = self._private_state, data.rows
        keras_private.build_for_training(self, rows.x, rows.y, rows.sample_weight)
        examination.refuse_other_weights(self)
        if data.known is not None and (state.plan is None or not any_length):
            examination.refuse_labels(self, rows, data.known)
        # Building may have made further layers.
        examination.refuse(self, examination.layer_issues(self))
        kinds, known = self._kinds_of(data), state.planned_for
        # Drawn rows have secret places.
        most_rows = MOST_ROWS if data.poisson is None else MOST_DRAWN_ROWS
        # If the model is refused, no plan is left with which it could be trained.
        plan, state.plan = state.plan, None
        is_known = known is not None and kinds[any_length] == known[any_length]
        is_compiled = self.train_function is not None or not is_new
        sample = examination.SampleRows(self, rows, data.known, input_ranges)
        if plan is None or not (is_compiled and is_known and plan.most_rows == most_rows):
            # Nothing that was found is older than what is compiled.
            self.train_function, state.planned_for, plan = None, kinds, None
            state.examined.clear()
        try:
            made, of_data = sample.batches() if plan is None else ([], None)
            suggested = plan or suggested_plan(self, made, of_data)
            state.plan = dataclasses.replace(suggested, most_rows=most_rows)
            layout = self._examined_layout(data, sample)
            if plan is None:
                loss = examination.examine_loss(self, sample, kinds[0][1])
                examination.refuse(self, loss.issues)
                if data.poisson is not None:
                    examination.refuse(self, examination.masked_metric_issues(self, sample))
                method = self.optimizer.gradient_method
                plan = make_plan(self, made, method, of_data, suggested)
                state.remarks = [
                    *filter(None, (loss.remark, examination.remark_on_unreached(self, plan))),
                    *map(str, examination.notes(self, sample)),
                ]
                self._set_in_steps("handles_missing", loss.handles_missing)
                state.plan = dataclasses.replace(plan, most_rows=most_rows)
                layout = self._examined_layout(data, sample)
        except BaseException:
            state.plan = None
            raise
        found = [each.assigned for key, each in state.examined.items() if key[0] == id(self)]
        self._assign_in_steps(
            list({id(each): each for part in found for each in part}.values()), rows
        )
        self._set_in_steps("chunk_size", layout.chunk_size)
        self._set_in_steps("is_drawn", data.poisson is not None)
        return layout.sizes

    def _examined_layout(
        self, data: training.TrainingData, sample: examination.SampleRows
    ) -> BatchLayout:
        """Return the shapes of the steps, at which model and augmentation were examined.

        Raises:
            ValueError: With every issue, one a line.
        """
        layout, plan = batch_layout(self, data), self.gradient_plan
        augmentation = self._private_state.augmentation
        copies = 1 if augmentation is None else augmentation.multiplicity
        sizes = [size * copies for size in step_sizes(self, data, layout)]
        state, is_exact = self._private_state, backend.needs_fixed_shapes(self)
        examine = functools.partial(
            examination.examine,
            sizes=sizes,
            known=state.examined,
            counts_rows=not is_exact or len(sizes) > 1,
            is_exact=is_exact,
        )
        if augmentation is not None:
            model, of_inputs = augmentation.as_model(sample.batch()), sample.of_inputs()
            examine(model, of_inputs, owner=augmentation.layer)
        if plan is not None and plan.is_layerwise:
            examine(self, sample)
        elif all(key[0] != id(self) for key in state.examined):  # One row at a time.
            examination.examine(self, sample, [examination.NUM_ROWS], state.examined)
        return layout

    def _kinds_of(self, data: training.TrainingData) -> list[Any]:
        """Return what a plan is made for, for examples of one shape and of any length."""
        rows = data.rows
        # Keras makes weights of the examples of those of classes.
        given = data.fit_arguments.get("class_weight"), rows.sample_weight
        is_weighted = any(each is not None for each in given)

        def kind(any_length: bool, value: Any) -> str:
            """Return shape or number of axes, and type, of an example."""
            shape = tuple(value.shape[1:])
            return f"{len(shape) if any_length else shape} {value.dtype}"

        return [
            (
                mapped(functools.partial(kind, any_length), (rows.x, rows.y, rows.sample_weight)),
                is_weighted,
                self.optimizer.gradient_method,
                keras_private.flatten_layers(self),
            )
            for any_length in (False, True)
        ]

    def _layer_to_calibrate(self, data: training.TrainingData) -> keras.layers.Dense | None:
        """Return the layer that a temperature can divide, None if there is none."""
        is_weighted = data.class_weights is not None or data.rows.sample_weight is not None
        is_spread = backend.num_replicas(self) > 1 or backend.num_batch_shards() > 1
        if data.poisson is None or is_weighted or is_spread or backend.num_processes() > 1:
            return None
        return keras_losses.layer_of_logits(self)

    def _calibrate(self, data: training.TrainingData) -> float | None:
        """Divide the logits by the temperature of a release, once counted, and return it.

        Args:
            data: The training data.
        """
        layer = self._layer_to_calibrate(data)
        if layer is None:
            return None
        self.optimizer.count_release()
        size = self._private_state.chunk_size or data.expected_batch_size
        sums = sums_of_gaps(self, data.poisson, size)
        noised, stddev = self.optimizer.make_last_release(sums, SENSITIVITY)
        found = temperature_at(noised, stddev)
        divide_logits(layer, found)
        return found

    def private_summary(
        self, x: Any = None, batch_size: int | None = None, print_fn: Callable[[str], Any] = print
    ) -> None:
        """Print a table of how the per-example gradients of each layer are computed.

        For each layer with trainable weights: the rule, how norms are computed (a product of two
        norms, Gram matrices, materialized gradients), and the memory of one example. Before the
        first `fit`, the table shows the plan that the layers suggest. `fit` compares the plan with
        plain gradients on a few rows; afterwards the table shows the plan that was chosen.

        Args:
            x: A few inputs, for models whose input shapes are not known.
            batch_size: The expected batch size, for the memory of a step.
            print_fn: Function that takes the text.

        Raises:
            ValueError: If the input shapes are not known.
        """
        print_fn(summary(self, x, batch_size))

    def train_step(self, *args: Any) -> Any:
        """Run one private step, in the form that the backend's trainer expects.

        Raises:
            ValueError: If it is called outside of `fit` and `train_on_batch`.
        """
        if self._private_state.plan is None:
            raise ValueError(
                "`train_step` was called on a model that `fit` or `train_on_batch` did not "
                "prepare, so neither sampling nor ledger is set up. Call one of these."
            )
        return backend.train_step(self, private_step, *args)

    def make_train_function(self, force: bool = False) -> None:
        """Compile the step as Keras does, with the best options for a CPU."""
        if force:
            self._private_state.planned_for = None
        with backend.compiled_for_cpu():
            super().make_train_function(force=force)
