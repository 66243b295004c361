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

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients import Batch, finite_rows
from keras_adaclip.gradients.forward import call_model
from keras_adaclip.gradients.losses import per_example_losses
from keras_adaclip.training.batch_normalizations import batch_normalization_issue
from keras_adaclip.training.loss_probe import own_loss_name
from keras_adaclip.training.made_up import (
    as_column,
    cut_short,
    far_value,
    moved_value,
    plausible_rows,
    separating_halves,
)
from keras_adaclip.training.outside_state import OutsideState, OutsideVariables

Tensor = Any
_NUM_ROWS, _NUM_WORDS = 8, 100
# States of the variables: as they are, and four others. At two more, those that may count are far.
_NUM_STATES, _NUM_FAR_STATES = 5, 2
# Spread of the made-up rows at each of them, as a multiple of that of the data.
_SPREADS = (1.0, 1.0, 3.0, 0.3, 10.0)
MIXES = "It mixes examples: its output for one row changes when only other rows change."
COUNTS = "Its output for one row depends on how many rows are in the batch."
_ALONE = (
    "Replace it with a layer that treats each example alone (for normalization: "
    "LayerNormalization or GroupNormalization)."
)
_ASSIGNED = (
    "It is assigned in the forward pass, and would carry data past clipping and noise.",
    "Remove the layer, freeze it, or keep its state fixed during training.",
)
_ASSIGNED_OUTSIDE = (
    "It is assigned in the forward pass or in the loss and is no weight of the model: private "
    "steps would leave it as it is, where Keras changes it.",
    "Make it a weight of a layer of the model, or leave out the assignment. A metric is given to "
    "`compile(metrics=...)`, or is an attribute of the model.",
)
_ADDED = (
    "It adds a loss in its `call` (`add_loss`), which depends on the data and belongs to no single "
    "example.",
    "Move the term into the compiled loss, or make it a weight regularizer.",
)
_MIXING_LOSS = (
    "It mixes examples: the loss of one row changes when only other rows change, such as through "
    "what `call` left in an attribute.",
    "Compute the loss from `x`, `y` and `y_pred` alone; let `call` return what else it needs.",
)
_OUTSIDE = (
    "A forward pass keeps state outside of Keras's variables (a buffer, an attribute, a global), "
    "which would carry data from one step to the next past clipping and noise; or it draws random "
    "numbers outside of the framework, which looks the same.",
    "Let its outputs depend on nothing but its inputs, its Keras weights and Keras's seed "
    "generators.",
)


@dataclass(frozen=True)
class Finding:
    """What a probe found.

    Args:
        issues: `(layer name, reason, fix)` for each thing that a private step must not do.
        is_repeatable: whether two runs on the same rows agreed. Random numbers that do not come
            from Keras's seed generators make runs differ; then mixing cannot be ruled out, and
            only the whole-model gradient plan, which runs each example alone, is sound.
        unrepeatable_layer: name of the first layer in which two runs differed.
        assigned: the variables that a forward pass assigns, whatever the rows are.
        dependent: those that it assigns what depends on the rows.
        branches: whether a pass decides by values what runs (`backend.Effects`).
    """

    issues: list[tuple[str, str, str]]
    is_repeatable: bool = True
    unrepeatable_layer: str | None = None
    assigned: list[keras.Variable] = field(default_factory=list)
    dependent: list[keras.Variable] = field(default_factory=list)
    branches: bool = False


@dataclass(frozen=True)
class OwnLoss:
    """Stands beside the layers for a loss that is the user's.

    Args:
        name: of `compute_loss`, or of the loss functions.
    """

    name: str


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
        name = own_loss_name(model) if with_loss else None
        self._loss = None if name is None else OwnLoss(name)
        self._model, self._size, self._training = model, size, training
        targets = {} if self._loss is None else {"y": rows.y, "sample_weight": rows.sample_weight}
        targets = {key: part for key, part in targets.items() if part is not None}
        # A tuple: the inputs come first, whatever the names.
        self._structure = (rows.x, targets)
        parts = [
            [
                ops.convert_to_numpy(value)
                for value in keras.tree.flatten(finite_rows(Batch(part)).x)
            ]
            for part in self._structure
        ]
        self._examples, self._targets = parts
        self._words = known_words(model)
        self._padding = [0.0] + [
            float(layer.mask_value)
            for layer in keras_private.flatten_layers(model)
            if isinstance(layer, keras.layers.Masking)
        ]
        self._seeds = keras_private.seed_generator_states(model)
        of_seeds = {id(state) for state in self._seeds}
        every = [*model.variables, *model.metrics_variables]
        self._variables = [variable for variable in every if id(variable) not in of_seeds]
        self._outside = OutsideVariables([*every, *self._seeds])
        self._watched = [variable for variable in model.variables if id(variable) not in of_seeds]
        # Single numbers that nothing trains, and what the forward pass assigns.
        self._counting = {
            id(variable)
            for variable in model.non_trainable_variables
            if math.prod(variable.shape) == 1 and id(variable) not in of_seeds
        }
        self._layers: list[keras.layers.Layer | OwnLoss] = []
        self._tapped: list[keras.layers.Layer] = []
        self._updated: list[keras.Variable] = []
        self._added: list[keras.layers.Layer] = []
        self._taps_trained_only = False
        self._last_rows: list[list[np.ndarray]] = []
        self._renew_evaluators()

    def _renew_evaluators(self) -> None:
        """Makes what runs the model, differentiates its outputs, and its losses where examined."""
        self._forward = backend.Evaluator(self._traced_forward, self._model)
        self._backwards = [
            backend.Evaluator(functools.partial(self._traced_backward, of_losses=each), self._model)
            for each in ([False] if self._loss is None else [False, True])
        ]

    def examined(self, at_step_shape: bool = False) -> Finding:
        """What is found at several states of variables, random generators and rows.

        Args:
            at_step_shape: whether outputs are differentiated too, and state outside of Keras's
                variables was looked for already.
        """
        generator = np.random.default_rng(self._size)
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
            updated |= {id(variable): variable for variable in self._updated}
            self._counting |= updated.keys()
            dependent.update(found.dependent)
            unrepeatable = unrepeatable or found.unrepeatable
            mixing = mixing or found.mixing
            if mixing is not None:
                break
        self._last_rows = []
        issues = [
            _issue(self._model, variable, *_ASSIGNED)
            for number, variable in updated.items()
            if number in dependent
        ]
        issues += [(layer.name, *_ADDED) for layer in self._added]
        issues += [(each.path, *_ASSIGNED_OUTSIDE) for each in self._outside.assigned]
        if mixing is not None:
            issues.append(_mixing_issue(self._model, mixing))
        unique = list({issue[0]: issue for issue in issues}.values())
        assigned = [each for number, each in updated.items() if number not in dependent]
        return Finding(unique, unrepeatable is None, unrepeatable, assigned)

    def examined_state(self) -> Finding:
        """What is found of state alone; the variables that are assigned data are no issue."""
        generator = np.random.default_rng(self._size)
        issues = self.outside_state(generator)
        if issues:
            return Finding(issues)
        found = self._compared_at(0, generator, False)
        dependent = [each for each in self._updated if id(each) in found.dependent]
        assigned = [each for each in self._updated if id(each) not in found.dependent]
        branches = self._forward.effects.branches
        unrepeatable = found.unrepeatable
        return Finding([], unrepeatable is None, unrepeatable, assigned, dependent, branches)

    def mixing_now(self, number: int) -> list[tuple[str, str, str]]:
        """Issues with the variables as they are, from one comparison.

        Args:
            number: another one takes other halves and random numbers.
        """
        values = [variable.value for variable in self._variables]
        generator = np.random.default_rng([self._size, number // 2])
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
        return [_mixing_issue(self._model, found.mixing)]

    @property
    def outside_variables(self) -> list[keras.Variable]:
        """Those that a pass reads and that are not the model's."""
        return self._outside.read

    def examined_counts(self, few: "Probe") -> list[tuple[str, str, str]]:
        """Issues with what depends on the number of rows, at several states of the variables.

        Args:
            few: a probe of the same model in the same mode, of fewer rows.
        """
        generator = np.random.default_rng(self._size)
        for state in range(len(_SPREADS)):
            try:
                values = self._values(state, generator)
                issues = self._count_issues(few, values, state, generator)
            except Exception:
                # Not every value is one that a variable can have.
                if state == 0:
                    raise
                continue
            if issues:
                return issues
        return []

    def counting_now(self, few: "Probe", number: int) -> list[tuple[str, str, str]]:
        """`examined_counts` with the variables as they are.

        Args:
            few: as for `examined_counts`.
            number: another one takes other random numbers.
        """
        values = [variable.value for variable in self._variables]
        return self._count_issues(few, values, number, np.random.default_rng([self._size, number]))

    def _count_issues(
        self, few: "Probe", values: list[Any], state: int, generator: np.random.Generator
    ) -> list[tuple[str, str, str]]:
        """Issues with layers that return something else for the first rows alone."""
        if len(few._variables) != len(self._variables):  # some are known since a pass showed them
            few._variables = list(self._variables)
            few._renew_evaluators()
        further, moved = (values, self._seed_values(state)), (values, self._seed_values(state + 1))
        # A difference is looked at again on other rows: rounding may decide close by a threshold.
        for _ in range(2):
            rows = self._rows(_SPREADS[state % len(_SPREADS)], generator)
            first_rows = [each[: few._size] for each in rows[: len(few._examples)]]
            outputs = self._forward(rows, further)[0]
            alone = few._forward(first_rows, further)[0]
            others = few._forward(first_rows, moved)[0] if self._seeds else alone
            # Behind a layer that draws random numbers, rows of another number are another draw.
            layers = few._layers
            drawn = _first_difference(alone, others, True)
            if self._training:  # where two draws happen to be alike too
                drawing = [bool(keras_private.seed_generator_states(each)) for each in layers]
                first = drawing.index(True) if True in drawing else len(layers)
                drawn = min(first, len(layers) if drawn is None else drawn)
            own = [layer for layer in self._layers if not isinstance(layer, OwnLoss)]
            outputs = outputs[: len(own)]
            if layers != own:  # What has as many entries as there are rows is not known.
                if drawn not in (None, len(layers)):
                    return []
                layers, outputs, alone = layers[-1:], outputs[-1:], alone[-1:]
            compared = zip(layers, alone[:drawn], outputs, strict=False)
            differing = [
                layer
                for layer, one, other in compared
                if len(one) == few._size and not _are_close(one, other[: few._size])
            ]
            if not differing:
                return []
        return [_issue(self._model, differing[0], COUNTS, _ALONE)]

    def moves_in_python(self) -> bool:
        """Whether a pass changes what layers hold outside of variables, such as a counter."""
        state = OutsideState(self._model)
        rows = self._rows(1.0, np.random.default_rng(self._size))
        for _ in range(2):
            state.note()
            self._forward(rows, ([each.value for each in self._variables], self._seed_values(0)))
        state.note()
        return state.moves

    def outside_state(self, generator: np.random.Generator) -> list[tuple[str, str, str]]:
        """Issues with what a forward pass leaves behind outside of Keras's variables.

        Args:
            generator: makes up rows.
        """
        rows, exchanged = self._rows(1.0, generator), self._rows(1.0, generator)
        further = ([variable.value for variable in self._variables], self._seed_values(0))
        state = OutsideState(self._model)
        outputs = []
        for each in (rows, rows, exchanged, rows):
            outputs.append(self._forward(each, further)[0])
            state.note()
        names = state.names()
        effects = self._forward.effects
        if not names and effects.writes:
            names = [self._model.name]
        # The step leaves metrics as the forward pass did: they must not be read by the next one.
        measured = {id(variable) for variable in self._model.metrics_variables}
        values = [
            moved_value(backend.array_of(each), 1, False, generator)
            if id(each) in measured
            else each.value
            for each in self._variables
        ]
        outputs.append(self._forward(rows, (values, further[1]))[0])
        first, _, _, *others = outputs
        is_exact = backend.computes_on_cpu()
        differs = [_first_difference(first, each, is_exact) is not None for each in others]
        if not names and not effects.draws and any(differs):
            names = [self._model.name]
        return [(name, *_OUTSIDE) for name in names]

    def _compared_at(
        self, state: int, generator: np.random.Generator, with_gradients: bool
    ) -> "_Compared":
        """Compares at one of the states, to which variables belong that only a pass shows."""
        while True:
            values, halves = self._values(state, generator), self._halves(state, generator)
            found = self._compared(values, state, halves, generator, with_gradients)
            known = {id(variable) for variable in self._variables}
            further = [each for each in self._outside.read if id(each) not in known]
            if not further:
                return found
            self._variables += further
            self._counting.update(id(each) for each in further if math.prod(each.shape) == 1)
            self._renew_evaluators()

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
            spread = _SPREADS[state % len(_SPREADS)]
            turn, is_odd = divmod(state, 2)
            padding = self._padding[turn % len(self._padding)] if renews and is_odd else None
            self._last_rows = [self._rows(spread, generator, padding) for _ in range(2)]
        rows, others = self._last_rows
        if not renews:
            # Other pairs: a maximum may lie in the same row of both.
            others = [np.roll(each, 1 + state // 2, axis=0) for each in others]
        further = (values, self._seed_values(state))
        first, assigned = self._forward(rows, further)
        again = self._forward(rows, further)[0] if repeat else first
        differing = _first_difference(first, again, False)
        if differing is not None:
            return _Compared(None, set(), self._layers[differing].name)
        # What runs on the same rows to the last bit must do so on the same row.
        is_exact = _first_difference(first, again, True) is None
        mixing: list[int] = []
        dependent: set[int] = set()
        for half in halves:
            changed = [
                np.where(as_column(half, one), two, one)
                for one, two in zip(rows, others, strict=True)
            ]
            outputs, now = self._forward(changed, further)
            number = _first_difference(first, outputs, is_exact, ~half)
            mixing += [] if number is None else [number]
            dependent.update(
                id(variable)
                for variable, one, two in zip(self._updated, assigned, now, strict=True)
                if _differ(one, two, is_exact)
            )
        if mixing:
            return _Compared(self._layers[min(mixing)], dependent)
        leaking = self._leaking(rows, further, ~halves[0]) if with_gradients else None
        return _Compared(leaking, dependent)

    def _leaking(
        self, rows: list[np.ndarray], further: Any, kept: np.ndarray
    ) -> keras.layers.Layer | OwnLoss | None:
        """The layer past which an output of the rows `kept` depends on another row, or None."""
        try:
            leaks, *of_losses = (each([*rows, kept], further) for each in self._backwards)
        except Exception:
            # Before the first trained layer nothing needs a gradient, and not everything has one.
            if self._taps_trained_only:
                raise
            self._taps_trained_only = True
            self._renew_evaluators()
            return self._leaking(rows, further, kept)
        leaking = [number for number, leak in enumerate(leaks) if leak > 0.0]
        if leaking:
            return self._tapped[min(leaking[-1] + 1, len(self._tapped) - 1)]
        return self._loss if any(leak > 0.0 for each in of_losses for leak in each) else None

    def _rows(
        self, spread: float, generator: np.random.Generator, padding: float | None = None
    ) -> list[np.ndarray]:
        rows = [
            plausible_rows(each, self._size, spread, generator, self._words)
            for each in self._examples
        ]
        if padding is not None:
            rows = [cut_short(each, padding, generator) for each in rows]
        # Not every loss is defined for made-up targets.
        return rows + [
            each[generator.integers(len(each), size=self._size)] for each in self._targets
        ]

    def _values(self, state: int, generator: np.random.Generator) -> list[Any]:
        """The values of the variables at one of the states that are tried."""
        if state == 0:
            return [variable.value for variable in self._variables]
        if state >= _NUM_STATES:
            return [
                far_value(backend.array_of(variable), state == _NUM_STATES)
                if id(variable) in self._counting
                else variable.value
                for variable in self._variables
            ]
        trained = {id(variable) for variable in self._model.trainable_variables}
        return [
            moved_value(backend.array_of(variable), state, id(variable) in trained, generator)
            for variable in self._variables
        ]

    def _seed_values(self, number: int) -> list[np.ndarray]:
        values = [backend.array_of(state) for state in self._seeds]
        return [value + np.asarray(number, value.dtype) for value in values]

    def _halves(self, state: int, generator: np.random.Generator) -> list[np.ndarray]:
        """Masks of the rows to exchange."""
        if state == 0 and self._size == _NUM_ROWS:
            return separating_halves(_NUM_ROWS)
        half = generator.permutation(self._size) < self._size // 2
        return [half, ~half] if self._size == _NUM_ROWS else [half]

    @contextmanager
    def _in_scope(self, further: Any, with_updates: bool) -> Iterator[keras.StatelessScope]:
        values, seeds = further
        mapping = [
            *zip(self._variables, values, strict=True),
            *zip(self._seeds, seeds, strict=True),
        ]
        tensors = [
            (variable, ops.convert_to_tensor(value, dtype=variable.dtype))
            for variable, value in mapping
        ]
        with (
            keras.StatelessScope(tensors, collect_losses=True) as scope,
            self._outside.noted(scope, with_updates),
        ):
            yield scope

    def _traced_forward(self, rows: list[Tensor], further: Any) -> tuple[list[Tensor], Any]:
        """For each layer output a number of each row, and one for each variable assigned."""
        x, targets = keras.tree.pack_sequence_as(self._structure, list(rows))
        digests: list[Tensor] = []
        for seen in (self._layers, self._updated, self._added):
            seen.clear()
        with self._in_scope(further, with_updates=True) as scope:
            before = [scope.get_current_value(variable) for variable in self._watched]
            num_attributed = [0]

            def record(layer: keras.layers.Layer, result: Any, num_losses: int) -> Any:
                # Inner layers come first: a loss of theirs is not one of the layers around them.
                if len(scope.losses) > max(num_losses, num_attributed[0]):
                    num_attributed[0] = len(scope.losses)
                    self._added.append(layer)
                for value in keras.tree.flatten(result):
                    if self._has_rows(value):
                        self._layers.append(layer)
                        digests.append(_digest(value))
                return result

            with _watched(self._model, record, lambda: len(scope.losses)):
                y_pred = call_model(self._model, x, training=self._training)
            if self._loss is not None:
                self._layers.append(self._loss)
                digests.append(self._losses(x, targets, y_pred))
            assigned = []
            for variable, value in zip(self._watched, before, strict=True):
                now = scope.get_current_value(variable)
                if now is not value:
                    self._updated.append(variable)
                    assigned.append(_digest(ops.expand_dims(now, 0)))
        return digests, assigned

    def _losses(self, x: Any, targets: dict[str, Any], y_pred: Any) -> Tensor:
        """The losses of the rows, as the step has them, of shape `(rows,)`."""
        y, sample_weight = (targets.get(key) for key in ("y", "sample_weight"))
        return per_example_losses(self._model, x, y, y_pred, sample_weight)[0]

    def _traced_backward(self, rows: list[Tensor], further: Any, of_losses: bool) -> list[Tensor]:
        """The largest derivative of the outputs of some rows by each tensor of the others.

        Where `of_losses` is true, the losses of these rows are differentiated instead.
        """
        *inputs, kept = rows
        kept = ops.cast(kept, "float32")

        def outputs(tap: Callable[[Tensor], Tensor]) -> tuple[Tensor, Any]:
            self._tapped[:] = []
            skips = self._taps_trained_only

            def record(layer: keras.layers.Layer, result: Any, num_losses: int) -> Any:
                def tapped(value: Any) -> Any:
                    if not self._has_rows(value) or not _is_floating(value):
                        return value
                    if skips and not keras_private.own_trainable_variables(layer):
                        return value
                    self._tapped.append(layer)
                    mask, logits = keras_private.mask_of(value), keras_private.logits_of(value)
                    value = keras_private.attach_mask(tap(value), mask)
                    return keras_private.attach_logits(value, logits)

                return keras.tree.map_structure(tapped, result)

            x, targets = keras.tree.pack_sequence_as(self._structure, inputs)
            x = record(self._model, x, 0)
            with _watched(self._model, record, lambda: 0):
                y_pred = call_model(self._model, x, training=True)
            if of_losses:
                return ops.sum(self._losses(x, targets, y_pred) * kept), []
            seen = [value for value in keras.tree.flatten(y_pred) if self._has_rows(value)]
            total = sum(ops.sum(_digest(value) * kept) for value in seen if _is_floating(value))
            return total + ops.zeros(()), []

        # On JAX what is differentiated assigns all variables in the end.
        with self._in_scope(further, with_updates=False):
            _, cotangents = backend.differentiate_at_taps(outputs, [*self._variables, *self._seeds])
        return [_largest(value, 1.0 - kept) for value in cotangents]

    def _has_rows(self, value: Any) -> bool:
        # What is ragged, or text, has no numbers; the layers behind it show what it does.
        if not ops.is_tensor(value) or hasattr(value, "row_splits"):
            return False
        if keras.backend.standardize_dtype(value.dtype) == "string":
            return False
        try:
            shape = tuple(value.shape)
        except ValueError:  # TensorFlow does not know even the number of axes.
            return False
        # None: a number that is known only when the step runs.
        return bool(shape) and shape[0] in (self._size, None)


@dataclass(frozen=True)
class _Compared:
    """The first layer that mixes, or the loss, and the `id` of each variable that is assigned data.

    Where two runs on the same rows differ, only the name of the first layer in which they do.
    """

    mixing: keras.layers.Layer | OwnLoss | None
    dependent: set[int]
    unrepeatable: str | None = None


def _issue(model: keras.Model, part: Any, reason: str, fix: str) -> tuple[str, str, str]:
    """An issue with a layer or a variable; of a batch normalization, what is known of those."""
    for layer in keras_private.flatten_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization) and (
            part is layer or any(part is variable for variable in layer.variables)
        ):
            return batch_normalization_issue(model, layer)
    return (part.path if isinstance(part, keras.Variable) else part.name, reason, fix)


def _mixing_issue(model: keras.Model, part: keras.layers.Layer | OwnLoss) -> tuple[str, str, str]:
    if isinstance(part, OwnLoss):
        return (part.name, *_MIXING_LOSS)
    return _issue(model, part, MIXES, _ALONE)


def _first_difference(
    one: list[np.ndarray], other: list[np.ndarray], is_exact: bool, rows: Any = slice(None)
) -> int | None:
    """The number of the first layer output that differs in `rows`, None where none does."""
    for number, (value, changed) in enumerate(zip(one, other, strict=True)):
        # Of an axis that is not that of the rows nothing is known.
        if isinstance(rows, np.ndarray) and len(value) != len(rows):
            continue
        if _differ(value[rows], changed[rows], is_exact):
            return number
    return None


def _differ(one: np.ndarray, other: np.ndarray, is_exact: bool) -> bool:
    if is_exact:
        return not np.array_equal(one, other, equal_nan=True)
    return not np.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def _are_close(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether digests agree as far as those of batches of two sizes do."""
    scale = float(np.max(np.abs(one), initial=0.0, where=np.isfinite(one)))
    return np.allclose(one, other, rtol=1e-3, atol=1e-5 + 1e-3 * scale, equal_nan=True)


def _digest(value: Tensor) -> Tensor:
    """A weighted sum of each row, of shape `(rows,)`."""
    flat = ops.reshape(ops.cast(value, "float32"), (ops.shape(value)[0], -1))
    weights = ops.sin(1.0 + ops.cast(ops.arange(ops.shape(flat)[1]), "float32"))
    return ops.sum(flat * weights, axis=1)


def _largest(value: Tensor, rows: Tensor) -> Tensor:
    """The largest finite size of a number in the given rows."""
    flat = ops.reshape(ops.cast(value, "float32"), (ops.shape(value)[0], -1))
    sizes = ops.where(ops.isfinite(flat), ops.absolute(flat), 0.0)
    return ops.max(sizes * ops.expand_dims(rows, 1))


def _is_floating(value: Tensor) -> bool:
    return "float" in keras.backend.standardize_dtype(value.dtype)


@contextmanager
def _watched(model: keras.Model, record: Any, num_losses: Any) -> Iterator[None]:
    """Calls `record(layer, result, losses before)` after each call of a layer of `model`.

    The layer's result is what `record` returns. If the model has a gradient plan, its faster calls
    are used, as in the steps.
    """
    watched = layers_outside_loops(model)
    plan = getattr(model, "gradient_plan", None)
    quicker_calls = {} if plan is None else plan.quicker_calls

    def watching(layer: keras.layers.Layer) -> Any:
        original = quicker_calls.get(layer) or layer.call

        def call(*args: Any, **kwargs: Any) -> Any:
            before = num_losses()
            return record(layer, original(*args, **kwargs), before)

        return call

    with keras_private.replaced_calls({layer: watching(layer) for layer in watched}):
        yield


def known_words(model: keras.Model) -> list[str]:
    """Strings that a model tells apart: those that its layers look up, and texts of these.

    Of a word that no layer knows all rows would have the same number.
    """
    words = ["", "a"]
    for layer in keras_private.flatten_layers(model):
        if isinstance(layer, (keras.layers.StringLookup, keras.layers.TextVectorization)):
            words += [str(word) for word in layer.get_vocabulary()[:_NUM_WORDS]]
    return [*words, " ".join(words[2:]), " ".join(words[:1:-1])]


def layers_outside_loops(model: keras.Model) -> list[keras.layers.Layer]:
    """All layers but those that a recurrent layer calls step by step."""
    inside: set[int] = set()
    layers = []
    for layer in keras_private.flatten_layers(model):
        if id(layer) in inside:
            continue
        if isinstance(layer, (keras.layers.RNN, keras.layers.TimeDistributed)):
            inside.update(id(inner) for inner in keras_private.flatten_layers(layer))
        layers.append(layer)
    return layers
