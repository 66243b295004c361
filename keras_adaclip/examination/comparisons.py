"""Tests for interference: no row's output may depend on another row, its place, or their number.

A model runs in training mode on made-up rows, at the shape of its steps, and at several values of
its variables, since a gate that is closed now may open later. Of every layer, and of a loss of the
user's own, each comparison asks:

- Does the output for a row change when half of the *other* rows are exchanged? It mixes examples.
- Is a derivative of the outputs of half of the rows by the other half not zero? It mixes examples
  too, and no tolerance hides a small derivative.
- Does the derivative of the outputs for a row by this row change when the other rows' outputs are
  differentiated too? It mixes examples backwards, as a bound on the whole batch's gradient does.
- If the rows change places, and their random numbers with them, do outputs change places alike? If
  not, a removed row would change what those behind it contribute.
- Does the output for the first rows change when the rows behind them are left out? It depends on
  how many rows there are, which tells of the data where batches differ in size.

One pass exchanges the one half at its places. Another exchanges the other half and moves all rows
at once: only if something differs does a third pass tell whether the rows or their places did it.

Numbers that are not finite show nothing, and neither do outputs that do not depend on the rows, nor
a pass that fails. Then other rows are tried, and variables that are moved less. If there is still
nothing to compare, the model is refused.

A variable that the forward pass assigns would carry data past clipping and noise, unless its new
value does not depend on the rows. So would anything else that a pass leaves behind.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.examination import issues, rows
from keras_adaclip.examination.issues import Finding, OwnLoss, PrivacyIssue
from keras_adaclip.examination.python_state import PythonState
from keras_adaclip.examination.rows import SampleRows
from keras_adaclip.examination.trial import Pass, Trial, Values

NUM_ROWS = 8
# Rows of the batch with which larger ones are compared.
_FEW = 2
# The state at which derivatives are taken, the first one that moves every variable.
_DIFFERENTIATED = 1
# The share of the other rows in the sum that is differentiated, more than bounds on gradients let
# pass.
_OF_OTHERS = 1e3
# Columns of an input that are looked at to name those with which a model does not run.
_MOST_COLUMNS = 100
# How far numbers may differ, as a share of the largest one: those of the same pass where these do
# not repeat to the last bit, those of rows in other places, and of batches of two sizes.
_REPEATED, _PLACES, _COUNTS = 1e-4, 1e-4, 1e-3
# The same for places and sizes where layers compute with 16 bits: eight units in the last place.
# TensorFlow's activations round by place there.
_ROUNDING = {"float16": 2.0**-7, "bfloat16": 2.0**-4}

# A source of rows, and whether sequences are padded.
Source = tuple[int, bool]
# By owner (a model or an augmentation), number of rows, and whether that number must not matter.
Findings = dict[tuple[int, int, bool], Finding]


def examine(
    model: keras.Model,
    sample: SampleRows,
    sizes: Iterable[int],
    known: Findings,
    counts_rows: bool = False,
    is_exact: bool = False,
    owner: Any = None,
) -> None:
    """Examine a model with batches of some sizes, once for what is compiled; keep what is found.

    Args:
        model: A built private or federated model, or an augmentation as a model.
        sample: Makes the rows up.
        sizes: Numbers of rows that pass through the model at a time.
        known: What was found for the steps as they are compiled now; gets what is found here.
        counts_rows: Whether the output for a row must not depend on the number of rows.
        is_exact: Whether a size counts as examined only if exactly it was; otherwise one of about
            the same size is enough.
        owner: The object for which the model stands; None for the model.

    Raises:
        ValueError: With every issue, one a line.
    """
    unit, owner = getattr(model, "privacy_unit", ""), id(owner or model)
    sizes = sorted({max(size, 2) for size in sizes}, reverse=True)
    programs: dict[str, Finding] = {}
    for size in sizes:
        close = [
            other
            for number, other, counted in known
            if (number, counted) == (owner, counts_rows)
            and (other == size if is_exact else other <= 2 * size and size <= 2 * other)
        ]
        if not close:
            examination = Examination(model, sample, size, unit == "example", counts_rows)
            # What compiles to the same, but for the number of rows, was examined with it.
            program = examination.program() if is_exact and len(sizes) > 1 else None
            finding = programs.get(program or "") or examination.finding()
            found = issues.issues_of_clients(finding) if unit == "client" else finding.issues
            issues.refuse(model, found)
            known[owner, size, counts_rows] = finding
            programs |= {program: finding} if program else {}


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
        self._counts_rows = counts_rows
        trained = {id(variable) for variable in model.trainable_variables}
        # Single numbers that nothing trains, and variables that the forward pass assigns.
        self._counting = {
            id(each)
            for each in self._trial.variables
            if math.prod(each.shape) == 1 and id(each) not in trained
        }
        self._trained = trained
        # The variables that the forward pass assigns, by their `id`, and those whose assigned value
        # depends on the rows.
        self._assigned: dict[int, keras.Variable] = {}
        self._dependent = set[int]()
        self._generator = np.random.default_rng(size)
        # The state, and whether the rows that are tried have shown something.
        self._state, self._is_shown = 0, False
        # What differs between two passes that are the same, and whether any outputs depended on
        # the rows.
        self._tolerance, self._depends = 0.0, False
        dtypes = {each.compute_dtype for each in keras_private.flatten_layers(model)}
        rounding = max(_ROUNDING.get(each, 0.0) for each in dtypes)
        self._places, self._counts = max(_PLACES, rounding), max(_COUNTS, rounding)

    def program(self) -> str | None:
        """Return what the passes compile to, equal for numbers of rows that make no difference."""
        # What does not run is named by `finding`.
        rows, values = self._rows(self._sources()[0]), self._further([])
        return backend.attempt(self._trial.program, rows, values)[0]

    def finding(self) -> Finding:
        """Return what is found at several states of variables, random generators and rows.

        Raises:
            ValueError: If no made-up rows show anything.
        """
        trial, found = self._trial, list[PrivacyIssue]()
        for self._state in range(rows.NUM_STATES + rows.NUM_FAR_STATES):
            if found or (self._state >= rows.NUM_STATES and not self._counting):
                break
            found = self._tried(self._values_at(self._state))
            self._counting |= self._assigned.keys()
        if not (found or self._depends):
            raise ValueError(self._told("no output of the model depended on its inputs"))
        found = [
            *(
                issues.issue_with(trial.model, self._assigned[number], *issues.ASSIGNED)
                for number in self._assigned.keys() & self._dependent
            ),
            *(PrivacyIssue(layer.name, *issues.ADDED) for layer in trial.added),
            *(PrivacyIssue(v.path, *issues.ASSIGNED_OUTSIDE) for v in trial.outside_assigned),
            *found,
        ]
        return Finding(
            list({issue.layer: issue for issue in found}.values()),
            [each for number, each in self._assigned.items() if number not in self._dependent],
            branches=trial.effects.branches,
        )

    def _tried(self, values: list[Any]) -> list[PrivacyIssue]:
        """Return what is found on the first rows that show something.

        Args:
            values: Values that the variables may come to have.

        Raises:
            ValueError: If no rows show anything.
        """
        trial, failure = self._trial, None
        for is_last in (False, True):
            for source in self._sources():
                found, error = backend.attempt(self._compared, source, values)
                failure = failure or error
                if error is None and (found or self._is_shown):
                    return list(found)
            if not is_last:
                values = self._bearable(values)
                trial.use_variables(trial.variables, trained_only=True)
        what = "numbers that are not finite" if failure is None else f"an error ({failure})"
        raise ValueError(self._told(self._culprits(what))) from failure

    def _compared(self, source: Source, values: list[Any]) -> list[PrivacyIssue]:
        """Compare a pass with others, for which rows were exchanged, moved or left out.

        Args:
            source: Where the rows come from.
            values: The values of the variables.

        Returns:
            The issues with Python's state, or at most one with a layer or a loss.
        """
        trial, is_first = self._trial, self._state == 0
        # Others are whole sequences, so that the longest one of the batch always changes.
        given, others = self._rows(source), self._rows((source[0], False))
        shuffled = self._generator.permutation(trial.size)
        half, none = shuffled < trial.size // 2, np.zeros(trial.size, bool)
        alone = together = None
        if self._state == _DIFFERENTIATED:
            alone, together = (np.where(half, n, 1.0).astype("float32") for n in (0.0, _OF_OTHERS))
        first = self._first(given, values, alone)
        further, held = self._further(values), PythonState(trial.model)

        def run(
            exchanged: np.ndarray = none,
            order: np.ndarray | None = None,
            shares: np.ndarray | None = together,
        ) -> Pass:
            """Return a pass in which some rows are others."""
            places = [exchanged.reshape(-1, *[1] * (each.ndim - 1)) for each in given]
            mixed = [np.where(*each) for each in zip(places, others, given, strict=True)]
            found = trial.run(mixed, further, order, shares)
            if is_first:
                held.note()
            return found

        # One pass changes the other half and moves all rows: each takes a place of the other half.
        also = ~half if alone is None else half
        one, other = (self._generator.permutation(np.flatnonzero(each)) for each in (also, ~also))
        order = np.zeros_like(shuffled)
        order[[*one, *other]] = [*other, *one]
        changed = run(half) if alone is None else None
        moved = run(also, order)
        if alone is not None and (
            _leaking(first, half) or self._changed(first, moved, also, self._places)
        ):
            # A table, such as that of all positions, may have as many rows.
            trial.look_for_rows(given, further)
            first, moved = run(shares=alone), run(also, order)
        if is_first:
            repeated: list[Sequence[Pass]] = [(first, run())]
            if backend.loops_in_python():
                # Steps may run one row at a time, which not every model does.
                single = [[each[n : n + 1] for each in given] for n in (0, 1, 0)]
                passes, _ = backend.attempt(lambda: [trial.run(each, further) for each in single])
                repeated += [passes[::2]] if passes else []
            if found := self._left_behind(repeated, held):
                return found
        mixing = self._changed(first, changed, half) if changed else _leaking(first, half)
        is_moved = bool(self._changed(first, moved, also, self._places))
        if (is_moved and not mixing) or (mixing and changed):
            # By what other rows hold, or by its place? And does an earlier layer show it?
            mixing += self._changed(first, run(also), also)
        if mixing:
            part = first.parts[min(mixing)]
            told = issues.MIXING_LOSS if isinstance(part, OwnLoss) else issues.MIXING
            return [issues.issue_with(trial.model, part, *told)]
        few = min(_FEW, trial.size - 1)
        checks: Any = (
            (self._placed, lambda: run(order=order, shares=alone), issues.PLACE),
            (self._counted, lambda: trial.run([e[:few] for e in given], further), issues.COUNTING),
        )
        for compare, run_other, told in checks[not is_moved : 1 + self._counts_rows]:
            part = compare(first, run_other())
            if part is not None:
                # A difference is looked at again on other rows, since rounding may decide close to
                # a threshold, and where it is known what is drawn for each row.
                given = self._rows(source)
                trial.look_for_rows(given, further)
                first = trial.run(given, further, shares=alone)
                part = compare(first, run_other())
            if part is not None:
                return [issues.issue_with(trial.model, part, *told)]
        return []

    def _changed(
        self, first: Pass, other: Pass, exchanged: np.ndarray, tolerance: float | None = None
    ) -> list[int]:
        """Return the numbers of the outputs and derivatives that changed for rows of equal content.

        Args:
            first: A pass.
            other: A pass with other rows.
            exchanged: Which rows are others.
            tolerance: What rounding may change, None for what it changes in a repeated pass.
        """
        tolerance = self._tolerance if tolerance is None else tolerance
        pairs = list(zip(first.digests, other.digests, strict=True))
        for number in self._last(first):
            one, two = (each[exchanged] for each in pairs[number])
            self._depends |= self._is_shown and not _are_close(one, two)
        for (variable, one), (_, two) in zip(first.assigned, other.assigned, strict=True):
            self._assigned[id(variable)] = variable
            if not _are_close(one, two, tolerance):
                self._dependent.add(id(variable))
        # An output without an axis of rows cannot be compared row by row.
        return [
            number
            for number, (one, two) in enumerate(pairs)
            if len(one) == len(exchanged)
            and not _are_close(one[~exchanged], two[~exchanged], tolerance)
        ]

    def _left_behind(self, repeated: list[Sequence[Pass]], held: PythonState) -> list[PrivacyIssue]:
        """Return the layers in which a pass leaves something outside of Keras's variables.

        Args:
            repeated: Pairs of a pass and the same pass after others.
            held: What layers held after the passes that followed the first one.
        """
        trial, names = self._trial, held.names()
        parts = [
            each
            for first, again in repeated
            for each in zip(first.parts, first.digests, again.digests, strict=True)
        ]
        repeats = all(_are_close(one, two) for _, one, two in parts)
        self._tolerance = 0.0 if repeats else _REPEATED
        least = 0.0 if backend.computes_on_cpu() else _REPEATED
        differing = [part.name for part, one, two in parts if not _are_close(one, two, least)]
        names = names or [trial.model.name] * trial.effects.writes or differing[:1]
        return [PrivacyIssue(name, *issues.OUTSIDE) for name in names]

    def _placed(self, first: Pass, moved: Pass) -> Any:
        """Return the first layer or loss that depends on the places of rows, or None."""
        differing = self._changed(first, moved, np.zeros(self._trial.size, bool), self._places)
        # An output in between may be a table with as many rows.
        compared = {*self._last(first), *range(first.num_outputs, len(first.digests))}
        return first.parts[differing[0]] if compared.intersection(differing) else None

    def _counted(self, first: Pass, few: Pass) -> Any:
        """Return the first layer or loss whose output for few rows changes with more, or None."""
        number, outputs = min(_FEW, self._trial.size - 1), first.digests[: first.num_outputs]
        pairs = list(zip(few.parts, few.digests, outputs, strict=False))
        if len(few.digests) != len(outputs):  # Another axis is as long as one of the batches.
            pairs = [(few.parts[-1], few.digests[-1], outputs[-1])]
        differing = (
            part
            for part, one, two in pairs
            if len(one) == number and not _are_close(one, two[:number], self._counts)
        )
        return next(differing, None)

    def _values_at(self, state: int, keeps_sign: bool = False) -> list[Any]:
        """Return the values of the variables at one of the states that are tried."""
        generator = np.random.default_rng(state)
        return [
            rows.value_at(state, each, id(each) in self._trained, keeps_sign, generator)
            if (id(each) in self._counting if state >= rows.NUM_STATES else state > 0)
            else each.value
            for each in self._trial.variables
        ]

    def _sources(self) -> list[Source]:
        """Return the sources of rows in the order to try them."""
        numbers = list(range(len(self._trial.sample.sources)))
        if self._state % 2:
            return [*((number, True) for number in numbers), *((n, False) for n in numbers)]
        # The data's own ranges are the last source.
        return [(number, False) for number in (*numbers[-1:], *numbers[:-1])]

    def _rows(self, source: Source) -> list[np.ndarray]:
        """Return rows from a source."""
        trial = self._trial
        return trial.sample.drawn(source[0], trial.size, self._state, self._generator, source[1])

    def _further(self, values: list[Any]) -> Values:
        """Return values of all variables, present ones of those found since, and of the seeds."""
        further = [each.value for each in self._trial.variables[len(values) :]]
        seeds = [backend.array_of(each) for each in self._trial.seeds]
        return [*values, *further], [each + each.dtype.type(self._state) for each in seeds]

    def _first(
        self, given: list[np.ndarray], values: list[Any], shares: np.ndarray | None = None
    ) -> Pass:
        """Return the first pass of a comparison, and note whether it shows anything."""
        trial, self._is_shown = self._trial, False
        first = trial.run(given, self._further(values), shares=shares)
        known = {id(variable) for variable in trial.variables}
        if found := [each for key, each in trial.outside_read.items() if key not in known]:
            # From the next state on, they are moved too.
            self._counting.update(id(each) for each in found if math.prod(each.shape) == 1)
            trial.use_variables([*trial.variables, *found])
            first = trial.run(given, self._further(values), shares=shares)
        last = [first.digests[number] for number in self._last(first)]
        self._is_shown = all(2 * np.isfinite(each).sum() > len(each) for each in last)
        return first

    def _last(self, given: Pass) -> list[int]:
        """Return the numbers of the outputs of the model itself and of its loss."""
        trial = self._trial
        of_rows = [n for n in range(given.num_outputs) if len(given.digests[n]) == trial.size]
        last = (trial.model, trial.loss)
        return [number for number in of_rows if given.parts[number] in last] or of_rows

    def _shows(self, given: list[np.ndarray], values: list[Any]) -> bool:
        """Return whether a pass over some rows shows anything."""
        backend.attempt(self._first, given, values)
        return self._is_shown

    def _bearable(self, values: list[Any]) -> list[Any]:
        """Return values at which the model runs, where the given ones are kept if possible.

        Others keep their sign, such as those of which a layer takes the logarithm, or their present
        value.
        """

        def with_moved(numbers: list[int], values: list[Any], moved: list[Any]) -> list[Any]:
            """Return values of which as many as possible of these are the moved ones."""
            tried = [moved[n] if n in numbers else value for n, value in enumerate(values)]
            if any(self._shows(self._rows(source), tried) for source in self._sources()):
                return tried
            middle = len(numbers) // 2
            for part in (numbers[:middle], numbers[middle:]) if middle else ():
                values = with_moved(part, values, moved)
            return values

        numbers = list(range(len(values)))
        kept = self._values_at(self._state, keeps_sign=True)
        return with_moved(numbers, with_moved(numbers, self._values_at(0), kept), values)

    def _culprits(self, what: str) -> str:
        """Return a sentence on the layer and the columns with which nothing can be compared."""
        trial, sample = self._trial, self._trial.sample
        present = [each.value for each in trial.variables]
        given = self._rows((len(sample.sources) - 1, False))
        first, _ = backend.attempt(self._first, given, present)
        parts: list[Any] = trial.running[-1:]
        if first is not None:
            pairs = zip(first.parts, first.digests, strict=True)
            parts = [part for part, each in pairs if not np.isfinite(each).all()]
        undeclared = [n for n in sample.undeclared if given[n].dtype.kind in "fiu"]
        calm = [each * (number not in undeclared) for number, each in enumerate(given)]
        is_calm, columns = self._shows(calm, present), list[str]()
        for number in () if self._shows(given, present) else undeclared:
            for column in itertools.islice(np.ndindex(given[number].shape[1:]), _MOST_COLUMNS):
                tried, place = list(calm if is_calm else given), (slice(None), *column)
                # Beside zeros if the model takes them, or in all columns.
                tried[number] = tried[number].copy()
                tried[number].T[...] = tried[number].T if is_calm else given[number][place]
                tried[number][place] = given[number][place]
                if not self._shows(tried, present):
                    at = column[0] if len(column) == 1 else column
                    columns.append(f"{sample.names[number]!r}, column {at}")
        columns = columns or [repr(sample.names[number]) for number in sample.undeclared]
        where = f"layer {parts[0].name!r}" if parts else "a layer"
        return f"{where} yields {what} (inputs that no layer declares: {'; '.join(columns)})"

    def _told(self, reason: str) -> str:
        """Return the error for a model of which the made-up rows show nothing."""
        return (
            f"Model {self._trial.model.name!r} could not be examined, so it is not known whether "
            f"training it is private. On made-up rows, {reason}. (Some lie within the range of the "
            "data, on which this error may depend.) Give public ranges with `fit(input_ranges=)`: "
            "the structure of `x`, with a pair `(lowest, highest)` for each array."
        )


def _leaking(given: Pass, others: np.ndarray) -> list[int]:
    """Return the numbers of the derivatives that show that outputs depend on other rows.

    Args:
        given: A pass with derivatives of the outputs for some rows.
        others: The other rows, by which derivatives must be zero.

    Raises:
        FloatingPointError: If there are none, and most derivatives are not finite.
    """
    numbers = range(given.num_outputs, len(given.digests))
    finite = {number: np.isfinite(given.digests[number][others]) for number in numbers}
    found = [n for n, each in finite.items() if np.any(given.digests[n][others][each])]
    if not found and any(2 * each.sum() < len(each) for each in finite.values()):
        raise FloatingPointError("most derivatives by other rows are not finite")
    return found


def _are_close(one: np.ndarray, other: np.ndarray, tolerance: float = 0.0) -> bool:
    """Return whether digests are equal to the last bit, or but for rounding."""
    if not tolerance:
        return np.array_equal(one, other, equal_nan=True)
    scale = float(np.max(np.abs(one), initial=0.0, where=np.isfinite(one)))
    limit = 1e-5 + tolerance * scale
    return np.allclose(one, other, rtol=tolerance, atol=limit, equal_nan=True)
