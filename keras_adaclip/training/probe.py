"""Runs a model on random rows and watches what depends on what.

One comparison is made at several states of the model's variables and random generators, since a
gate that is closed now may open later. Always in training mode, it asks of every layer and of a
loss of the user's own:

- Does its output for a row change when half of the *other* rows are exchanged? It mixes examples.
- Is a derivative of the outputs of half of the rows by the other half not zero? It mixes examples
  too, and no tolerance hides a small derivative.
- Does its output for the first rows change when the rows behind them are left out? It depends on
  how many rows there are.

At the shapes of the steps, where passes take long, a short comparison does for all states but the
first.

A variable that the forward pass assigns would carry data past clipping and noise, unless its new
value does not depend on the rows. So would anything else that a pass leaves behind: see
`outside_state`.
"""

import math
from typing import Any

import keras
import numpy as np
from numpy.random import Generator

from keras_adaclip import backend
from keras_adaclip.gradients import Batch
from keras_adaclip.training import issues, made_up
from keras_adaclip.training.equal_draws import EqualDraws
from keras_adaclip.training.issues import Finding, OwnLoss, PrivacyIssue
from keras_adaclip.training.outside_state import OutsideState
from keras_adaclip.training.traced_model import TracedModel, Values

_NUM_ROWS = 8
# Rows of the batch with which larger ones are compared.
_FEW = 2


class Probe:
    """Runs a model on random rows and compares; the model is compiled once.

    Whatever the model raises on such rows passes through.

    Args:
        model: A built model.
        rows: At least one example, for shapes, dtypes and plausible values.
        size: Number of rows of a batch.
        with_loss: Whether a loss of the user's own is examined too; `rows` have targets then.
        counts_rows: Whether the output for one row must not depend on the number of rows.
    """

    def __init__(
        self,
        model: keras.Model,
        rows: Batch,
        size: int = _NUM_ROWS,
        with_loss: bool = False,
        counts_rows: bool = False,
    ) -> None:
        draws = EqualDraws(size) if counts_rows else None
        self.traced = TracedModel(model, rows, size, with_loss, draws)
        # The model with few rows, whose outputs for these must be those among many rows.
        self._few: TracedModel | None = None
        if draws is not None:
            num_few = _FEW if size > _FEW else 1
            self._few = TracedModel(model, rows, num_few, draws=EqualDraws(num_few, draws))
        # Single numbers that nothing trains, and variables that the forward pass assigns.
        self._counting = {
            id(variable)
            for variable in model.non_trainable_variables
            if math.prod(variable.shape) == 1
            and all(variable is not state for state in self.traced.seeds)
        }

    def examined(
        self, at_step_shape: bool = False, is_known: bool = False, eagerly: bool = False
    ) -> Finding:
        """Return what is found at several states of variables, random generators and rows.

        Args:
            at_step_shape: Whether derivatives are taken too, and state outside of Keras's
                variables was looked for already.
            is_known: Whether the model was examined before; then the present state is enough.
            eagerly: Whether two eager runs are compared too: compiled code draws random numbers of
                Python only once.
        """
        traced, generator = self.traced, np.random.default_rng(self.traced.size)
        found = [] if at_step_shape else self._outside_state(generator)
        if eagerly and not found:
            rows = traced.rows(0, generator)
            found = self._unrepeatable(*(traced.eager_outputs(rows) for _ in range(2)))
        dependent = set[int]()
        updated: dict[int, keras.Variable] = {}
        for state in range(1 if is_known else made_up.NUM_STATES + made_up.NUM_FAR_STATES):
            if found or (state >= made_up.NUM_STATES and not self._counting):
                break
            try:
                if at_step_shape and state > 1 and self._few is None:
                    break
                if at_step_shape and state > 0:
                    found = self._found_at(self._values_at(state, generator), state, generator)
                else:
                    found = self._compared_at(state, generator, at_step_shape, dependent)
            except Exception:
                # Not every value is one that a variable can have.
                if state == 0:
                    raise
                continue
            updated |= {id(variable): variable for variable in traced.updated}
            self._counting |= updated.keys()
        found = [
            *(
                issues.issue_with(traced.model, variable, *issues.ASSIGNED)
                for number, variable in updated.items()
                if number in dependent
            ),
            *(PrivacyIssue(layer.name, *issues.ADDED) for layer in traced.added),
            *(PrivacyIssue(v.path, *issues.ASSIGNED_OUTSIDE) for v in traced.outside.assigned),
            *found,
        ]
        return Finding(
            list({issue.layer: issue for issue in found}.values()),
            [each for number, each in updated.items() if number not in dependent],
            branches=traced.forward.effects.branches,
        )

    def finding_now(self, number: int) -> Finding:
        """Return what one comparison finds with the variables as they are.

        Args:
            number: Another number takes other rows, halves and random numbers.
        """
        values = [variable.value for variable in self.traced.variables]
        generator = np.random.default_rng([self.traced.size, number])
        return Finding(self._found_at(values, number, generator, number % 3 == 1))

    def _found_at(
        self, values: list[Any], number: int, generator: Generator, with_gradients: bool = False
    ) -> list[PrivacyIssue]:
        """Return what a short comparison finds, at given values of the variables."""
        if self._is_repeated(values, number, generator, with_gradients):
            return self._counted(values, number, generator)
        found: list[PrivacyIssue] = []
        for _ in range(2):  # A difference is looked at again on other rows.
            found = self._compared(values, number, generator, True, set())
            if not found:
                break
        return found

    @property
    def outside_variables(self) -> list[keras.Variable]:
        """The variables that a pass reads and that are not the model's."""
        return self.traced.outside.read

    def _run(self, rows: list[np.ndarray], values: list[Any] | None = None) -> list[np.ndarray]:
        """Return the outputs of the layers, with the variables as they are unless given."""
        if values is None:
            values = [variable.value for variable in self.traced.variables]
        return list(self.traced.forward(rows, (values, self.traced.seed_values(0)))[0])

    def _unrepeatable(self, first: list[np.ndarray], again: list[np.ndarray]) -> list[PrivacyIssue]:
        """Return an issue with the first layer in which two runs on the same rows differ."""
        number = _first_difference(first, again, False)
        return [] if number is None else [self._issue(self.traced.layers[number], issues.OUTSIDE)]

    def _issue(self, part: keras.Layer | OwnLoss, told: tuple[str, str]) -> PrivacyIssue:
        """Return an issue with a layer, a loss or a variable of the model."""
        return issues.issue_with(self.traced.model, part, *told)

    def _exchanged(
        self, rows: list[np.ndarray], others: list[np.ndarray], which: np.ndarray
    ) -> list[np.ndarray]:
        """Return the rows, with those of `which` taken from the others."""
        return [
            np.where(which.reshape(-1, *[1] * (one.ndim - 1)), other, one)
            for one, other in zip(rows, others, strict=True)
        ]

    def _is_repeated(
        self, values: list[Any], state: int, generator: Generator, with_gradients: bool
    ) -> bool:
        """Return whether half of the rows yield the same numbers if the others are exchanged."""
        traced = self.traced
        rows = traced.rows(state, generator)
        others = traced.rows(state, generator, with_padding=False)
        half, further = traced.half(generator), (values, traced.seed_values(state))
        first, again = (
            traced.forward(each, further)[0] for each in (rows, self._exchanged(rows, others, half))
        )
        if _first_difference(first, again, True, ~half) is not None:
            return False
        return not with_gradients or traced.leaking(rows, further, ~half) is None

    def _outside_state(self, generator: Generator) -> list[PrivacyIssue]:
        """Return issues with what a forward pass leaves behind outside of Keras's variables."""
        traced = self.traced
        rows, exchanged = traced.rows(0, generator), traced.rows(0, generator)
        state, outputs = OutsideState(traced.model), []
        for each in (rows, rows, exchanged, rows):
            outputs.append(self._run(each))
            state.note()
        # The step leaves metrics as the forward pass did: they must not be read by the next one.
        measured = {id(variable) for variable in traced.model.metrics_variables}
        values = [
            made_up.moved_value(backend.array_of(each), 1, False, generator)
            if id(each) in measured
            else each.value
            for each in traced.variables
        ]
        outputs.append(self._run(rows, values))
        names = state.names()
        if not names and traced.forward.effects.writes:
            names = [traced.model.name]
        first, _, _, *others = outputs
        differing = [_first_difference(first, each, backend.computes_on_cpu()) for each in others]
        numbers = [number for number in differing if number is not None]
        if not names and numbers:
            names = [traced.layers[min(numbers)].name]
        return [PrivacyIssue(name, *issues.OUTSIDE) for name in names]

    def _compared_at(
        self, state: int, generator: Generator, with_gradients: bool, dependent: set[int]
    ) -> list[PrivacyIssue]:
        """Compare at one of the states, which include variables that only a pass shows."""
        while True:
            values = self._values_at(state, generator)
            found = self._compared(values, state, generator, with_gradients, dependent)
            known = {id(variable) for variable in self.traced.variables}
            further = [each for each in self.outside_variables if id(each) not in known]
            if not further:
                return found
            self._counting.update(id(each) for each in further if math.prod(each.shape) == 1)
            self.traced.use_variables([*self.traced.variables, *further])

    def _compared(
        self,
        values: list[Any],
        state: int,
        generator: Generator,
        with_gradients: bool,
        dependent: set[int],
    ) -> list[PrivacyIssue]:
        """Compare a pass with others, for which other rows were exchanged or left out.

        Args:
            values: The values of the variables.
            state: Number of the state, for random generators and rows.
            generator: Draws rows.
            with_gradients: Whether derivatives are taken too.
            dependent: Takes the `id` of each variable whose assigned value depends on the rows.

        Returns:
            At most one issue with a layer or a loss.
        """
        traced = self.traced
        rows = traced.rows(state, generator)
        # Whole sequences, so that the longest one of the batch always changes.
        others = traced.rows(state, generator, with_padding=False)
        further = (values, traced.seed_values(state))
        first, assigned = traced.forward(rows, further)
        again, _ = traced.forward(rows, further)
        if unrepeatable := self._unrepeatable(first, again):
            return unrepeatable
        # If a repeated pass agrees to the last bit, kept rows must agree to the last bit too.
        is_exact = _first_difference(first, again, True) is None
        mixing: list[int] = []
        first_half = traced.half(generator)
        for half in (first_half, ~first_half):
            outputs, now = traced.forward(self._exchanged(rows, others, half), further)
            number = _first_difference(first, outputs, is_exact, ~half)
            mixing += [] if number is None else [number]
            dependent.update(
                id(variable)
                for variable, one, two in zip(traced.updated, assigned, now, strict=True)
                if _differ(one, two, is_exact)
            )
        part = traced.layers[min(mixing)] if mixing else None
        if part is None and with_gradients:
            part = traced.leaking(rows, further, ~first_half)
        if part is not None:
            told = issues.MIXING_LOSS if isinstance(part, OwnLoss) else issues.MIXING
            return [self._issue(part, told)]
        return self._counted(values, state, generator)

    def _counted(self, values: list[Any], state: int, generator: Generator) -> list[PrivacyIssue]:
        """Return an issue with the first layer that depends on the number of rows."""
        layer = self._counting_layer((values, self.traced.seed_values(state)), state, generator)
        return [] if layer is None else [self._issue(layer, issues.COUNTING)]

    def _counting_layer(
        self, values: Values, state: int, generator: Generator
    ) -> keras.Layer | None:
        """Return the first layer whose output for a few rows changes if more rows follow them."""
        few, many = self._few, self.traced
        if few is None:
            return None
        if len(few.variables) != len(many.variables):
            few.use_variables(many.variables)
        differing = None
        # A difference is looked at again on other rows: rounding may decide close to a threshold.
        for _ in range(2):
            rows = many.rows(state, generator)
            outputs = many.forward(rows, values)[0]
            num_inputs = len(few.examples)
            alone = few.forward([each[: few.size] for each in rows[:num_inputs]], values)[0]
            layers = few.layers
            if many.loss is not None:  # The loss is always that of one row alone.
                outputs = outputs[:-1]
            if len(alone) != len(outputs):  # Another axis is as long as one of the batches.
                layers, outputs, alone = layers[-1:], outputs[-1:], alone[-1:]
            differing = next(
                (
                    layer
                    for layer, one, other in zip(layers, alone, outputs, strict=False)
                    if len(one) == few.size and not _are_close(one, other[: few.size])
                ),
                None,
            )
            if differing is None:
                break
        return differing

    def _values_at(self, state: int, generator: Generator) -> list[Any]:
        """Return the values of the variables at one of the states that are tried."""
        if state == 0:
            return [variable.value for variable in self.traced.variables]
        if state >= made_up.NUM_STATES:
            return [
                made_up.far_value(backend.array_of(variable), state == made_up.NUM_STATES)
                if id(variable) in self._counting
                else variable.value
                for variable in self.traced.variables
            ]
        trained = {id(variable) for variable in self.traced.model.trainable_variables}
        return [
            made_up.moved_value(backend.array_of(each), state, id(each) in trained, generator)
            for each in self.traced.variables
        ]


def _first_difference(
    one: list[np.ndarray], other: list[np.ndarray], is_exact: bool, rows: Any = slice(None)
) -> int | None:
    """Return the number of the first layer output that differs in `rows`, or None."""
    for number, (value, changed) in enumerate(zip(one, other, strict=True)):
        # An output without an axis of rows cannot be compared row by row.
        if isinstance(rows, np.ndarray) and len(value) != len(rows):
            continue
        if _differ(value[rows], changed[rows], is_exact):
            return number
    return None


def _differ(one: np.ndarray, other: np.ndarray, is_exact: bool) -> bool:
    """Return whether two digests differ, to the last bit or by more than rounding."""
    if is_exact:
        return not np.array_equal(one, other, equal_nan=True)
    return not np.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def _are_close(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether digests agree as far as those of batches of two sizes do."""
    scale = float(np.max(np.abs(one), initial=0.0, where=np.isfinite(one)))
    return np.allclose(one, other, rtol=1e-3, atol=1e-5 + 1e-3 * scale, equal_nan=True)
