"""The loss of each of many examples, with a model as it is."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients.batch import Batch
from keras_adaclip.gradients.forward import forward_alone
from keras_adaclip.sampling import as_array, common_length

_NUM_ROWS = 256


def example_losses(model: keras.Model, x: Any, y: Any = None) -> np.ndarray:
    """The compiled loss of each example, in inference mode; the model is not changed.

    Args:
        model: a compiled model; it is built where it is not.
        x: arrays of shape `(num_examples, ...)`.
        y: targets of the same length, or None.

    Returns:
        Losses of shape `(num_examples,)`, without weight regularization; NaN where predictions
        are not finite.

    Raises:
        TypeError: where the data are no arrays.
        ValueError: where lengths differ.
    """
    x = keras.tree.map_structure(as_array, x)
    y = None if y is None else keras.tree.map_structure(as_array, y)
    num_examples = common_length({"x": x} if y is None else {"x": x, "y": y})
    few = np.arange(min(3, num_examples))
    keras_private.build_for_training(model, _rows(x, few), _rows(y, few), None)

    def losses(piece: tuple[Any, Any]) -> Any:
        batch = Batch(*(_tensors(part) for part in piece))
        return forward_alone(model, batch, training=False).losses

    # All of one size, as compilers like it: the last one repeats its last row.
    size = min(_NUM_ROWS, num_examples)
    rows = [
        np.minimum(np.arange(start, start + size), num_examples - 1)
        for start in range(0, num_examples, size)
    ]
    pieces = [(_rows(x, some), _rows(y, some)) for some in rows]
    variables = [*model.variables, *model.metrics_variables]
    found = backend.evaluate_each(losses, variables, pieces)
    return np.concatenate(found)[:num_examples].astype(np.float64)


def _rows(part: Any, rows: np.ndarray) -> Any:
    return None if part is None else keras.tree.map_structure(lambda array: array[rows], part)


def _tensors(part: Any) -> Any:
    return None if part is None else keras.tree.map_structure(ops.convert_to_tensor, part)
