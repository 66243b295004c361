"""Runs a model on made-up rows and watches what depends on what.

One comparison is made at several states of the model's variables and random generators, since a
gate that is closed now may open later. Always in training mode, it asks of every layer and of a
loss of the user's own:

- Does its output for a row change when half of the *other* rows are exchanged? It mixes examples.
- Is a derivative of the outputs of half of the rows by the other half not zero? It mixes examples
  too, and no tolerance hides a small derivative.
- Does its output for the first rows change when the rows behind them are left out? It depends on
  how many rows there are.
- If the rows change places, and their random numbers with them, do its outputs change places alike?
  If not, it depends on the place, and a removed row would change what those behind it contribute.

Numbers that are not finite show nothing, and neither do outputs that do not depend on the rows, nor
a pass that fails. Then other rows are tried, and variables that are moved less. If there is still
nothing to compare, the model is refused.

At the shapes of the steps, where passes take long, a short comparison does for all states but the
first.

A variable that the forward pass assigns would carry data past clipping and noise, unless its new
value does not depend on the rows. So would anything else that a pass leaves behind: see
`outside_state`.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.random import Generator

from keras_adaclip import backend
from keras_adaclip.gradients import Batch
from keras_adaclip.training import issues, made_up
from keras_adaclip.training.issues import Finding, OwnLoss, PrivacyIssue
from keras_adaclip.training.made_up import SampleRows
from keras_adaclip.training.outside_state import OutsideState
from keras_adaclip.training.traced_model import TracedModel, Values

_NUM_ROWS = 8
# Rows of the batch with which larger ones are compared.
_FEW = 2
# Columns of an input that are looked at to name those with which a model does not run.
_MOST_COLUMNS = 100


class Probe:
    """Runs a model on random rows and compares; the model is compiled once.

    Args:
        model: A built model.
        sample: Makes the rows up; a batch of examples stands for rows within their ranges.
        size: Number of rows of a batch.
        with_loss: Whether a loss of the user's own is examined too; there are targets then.
        counts_rows: Whether the output for one row must not depend on the number of rows.
    """

    def __init__(
        self,
        model: keras.Model,
        sample: SampleRows | Batch,
        size: int = _NUM_ROWS,
        with_loss: bool = False,
        counts_rows: bool = False,
    ) -> None:
        if isinstance(sample, Batch):
            sample = SampleRows(model, sample, sample)
        self.traced = TracedModel(model, sample, size, with_loss)
        # The model with few rows, whose outputs for these must be those among many rows.
        self._few: TracedModel | None = None
        if counts_rows:
            num_few = _FEW if size > _FEW else 1
            self._few = TracedModel(model, sample, num_few, larger=self.traced)
        # Single numbers that nothing trains, and variables that the forward pass assigns.
        self._counting = {
            id(variable)
            for variable in model.non_trainable_variables
            if math.prod(variable.shape) == 1
            and all(variable is not state for state in self.traced.seeds)
        }
        # The source of rows that is tried; whether it has shown something; and whether any has
        # shown that outputs depend on their rows.
        self._source, self._is_shown, self._depends = (0, False), False, False

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
        found: list[PrivacyIssue] = []
        dependent = set[int]()
        updated: dict[int, keras.Variable] = {}

        def first_look(values: list[Any]) -> list[PrivacyIssue]:
            """Look for state outside of Keras's variables."""
            found = [] if at_step_shape else self._outside_state(generator)
            if eagerly and not found:
                rows = self._rows(0, generator)
                found = self._unrepeatable(*(traced.eager_outputs(rows) for _ in range(2)))
            return found or compared(values)

        def compared(values: list[Any]) -> list[PrivacyIssue]:
            """Compare at one of the states."""
            if at_step_shape and state > 0:
                return self._found_at(values, state, generator)
            return self._compared_at(values, state, generator, at_step_shape, dependent)

        for state in range(1 if is_known else made_up.NUM_STATES + made_up.NUM_FAR_STATES):
            if found or (state >= made_up.NUM_STATES and not self._counting):
                break
            if at_step_shape and state > 1 and self._few is None:
                break
            values = self._values_at(state, generator)
            found = self._tried(compared if state else first_look, values, state, state > 0)
            updated |= {id(variable): variable for variable in traced.updated}
            self._counting |= updated.keys()
        if not (found or self._depends or is_known):
            raise ValueError(self._told("no output of the model depended on its inputs"))
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
        return Finding(
            self._tried(
                lambda values: self._found_at(values, number, generator, number % 3 == 1),
                values,
                number,
                is_moved=False,
            )
        )

    def _tried(
        self,
        compare: Callable[[list[Any]], list[PrivacyIssue]],
        values: list[Any],
        state: int,
        is_moved: bool,
    ) -> list[PrivacyIssue]:
        """Return what a comparison finds on the first rows that show something.

        Args:
            compare: Compares at given values of the variables.
            values: Values that the variables may come to have.
            state: The number of the state, which decides which rows are tried first.
            is_moved: Whether the values are not the present ones.

        Raises:
            ValueError: If no rows show anything.
        """
        failure: Exception | None = None
        for is_last in [False, True] if is_moved else [True]:
            for source in self._sources(state):
                self._source, self._is_shown = source, False
                try:
                    if (found := compare(values)) or self._is_shown:
                        return found
                except Exception as error:
                    failure = failure or error
            if not is_last:
                values = self._bearable(values, state)
        if not self._is_trained_finitely():
            return []  # Nothing that is not finite adds to a sum.
        raise ValueError(self._told(self._culprits(failure))) from failure

    def _sources(self, state: int) -> list[tuple[int, bool]]:
        """Return the sources of rows in the order to try them, and whether sequences are padded."""
        numbers = list(range(len(self.traced.sample.sources)))
        if state % 2:
            return [*((number, True) for number in numbers), *((n, False) for n in numbers)]
        # The data's own ranges are the last source.
        return [(number, False) for number in (*numbers[-1:], *numbers[:-1])]

    def _rows(
        self, state: int, generator: Generator, with_padding: bool = True
    ) -> list[np.ndarray]:
        """Return rows from the source that is tried."""
        number, is_padded = self._source
        return self.traced.rows(state, generator, number, with_padding and is_padded)

    def _bearable(self, values: list[Any], state: int) -> list[Any]:
        """Return values at which the model runs, where the given ones are kept if possible.

        Others keep their sign, such as those of which a layer takes the logarithm, or their present
        value.
        """
        variables, generator = self.traced.variables, np.random.default_rng(state)

        def runs(values: list[Any]) -> bool:
            """Return whether a pass shows something."""
            for source in self._sources(state):
                self._source, self._is_shown = source, False
                try:
                    self._first(self._rows(state, generator), values, state)
                except Exception:
                    continue
                if self._is_shown:
                    return True
            return False

        def with_moved(numbers: list[int], values: list[Any], moved: list[Any]) -> list[Any]:
            """Return values of which as many as possible of these are the moved ones."""
            if not numbers:
                return values
            tried = [moved[n] if n in numbers else value for n, value in enumerate(values)]
            if runs(tried):
                return tried
            if len(numbers) == 1:
                return values
            middle = len(numbers) // 2
            for part in (numbers[:middle], numbers[middle:]):
                values = with_moved(part, values, moved)
            return values

        present = [variable.value for variable in variables]
        kept = [
            made_up.with_sign_of(
                backend.array_of(variable), np.asarray(ops.convert_to_numpy(value))
            )
            for variable, value in zip(variables, values, strict=True)
        ]
        numbers = list(range(len(values)))
        return with_moved(numbers, with_moved(numbers, present, kept), values)

    def _first(
        self, rows: list[np.ndarray], values: list[Any], state: int
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return what the first pass of a comparison yields, and note whether it shows anything."""
        outputs, assigned = self.traced.run(rows, (values, self.traced.seed_values(state)))
        self._is_shown = all(
            2 * np.isfinite(outputs[number]).sum() > len(outputs[number])
            for number in self._last(outputs)
        )
        return outputs, assigned

    def _last(self, outputs: list[np.ndarray]) -> list[int]:
        """Return the numbers of the outputs of the model itself and of its loss."""
        traced = self.traced
        of_rows = [number for number, each in enumerate(outputs) if len(each) == traced.size]
        last = (traced.model, traced.loss)
        return [number for number in of_rows if traced.layers[number] in last] or of_rows

    def _is_trained_finitely(self) -> bool:
        """Return whether all trained weights are finite."""
        variables = self.traced.model.trainable_variables
        return all(np.isfinite(backend.array_of(variable)).all() for variable in variables)

    def _culprits(self, failure: Exception | None) -> str:
        """Return a sentence on the layer and the columns with which nothing can be compared."""
        traced, sample = self.traced, self.traced.sample
        generator, values = np.random.default_rng(0), [v.value for v in traced.variables]
        layer = traced.failed

        def shows(rows: list[np.ndarray]) -> bool:
            """Return whether a pass over some rows shows anything."""
            nonlocal layer
            try:
                outputs, _ = self._first(rows, values, 0)
            except Exception:
                layer = layer or traced.failed
                return False
            wrong = [n for n, each in enumerate(outputs) if not np.isfinite(each).all()]
            if wrong and not self._is_shown:
                layer = layer or traced.layers[wrong[0]]
            return self._is_shown

        self._source = len(sample.sources) - 1, False
        rows, columns = self._rows(0, generator), []
        undeclared = [n for n in sample.undeclared if rows[n].dtype.kind in "fiu"]
        calm = [each * (number not in undeclared) for number, each in enumerate(rows)]
        is_calm = shows(calm)
        for number in () if shows(rows) else undeclared:
            for column in itertools.islice(np.ndindex(rows[number].shape[1:]), _MOST_COLUMNS):
                tried, place = list(calm if is_calm else rows), (slice(None), *column)
                # Beside zeros if the model takes them, or in all columns.
                tried[number] = tried[number].copy()
                tried[number].T[...] = tried[number].T if is_calm else rows[number][place]
                tried[number][place] = rows[number][place]
                if not shows(tried):
                    at = column[0] if len(column) == 1 else column
                    columns.append(f"{sample.names[number]!r}, column {at}")
        columns = columns or [f"{sample.names[n]!r}" for n in sample.undeclared]
        where = f"layer {layer.name!r}" if layer is not None else "a layer"
        what = "numbers that are not finite" if failure is None else f"an error ({failure})"
        return f"{where} yields {what} (inputs that no layer declares: {'; '.join(columns)})"

    def _told(self, reason: str) -> str:
        """Return the error for a model of which the made-up rows show nothing."""
        return (
            f"Model {self.traced.model.name!r} could not be examined, so it is not known whether "
            f"training it is private. On made-up rows, {reason}. Rows come from what the model's "
            "layers declare, are small numbers, or lie within the range of each column of the data "
            "(so this error may depend on the data). Give public ranges with `fit(..., "
            "input_ranges=)`: the structure of `x`, with a pair `(lowest, highest)` for each array."
        )

    def _found_at(
        self, values: list[Any], number: int, generator: Generator, with_gradients: bool = False
    ) -> list[PrivacyIssue]:
        """Return what a short comparison finds, at given values of the variables."""
        if alike := self._repeated(values, number, generator, with_gradients):
            return self._placed_or_counted(*alike, values, number, generator)
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
        return self._first(rows, values, 0)[0]

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

    def _repeated(
        self, values: list[Any], state: int, generator: Generator, with_gradients: bool
    ) -> tuple[list[np.ndarray], list[np.ndarray]] | None:
        """Return rows and outputs if half of them stay the same where the others are exchanged."""
        traced = self.traced
        rows, others = self._rows(state, generator), self._rows(state, generator, False)
        half, further = traced.half(generator), (values, traced.seed_values(state))
        first, _ = self._first(rows, values, state)
        again, _ = traced.run(self._exchanged(rows, others, half), further)
        if _first_difference(first, again, True, ~half) is not None:
            return None
        self._note_dependence(first, again, half)
        if with_gradients and traced.leaking(rows, further, ~half) is not None:
            return None
        return rows, first

    def _note_dependence(
        self, first: list[np.ndarray], again: list[np.ndarray], half: np.ndarray
    ) -> None:
        """Note whether the model's outputs changed in the half whose rows were exchanged."""
        for number in self._last(first):
            differs = _differ(first[number][half], again[number][half], True)
            self._depends |= self._is_shown and differs

    def _outside_state(self, generator: Generator) -> list[PrivacyIssue]:
        """Return issues with what a forward pass leaves behind outside of Keras's variables."""
        traced = self.traced
        rows, exchanged = self._rows(0, generator), self._rows(0, generator)
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
        self,
        values: list[Any],
        state: int,
        generator: Generator,
        with_gradients: bool,
        dependent: set[int],
    ) -> list[PrivacyIssue]:
        """Compare at one of the states, which include variables that only a pass shows."""
        while True:
            found = self._compared(values, state, generator, with_gradients, dependent)
            known = {id(variable) for variable in self.traced.variables}
            further = [each for each in self.outside_variables if id(each) not in known]
            if not further:
                return found
            self._counting.update(id(each) for each in further if math.prod(each.shape) == 1)
            self.traced.use_variables([*self.traced.variables, *further])
            values = self._values_at(state, generator)

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
        rows = self._rows(state, generator)
        # Whole sequences, so that the longest one of the batch always changes.
        others = self._rows(state, generator, with_padding=False)
        further = (values, traced.seed_values(state))
        first, assigned = self._first(rows, values, state)
        again, _ = traced.run(rows, further)
        if unrepeatable := self._unrepeatable(first, again):
            return unrepeatable
        # If a repeated pass agrees to the last bit, kept rows must agree to the last bit too.
        is_exact = _first_difference(first, again, True) is None
        mixing: list[int] = []
        first_half = traced.half(generator)
        for half in (first_half, ~first_half):
            outputs, now = traced.run(self._exchanged(rows, others, half), further)
            number = _first_difference(first, outputs, is_exact, ~half)
            mixing += [] if number is None else [number]
            self._note_dependence(first, outputs, half)
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
        return self._placed_or_counted(rows, first, values, state, generator)

    def _placed_or_counted(
        self,
        rows: list[np.ndarray],
        outputs: list[np.ndarray],
        values: list[Any],
        state: int,
        generator: Generator,
    ) -> list[PrivacyIssue]:
        """Return an issue with the first layer that depends on places or the number of rows."""
        traced, further = self.traced, (values, self.traced.seed_values(state))
        for _ in range(2):
            order = generator.permutation(traced.size)
            order = order[::-1] if (order == np.arange(traced.size)).all() else order
            moved, _ = traced.run([each[order] for each in rows], further, order)
            differing = [
                number
                for number, (one, other) in enumerate(zip(outputs, moved, strict=True))
                if len(one) == traced.size and not _are_close(one[order], other, 1e-4)
            ]
            # An output in between may be a table with as many rows.
            if not set(differing) & set(self._last(outputs)):
                return self._counted(values, state, generator)
            # A difference is looked at again on other rows, and where it is known what is drawn for
            # each row.
            rows = self._rows(state, generator)
            traced.look_for_rows_in_draws(rows, further)
            outputs, _ = traced.run(rows, further)
        return [self._issue(traced.layers[differing[0]], issues.PLACE)]

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
            rows = self._rows(state, generator)
            outputs = many.run(rows, values)[0]
            num_inputs = many.sample.num_inputs
            alone = few.run([each[: few.size] for each in rows[:num_inputs]], values)[0]
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


def _are_close(one: np.ndarray, other: np.ndarray, tolerance: float = 1e-3) -> bool:
    """Return whether digests agree as far as those of batches of two sizes do."""
    scale = float(np.max(np.abs(one), initial=0.0, where=np.isfinite(one)))
    limit = 1e-5 + tolerance * scale
    return np.allclose(one, other, rtol=tolerance, atol=limit, equal_nan=True)
