"""One observed run of a model on made-up rows: a number for each row of each layer output.

Training mode, losses and updates are those of a step. The derivatives of the outputs of some rows
with respect to the other rows are found too.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.random import Generator

from keras_adaclip import backend, gradients
from keras_adaclip.backend import keras_private
from keras_adaclip.examination.draws import EqualDraws
from keras_adaclip.examination.issues import OwnLoss
from keras_adaclip.examination.rows import SampleRows, cut_short
from keras_adaclip.gradients import Batch

Tensor = Any
# The values of the variables, and those of the states of the seed generators.
Values = tuple[list[Any], list[np.ndarray]]


class _WatchedScope(keras.StatelessScope):
    """A scope that hands on which variables without a value in it are read, and which are assigned.

    Args:
        values: Pairs of a variable and its value within the scope.
        note_read: Called with each variable that is read and has no value here.
        note_assigned: Called with each variable that is assigned.
    """

    def __init__(
        self,
        values: Sequence[tuple[keras.Variable, Tensor]],
        note_read: Callable[[keras.Variable], None],
        note_assigned: Callable[[keras.Variable], None],
    ) -> None:
        super().__init__(values, collect_losses=True)
        self.note_read, self.note_assigned = note_read, note_assigned

    def get_current_value(self, variable: keras.Variable) -> Tensor | None:
        """Return the value of a variable, and note the variable if it has none here."""
        value = super().get_current_value(variable)
        if value is None and not keras_private.is_empty(variable):
            self.note_read(variable)
        return value

    def add_update(self, update: tuple[keras.Variable, Tensor]) -> None:
        """Note an update and its variable."""
        self.note_assigned(update[0])
        super().add_update(update)


class Trial:
    """A model that runs on made-up rows, shows what every layer returns, and keeps no effect.

    Args:
        model: A built model.
        sample: Makes the rows up.
        size: Number of rows of a batch.
        with_loss: Whether a loss of the user's own is run too.
        larger: The same model with more rows, with which this one is compared.

    Attributes:
        loss: The loss of the user's own, or None.
        variables: Those of the model and its metrics without random states, and those that are not
            the model's but were read.
        seeds: The states of the model's seed generators.
        outside_read: The variables that a pass has read, and that are not the model's.
        outside_assigned: The same of assigned ones, without states of random generators.
        layers: For each output of the last pass, the layer that returned it.
        updated: The variables that the last pass assigned.
        added: The layers that added a loss of their own.
        tapped: For each derivative of the last backward pass, the layer that it belongs to.
        derivatives: A number for each row of each derivative.
        failed: The layer in which the last pass raised an error, or None.
    """

    def __init__(
        self,
        model: keras.Model,
        sample: SampleRows,
        size: int,
        with_loss: bool = False,
        larger: "Trial | None" = None,
    ) -> None:
        self.loss = OwnLoss.of(model) if with_loss else None
        self.model, self.sample, self.size = model, sample, size
        self._draws: EqualDraws = EqualDraws(size, None if larger is None else larger._draws)
        x, targets = sample.structure
        self._structure = (x, {} if self.loss is None else targets)
        layers = keras_private.flatten_layers(model)
        self._paddings = [0.0] + [
            float(layer.mask_value) for layer in layers if isinstance(layer, keras.layers.Masking)
        ]
        self.seeds = keras_private.seed_generator_states(model)
        of_seeds = {id(state) for state in self.seeds}
        every = [*model.variables, *model.metrics_variables]
        self.variables = [variable for variable in every if id(variable) not in of_seeds]
        self.outside_read: list[keras.Variable] = []
        self.outside_assigned: list[keras.Variable] = []
        self._own = {id(variable) for variable in every}
        self._watched = [variable for variable in model.variables if id(variable) not in of_seeds]
        self.layers: list[keras.Layer | OwnLoss] = []
        self.updated: list[keras.Variable] = []
        self.added: list[keras.Layer] = []
        self.failed: keras.Layer | None = None
        self.tapped: list[keras.Layer] = []
        self.derivatives: list[np.ndarray] = []
        self._taps_trained_only = False
        self.use_variables(self.variables)

    def use_variables(self, variables: list[keras.Variable]) -> None:
        """Make the model run with values of these variables."""
        self.variables = list(variables)
        self.forward = backend.Evaluator(self._forward, self.model)
        self._backwards = [
            backend.Evaluator(functools.partial(self._backward, of_losses=each), self.model)
            for each in ([False] if self.loss is None else [False, True])
        ]

    def run(
        self, rows: list[np.ndarray], values: Values, order: np.ndarray | None = None
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return a number for each row of each layer output, and for each variable assigned.

        Args:
            rows: The rows.
            values: The values of the variables.
            order: The former number of each row, with which its random numbers move along.
        """
        outputs, assigned = self.forward([*rows, self._numbers(order)], values)
        return outputs, assigned

    def _numbers(self, order: np.ndarray | None) -> np.ndarray:
        """Return the former number of each row, by default its own one."""
        return (np.arange(self.size) if order is None else order).astype("int32")

    def look_for_rows_in_draws(self, rows: list[np.ndarray], values: Values) -> None:
        """Find the axis of the rows in each draw, by a pass over another number of them."""
        other = Trial(self.model, self.sample, self.size + 3)
        other.variables = self.variables
        places = np.arange(other.size, dtype="int32")
        more = [each[places % self.size] for each in rows[: self.sample.num_inputs]]
        tensors = [ops.convert_to_tensor(each) for each in (*more, places)]
        backend.trace(lambda: other._forward(tensors, values) and None)
        self._draws.others = [*other._draws.shapes]
        self.use_variables(self.variables)

    def leaking(
        self,
        rows: list[np.ndarray],
        values: Values,
        kept: np.ndarray,
        order: np.ndarray | None = None,
    ) -> keras.Layer | OwnLoss | None:
        """Return the layer past which an output of the rows `kept` depends on another row.

        The other arguments are those of `run`.

        Raises:
            FloatingPointError: If there is none, and most derivatives are not finite.
        """
        try:
            (leaks, self.derivatives), *of_losses = (
                each([*rows, self._numbers(order), kept], values) for each in self._backwards
            )
        except Exception:
            # Before the first trained layer nothing needs a gradient, and not everything has one.
            if self._taps_trained_only:
                raise
            self._taps_trained_only = True
            self.use_variables(self.variables)
            return self.leaking(rows, values, kept, order)
        leaking = [number for number, leak in enumerate(leaks) if leak > 0.0]
        if leaking:
            return self.tapped[min(leaking[-1] + 1, len(self.tapped) - 1)]
        if any(leak > 0.0 for each, _ in of_losses for leak in each):
            return self.loss
        if any(leak < 0.0 for each in (leaks, *(each for each, _ in of_losses)) for leak in each):
            raise FloatingPointError("most derivatives by other rows are not finite")
        return None

    def rows(
        self, state: int, generator: Generator, source: int = 0, with_padding: bool = True
    ) -> list[np.ndarray]:
        """Return made-up inputs, and targets and weights for a loss.

        Args:
            state: Decides the part of the ranges, and whether sequences are cut short.
            generator: Draws the rows.
            source: The number of their source.
            with_padding: Whether sequences may be cut short.
        """
        rows = self.sample.drawn(source, self.size, state, generator)
        turn, is_odd = divmod(state, 2)
        if is_odd and with_padding:
            padding = self._paddings[turn % len(self._paddings)]
            for number in range(self.sample.num_inputs):
                rows[number] = cut_short(rows[number], padding, generator)
        return rows[: self.sample.num_inputs] if self.loss is None else rows

    def half(self, generator: Generator) -> np.ndarray:
        """Return half of the rows, drawn at random, as a bool array of shape `(size,)`."""
        return generator.permutation(self.size) < self.size // 2

    def seed_values(self, number: int) -> list[np.ndarray]:
        """Return the states of the seed generators, moved on by a number."""
        values = [backend.array_of(state) for state in self.seeds]
        return [value + np.asarray(number, value.dtype) for value in values]

    @contextmanager
    def _scope(
        self, values: Values, with_updates: bool, order: Tensor | None = None
    ) -> Iterator[keras.StatelessScope]:
        """Yield a scope in which all variables have the given values."""
        variables = [*self.variables, *self.seeds]
        tensors = [
            (variable, ops.convert_to_tensor(value, dtype=variable.dtype))
            for variable, value in zip(variables, [*values[0], *values[1]], strict=True)
        ]

        def note(noted: list[keras.Variable], variable: keras.Variable) -> None:
            """Note a variable once, unless it is the model's."""
            if id(variable) not in self._own and all(variable is not each for each in noted):
                noted.append(variable)

        def note_assigned(variable: keras.Variable) -> None:
            """Note a variable that keeps what is assigned to it."""
            if with_updates and not keras_private.is_seed_generator_state(variable):
                note(self.outside_assigned, variable)

        note_read = functools.partial(note, self.outside_read)
        with _WatchedScope(tensors, note_read, note_assigned) as scope, self._draws.made(order):
            yield scope

    def _forward(self, rows: list[Tensor], values: Values) -> tuple[list[Tensor], list[Tensor]]:
        """Return a number for each row of each layer output, and one for each variable assigned."""
        *rows, order = rows
        x, targets = keras.tree.pack_sequence_as(self._structure, list(rows))
        digests: list[Tensor] = []
        weights: dict[tuple[int, ...], Tensor] = {}
        for seen in (self.layers, self.updated, self.added):
            seen.clear()
        self.failed = None
        with self._scope(values, True, order) as scope:
            before = [scope.get_current_value(variable) for variable in self._watched]
            num_attributed = [0]

            def record(layer: keras.Layer, result: Any) -> Any:
                """Note what a layer returns and whether it added a loss."""
                # Inner layers return first, so a loss counts for the layer that added it.
                if len(scope.losses) > num_attributed[0]:
                    num_attributed[0] = len(scope.losses)
                    self.added.append(layer)
                for value in keras.tree.flatten(result):
                    if self._has_rows(value):
                        self.layers.append(layer)
                        digests.append(_digest(value, weights))
                return result

            with self._watching(record):
                y_pred = gradients.call_model(self.model, x, training=True)
            if self.loss is not None:
                self.layers.append(self.loss)
                digests.append(self._losses(x, targets, y_pred))
            assigned = []
            for variable, value in zip(self._watched, before, strict=True):
                now = scope.get_current_value(variable)
                if now is not value:
                    self.updated.append(variable)
                    assigned.append(_digest(ops.expand_dims(now, 0), weights))
        return digests, assigned

    def _losses(self, x: Any, targets: dict[str, Any], y_pred: Any) -> Tensor:
        """Return the losses of the rows, as the step has them, of shape `(rows,)`."""
        return gradients.per_example_losses(self.model, Batch(x, **targets), y_pred)[0]

    def _backward(
        self, rows: list[Tensor], values: Values, of_losses: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the largest derivative of the outputs of some rows by each tensor of the others.

        Also return a number for each row of each derivative. Where `of_losses` is true, the losses
        of these rows are differentiated instead.
        """
        *inputs, order, kept = rows
        kept = ops.cast(kept, "float32")

        def outputs(tap: Callable[[Tensor], Tensor]) -> tuple[Tensor, Any]:
            """Return the sum of the kept rows of the outputs, or of the losses."""
            self.tapped[:] = []
            skips = self._taps_trained_only

            def record(layer: keras.Layer, result: Any) -> Any:
                """Return the result with a tap on each tensor of floats."""

                def tapped(value: Any) -> Any:
                    """Return a tensor with a tap, its mask and its logits attached."""
                    if not self._has_rows(value) or not keras.backend.is_float_dtype(value.dtype):
                        return value
                    if skips and not keras_private.own_trainable_variables(layer):
                        return value
                    self.tapped.append(layer)
                    mask, logits = keras_private.mask_of(value), keras_private.logits_of(value)
                    value = keras_private.attach_mask(tap(value), mask)
                    return keras_private.attach_logits(value, logits)

                return keras.tree.map_structure(tapped, result)

            x, targets = keras.tree.pack_sequence_as(self._structure, inputs)
            x = record(self.model, x)
            with self._watching(record):
                y_pred = gradients.call_model(self.model, x, training=True)
            if of_losses:
                return ops.sum(self._losses(x, targets, y_pred) * kept), []
            seen = [value for value in keras.tree.flatten(y_pred) if self._has_rows(value)]
            weights: dict[tuple[int, ...], Tensor] = {}
            total = sum(
                ops.sum(_digest(value, weights) * kept)
                for value in seen
                if keras.backend.is_float_dtype(value.dtype)
            )
            return total + ops.zeros(()), []

        # On JAX what is differentiated assigns all variables in the end.
        with self._scope(values, False, order):
            _, cotangents = backend.differentiate_at_taps(outputs, [*self.variables, *self.seeds])
            weights: dict[tuple[int, ...], Tensor] = {}
            digests = [_digest(value, weights) for value in cotangents]
        return _largest_sizes(cotangents, 1.0 - kept), digests

    @contextmanager
    def _watching(self, record: Any) -> Iterator[None]:
        """Within the context, call `record(layer, result)` after each layer's call.

        What `record` returns becomes the layer's result. If the model has a gradient plan, its
        fast calls are used, as in the steps.
        """
        plan = getattr(self.model, "gradient_plan", None)
        fast_calls = {} if plan is None else plan.fast_calls

        def watching(layer: keras.Layer) -> Any:
            """Return a `call` that records the layer's result."""
            original = fast_calls.get(layer) or layer.call

            def call(*args: Any, **kwargs: Any) -> Any:
                """Call the layer and record its result."""
                try:
                    return record(layer, original(*args, **kwargs))
                except Exception:
                    self.failed = self.failed or layer  # The innermost one comes first.
                    raise

            return call

        layers = gradients.layers_outside_loops(self.model)
        with keras_private.replaced_calls({layer: watching(layer) for layer in layers}):
            yield

    def _has_rows(self, value: Any) -> bool:
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
        return bool(shape) and shape[0] in (self.size, None)


def _digest(value: Tensor, weights: dict[tuple[int, ...], Tensor]) -> Tensor:
    """Return a weighted sum of each row, of shape `(rows,)`.

    Args:
        value: A tensor of shape `(rows, ...)`.
        weights: Keeps the weights for other tensors of the same pass.
    """
    value, shape = ops.cast(value, "float32"), tuple(value.shape[1:])
    if not shape or None in shape:
        flat = ops.reshape(value, (ops.shape(value)[0], -1))
        return ops.sum(flat * _sines(ops.shape(flat)[1]), axis=1)
    if shape not in weights:
        weights[shape] = ops.reshape(_sines(math.prod(shape)), shape)
    return ops.sum(value * weights[shape], axis=tuple(range(1, len(shape) + 1)))


def _sines(number: Any) -> Tensor:
    """Return a number of weights that have no pattern."""
    return ops.sin(1.0 + ops.cast(ops.arange(number), "float32"))


def _largest_sizes(values: list[Tensor], rows: Tensor) -> Tensor:
    """Return the largest finite absolute value of each tensor in the given rows.

    Where it is zero, and fewer than half of the rows are finite, it is -1.
    """
    if not values:
        return ops.zeros((0,))
    found = []
    for value in values:
        value = ops.cast(value, "float32")
        sizes = ops.reshape(ops.absolute(value), (ops.shape(value)[0], -1))
        is_finite = sizes < float("inf")
        largest = ops.max(ops.max(ops.where(is_finite, sizes, 0.0), axis=1) * rows)
        num_finite = ops.sum(ops.cast(ops.all(is_finite, axis=1), "float32") * rows)
        is_blind = ops.logical_and(largest == 0.0, 2.0 * num_finite < ops.sum(rows))
        found.append(ops.where(is_blind, -1.0, largest))
    return ops.stack(found)
