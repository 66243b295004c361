"""Runs a model on a few rows and watches what depends on what.

Two batches share their first row and differ in the others. A layer whose output for that row
differs has mixed examples. A variable that the forward pass assigned, or a loss that it added,
would carry data past clipping and noise.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients import Batch, finite_rows, repeated
from keras_adaclip.gradients.layerwise import call_model

Tensor = Any
_NUM_ROWS = 3


def probe(model: keras.Model, rows: Batch) -> list[tuple[str, str, str]]:
    """What the forward pass does that a private step must not do.

    Args:
        model: a built model.
        rows: at least one example.

    Returns:
        `(layer name, reason, fix)` for each thing found. A model that cannot run on these rows
        is left to Keras's own error.
    """
    rows = repeated(finite_rows(Batch(rows.x)), _NUM_ROWS)
    other = Batch(keras.tree.map_structure(_with_other_rows, rows.x))
    first, updated, added = _first_row_outputs(model, rows)
    second, _, _ = _first_row_outputs(model, other)
    issues = [
        (
            name,
            "Its state is updated from the data in the forward pass, and would leave the step "
            "without noise.",
            "Remove the layer, freeze it, or keep its state fixed during training.",
        )
        for name in updated
    ]
    issues += [
        (
            name,
            "It adds a loss in its `call` (`add_loss`), which depends on the data and belongs to "
            "no single example.",
            "Move the term into the compiled loss, or make it a weight regularizer.",
        )
        for name in added
    ]
    mixing = _first_difference(first, second)
    # Random numbers without a Keras seed differ from run to run and tell nothing.
    if mixing is not None and _first_difference(first, _first_row_outputs(model, rows)[0]) is None:
        issues.append(
            (
                mixing,
                "It mixes examples: its output for one row changes when only other rows change.",
                "Replace it with a layer that treats each example alone (for normalization: "
                "LayerNormalization or GroupNormalization).",
            )
        )
    return issues


def _first_difference(
    one: list[tuple[str, np.ndarray]], other: list[tuple[str, np.ndarray]]
) -> str | None:
    """The name of the first layer whose outputs differ, None where all are alike."""
    if len(one) != len(other):
        return None
    for (name, value), (_, changed) in zip(one, other, strict=True):
        if not np.allclose(value, changed, rtol=1e-4, atol=1e-5, equal_nan=True):
            return name
    return None


def _first_row_outputs(
    model: keras.Model, batch: Batch
) -> tuple[list[tuple[str, np.ndarray]], list[str], list[str]]:
    """Each layer call's output for row 0; the layers that assign state, and that add losses."""
    names: list[str] = []
    updated: list[str] = []
    added: list[str] = []
    held = [*model.variables, *model.metrics_variables]
    seeds = {id(state) for state in keras_private.seed_generator_states(model)}
    state = [v for v in model.non_trainable_variables if id(v) not in seeds]

    def run() -> list[Tensor]:
        outputs: list[Tensor] = []
        for found in (names, updated, added):
            found.clear()
        mapping = [(variable, variable.value) for variable in held]
        with keras.StatelessScope(mapping, collect_losses=True) as scope:
            before = [scope.get_current_value(variable) for variable in state]
            num_attributed = [0]

            def record(layer: keras.layers.Layer, result: Any, num_losses: int) -> None:
                # Inner layers come first: a loss of theirs is not one of the layers around them.
                if len(scope.losses) > max(num_losses, num_attributed[0]):
                    num_attributed[0] = len(scope.losses)
                    added.append(layer.name)
                for value in keras.tree.flatten(result):
                    if ops.is_tensor(value) and value.shape and value.shape[0] == _NUM_ROWS:
                        names.append(layer.name)
                        outputs.append(ops.cast(value[0], "float32"))

            with _watched(model, record, lambda: len(scope.losses)):
                call_model(model, batch.x, training=True)
            for variable, value in zip(state, before, strict=True):
                if scope.get_current_value(variable) is not value:
                    updated.append(variable.path)
        return outputs

    outputs = backend.evaluate(run, held)
    return list(zip(names, outputs, strict=True)), updated, added


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

    try:
        for layer in watched:
            keras_private.set_attribute(layer, "call", watching(layer))
        yield
    finally:
        for layer in watched:
            if "call" in vars(layer):
                keras_private.delete_attribute(layer, "call")


def _layers_outside_loops(model: keras.Model) -> list[keras.layers.Layer]:
    """All layers but those that a recurrent layer calls step by step; innermost first."""
    inside: set[int] = set()
    layers = []
    for layer in keras_private.flatten_layers(model):
        if id(layer) in inside:
            continue
        if isinstance(layer, (keras.layers.RNN, keras.layers.TimeDistributed)):
            inside.update(id(inner) for inner in keras_private.flatten_layers(layer))
        layers.append(layer)
    return layers


def _with_other_rows(value: Tensor) -> Tensor:
    """The rows with all but the first one changed."""
    array = ops.convert_to_numpy(value).copy()
    if array.dtype.kind == "f":
        array[1:] = array[1:] * 1.5 + 0.5
    elif array.dtype.kind == "b":
        array[1:] = ~array[1:]
    else:
        array[1:] = array.max() - array[1:]
    return ops.convert_to_tensor(array)
