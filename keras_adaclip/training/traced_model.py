"""Runs a model on made-up rows and returns one number for each row of each layer output.

Training mode, losses and updates are those of a step. The derivative of the outputs of some rows by
what belongs to the other rows is found too.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients import Batch, call_model, finite_rows, per_example_losses
from keras_adaclip.training.findings import OwnLoss
from keras_adaclip.training.loss_probe import own_loss_name
from keras_adaclip.training.made_up import cut_short, plausible_rows
from keras_adaclip.training.outside_state import OutsideVariables

Tensor = Any
_NUM_WORDS = 100


class TracedModel:
    """A model, compiled to show what every layer returns for every row.

    Args:
        model: a built model.
        rows: at least one example, for shapes, dtypes and plausible values.
        size: number of rows of a batch.
        training: the mode of the forward pass.
        with_loss: whether a loss of the user's own is run too; `rows` have targets then.

    Attributes:
        variables: those of the model and its metrics without random states, and those that are not
            the model's but were read.
        seeds: the states of the model's seed generators.
        outside: notes the variables that are not the model's.
        layers: for each digest of the last pass, the layer that returned it.
        updated: the variables that the last pass assigned.
        added: the layers that added a loss of their own.
    """

    def __init__(
        self,
        model: keras.Model,
        rows: Batch,
        size: int,
        training: bool,
        with_loss: bool,
    ) -> None:
        name = own_loss_name(model) if with_loss else None
        self.loss = None if name is None else OwnLoss(name)
        self.model, self.size, self.training = model, size, training
        targets = {} if self.loss is None else {"y": rows.y, "sample_weight": rows.sample_weight}
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
        self.examples, self._targets = parts
        self._words = known_words(model)
        self.padding = [0.0] + [
            float(layer.mask_value)
            for layer in keras_private.flatten_layers(model)
            if isinstance(layer, keras.layers.Masking)
        ]
        self.seeds = keras_private.seed_generator_states(model)
        of_seeds = {id(state) for state in self.seeds}
        every = [*model.variables, *model.metrics_variables]
        self.variables = [variable for variable in every if id(variable) not in of_seeds]
        self.outside = OutsideVariables([*every, *self.seeds])
        self._watched = [variable for variable in model.variables if id(variable) not in of_seeds]
        self.layers: list[keras.layers.Layer | OwnLoss] = []
        self._tapped: list[keras.layers.Layer] = []
        self.updated: list[keras.Variable] = []
        self.added: list[keras.layers.Layer] = []
        self._taps_trained_only = False
        self.renew_evaluators()

    def renew_evaluators(self) -> None:
        """Makes what runs the model, differentiates its outputs, and its losses where examined."""
        self.forward = backend.Evaluator(self._traced_forward, self.model)
        self._backwards = [
            backend.Evaluator(functools.partial(self._traced_backward, of_losses=each), self.model)
            for each in ([False] if self.loss is None else [False, True])
        ]

    def leaking(
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
            self.renew_evaluators()
            return self.leaking(rows, further, kept)
        leaking = [number for number, leak in enumerate(leaks) if leak > 0.0]
        if leaking:
            return self._tapped[min(leaking[-1] + 1, len(self._tapped) - 1)]
        return self.loss if any(leak > 0.0 for each in of_losses for leak in each) else None

    def rows(
        self, spread: float, generator: np.random.Generator, padding: float | None = None
    ) -> list[np.ndarray]:
        """Made-up rows of inputs, and targets drawn from the given ones.

        Args:
            spread: of the inputs, as a multiple of that of the given rows.
            generator: makes up the rows.
            padding: the value that ends sequences, where they are cut short.
        """
        rows = [
            plausible_rows(each, self.size, spread, generator, self._words)
            for each in self.examples
        ]
        if padding is not None:
            rows = [cut_short(each, padding, generator) for each in rows]
        # Not every loss is defined for made-up targets.
        return rows + [
            each[generator.integers(len(each), size=self.size)] for each in self._targets
        ]

    def seed_values(self, number: int) -> list[np.ndarray]:
        """The states of the seed generators, moved on by a number."""
        values = [backend.array_of(state) for state in self.seeds]
        return [value + np.asarray(number, value.dtype) for value in values]

    @contextmanager
    def _in_scope(self, further: Any, with_updates: bool) -> Iterator[keras.StatelessScope]:
        values, seeds = further
        mapping = [
            *zip(self.variables, values, strict=True),
            *zip(self.seeds, seeds, strict=True),
        ]
        tensors = [
            (variable, ops.convert_to_tensor(value, dtype=variable.dtype))
            for variable, value in mapping
        ]
        with (
            keras.StatelessScope(tensors, collect_losses=True) as scope,
            self.outside.noted(scope, with_updates),
        ):
            yield scope

    def _traced_forward(self, rows: list[Tensor], further: Any) -> tuple[list[Tensor], Any]:
        """For each layer output a number of each row, and one for each variable assigned."""
        x, targets = keras.tree.pack_sequence_as(self._structure, list(rows))
        digests: list[Tensor] = []
        for seen in (self.layers, self.updated, self.added):
            seen.clear()
        with self._in_scope(further, with_updates=True) as scope:
            before = [scope.get_current_value(variable) for variable in self._watched]
            num_attributed = [0]

            def record(layer: keras.layers.Layer, result: Any, num_losses: int) -> Any:
                # Inner layers come first: a loss of theirs is not one of the layers around them.
                if len(scope.losses) > max(num_losses, num_attributed[0]):
                    num_attributed[0] = len(scope.losses)
                    self.added.append(layer)
                for value in keras.tree.flatten(result):
                    if self._has_rows(value):
                        self.layers.append(layer)
                        digests.append(_digest(value))
                return result

            with _watched(self.model, record, lambda: len(scope.losses)):
                y_pred = call_model(self.model, x, training=self.training)
            if self.loss is not None:
                self.layers.append(self.loss)
                digests.append(self._losses(x, targets, y_pred))
            assigned = []
            for variable, value in zip(self._watched, before, strict=True):
                now = scope.get_current_value(variable)
                if now is not value:
                    self.updated.append(variable)
                    assigned.append(_digest(ops.expand_dims(now, 0)))
        return digests, assigned

    def _losses(self, x: Any, targets: dict[str, Any], y_pred: Any) -> Tensor:
        """The losses of the rows, as the step has them, of shape `(rows,)`."""
        y, sample_weight = (targets.get(key) for key in ("y", "sample_weight"))
        return per_example_losses(self.model, x, y, y_pred, sample_weight)[0]

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
            x = record(self.model, x, 0)
            with _watched(self.model, record, lambda: 0):
                y_pred = call_model(self.model, x, training=True)
            if of_losses:
                return ops.sum(self._losses(x, targets, y_pred) * kept), []
            seen = [value for value in keras.tree.flatten(y_pred) if self._has_rows(value)]
            total = sum(ops.sum(_digest(value) * kept) for value in seen if _is_floating(value))
            return total + ops.zeros(()), []

        # On JAX what is differentiated assigns all variables in the end.
        with self._in_scope(further, with_updates=False):
            _, cotangents = backend.differentiate_at_taps(outputs, [*self.variables, *self.seeds])
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
        return bool(shape) and shape[0] in (self.size, None)


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
