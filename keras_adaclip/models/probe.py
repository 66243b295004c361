"""Runs a model on a few rows and watches what depends on what.

Eight rows pass through the model; then, several times, half of them are exchanged and the outputs
of every layer for the *other* half are compared. The halves are chosen so that any two rows are
told apart, and training mode is used, at two states of the model's random generators. A layer
whose output for a row moved has mixed examples. A variable that the forward pass assigned, or a
loss that it added, would carry data past clipping and noise.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients import Batch, finite_rows
from keras_adaclip.gradients.forward import call_model

Tensor = Any
_NUM_ROWS = 8
_MIXES = "It mixes examples: its output for one row changes when only other rows change."
_ALONE = (
    "Replace it with a layer that treats each example alone (for normalization: "
    "LayerNormalization or GroupNormalization)."
)


@dataclass
class _Seen:
    """What one forward pass showed to Python: names by layer call, and what layers did."""

    names: list[str]
    updated: list[str]
    added: list[str]


@dataclass(frozen=True)
class Finding:
    """What a probe found.

    Args:
        issues: `(layer name, reason, fix)` for each thing that a private step must not do.
        is_repeatable: whether two runs on the same rows agreed. Random numbers that do not come
            from Keras's seed generators make runs differ; then mixing cannot be ruled out, and
            only the whole-model gradient plan, which runs each example alone, is sound.
    """

    issues: list[tuple[str, str, str]]
    is_repeatable: bool


def probe(model: keras.Model, rows: Batch) -> Finding:
    """What the forward pass does that a private step must not do.

    Args:
        model: a built model.
        rows: at least one example, for shapes, dtypes and plausible values.

    Raises:
        Exception: whatever the model raises on such rows.
    """
    generator = np.random.default_rng(0)
    flat = keras.tree.flatten(finite_rows(Batch(rows.x)).x)
    originals = [ops.convert_to_numpy(value) for value in flat]
    base = [_plausible(value, generator) for value in originals]
    other = [_plausible(value, generator) for value in originals]
    halves = _separating_halves()
    inputs = [base, base]
    for half in halves:
        changed = [np.where(_column(half, a), b, a) for a, b in zip(base, other, strict=True)]
        inputs.append(changed)

    seeds = keras_private.seed_generator_states(model)
    states = [[backend.array_of(state) for state in seeds]]
    if seeds:
        states.append([value + np.ones((), value.dtype) for value in states[0]])
    seen = _Seen([], [], [])
    run = _forward_pass(model, rows.x, seeds, seen)
    held = [*model.variables, *model.metrics_variables]
    arguments = [(values, state) for state in states for values in inputs]
    outputs = backend.evaluate_each(run, held, arguments)

    issues = [
        (
            name,
            "It is assigned in the forward pass, and would carry data past clipping and noise.",
            "Remove the layer, freeze it, or keep its state fixed during training.",
        )
        for name in seen.updated
    ]
    issues += [
        (
            name,
            "It adds a loss in its `call` (`add_loss`), which depends on the data and belongs to "
            "no single example.",
            "Move the term into the compiled loss, or make it a weight regularizer.",
        )
        for name in seen.added
    ]
    is_repeatable = True
    for start in range(0, len(outputs), len(inputs)):
        first, again, *changed_runs = outputs[start : start + len(inputs)]
        every_row = np.ones(_NUM_ROWS, bool)
        if _first_difference(first, again, every_row) is not None:
            is_repeatable = False
            continue
        mixing = [
            _first_difference(first, changed, ~half)
            for changed, half in zip(changed_runs, halves, strict=True)
        ]
        found = [number for number in mixing if number is not None]
        if found:
            issues.append((seen.names[min(found)], _MIXES, _ALONE))
            break
    return Finding(issues, is_repeatable)


def _separating_halves() -> list[np.ndarray]:
    """Masks of the rows to exchange: any row is kept in one of them while any other changes."""
    numbers = np.arange(_NUM_ROWS)
    bits = [(numbers >> bit) & 1 == 1 for bit in range(_NUM_ROWS.bit_length() - 1)]
    return [*bits, *(~bit for bit in bits)]


def _first_difference(
    one: list[np.ndarray], other: list[np.ndarray], rows: np.ndarray
) -> int | None:
    """The number of the first layer output that differs in `rows`, None where none does."""
    for number, (value, changed) in enumerate(zip(one, other, strict=True)):
        if not np.allclose(value[rows], changed[rows], rtol=1e-4, atol=1e-5, equal_nan=True):
            return number
    return None


def _forward_pass(model: keras.Model, structure: Any, seeds: list[Any], seen: _Seen) -> Any:
    """A function of `(inputs, seed states)` that returns each layer output with a batch axis."""
    held = [*model.variables, *model.metrics_variables]
    of_seeds = {id(state) for state in seeds}
    watched_state = [variable for variable in model.variables if id(variable) not in of_seeds]

    def run(arguments: tuple[list[Tensor], list[Tensor]]) -> list[Tensor]:
        values, seed_values = arguments
        x = keras.tree.pack_sequence_as(structure, [ops.convert_to_tensor(v) for v in values])
        outputs: list[Tensor] = []
        for found in (seen.names, seen.updated, seen.added):
            found.clear()
        mapping = [(variable, variable.value) for variable in held]
        mapping += list(zip(seeds, seed_values, strict=True))
        with keras.StatelessScope(mapping, collect_losses=True) as scope:
            before = [scope.get_current_value(variable) for variable in watched_state]
            num_attributed = [0]

            def record(layer: keras.layers.Layer, result: Any, num_losses: int) -> None:
                # Inner layers come first: a loss of theirs is not one of the layers around them.
                if len(scope.losses) > max(num_losses, num_attributed[0]):
                    num_attributed[0] = len(scope.losses)
                    seen.added.append(layer.name)
                for value in keras.tree.flatten(result):
                    if ops.is_tensor(value) and value.shape and value.shape[0] == _NUM_ROWS:
                        seen.names.append(layer.name)
                        outputs.append(ops.cast(value, "float32"))

            with _watched(model, record, lambda: len(scope.losses)):
                call_model(model, x, training=True)
            for variable, value in zip(watched_state, before, strict=True):
                if scope.get_current_value(variable) is not value:
                    seen.updated.append(variable.path)
        return outputs

    return run


@contextmanager
def _watched(model: keras.Model, record: Any, num_losses: Any) -> Iterator[None]:
    """Calls `record(layer, result, losses before)` after each call of a layer of `model`."""
    watched = _layers_outside_loops(model)

    def watching(layer: keras.layers.Layer) -> Any:
        original = layer.call

        def call(*args: Any, **kwargs: Any) -> Any:
            before = num_losses()
            result = original(*args, **kwargs)
            record(layer, result, before)
            return result

        return call

    with keras_private.replaced_calls({layer: watching(layer) for layer in watched}):
        yield


def _layers_outside_loops(model: keras.Model) -> list[keras.layers.Layer]:
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


def _plausible(value: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Eight made-up rows with the shape of `value`'s and numbers of its kind."""
    shape = (_NUM_ROWS, *value.shape[1:])
    if value.dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(bool)
    if value.dtype.kind == "f":
        spread = value.std() or 1.0
        return (value.mean() + spread * generator.normal(size=shape)).astype(value.dtype)
    known = np.unique(value)
    # Constant ids (padding, black pixels) would hide everything: 0 and 1 are ids of any table.
    known = known if known.size > 1 else np.unique([*known.tolist(), 0, 1])
    return generator.choice(known, shape).astype(value.dtype)


def _column(mask: np.ndarray, like: np.ndarray) -> np.ndarray:
    """The mask of rows, with as many axes as `like`."""
    return mask.reshape(-1, *[1] * (like.ndim - 1))
