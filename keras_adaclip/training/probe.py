"""Runs a model on made-up rows and watches what depends on what.

Rows pass through the model; then half of them are exchanged and what every layer returned for the
*other* half is compared. A layer whose output for a row moved has mixed examples. A second pass
differentiates the outputs of half of the rows: by what belongs to the other half, the derivative
must be zero, and no tolerance hides a small one. Both are done in training mode, at several states
of the model's variables and random generators: a gate that is closed now may open later.

A variable that the forward pass assigns would carry data past clipping and noise, unless what it
is assigned does not depend on the rows. So would anything else that a pass leaves behind: see
`outside_state`.
"""

import math
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_adaclip import backend
from keras_adaclip.gradients import Batch
from keras_adaclip.training.comparing import differ, first_difference
from keras_adaclip.training.findings import (
    ADDED,
    ASSIGNED,
    ASSIGNED_OUTSIDE,
    OUTSIDE,
    Finding,
    OwnLoss,
    issue_with,
    mixing_issue,
)
from keras_adaclip.training.made_up import as_column, far_value, moved_value, separating_halves
from keras_adaclip.training.outside_state import OutsideState
from keras_adaclip.training.traced_model import TracedModel

_NUM_ROWS = 8
# States of the variables: as they are, and four others. At two more, those that may count are far.
_NUM_STATES, _NUM_FAR_STATES = 5, 2
# Spread of the made-up rows at each of them, as a multiple of that of the data.
SPREADS = (1.0, 1.0, 3.0, 0.3, 10.0)


def probe(model: keras.Model, rows: Batch, with_loss: bool = False) -> Finding:
    """What the forward pass does that a private step must not do.

    Args:
        model: a built model.
        rows: at least one example, for shapes, dtypes and plausible values.
        with_loss: whether a loss of the user's own is examined too; `rows` have targets then.

    Raises:
        Exception: whatever the model raises on such rows.
    """
    return Probe(model, rows, with_loss=with_loss).examined()


class Probe:
    """Runs a model on made-up rows, and compares; what is compiled for it is compiled once.

    Args:
        model: a built model.
        rows: at least one example, for shapes, dtypes and plausible values.
        size: number of rows of a batch.
        training: the mode of the forward pass.
        with_loss: whether a loss of the user's own is examined too; `rows` have targets then.
    """

    def __init__(
        self,
        model: keras.Model,
        rows: Batch,
        size: int = _NUM_ROWS,
        training: bool = True,
        with_loss: bool = False,
    ) -> None:
        self.traced = TracedModel(model, rows, size, training, with_loss)
        # Single numbers that nothing trains, and what the forward pass assigns.
        self._counting = {
            id(variable)
            for variable in model.non_trainable_variables
            if math.prod(variable.shape) == 1
            and all(variable is not state for state in self.traced.seeds)
        }
        self._last_rows: list[list[np.ndarray]] = []

    def examined(self, at_step_shape: bool = False) -> Finding:
        """What is found at several states of variables, random generators and rows.

        Args:
            at_step_shape: whether outputs are differentiated too, and state outside of Keras's
                variables was looked for already.
        """
        generator = np.random.default_rng(self.traced.size)
        issues = [] if at_step_shape else self.outside_state(generator)
        if issues:
            return Finding(issues)
        unrepeatable: str | None = None
        dependent = set[int]()
        mixing: keras.layers.Layer | OwnLoss | None = None
        updated: dict[int, keras.Variable] = {}
        for state in range(_NUM_STATES + _NUM_FAR_STATES):
            if state >= _NUM_STATES and not self._counting:
                break
            try:
                found = self._compared_at(state, generator, at_step_shape)
            except Exception:
                # Not every value is one that a variable can have.
                if state == 0:
                    raise
                continue
            updated |= {id(variable): variable for variable in self.traced.updated}
            self._counting |= updated.keys()
            dependent.update(found.dependent)
            unrepeatable = unrepeatable or found.unrepeatable
            mixing = mixing or found.mixing
            if mixing is not None:
                break
        self._last_rows = []
        issues = [
            issue_with(self.traced.model, variable, *ASSIGNED)
            for number, variable in updated.items()
            if number in dependent
        ]
        issues += [(layer.name, *ADDED) for layer in self.traced.added]
        issues += [(each.path, *ASSIGNED_OUTSIDE) for each in self.traced.outside.assigned]
        if mixing is not None:
            issues.append(mixing_issue(self.traced.model, mixing))
        unique = list({issue[0]: issue for issue in issues}.values())
        assigned = [each for number, each in updated.items() if number not in dependent]
        return Finding(unique, unrepeatable is None, unrepeatable, assigned)

    def examined_state(self) -> Finding:
        """What is found of state alone; the variables that are assigned data are no issue."""
        generator = np.random.default_rng(self.traced.size)
        issues = self.outside_state(generator)
        if issues:
            return Finding(issues)
        found = self._compared_at(0, generator, False)
        dependent = [each for each in self.traced.updated if id(each) in found.dependent]
        assigned = [each for each in self.traced.updated if id(each) not in found.dependent]
        branches = self.traced.forward.effects.branches
        unrepeatable = found.unrepeatable
        return Finding([], unrepeatable is None, unrepeatable, assigned, dependent, branches)

    def mixing_now(self, number: int) -> list[tuple[str, str, str]]:
        """Issues with the variables as they are, from one comparison.

        Args:
            number: another one takes other halves and random numbers.
        """
        values = [variable.value for variable in self.traced.variables]
        generator = np.random.default_rng([self.traced.size, number // 2])
        # What looks at one row alone, such as a maximum, changes with one half or with the other.
        half = self._halves(1, generator)[0] ^ (number % 2 == 1)
        # Made-up rows serve again: to draw them takes longer than a small model runs. A difference
        # is looked at again beside that of two runs on the same rows.
        for repeat in (False, True):
            found = self._compared(
                values, number, [half], generator, number % 3 == 1, repeat, renews=False
            )
            if found.mixing is None:
                return []
        return [mixing_issue(self.traced.model, found.mixing)]

    def moves_in_python(self) -> bool:
        """Whether a pass changes what layers hold outside of variables, such as a counter."""
        state = OutsideState(self.traced.model)
        rows = self.traced.rows(1.0, np.random.default_rng(self.traced.size))
        for _ in range(2):
            state.note()
            self.traced.forward(
                rows, ([each.value for each in self.traced.variables], self.traced.seed_values(0))
            )
        state.note()
        return state.moves

    def outside_state(self, generator: np.random.Generator) -> list[tuple[str, str, str]]:
        """Issues with what a forward pass leaves behind outside of Keras's variables.

        Args:
            generator: makes up rows.
        """
        rows, exchanged = self.traced.rows(1.0, generator), self.traced.rows(1.0, generator)
        further = (
            [variable.value for variable in self.traced.variables],
            self.traced.seed_values(0),
        )
        state = OutsideState(self.traced.model)
        outputs = []
        for each in (rows, rows, exchanged, rows):
            outputs.append(self.traced.forward(each, further)[0])
            state.note()
        names = state.names()
        effects = self.traced.forward.effects
        if not names and effects.writes:
            names = [self.traced.model.name]
        # The step leaves metrics as the forward pass did: they must not be read by the next one.
        measured = {id(variable) for variable in self.traced.model.metrics_variables}
        values = [
            moved_value(backend.array_of(each), 1, False, generator)
            if id(each) in measured
            else each.value
            for each in self.traced.variables
        ]
        outputs.append(self.traced.forward(rows, (values, further[1]))[0])
        first, _, _, *others = outputs
        is_exact = backend.computes_on_cpu()
        differs = [first_difference(first, each, is_exact) is not None for each in others]
        if not names and not effects.draws and any(differs):
            names = [self.traced.model.name]
        return [(name, *OUTSIDE) for name in names]

    def _compared_at(
        self, state: int, generator: np.random.Generator, with_gradients: bool
    ) -> "_Compared":
        """Compares at one of the states, to which variables belong that only a pass shows."""
        while True:
            values, halves = self.values_at(state, generator), self._halves(state, generator)
            found = self._compared(values, state, halves, generator, with_gradients)
            known = {id(variable) for variable in self.traced.variables}
            further = [each for each in self.traced.outside.read if id(each) not in known]
            if not further:
                return found
            self.traced.variables += further
            self._counting.update(id(each) for each in further if math.prod(each.shape) == 1)
            self.traced.renew_evaluators()

    def _compared(
        self,
        values: list[Any],
        state: int,
        halves: list[np.ndarray],
        generator: np.random.Generator,
        with_gradients: bool,
        repeat: bool = True,
        renews: bool = True,
    ) -> "_Compared":
        """Compares a pass with others for which half of the rows were exchanged.

        Args:
            values: of the variables.
            state: number of the state, for random generators and rows.
            halves: masks of the rows to exchange.
            generator: makes up rows.
            with_gradients: whether outputs are differentiated too.
            repeat: whether there is a second pass on the same rows.
            renews: whether the rows are new ones, with sequences cut short at some of the states.
        """
        if renews or not self._last_rows:
            spread = SPREADS[state % len(SPREADS)]
            turn, is_odd = divmod(state, 2)
            paddings = self.traced.padding
            padding = paddings[turn % len(paddings)] if renews and is_odd else None
            self._last_rows = [self.traced.rows(spread, generator, padding) for _ in range(2)]
        rows, others = self._last_rows
        if not renews:
            # Other pairs: a maximum may lie in the same row of both.
            others = [np.roll(each, 1 + state // 2, axis=0) for each in others]
        further = (values, self.traced.seed_values(state))
        first, assigned = self.traced.forward(rows, further)
        again = self.traced.forward(rows, further)[0] if repeat else first
        differing = first_difference(first, again, False)
        if differing is not None:
            return _Compared(None, set(), self.traced.layers[differing].name)
        # What runs on the same rows to the last bit must do so on the same row.
        is_exact = first_difference(first, again, True) is None
        mixing: list[int] = []
        dependent: set[int] = set()
        for half in halves:
            changed = [
                np.where(as_column(half, one), two, one)
                for one, two in zip(rows, others, strict=True)
            ]
            outputs, now = self.traced.forward(changed, further)
            number = first_difference(first, outputs, is_exact, ~half)
            mixing += [] if number is None else [number]
            dependent.update(
                id(variable)
                for variable, one, two in zip(self.traced.updated, assigned, now, strict=True)
                if differ(one, two, is_exact)
            )
        if mixing:
            return _Compared(self.traced.layers[min(mixing)], dependent)
        leaking = self.traced.leaking(rows, further, ~halves[0]) if with_gradients else None
        return _Compared(leaking, dependent)

    def values_at(self, state: int, generator: np.random.Generator) -> list[Any]:
        """The values of the variables at one of the states that are tried."""
        if state == 0:
            return [variable.value for variable in self.traced.variables]
        if state >= _NUM_STATES:
            return [
                far_value(backend.array_of(variable), state == _NUM_STATES)
                if id(variable) in self._counting
                else variable.value
                for variable in self.traced.variables
            ]
        trained = {id(variable) for variable in self.traced.model.trainable_variables}
        return [
            moved_value(backend.array_of(variable), state, id(variable) in trained, generator)
            for variable in self.traced.variables
        ]

    def _halves(self, state: int, generator: np.random.Generator) -> list[np.ndarray]:
        """Masks of the rows to exchange."""
        if state == 0 and self.traced.size == _NUM_ROWS:
            return separating_halves(_NUM_ROWS)
        half = generator.permutation(self.traced.size) < self.traced.size // 2
        return [half, ~half] if self.traced.size == _NUM_ROWS else [half]

    @property
    def outside_variables(self) -> list[keras.Variable]:
        """Those that a pass reads and that are not the model's."""
        return self.traced.outside.read


@dataclass(frozen=True)
class _Compared:
    """The first layer that mixes, or the loss, and the `id` of each variable that is assigned data.

    Where two runs on the same rows differ, only the name of the first layer in which they do.
    """

    mixing: keras.layers.Layer | OwnLoss | None
    dependent: set[int]
    unrepeatable: str | None = None
