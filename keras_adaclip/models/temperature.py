"""Calibration of a classifier: its logits over one temperature, which a private release finds.

Normalized contributions push examples that are right already as hard as others. So a classifier is
too sure of itself, on all examples by about the same factor. At the right temperature, the mean
confidence is the accuracy:

    release:      sum over rows of  max(softmax(logits / T)) - [it is right],  for nine T
    temperature:  where the sum falls to 0, drawn towards 3 where noise hides that

A row's nine numbers lie in [-1, 1], so that their norm is at most 3. Dividing the weights of the
last layer by the temperature is no use of the data any more, and changes no prediction.

Reference:
    Guo et al. 2017, "On calibration of modern neural networks" (temperatures).
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_losses
from keras_adaclip.gradients import Batch, call_model

# The most likely temperature without any data, and those of the release.
_USUAL = 3.0
TEMPERATURES = _USUAL * np.geomspace(0.25, 4.0, 9)
# How many standard deviations of the noise a factor e from the usual temperature weighs.
_PULL = 2.0
SENSITIVITY = float(np.sqrt(len(TEMPERATURES)))


def sums_of_gaps(model: keras.Model, dataset: Any, size: int) -> np.ndarray:
    """Return the sums, over the rows that may be drawn, of confidence less hits. Not private.

    Args:
        model: A model of which `keras_losses.layer_of_logits` is known.
        dataset: A `PoissonDataset` of its training data.
        size: The number of rows that pass through the model at a time.

    Returns:
        An array of one number for each of `TEMPERATURES`. A row adds at most `SENSITIVITY` to its
        norm, whatever the model computes.
    """
    # In random order: how a backend rounds depends on the place of a row.
    order, variables = np.random.default_rng(model.optimizer.sampling_seed), model.variables
    numbers = order.permutation(np.flatnonzero(dataset.present))
    structure = [dataset.first_rows[name] for name in ("x", "y")]

    def gaps(rows: list[Any], values: list[Any]) -> Any:
        """Return the gap of each row at each temperature, of shape `(size, 9)`."""
        x, y = keras.tree.pack_sequence_as(structure, rows)
        with keras.StatelessScope(list(zip(variables, values, strict=True))):
            outputs = call_model(model, Batch(x).x, training=False)
            (outputs,), (y,) = map(keras.tree.flatten, (outputs, y))
            logits = keras_losses.logits_of(model, outputs)
        return _gaps(ops.cast(logits, "float32"), y)

    evaluate, total = backend.Evaluator(gaps, model), np.zeros(len(TEMPERATURES))
    values = [variable.value for variable in variables]
    for first in range(0, len(numbers), size):
        batch = dataset.take(numbers[first : first + size], size)
        found = evaluate(keras.tree.flatten([batch["x"], batch["y"]]), values)[batch["mask"]]
        total += np.clip(np.nan_to_num(found.astype(np.float64)), -1.0, 1.0).sum(axis=0)
    return total


def temperature_at(sums: np.ndarray, stddev: float) -> float:
    """Return the temperature at which noised sums fall to zero.

    Args:
        sums: Those of `sums_of_gaps`, noised.
        stddev: The standard deviation of their noise.
    """
    logs = np.log(TEMPERATURES / _USUAL)
    # Falls from one temperature to the next by more than the noise makes it rise, nearly always.
    heights = np.minimum.accumulate(sums / stddev - _PULL * logs)
    return float(_USUAL * np.exp(np.interp(0.0, -heights, logs)))


def divide_logits(layer: keras.layers.Dense, temperature: float) -> None:
    """Divide the weights of the layer that makes the logits, and with them the logits."""
    for variable in layer.trainable_variables:
        variable.assign(variable.value / temperature)


def _gaps(logits: Any, y: Any) -> Any:
    """Return confidence less hits, float32 of shape `(size, 9)`.

    Args:
        logits: Float32 of shape `(size, num_classes)`, or `(size, 1)` of two classes.
        y: Numbers of classes, or shares of classes of the shape of the logits.
    """
    num_outputs, width = logits.shape[1], int(np.prod(y.shape[1:]))
    y = ops.reshape(ops.cast(y, "float32"), (-1, width))
    if num_outputs == 1:
        logits, y = (ops.concatenate([a, b], -1) for a, b in ((0 * logits, logits), (1 - y, y)))
    elif width == 1:
        y = ops.cast(y == ops.arange(num_outputs, dtype="float32"), "float32")
    hits = ops.take_along_axis(y, ops.argmax(logits, -1)[:, None], -1)
    temperatures = ops.convert_to_tensor(TEMPERATURES.astype(np.float32))
    tempered = ops.softmax(logits[:, None, :] / temperatures[:, None], -1)
    return ops.max(tempered, -1) - hits
