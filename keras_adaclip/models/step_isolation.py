"""Proves that steps keep examples apart, at the shapes that run, and again while training goes on.

A layer may mix examples only where a batch is large, or once a variable has moved. Before training
each shape is examined at several states of the variables; before each epoch one comparison is made
with the variables as they are.
"""

import math

import keras
import numpy as np

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients import Augmentation, Batch
from keras_adaclip.models.preflight import PrivacyIssue, refuse
from keras_adaclip.models.probe import Probe

# Batches between two comparisons, which take about as long as a step.
_BATCHES_BETWEEN = 60
# Larger variables that nothing trains are not looked at before each single batch.
_MOST_NUMBERS = 4096


class StepIsolation:
    """Examines a model at the shapes of its steps.

    Args:
        model: a built private model with a plan.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._probes: dict[tuple[int, int], Probe] = {}
        self._used: list[Probe] = []
        self._num_checks = self._num_batches = 0
        self._fixed: list[np.ndarray] = []

    def prove(
        self, rows: Batch, sizes: list[int], augmentation: Augmentation | None = None
    ) -> None:
        """Examines the model with batches of so many rows, where that was not done yet.

        Args:
            rows: a few training examples.
            sizes: numbers of examples that pass through the model at a time.
            augmentation: how the examples are augmented.

        Raises:
            ValueError: where a layer mixes examples.
        """
        self._used = []
        copies = 1 if augmentation is None else augmentation.multiplicity
        models = {id(self._model): self._model} if self._model.gradient_plan.is_layerwise else {}
        if augmentation is not None:
            models[id(augmentation.layer)] = augmentation.as_model(rows)
        for size in sizes:
            for number, model in models.items():
                key = self._known((number, max(size * copies, 2)))
                if key not in self._probes:
                    # The one input of an augmentation, in whatever structure the model takes it.
                    is_own = model is self._model
                    given = rows if is_own else Batch(keras.tree.flatten(rows.x)[0])
                    probe = Probe(model, given, key[1], with_loss=is_own)
                    _refuse(self._model, probe.examined(at_step_shape=True).issues)
                    self._probes[key] = probe
                if self._probes[key] not in self._used:
                    self._used.append(self._probes[key])

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
        told = " It did not when training began. Steps until now are accounted for as they ran."
        _refuse(self._model, [(name, reason + told, fix) for name, reason, fix in issues])

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
        """Whether variables move that no optimizer steps: counters, or such as are not the model's.

        Known after `prove`.
        """
        return bool(self._model.assigned_by_forward or self._outside_variables())

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
        moving = {id(variable) for variable in self._model.assigned_by_forward}
        moving |= {id(state) for state in keras_private.seed_generator_states(self._model)}
        return [
            variable
            for variable in [*self._model.non_trainable_variables, *self._outside_variables()]
            if id(variable) not in moving and math.prod(variable.shape) <= _MOST_NUMBERS
        ]


def _refuse(model: keras.Model, issues: list[tuple[str, str, str]]) -> None:
    refuse(model, [PrivacyIssue(*issue) for issue in issues])
