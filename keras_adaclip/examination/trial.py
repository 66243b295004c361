"""One observed run of a model on made-up rows: a number for each row of each layer output.

Training mode, losses and updates are those of a step. The derivatives of the outputs of some rows
with respect to the other rows are found too.
"""

import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend, gradients
from keras_adaclip.backend import keras_losses, keras_private
from keras_adaclip.examination.equal_draws import EqualDraws
from keras_adaclip.examination.issues import OwnLoss
from keras_adaclip.examination.rows import SampleRows, packed
from keras_adaclip.gradients import Batch, is_differentiable

Tensor = Any
# The values of the variables, and those of the states of the seed generators.
Values = tuple[list[Any], list[np.ndarray]]


class _WatchedScope(keras.StatelessScope):
    """A scope that notes which variables without a value in it are read, and which are assigned.

    Args:
        values: Pairs of a variable and its value within the scope.
        read: Gets each variable that is read and has no value here, by its `id`.
        assigned: Gets each variable that is assigned, without states of random generators.
    """

    def __init__(
        self,
        values: list[tuple[keras.Variable, Tensor]],
        read: dict[int, keras.Variable],
        assigned: dict[int, keras.Variable],
    ) -> None:
        super().__init__(values, collect_losses=True)
        self._read, self._assigned = read, assigned

    def get_current_value(self, variable: keras.Variable) -> Tensor | None:
        """Return the value of a variable, and note the variable if it has none here."""
        value = super().get_current_value(variable)
        if value is None and not keras_private.is_empty(variable):
            self._read[id(variable)] = variable
        return value

    def add_update(self, update: tuple[keras.Variable, Tensor]) -> None:
        """Note an update and its variable."""
        self.note_assigned(update[0])
        super().add_update(update)

    def note_assigned(self, variable: keras.Variable) -> None:
        """Note a variable that is assigned here or in a scope within this one."""
        if not keras_private.is_seed_generator_state(variable):
            self._assigned[id(variable)] = variable


@dataclass(frozen=True)
class Pass:
    """The numbers that a pass yields, in the order in which something wrong shows first.

    Args:
        parts: For each array, the layer or loss that is wrong where it is: outputs of layers, then
            derivatives from the last one to the first.
        digests: A number for each row.
        num_outputs: How many of them belong to outputs.
        assigned: The variables that the pass assigned, with a number for each.
    """

    parts: list[keras.Layer | OwnLoss]
    digests: list[np.ndarray]
    num_outputs: int
    assigned: list[tuple[keras.Variable, np.ndarray]]


@dataclass
class _Seen:
    """What a trace of a function has seen: layers, assigned variables, first sizes of results."""

    layers: list[keras.Layer | OwnLoss] = field(default_factory=list)
    tapped: list[keras.Layer | OwnLoss] = field(default_factory=list)
    assigned: list[keras.Variable] = field(default_factory=list)
    lengths: list[int | None] = field(default_factory=list)


class Trial:
    """A model that runs on made-up rows, shows what every layer returns, and keeps no effect.

    Args:
        model: A built model.
        sample: Makes the rows up.
        size: Largest number of rows of a batch.
        with_loss: Whether a loss of the user's own is run too.

    Attributes:
        loss: The loss of the user's own, or None.
        variables: Those of the model without random states, and those that are not the model's but
            were read, such as those of a metric.
        seeds: The states of the model's seed generators.
        outside_read: The variables that passes have read and that are not the model's, by `id`.
        added: The layers that added a loss of their own.
        running: The layers whose calls have not returned, after an error the innermost one last.
    """

    def __init__(
        self, model: keras.Model, sample: SampleRows, size: int, with_loss: bool = False
    ) -> None:
        self.loss = OwnLoss.of(model) if with_loss else None
        self.model, self.sample, self.size = model, sample, size
        x, targets = sample.structure
        self._structure = (x, {} if self.loss is None else targets)
        leaves = keras.tree.flatten(self._structure)
        self._num_arrays = sum(leaf is not None for leaf in leaves)
        self.seeds = keras_private.seed_generator_states(model)
        of_seeds = {id(state) for state in self.seeds}
        trackers = gradients.tracker_variables(model)
        own = [variable for variable in model.variables if id(variable) not in of_seeds]
        # What a loss adds to a tracker reaches the logs, unlike what a layer does.
        self._watched = [*own, *trackers]
        self.outside_read: dict[int, keras.Variable] = {}
        self._own = {id(variable) for variable in [*model.variables, *trackers]}
        self._assigned: dict[int, keras.Variable] = {}
        self.added: list[keras.Layer] = []
        self.running: list[keras.Layer] = []
        self._draws, self._tables = EqualDraws(size), set[int]()
        self.use_variables(own)

    def use_variables(self, variables: list[keras.Variable], trained_only: bool = False) -> None:
        """Compile again, with values of these variables.

        Args:
            variables: The variables.
            trained_only: Whether derivatives by outputs of layers that train nothing are left out.
                Before the first trained layer nothing needs them, and not everything has one.
        """
        self.variables, self._taps_trained_only = list(variables), trained_only
        self._functions: dict[Any, tuple[_Seen, backend.Evaluator]] = {}

    @property
    def effects(self) -> backend.Effects:
        """The side effects of a forward pass, once there was one."""
        return next(iter(self._functions.values()))[1].effects

    @property
    def outside_assigned(self) -> list[keras.Variable]:
        """The variables that passes have assigned and that are not the model's."""
        return [each for number, each in self._assigned.items() if number not in self._own]

    def run(
        self,
        rows: list[np.ndarray],
        values: Values,
        order: np.ndarray | None = None,
        shares: np.ndarray | None = None,
    ) -> Pass:
        """Return what a pass yields, in the order of the given rows.

        Args:
            rows: All rows, or the first few.
            values: The values of the variables.
            order: The numbers of all rows in the order in which they pass through the model. Their
                random numbers move with them.
            shares: The share of each row in the sum of outputs that is differentiated, None for no
                derivatives.
        """
        seen, evaluate = self._compiled(len(rows[0]), shares is not None)
        order = np.arange(self.size) if order is None else order
        equal = np.ones(len(rows[0]), np.float32)
        given = [*rows[: self._num_arrays], equal if shares is None else shares]
        if len(rows[0]) == self.size:
            given = [each[order] for each in given]

        def found(of_losses: bool) -> Any:
            """Return digests of outputs, of assigned variables, and of derivatives."""
            return evaluate(given, (values, order.astype("int32"), np.asarray(of_losses)))

        outputs, assigned, derivatives = found(False)
        layers, tapped = list(seen.layers), seen.tapped
        pairs = list(zip(seen.assigned, assigned, strict=True))
        # A derivative that is wrong at a tap, and not at the next one, is so by what is between.
        layers += [*tapped[-1:], *tapped[:0:-1]] if tapped else []
        digests = [*outputs, *derivatives[::-1]]
        if shares is not None and self.loss is not None:
            of_losses = found(True)[2]
            layers += [self.loss] * len(of_losses)
            digests += of_losses
        back = np.argsort(order)
        digests = [each[back] if len(each) == self.size else each for each in digests]
        return Pass(layers, digests, len(outputs), pairs)

    def program(self, rows: list[np.ndarray], values: Values) -> str | None:
        """Return what passes with derivatives compile to, with multiples of the rows marked.

        It is equal for two numbers of rows if the passes differ in these only, or in constants that
        follow them. None if that is not known.
        """
        _, evaluate = self._compiled(self.size, differentiates=True)
        given = (values, np.arange(self.size, dtype="int32"), np.asarray(False))
        text = evaluate.program([*rows[: self._num_arrays], np.ones(self.size, np.float32)], given)

        def marked(found: re.Match[str]) -> str:
            """Return a number, or how many times the rows it is."""
            number, rest = divmod(int(found[0]), self.size)
            return found[0] if rest else f"{number} rows"

        # Not the numbers in names. Lengths of axes follow an `x`.
        return None if text is None else re.sub(r"(?<![%#a-wyzA-Z_\d])\d+", marked, text)

    def _compiled(self, num_rows: int, differentiates: bool) -> tuple[_Seen, backend.Evaluator]:
        """Return the function that runs a number of rows, and what it sees."""
        # Where steps take any number of rows, so does the function.
        number = num_rows if backend.needs_fixed_shapes(self.model) else None
        if (number, differentiates) not in self._functions:
            seen = _Seen()
            function = functools.partial(self._pass, seen, differentiates)
            self._functions[number, differentiates] = seen, backend.Evaluator(function, self.model)
        return self._functions[number, differentiates]

    def look_for_rows(self, rows: list[np.ndarray], values: Values) -> None:
        """Find the axis of the rows in draws and results, by a pass over another number of them."""
        places = np.arange(self.size + 3) % self.size
        more = [ops.convert_to_tensor(each[places]) for each in rows[: self._num_arrays]]
        shares, given, seen = ops.ones(len(places), "float32"), (values, None, False), _Seen()
        backend.trace(lambda: self._pass(seen, False, [*more, shares], given) and None)
        if all(len(each.lengths) == len(seen.lengths) for each, _ in self._functions.values()):
            self._tables = {n for n, length in enumerate(seen.lengths) if length == self.size}
        self.use_variables(self.variables, self._taps_trained_only)

    def _scope(self, values: Values, with_updates: bool) -> _WatchedScope:
        """Return a scope in which all variables have the given values."""
        pairs = zip([*self.variables, *self.seeds], [*values[0], *values[1]], strict=True)
        tensors = [(each, ops.convert_to_tensor(value, dtype=each.dtype)) for each, value in pairs]
        # On JAX what is differentiated assigns all variables in the end.
        return _WatchedScope(tensors, self.outside_read, self._assigned if with_updates else {})

    def _pass(
        self, seen: _Seen, differentiates: bool, rows: list[Tensor], given: Any
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Return numbers for each row of outputs, for assigned variables, and of derivatives.

        Args:
            seen: Gets the layers and variables to which these belong.
            differentiates: Whether the outputs of some rows are differentiated.
            rows: The rows, and their shares in the sum that is differentiated.
            given: The values of the variables, the former numbers of all rows, and whether losses
                are differentiated in place of outputs.
        """
        values, order, of_losses = given
        *inputs, shares = rows

        def shared(digests: Tensor) -> Tensor:
            """Return the sum of the rows' numbers, of which some have no share."""
            return ops.sum(ops.where(shares == 0.0, 0.0, shares * digests))

        def outputs(tap: Callable[[Tensor], Tensor]) -> tuple[Tensor, Any]:
            """Return the sum of the outputs or the losses of the rows, and all numbers."""
            seen.layers[:], seen.tapped[:], seen.assigned[:], seen.lengths[:] = [], [], [], []
            self.running.clear()
            digests = list[Tensor]()
            before = [variable.value for variable in self._watched]

            def tapped(layer: keras.Layer, value: Any) -> Any:
                """Return a tensor of floats with a tap, its mask and its logits attached."""
                seen.lengths.append(next(iter(getattr(value, "shape", ())), None))
                if len(seen.lengths) - 1 in self._tables or not (
                    differentiates and self._has_rows(value, shares) and is_differentiable(value)
                ):
                    return value
                if self._taps_trained_only and not keras_private.own_trainable_variables(layer):
                    return value
                seen.tapped.append(layer)
                return keras_losses.attach_marks(tap(value), keras_losses.marks_of(value))

            def record(layer: keras.Layer, result: Any) -> Any:
                """Note what a layer returns, and whether it added a loss."""
                # Inner layers return first, so a loss counts for the layer that added it.
                self.added += [layer] * (len(scope.losses) > len(self.added))
                for value in keras.tree.flatten(result):
                    if self._has_rows(value, shares):
                        seen.layers.append(layer)
                        digests.append(_digest(value))
                return keras.tree.map_structure(functools.partial(tapped, layer), result)

            x, targets = packed(self._structure, inputs)
            x = gradients.mapped(functools.partial(tapped, self.model), x)
            # The fast calls of a gradient plan are used, as in the steps.
            plan = getattr(self.model, "gradient_plan", None)
            fast_calls = {} if plan is None else plan.fast_calls
            calls = gradients.watched_calls(self.model, fast_calls, record, self.running)
            with self._draws.made(shares, order):
                with keras_private.replaced_calls(calls):
                    y_pred = gradients.call_model(self.model, x, training=True)
                # Losses of Keras heed the masks of outputs.
                marks = [keras_losses.marks_of(value) for value in keras.tree.flatten(y_pred)]
                for mark in keras.tree.flatten(marks):
                    if self._has_rows(mark, shares):
                        seen.layers.append(seen.layers[-1])
                        digests.append(_digest(mark))
                total = ops.zeros((), "float32")
                for value in keras.tree.flatten(y_pred) if differentiates else ():
                    if self._has_rows(value, shares) and is_differentiable(value):
                        total = total + shared(_digest(value))
                if self.loss is not None:
                    batch = Batch(x, **targets)
                    losses = gradients.per_example_losses(self.model, batch, y_pred)[0]
                    seen.layers.append(self.loss)
                    digests.append(losses)
                    total = ops.where(of_losses, shared(losses), total)
            assigned = []
            for variable, value in zip(self._watched, before, strict=True):
                if variable.value is not value:
                    seen.assigned.append(variable)
                    assigned.append(_digest(ops.expand_dims(variable.value, 0)))
            return total, (digests, assigned)

        with self._scope(values, not differentiates) as scope:
            if not differentiates:
                return (*outputs(lambda value: value)[1], [])
            variables = [*self.variables, *self.seeds]
            found, cotangents = backend.differentiate_at_taps(outputs, variables)
            return *found, list(map(_digest, cotangents))

    def _has_rows(self, value: Any, shares: Tensor) -> bool:
        """Return whether a tensor holds numbers of each row."""
        # Ragged tensors and texts have no digest; the layers behind them show their effect.
        if not ops.is_tensor(value) or hasattr(value, "row_splits"):
            return False
        if keras.backend.standardize_dtype(value.dtype) == "string":
            return False
        try:
            shape = tuple(value.shape)
        except ValueError:  # TensorFlow does not know even the number of axes.
            return False
        # None: a number that is known only when the step runs.
        return bool(shape) and shape[0] in (shares.shape[0], None)


def _digest(value: Tensor) -> Tensor:
    """Return a number for each row: a weighted sum of it, with weights that have no pattern."""
    shape = tuple(value.shape[1:])
    size = -1 if None in shape else math.prod(shape)
    value = ops.reshape(ops.cast(value, "float32"), (ops.shape(value)[0], size))
    weights = ops.sin(1.0 + ops.cast(ops.arange(ops.shape(value)[1], dtype="int32"), "float32"))
    return ops.sum(value * weights, axis=1)
