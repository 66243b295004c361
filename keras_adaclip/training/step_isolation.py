"""Proves that steps keep examples apart, at the shapes that run, and again during training.

A layer may mix examples only where a batch is large, or once a variable has moved. Before training
each shape is examined at several states of the variables; before each epoch one comparison is made
with the variables as they are. Where batches differ in size, which tells of the data, the output
for one row must not depend on the number of rows.
"""

import math
from dataclasses import replace

import keras
import numpy as np

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients import Augmentation
from keras_adaclip.training.issues import Finding, issues_of_clients, refuse
from keras_adaclip.training.made_up import SampleRows
from keras_adaclip.training.probe import Probe

# Batches between two comparisons, which take about as long as a few steps.
_BATCHES_BETWEEN = 60
# Larger variables that nothing trains are not looked at before each single batch.
_MOST_NUMBERS = 4096


class StepIsolation:
    """Examines a model at the shapes of its steps.

    Args:
        model: A built private model with a plan, or a federated one.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        # By layer, number of rows, and whether that number must not matter.
        self._probes: dict[tuple[int, int, bool], Probe] = {}
        self._used: list[Probe] = []
        self._num_checks = self._num_batches = 0
        self._fixed: list[np.ndarray] = []

    def prove(
        self,
        sample: SampleRows,
        sizes: list[int],
        augmentation: Augmentation | None = None,
        others_vary: bool = False,
    ) -> None:
        """Examine the model with batches of these sizes, unless that was done already.

        Args:
            sample: Makes the rows up.
            sizes: Numbers of examples that pass through the model at a time.
            augmentation: How the examples are augmented.
            others_vary: Whether there are batches of yet other sizes.

        Raises:
            ValueError: If a layer mixes examples, or depends on the number of rows where that
                differs.
        """
        self._used = []
        counts_rows = others_vary or len(sizes) > 1
        copies = 1 if augmentation is None else augmentation.multiplicity
        plan = self._model.gradient_plan
        models = {id(self._model): self._model} if plan is None or plan.is_layerwise else {}
        if augmentation is not None:
            models[id(augmentation.layer)] = augmentation.as_model(sample.batch())
        # The largest batch first. A smaller one of about its size is compared once, or not at all
        # where there are batches of any size.
        has_exact_sizes = backend.needs_fixed_shapes(self._model)
        for size in sorted(sizes, reverse=True):
            for number, model in models.items():
                key = (number, max(size * copies, 2), counts_rows)
                close = self._close_to(key)
                if key not in self._probes and (close is None or has_exact_sizes):
                    is_own = model is self._model
                    given = sample if is_own else sample.of_inputs()
                    probe = Probe(model, given, key[1], is_own, counts_rows and close is None)
                    is_new = close is None
                    self._refuse(
                        probe.examined(at_step_shape=True) if is_new else probe.finding_now(0)
                    )
                    self._probes[key] = probe
                used = self._probes[key if close is None else close]
                if used not in self._used:
                    self._used.append(used)

    def _close_to(self, key: tuple[int, int, bool]) -> tuple[int, int, bool] | None:
        """Return the key of a batch about as large that was examined, or None."""
        layer, size, counts_rows = key
        for known in self._probes:
            is_close = known[1] <= 2 * size and size <= 2 * known[1]
            if is_close and known[::2] == (layer, counts_rows):
                return known
        return None

    def prove_again(self) -> None:
        """Compare once, with the variables as they are; the shapes take turns.

        Raises:
            ValueError: If a layer mixes examples.
        """
        if not self._used:
            return
        self._num_checks += 1
        turn, number = divmod(self._num_checks, len(self._used))
        self._refuse(
            self._used[number].finding_now(turn),
            " It did not when training began. Steps until now are accounted for as they ran.",
        )

    def prove_again_between_batches(self) -> None:
        """Compare if a fixed variable was changed, and every few batches.

        Raises:
            ValueError: If a layer mixes examples.
        """
        fixed = [backend.array_of(variable).copy() for variable in self._fixed_variables()]
        is_same = len(fixed) == len(self._fixed) and all(
            np.array_equal(*pair) for pair in zip(fixed, self._fixed, strict=True)
        )
        is_due = self._num_batches % _BATCHES_BETWEEN == 0
        self._num_batches += 1
        if is_same and not is_due:
            return
        for _ in self._used:
            self.prove_again()
        self._fixed = fixed

    @property
    def may_move_within_epochs(self) -> bool:
        """Whether variables move that no optimizer steps: counters, or those of others.

        Known after `prove`.
        """
        return bool(self._model._private_state.assigned_by_forward or self._outside_variables())

    def prove_again_within_epochs(self) -> None:
        """Compare once in a number of calls.

        Raises:
            ValueError: If a layer mixes examples.
        """
        self._num_batches += 1
        if self._num_batches % _BATCHES_BETWEEN == 0:
            keras_private.write_back_variables(self._model)
            for _ in self._used:
                self.prove_again()

    def _outside_variables(self) -> list[keras.Variable]:
        """Return the variables that a pass reads and that are not the model's."""
        outside = {id(each): each for probe in self._used for each in probe.outside_variables}
        return list(outside.values())

    def _fixed_variables(self) -> list[keras.Variable]:
        """Return the variables that no step assigns, and that are quickly compared."""
        moving = {id(variable) for variable in self._model._private_state.assigned_by_forward}
        moving |= {id(state) for state in keras_private.seed_generator_states(self._model)}
        return [
            variable
            for variable in [*self._model.non_trainable_variables, *self._outside_variables()]
            if id(variable) not in moving and math.prod(variable.shape) <= _MOST_NUMBERS
        ]

    def _refuse(self, finding: Finding, told: str = "") -> None:
        """Raise if there are issues that the model is refused for."""
        is_federated = self._model.privacy_unit == "client"
        issues = issues_of_clients(finding) if is_federated else finding.issues
        refuse(self._model, [replace(issue, reason=issue.reason + told) for issue in issues])
