"""Builds, examines and plans a model of examples before its first private step.

A mixin without a Keras base, between what all private models share and what trains this one.
"""

import keras

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients import Augmentation, make_plan
from keras_adaclip.models.layout import batch_layout, step_sizes
from keras_adaclip.training import (
    StepIsolation,
    TrainingBase,
    TrainingData,
    refuse_data_of_one_process,
    refuse_disagreement,
    refuse_other_settings,
    refuse_uneven_batches,
    refuse_unsound_parts,
    refuse_unsound_training,
    weight_digests,
)


class Preparation(TrainingBase):
    """Examines a private model and sets it up for a run of steps."""

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
        is_sound = plan is not None and (is_repeatable or not plan.is_layerwise)
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
