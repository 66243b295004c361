"""Proves that steps keep examples apart, at the shapes that run, and again while training goes on.

A layer may mix examples only where a batch is large, or once a variable has moved. Before training
each shape is examined at several states of the variables; before each epoch one comparison is made
with the variables as they are. Where batches differ in size, which tells of the data, a layer must
not heed how many rows there are.
"""

import math

import keras
import numpy as np

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients import Augmentation, Batch
from keras_adaclip.training.findings import COUNTS, MIXES
from keras_adaclip.training.preflight import PrivacyIssue, refuse
from keras_adaclip.training.probe import Probe
from keras_adaclip.training.row_counts import examined_row_counts, row_counts_now

# Batches between two comparisons, which take about as long as a step.
_BATCHES_BETWEEN = 60
# Rows of the batch with which larger ones are compared.
_FEW = 2
# Larger variables that nothing trains are not looked at before each single batch.
_MOST_NUMBERS = 4096


class StepIsolation:
    """Examines a model at the shapes of its steps.

    Args:
        model: a built private model with a plan, or a federated one.
        reason: what is said of a layer that mixes rows; None says what was seen.
    """

    def __init__(self, model: keras.Model, reason: str | None = None) -> None:
        self._model, self._reason = model, reason
        self._probes: dict[tuple[int, int], Probe] = {}
        self._few: dict[tuple[int, int, bool], Probe] = {}
        self._counts: dict[tuple[int, int, bool], tuple[Probe, Probe]] = {}
        self._used: list[Probe] = []
        self._used_counts: list[tuple[Probe, Probe]] = []
        self._num_checks = self._num_batches = 0
        self._fixed: list[np.ndarray] = []

    def prove(
        self,
        rows: Batch,
        sizes: list[int],
        augmentation: Augmentation | None = None,
        others_vary: bool = False,
    ) -> None:
        """Examines the model with batches of so many rows, where that was not done yet.

        Args:
            rows: a few training examples.
            sizes: numbers of examples that pass through the model at a time.
            augmentation: how the examples are augmented.
            others_vary: whether there are batches of yet other sizes.

        Raises:
            ValueError: where a layer mixes examples, or counts rows that differ in number.
        """
        self._used, self._used_counts = [], []
        others_vary = others_vary or len(sizes) > 1
        copies = 1 if augmentation is None else augmentation.multiplicity
        plan = self._model.gradient_plan
        models = {id(self._model): self._model} if plan is None or plan.is_layerwise else {}
        if augmentation is not None:
            models[id(augmentation.layer)] = augmentation.as_model(rows)
        for size in sizes:
            for number, model in models.items():
                key = self._known((number, max(size * copies, 2)))
                # The one input of an augmentation, in whatever structure the model takes it.
                given = rows if model is self._model else Batch(keras.tree.flatten(rows.x)[0])
                if key not in self._probes:
                    is_own = model is self._model
                    probe = Probe(model, given, key[1], with_loss=is_own)
                    self._refuse(probe.examined(at_step_shape=True).issues)
                    self._probes[key] = probe
                if self._probes[key] not in self._used:
                    self._used.append(self._probes[key])
                if others_vary:
                    self._prove_counts(key, model, given)

    def _prove_counts(self, key: tuple[int, int], model: keras.Model, rows: Batch) -> None:
        """Examines whether so many rows give what fewer give."""
        size = _FEW if key[1] > _FEW else 1
        seeds = keras_private.seed_generator_states(model)
        # What stands behind a layer that draws in training is looked at in inference.
        for training in (True, False) if seeds else (True,):
            known = (*key, training)
            if known not in self._counts:
                of_few = (key[0], size, training)
                few = self._few.setdefault(of_few, Probe(model, rows, size, training))
                many = self._probes[key] if training else Probe(model, rows, key[1], training)
                self._refuse(examined_row_counts(few, many))
                self._counts[known] = (few, many)
            self._used_counts.append(self._counts[known])

    def _known(self, key: tuple[int, int]) -> tuple[int, int]:
        """The key, or that of a batch about as large where steps take batches of any size."""
        layer, size = key
        if key not in self._probes and not backend.needs_fixed_shapes(self._model):
            for known_layer, known in self._probes:
                if known_layer == layer and known <= 2 * size and size <= 2 * known:
                    return layer, known
        return key

    def prove_again(self) -> None:
        """Compares once, with the variables as they are; the shapes take turns.

        Raises:
            ValueError: where a layer mixes examples.
        """
        if not self._used:
            return
        self._num_checks += 1
        turn, number = divmod(self._num_checks, len(self._used))
        issues = self._used[number].mixing_now(turn)
        if not issues and self._used_counts:
            few, many = self._used_counts[self._num_checks % len(self._used_counts)]
            issues = row_counts_now(few, many, turn)
        self._refuse(
            issues,
            " It did not when training began. Steps until now are accounted for as they ran.",
        )

    def prove_again_between_batches(self) -> None:
        """`prove_again`, where a fixed variable was changed, and every few batches.

        Raises:
            ValueError: where a layer mixes examples.
        """
        fixed = [backend.array_of(variable).copy() for variable in self._fixed_variables()]
        is_same = len(fixed) == len(self._fixed) and all(
            np.array_equal(*pair) for pair in zip(fixed, self._fixed, strict=True)
        )
        if is_same and self._num_batches % _BATCHES_BETWEEN:
            self._num_batches += 1
            return
        for _ in self._used:
            self.prove_again()
        self._fixed = fixed
        self._num_batches += 1

    @property
    def may_move_within_epochs(self) -> bool:
        """Whether something moves that no optimizer steps: a counter, or what is not the model's.

        Known after `prove`.
        """
        if self._model._private_state.assigned_by_forward or self._outside_variables():
            return True
        return any(probe.moves_in_python() for probe in self._used[:1])

    def prove_again_within_epochs(self) -> None:
        """`prove_again`, once in a number of calls.

        Raises:
            ValueError: where a layer mixes examples.
        """
        self._num_batches += 1
        if self._num_batches % _BATCHES_BETWEEN == 0:
            keras_private.write_back_variables(self._model)
            for _ in self._used:
                self.prove_again()

    def _outside_variables(self) -> list[keras.Variable]:
        outside = {id(each): each for probe in self._used for each in probe.outside_variables}
        return list(outside.values())

    def _fixed_variables(self) -> list[keras.Variable]:
        """Those that no step assigns, and that are quickly compared."""
        moving = {id(variable) for variable in self._model._private_state.assigned_by_forward}
        moving |= {id(state) for state in keras_private.seed_generator_states(self._model)}
        return [
            variable
            for variable in [*self._model.non_trainable_variables, *self._outside_variables()]
            if id(variable) not in moving and math.prod(variable.shape) <= _MOST_NUMBERS
        ]

    def _refuse(self, issues: list[tuple[str, str, str]], told: str = "") -> None:
        if self._reason is not None:
            # Of rows alone: state that a client's training changes never leaves it.
            issues = [
                (name, self._reason, fix) for name, why, fix in issues if why in (MIXES, COUNTS)
            ]
        refuse(self._model, [PrivacyIssue(name, why + told, fix) for name, why, fix in issues])
