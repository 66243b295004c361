"""Tests for interference: no row's output may depend on another row, its place, or their number.

A model runs in training mode on made-up rows, at the shape of its steps, and at several values of
its variables, since a gate that is closed now may open later. Of every layer, and of a loss of the
user's own, each comparison asks:

- Does the output for a row change when half of the *other* rows are exchanged? It mixes examples.
- Is a derivative of the outputs of half of the rows by the other half not zero? It mixes examples
  too, and no tolerance hides a small derivative.
- If the rows change places, and their random numbers with them, do outputs change places alike? If
  not, a removed row would change what those behind it contribute.
- Does the output for the first rows change when the rows behind them are left out? It depends on
  how many rows there are, which tells of the data where batches differ in size.

Numbers that are not finite show nothing, and neither do outputs that do not depend on the rows, nor
a pass that fails. Then other rows are tried, and variables that are moved less. If there is still
nothing to compare, the model is refused.

A variable that the forward pass assigns would carry data past clipping and noise, unless its new
value does not depend on the rows. So would anything else that a pass leaves behind.
"""

import contextlib
import itertools
import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend
from keras_adaclip.examination import issues, rows
from keras_adaclip.examination.issues import Finding, OwnLoss, PrivacyIssue
from keras_adaclip.examination.python_state import PythonState
from keras_adaclip.examination.rows import SampleRows
from keras_adaclip.examination.trial import Trial, Values

NUM_ROWS = 8
# Rows of the batch with which larger ones are compared.
_FEW = 2
# States at which derivatives are taken: the present one, and the first that moves every variable.
_DIFFERENTIATED = 2
# Columns of an input that are looked at to name those with which a model does not run.
_MOST_COLUMNS = 100


class Examination:
    """Compares runs of a model on made-up rows.

    Args:
        model: A built model.
        sample: Makes the rows up.
        size: Number of rows of a batch.
        with_loss: Whether a loss of the user's own is examined too; there are targets then.
        counts_rows: Whether the output for one row must not depend on the number of rows.
    """

    def __init__(
        self,
        model: keras.Model,
        sample: SampleRows,
        size: int = NUM_ROWS,
        with_loss: bool = False,
        counts_rows: bool = False,
    ) -> None:
        self._trial = Trial(model, sample, size, with_loss)
        # The model with few rows, whose outputs for these must be those among many rows.
        self._few: Trial | None = None
        if counts_rows:
            self._few = Trial(model, sample, _FEW if size > _FEW else 1, larger=self._trial)
        # Single numbers that nothing trains, and variables that the forward pass assigns.
        self._counting = {
            id(variable)
            for variable in self._trial.variables
            if math.prod(variable.shape) == 1
            and all(variable is not each for each in model.trainable_variables)
        }
        # The variables whose assigned value depends on the rows, by their `id`.
        self._dependent = set[int]()
        self._generator = np.random.default_rng(size)
        # The state, the source of rows that is tried, and whether it has shown something.
        self._state, self._source, self._is_shown = 0, (0, False), False
        # Whether passes repeat to the last bit, and whether any outputs depended on the rows.
        self._is_exact, self._depends = True, False

    def finding(self) -> Finding:
        """Return what is found at several states of variables, random generators and rows.

        Raises:
            ValueError: If no made-up rows show anything.
        """
        trial, found = self._trial, list[PrivacyIssue]()
        updated: dict[int, keras.Variable] = {}
        for state in range(rows.NUM_STATES + rows.NUM_FAR_STATES):
            if found or (state >= rows.NUM_STATES and not self._counting):
                break
            self._state = state
            found = self._tried(self._values_at(state))
            updated |= {id(variable): variable for variable in trial.updated}
            self._counting |= updated.keys()
        if not (found or self._depends):
            raise ValueError(self._told("no output of the model depended on its inputs"))
        found = [
            *(
                issues.issue_with(trial.model, variable, *issues.ASSIGNED)
                for number, variable in updated.items()
                if number in self._dependent
            ),
            *(PrivacyIssue(layer.name, *issues.ADDED) for layer in trial.added),
            *(PrivacyIssue(v.path, *issues.ASSIGNED_OUTSIDE) for v in trial.outside_assigned),
            *found,
        ]
        return Finding(
            list({issue.layer: issue for issue in found}.values()),
            [each for number, each in updated.items() if number not in self._dependent],
            branches=trial.forward.effects.branches,
        )

    def _tried(self, values: list[Any]) -> list[PrivacyIssue]:
        """Return what is found on the first rows that show something.

        Args:
            values: Values that the variables may come to have.

        Raises:
            ValueError: If no rows show anything.
        """
        failure: Exception | None = None
        for is_last in (False, True):
            for source in self._sources():
                self._source, self._is_shown = source, False
                try:
                    if (found := self._compared(values)) or self._is_shown:
                        return found
                except Exception as error:
                    failure = failure or error
            if not is_last:
                values = self._bearable(values)
        raise ValueError(self._told(self._culprits(failure))) from failure

    def _compared(self, values: list[Any]) -> list[PrivacyIssue]:
        """Compare a pass with others, for which rows were exchanged, moved or left out.

        Args:
            values: The values of the variables.

        Returns:
            The issues with Python's state, or at most one with a layer or a loss.
        """
        trial = self._trial
        # Others are whole sequences, so that the longest one of the batch always changes.
        given, others = self._rows(), self._rows(with_padding=False)
        first, assigned = self._first(given, values)
        further = self._further(values)
        if self._state == 0 and (found := self._left_behind(given, others, first, values)):
            return found
        mixing: list[int] = []
        first_half = trial.half(self._generator)
        for half in (first_half, ~first_half):
            exchanged = [
                np.where(half.reshape(-1, *[1] * (one.ndim - 1)), other, one)
                for one, other in zip(given, others, strict=True)
            ]
            outputs, now = trial.run(exchanged, further)
            number = _first_difference(first, outputs, self._is_exact, ~half)
            mixing += [] if number is None else [number]
            for number in self._last(first):
                differs = _differ(first[number][half], outputs[number][half], True)
                self._depends |= self._is_shown and differs
            self._dependent.update(
                id(variable)
                for variable, one, two in zip(trial.updated, assigned, now, strict=True)
                if _differ(one, two, self._is_exact)
            )
        part = trial.layers[min(mixing)] if mixing else None
        kept = ~first_half if self._state < _DIFFERENTIATED else None
        if part is None and kept is not None:
            part = trial.leaking(given, further, kept)
        if part is not None:
            told = issues.MIXING_LOSS if isinstance(part, OwnLoss) else issues.MIXING
            return [issues.issue_with(trial.model, part, *told)]
        found = self._placed(given, first, values, kept)
        return found or self._counted(given, first, values)

    def _left_behind(
        self,
        given: list[np.ndarray],
        others: list[np.ndarray],
        first: list[np.ndarray],
        values: list[Any],
    ) -> list[PrivacyIssue]:
        """Return the layers in which a pass leaves something outside of Keras's variables.

        Args:
            given: The rows.
            others: Other rows.
            first: What the model has returned for `given`.
            values: The values of the variables.
        """
        trial, state, outputs = self._trial, PythonState(self._trial.model), []
        for each in (given, others, given):
            outputs.append(trial.run(each, self._further(values))[0])
            state.note()
        self._is_exact = _first_difference(first, outputs[0], True) is None
        names = state.names()
        if not names and trial.forward.effects.writes:
            names = [trial.model.name]
        is_strict = backend.computes_on_cpu()
        differing = [_first_difference(first, each, is_strict) for each in outputs[::2]]
        numbers = [number for number in differing if number is not None]
        if not names and numbers:
            names = [trial.layers[min(numbers)].name]
        return [PrivacyIssue(name, *issues.OUTSIDE) for name in names]

    def _placed(
        self,
        given: list[np.ndarray],
        outputs: list[np.ndarray],
        values: list[Any],
        kept: np.ndarray | None,
    ) -> list[PrivacyIssue]:
        """Return an issue with the first layer that depends on places.

        Args:
            given: The rows.
            outputs: What the model returns for them.
            values: The values of the variables.
            kept: Rows whose derivatives were taken last and are compared too, or None.
        """
        trial, further = self._trial, self._further(values)
        for _ in range(2):
            order = self._generator.permutation(trial.size)
            order = order[::-1] if (order == np.arange(trial.size)).all() else order
            moved, layers = [each[order] for each in given], trial.layers
            pairs = list(zip(outputs, trial.run(moved, further, order)[0], strict=True))
            compared = set(self._last(outputs))
            if kept is not None:
                layers, before = [*layers, *trial.tapped], trial.derivatives
                trial.leaking(moved, further, kept[order], order)
                pairs += zip(before, trial.derivatives, strict=True)
                compared |= set(range(len(outputs), len(pairs)))
            differing = [
                number
                for number, (one, other) in enumerate(pairs)
                if len(one) == trial.size and not _are_close(one[order], other, 1e-4)
            ]
            # An output in between may be a table with as many rows.
            if not compared.intersection(differing):
                return []
            # A difference is looked at again on other rows, and where it is known what is drawn for
            # each row.
            given = self._rows()
            trial.look_for_rows_in_draws(given, further)
            outputs, _ = trial.run(given, further)
            if kept is not None:
                trial.leaking(given, further, kept)
        number = differing[0]
        if number >= len(outputs):  # Derivatives differ before the layer, and not behind it.
            number = min(differing[-1] + 1, len(pairs) - 1)
        return [issues.issue_with(trial.model, layers[number], *issues.PLACE)]

    def _counted(
        self, given: list[np.ndarray], outputs: list[np.ndarray], values: list[Any]
    ) -> list[PrivacyIssue]:
        """Return an issue with the first layer whose output for few rows changes with more rows.

        Args:
            given: The rows.
            outputs: What the model returns for them.
            values: The values of the variables.
        """
        few, many, further = self._few, self._trial, self._further(values)
        if few is None:
            return []
        if len(few.variables) != len(many.variables):
            few.use_variables(many.variables)
        # A difference is looked at again on other rows: rounding may decide close to a threshold.
        for is_last in (False, True):
            inputs = [each[: few.size] for each in given[: many.sample.num_inputs]]
            alone, _ = few.run(inputs, further)
            # The loss is always that of one row alone.
            among = outputs if many.loss is None else outputs[:-1]
            pairs = list(zip(few.layers, alone, among, strict=False))
            if len(alone) != len(among):  # Another axis is as long as one of the batches.
                pairs = [(few.layers[-1], alone[-1], among[-1])]
            differing = [
                layer
                for layer, one, other in pairs
                if len(one) == few.size and not _are_close(one, other[: few.size])
            ]
            if not differing:
                return []
            if not is_last:
                given = self._rows()
                outputs, _ = many.run(given, further)
        return [issues.issue_with(many.model, differing[0], *issues.COUNTING)]

    def _values_at(self, state: int) -> list[Any]:
        """Return the values of the variables at one of the states that are tried."""
        variables = self._trial.variables
        if state >= rows.NUM_STATES:
            return [
                rows.far_value(backend.array_of(each), state == rows.NUM_STATES)
                if id(each) in self._counting
                else each.value
                for each in variables
            ]
        trained = {id(variable) for variable in self._trial.model.trainable_variables}
        return [
            rows.moved_value(backend.array_of(each), state, id(each) in trained, self._generator)
            if state
            else each.value
            for each in variables
        ]

    def _sources(self) -> list[tuple[int, bool]]:
        """Return the sources of rows in the order to try them, and whether sequences are padded."""
        numbers = list(range(len(self._trial.sample.sources)))
        if self._state % 2:
            return [*((number, True) for number in numbers), *((n, False) for n in numbers)]
        # The data's own ranges are the last source.
        return [(number, False) for number in (*numbers[-1:], *numbers[:-1])]

    def _rows(self, with_padding: bool = True) -> list[np.ndarray]:
        """Return rows from the source that is tried."""
        number, is_padded = self._source
        return self._trial.rows(self._state, self._generator, number, with_padding and is_padded)

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

        variables, numbers = self._trial.variables, list(range(len(values)))
        kept = [
            rows.with_sign_of(backend.array_of(each), np.asarray(ops.convert_to_numpy(value)))
            for each, value in zip(variables, values, strict=False)
        ]
        return with_moved(numbers, with_moved(numbers, self._values_at(0), kept), values)

    def _further(self, values: list[Any]) -> Values:
        """Return values of all variables, present ones of those found since, and of the seeds."""
        further = [each.value for each in self._trial.variables[len(values) :]]
        return [*values, *further], self._trial.seed_values(self._state)

    def _first(
        self, given: list[np.ndarray], values: list[Any]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return what the first pass of a comparison yields, and note whether it shows anything."""
        trial = self._trial
        outputs, assigned = trial.run(given, self._further(values))
        known = {id(variable) for variable in trial.variables}
        if found := [each for each in trial.outside_read if id(each) not in known]:
            # From the next state on, they are moved too.
            self._counting.update(id(each) for each in found if math.prod(each.shape) == 1)
            trial.use_variables([*trial.variables, *found])
            outputs, assigned = trial.run(given, self._further(values))
        last = [outputs[number] for number in self._last(outputs)]
        self._is_shown = all(2 * np.isfinite(each).sum() > len(each) for each in last)
        return outputs, assigned

    def _last(self, outputs: list[np.ndarray]) -> list[int]:
        """Return the numbers of the outputs of the model itself and of its loss."""
        trial = self._trial
        of_rows = [number for number, each in enumerate(outputs) if len(each) == trial.size]
        last = (trial.model, trial.loss)
        return [number for number in of_rows if trial.layers[number] in last] or of_rows

    def _culprits(self, failure: Exception | None) -> str:
        """Return a sentence on the layer and the columns with which nothing can be compared."""
        trial, sample, layer = self._trial, self._trial.sample, self._trial.failed
        present = [each.value for each in trial.variables]

        def shows(given: list[np.ndarray]) -> bool:
            """Return whether a pass over some rows shows anything."""
            nonlocal layer
            try:
                outputs, _ = self._first(given, present)
            except Exception:
                layer = layer or trial.failed
                return False
            wrong = [n for n, each in enumerate(outputs) if not np.isfinite(each).all()]
            if wrong and not self._is_shown:
                layer = layer or trial.layers[wrong[0]]
            return self._is_shown

        self._source = len(sample.sources) - 1, False
        given, columns = self._rows(), []
        undeclared = [n for n in sample.undeclared if given[n].dtype.kind in "fiu"]
        calm = [each * (number not in undeclared) for number, each in enumerate(given)]
        is_calm = shows(calm)
        for number in () if shows(given) else undeclared:
            for column in itertools.islice(np.ndindex(given[number].shape[1:]), _MOST_COLUMNS):
                tried, place = list(calm if is_calm else given), (slice(None), *column)
                # Beside zeros if the model takes them, or in all columns.
                tried[number] = tried[number].copy()
                tried[number].T[...] = tried[number].T if is_calm else given[number][place]
                tried[number][place] = given[number][place]
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
            f"Model {self._trial.model.name!r} could not be examined, so it is not known whether "
            f"training it is private. On made-up rows, {reason}. Rows come from what the model's "
            "layers declare, are small numbers, or lie within the range of each column of the data "
            "(so this error may depend on the data). Give public ranges with `fit(..., "
            "input_ranges=)`: the structure of `x`, with a pair `(lowest, highest)` for each array."
        )


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
