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

import contextlib
import itertools
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

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
        # The variables whose assigned value depends on the rows, by their `id`.
        self._dependent = set[int]()
        self._begin(0)
        # Whether any rows have shown that outputs depend on them.
        self._depends = False

    def _begin(self, number: int) -> None:
        """Begin an examination; another number takes other rows, halves and random numbers."""
        self._generator = np.random.default_rng([self.traced.size, number])
        # The state, the source of rows that is tried, and whether it has shown something.
        self._state, self._source, self._is_shown = number, (0, False), False

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

        Raises:
            ValueError: If no made-up rows show anything.
        """
        traced, dependent = self.traced, self._dependent
        found: list[PrivacyIssue] = []
        updated: dict[int, keras.Variable] = {}
        dependent.clear()
        self._begin(0)

        def compared(values: list[Any]) -> list[PrivacyIssue]:
            """Compare at one of the states."""
            if at_step_shape and self._state:
                return self._found_at(values)
            found = [] if at_step_shape or self._state else self._outside_state()
            if eagerly and not (found or self._state):
                rows = self._rows()
                found = self._unrepeatable(*(traced.eager_outputs(rows) for _ in range(2)))
            return found or self._compared_at(values, at_step_shape)

        for state in range(1 if is_known else made_up.NUM_STATES + made_up.NUM_FAR_STATES):
            if found or (state >= made_up.NUM_STATES and not self._counting):
                break
            if at_step_shape and state > 1 and self._few is None:
                break
            self._state = state
            found = self._tried(compared, self._values_at(state))
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

        Raises:
            ValueError: If no made-up rows show anything, unless weights are not finite any more.
        """
        self._begin(number)
        trained = map(backend.array_of, self.traced.model.trainable_variables)
        try:
            return Finding(
                self._tried(lambda values: self._found_at(values, number % 3 == 1), self._present())
            )
        except ValueError:
            # What is examined has run before, and what is not finite adds nothing to a sum.
            if all(np.isfinite(value).all() for value in trained):
                raise
            return Finding([])

    def _present(self) -> list[Any]:
        """Return the values of the variables."""
        return [variable.value for variable in self.traced.variables]

    def _tried(
        self, compare: Callable[[list[Any]], list[PrivacyIssue]], values: list[Any]
    ) -> list[PrivacyIssue]:
        """Return what a comparison finds on the first rows that show something.

        Args:
            compare: Compares at given values of the variables.
            values: Values that the variables may come to have.

        Raises:
            ValueError: If no rows show anything.
        """
        failure: Exception | None = None
        for is_last in (False, True):
            for source in self._sources():
                self._source, self._is_shown = source, False
                try:
                    if (found := compare(values)) or self._is_shown:
                        return found
                except Exception as error:
                    failure = failure or error
            if not is_last:
                values = self._bearable(values)
        raise ValueError(self._told(self._culprits(failure))) from failure

    def _sources(self) -> list[tuple[int, bool]]:
        """Return the sources of rows in the order to try them, and whether sequences are padded."""
        numbers = list(range(len(self.traced.sample.sources)))
        if self._state % 2:
            return [*((number, True) for number in numbers), *((n, False) for n in numbers)]
        # The data's own ranges are the last source.
        return [(number, False) for number in (*numbers[-1:], *numbers[:-1])]

    def _rows(self, with_padding: bool = True) -> list[np.ndarray]:
        """Return rows from the source that is tried."""
        number, is_padded = self._source
        return self.traced.rows(self._state, self._generator, number, with_padding and is_padded)

    def _bearable(self, values: list[Any]) -> list[Any]:
        """Return values at which the model runs, where the given ones are kept if possible.

        Others keep their sign, such as those of which a layer takes the logarithm, or their present
        value.
        """

        def shows(values: list[Any]) -> bool:
            """Return whether a pass over rows of any source shows something."""
            for source in self._sources():
                self._source, self._is_shown = source, False
                with contextlib.suppress(Exception):
                    self._first(self._rows(), values)
                if self._is_shown:
                    return True
            return False

        def with_moved(numbers: list[int], values: list[Any], moved: list[Any]) -> list[Any]:
            """Return values of which as many as possible of these are the moved ones."""
            tried = [moved[n] if n in numbers else value for n, value in enumerate(values)]
            if shows(tried):
                return tried
            middle = len(numbers) // 2
            for part in (numbers[:middle], numbers[middle:]) if middle else ():
                values = with_moved(part, values, moved)
            return values

        variables, numbers = self.traced.variables, list(range(len(values)))
        kept = [
            made_up.with_sign_of(backend.array_of(each), np.asarray(ops.convert_to_numpy(value)))
            for each, value in zip(variables, values, strict=False)
        ]
        return with_moved(numbers, with_moved(numbers, self._present(), kept), values)

    def _further(self, values: list[Any]) -> Values:
        """Return values of all variables, present ones of those found since, and of the seeds."""
        values = [*values, *self._present()[len(values) :]]
        return values, self.traced.seed_values(self._state)

    def _first(
        self, rows: list[np.ndarray], values: list[Any]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return what the first pass of a comparison yields, and note whether it shows anything."""
        outputs, assigned = self.traced.run(rows, self._further(values))
        last = [outputs[number] for number in self._last(outputs)]
        self._is_shown = all(2 * np.isfinite(each).sum() > len(each) for each in last)
        return outputs, assigned

    def _last(self, outputs: list[np.ndarray]) -> list[int]:
        """Return the numbers of the outputs of the model itself and of its loss."""
        traced = self.traced
        of_rows = [number for number, each in enumerate(outputs) if len(each) == traced.size]
        last = (traced.model, traced.loss)
        return [number for number in of_rows if traced.layers[number] in last] or of_rows

    def _culprits(self, failure: Exception | None) -> str:
        """Return a sentence on the layer and the columns with which nothing can be compared."""
        traced, sample, layer = self.traced, self.traced.sample, self.traced.failed

        def shows(rows: list[np.ndarray]) -> bool:
            """Return whether a pass over some rows shows anything."""
            nonlocal layer
            try:
                outputs, _ = self._first(rows, self._present())
            except Exception:
                layer = layer or traced.failed
                return False
            wrong = [n for n, each in enumerate(outputs) if not np.isfinite(each).all()]
            if wrong and not self._is_shown:
                layer = layer or traced.layers[wrong[0]]
            return self._is_shown

        self._source = len(sample.sources) - 1, False
        rows, columns = self._rows(), []
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
        columns = columns or [repr(sample.names[number]) for number in sample.undeclared]
        where = "a layer" if layer is None else f"layer {layer.name!r}"
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

    def _found_at(self, values: list[Any], with_gradients: bool = False) -> list[PrivacyIssue]:
        """Return what a short comparison finds, at given values of the variables."""
        if alike := self._repeated(values, with_gradients):
            return self._placed_or_counted(*alike, values)
        found: list[PrivacyIssue] = []
        for _ in range(2):  # A difference is looked at again on other rows.
            found = self._compared(values, True)
            if not found:
                break
        return found

    @property
    def outside_variables(self) -> list[keras.Variable]:
        """The variables that a pass reads and that are not the model's."""
        return self.traced.outside.read

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
        self, values: list[Any], with_gradients: bool
    ) -> tuple[list[np.ndarray], list[np.ndarray]] | None:
        """Return rows and outputs if half of them stay the same where the others are exchanged."""
        traced, further = self.traced, self._further(values)
        rows, others, half = self._rows(), self._rows(False), self.traced.half(self._generator)
        first, _ = self._first(rows, values)
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

    def _outside_state(self) -> list[PrivacyIssue]:
        """Return issues with what a forward pass leaves behind outside of Keras's variables."""
        traced, rows, exchanged = self.traced, self._rows(), self._rows()
        state, outputs = OutsideState(traced.model), []
        for each in (rows, rows, exchanged, rows):
            outputs.append(self._first(each, self._present())[0])
            state.note()
        # The step leaves metrics as the forward pass did: they must not be read by the next one.
        measured = {id(variable) for variable in traced.model.metrics_variables}
        values = [
            made_up.moved_value(backend.array_of(each), 1, False, self._generator)
            if id(each) in measured
            else each.value
            for each in traced.variables
        ]
        outputs.append(self._first(rows, values)[0])
        names = state.names()
        if not names and traced.forward.effects.writes:
            names = [traced.model.name]
        first, _, _, *others = outputs
        differing = [_first_difference(first, each, backend.computes_on_cpu()) for each in others]
        numbers = [number for number in differing if number is not None]
        if not names and numbers:
            names = [traced.layers[min(numbers)].name]
        return [PrivacyIssue(name, *issues.OUTSIDE) for name in names]

    def _compared_at(self, values: list[Any], with_gradients: bool) -> list[PrivacyIssue]:
        """Compare at one of the states, which include variables that only a pass shows."""
        while True:
            found = self._compared(values, with_gradients)
            known = {id(variable) for variable in self.traced.variables}
            further = [each for each in self.outside_variables if id(each) not in known]
            if not further:
                return found
            self._counting.update(id(each) for each in further if math.prod(each.shape) == 1)
            self.traced.use_variables([*self.traced.variables, *further])
            values = self._values_at(self._state)

    def _compared(self, values: list[Any], with_gradients: bool) -> list[PrivacyIssue]:
        """Compare a pass with others, for which rows were exchanged, moved or left out.

        Args:
            values: The values of the variables.
            with_gradients: Whether derivatives are taken too.

        Returns:
            At most one issue with a layer or a loss.
        """
        traced, further = self.traced, self._further(values)
        # Others are whole sequences, so that the longest one of the batch always changes.
        rows, others = self._rows(), self._rows(with_padding=False)
        first, assigned = self._first(rows, values)
        again, _ = traced.run(rows, further)
        if unrepeatable := self._unrepeatable(first, again):
            return unrepeatable
        # If a repeated pass agrees to the last bit, kept rows must agree to the last bit too.
        is_exact = _first_difference(first, again, True) is None
        mixing: list[int] = []
        first_half = traced.half(self._generator)
        for half in (first_half, ~first_half):
            outputs, now = traced.run(self._exchanged(rows, others, half), further)
            number = _first_difference(first, outputs, is_exact, ~half)
            mixing += [] if number is None else [number]
            self._note_dependence(first, outputs, half)
            self._dependent.update(
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
        return self._placed_or_counted(rows, first, values, ~first_half if with_gradients else None)

    def _placed_or_counted(
        self,
        rows: list[np.ndarray],
        outputs: list[np.ndarray],
        values: list[Any],
        kept: np.ndarray | None = None,
    ) -> list[PrivacyIssue]:
        """Return an issue with the first layer that depends on places or the number of rows.

        Args:
            rows: The rows.
            outputs: What the model returns for them.
            values: The values of the variables.
            kept: Rows whose derivatives were taken last and are compared too, or None.
        """
        traced, further = self.traced, self._further(values)
        for _ in range(2):
            order = self._generator.permutation(traced.size)
            order = order[::-1] if (order == np.arange(traced.size)).all() else order
            moved, layers = [each[order] for each in rows], traced.layers
            pairs = list(zip(outputs, traced.run(moved, further, order)[0], strict=True))
            compared = set(self._last(outputs))
            if kept is not None:
                layers, before = [*layers, *traced.tapped], traced.derivatives
                traced.leaking(moved, further, kept[order], order)
                pairs += zip(before, traced.derivatives, strict=True)
                compared |= set(range(len(outputs), len(pairs)))
            differing = [
                number
                for number, (one, other) in enumerate(pairs)
                if len(one) == traced.size and not _are_close(one[order], other, 1e-4)
            ]
            # An output in between may be a table with as many rows.
            if not compared.intersection(differing):
                return self._counted(values)
            # A difference is looked at again on other rows, and where it is known what is drawn for
            # each row.
            rows = self._rows()
            traced.look_for_rows_in_draws(rows, further)
            outputs, _ = traced.run(rows, further)
            if kept is not None:
                traced.leaking(rows, further, kept)
        number = differing[0]
        if number >= len(outputs):  # Derivatives differ before the layer, and not behind it.
            number = min(differing[-1] + 1, len(pairs) - 1)
        return [self._issue(layers[number], issues.PLACE)]

    def _counted(self, values: list[Any]) -> list[PrivacyIssue]:
        """Return an issue with the first layer whose output for few rows changes with more rows."""
        few, many, further = self._few, self.traced, self._further(values)
        if few is None:
            return []
        if len(few.variables) != len(many.variables):
            few.use_variables(many.variables)
        # A difference is looked at again on other rows: rounding may decide close to a threshold.
        for _ in range(2):
            rows = self._rows()
            outputs, layers = many.run(rows, further)[0], few.layers
            num_inputs = many.sample.num_inputs
            alone = few.run([each[: few.size] for each in rows[:num_inputs]], further)[0]
            if many.loss is not None:  # The loss is always that of one row alone.
                outputs = outputs[:-1]
            if len(alone) != len(outputs):  # Another axis is as long as one of the batches.
                layers, outputs, alone = layers[-1:], outputs[-1:], alone[-1:]
            differing = [
                layer
                for layer, one, other in zip(layers, alone, outputs, strict=False)
                if len(one) == few.size and not _are_close(one, other[: few.size])
            ]
            if not differing:
                return []
        return [self._issue(differing[0], issues.COUNTING)]

    def _values_at(self, state: int) -> list[Any]:
        """Return the values of the variables at one of the states that are tried."""
        if state == 0:
            return self._present()
        if state >= made_up.NUM_STATES:
            return [
                made_up.far_value(backend.array_of(variable), state == made_up.NUM_STATES)
                if id(variable) in self._counting
                else variable.value
                for variable in self.traced.variables
            ]
        trained = {id(variable) for variable in self.traced.model.trainable_variables}
        return [
            made_up.moved_value(backend.array_of(each), state, id(each) in trained, self._generator)
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
