"""Runs one way of one program in this process, and prints one JSON object.

    python benchmarks/programs/measure.py mnist_convnet exact

The object has times and memory, or the error of the step, or the words of a refusal.
"""

import json
import resource
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from all_programs import SUITE
from catalogue import Made

import keras_adaclip as ka

BATCH_SIZE, EXACT_ROWS, CLIP_NORM, LEARNING_RATE = 32, 4, 0.1, 1e3
MOST_WORDS = 400


class StepTimes(keras.callbacks.Callback):
    """Takes the time of each step of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_train_begin(self, logs: Any = None) -> None:
        """Start the clock, so that compilation counts for the first step."""
        self._start = time.perf_counter()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Start the clock of later steps."""
        if self.seconds:
            self._start = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stop the clock."""
        self.seconds.append(time.perf_counter() - self._start)


def plain_model(made: Made) -> Any:
    """Return the program's model as Keras trains it."""
    return made.model if isinstance(made.model, keras.Model) else made.model(keras.Model)


def private_model(made: Made) -> Any:
    """Return the program's model as this package trains it."""
    if not isinstance(made.model, keras.Model):
        return made.model(ka.PrivateModel)
    batch = keras.layers.BatchNormalization
    replaces = any(isinstance(layer, batch) for layer in made.model._flatten_layers())
    return ka.privatize(made.model, replace_batch_normalization=replaces)


def compile_options(made: Made) -> dict[str, Any]:
    """Return what is given to `compile`; a task without a loss has its own."""
    given = {"loss": made.loss, "metrics": made.metrics}
    return {name: value for name, value in given.items() if value is not None}


def trained(made: Made, model: Any, optimizer: Any, **options: Any) -> dict[str, Any]:
    """Return seconds and megabytes of a run of three epochs, with validation.

    Args:
        made: The program.
        model: Its model, plain or private.
        optimizer: For `compile`.
        options: More arguments of `fit`.
    """
    model.compile(optimizer, **compile_options(made))
    fit, times = dict(made.fit), StepTimes()
    callbacks = [*fit.pop("callbacks", []), times]
    few = taken((made.x, made.y), slice(8))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model.fit(
        *(made.x, made.y),
        batch_size=BATCH_SIZE,
        epochs=3,
        verbose=0,
        callbacks=callbacks,
        validation_data=few if made.y is not None else None,
        **fit,
        **options,
    )
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    first, *later = times.seconds
    return {"first_step": first, "step": statistics.median(later), "memory": memory / 1024}


def taken(values: Any, places: Any) -> Any:
    """Return some rows of each array of a structure; None stays."""
    return keras.tree.map_structure(lambda each: None if each is None else each[places], values)


def plain(made: Made) -> dict[str, Any]:
    """Return times and memory of plain training."""
    return trained(made, plain_model(made), made.optimizer)


def private(made: Made) -> dict[str, Any]:
    """Return times and memory of private training, and why it is looped, if it is."""
    model = private_model(made)
    optimizer = ka.optimizers.DPOptimizer(made.optimizer, clipping=1.0, noise_multiplier=1.0)
    report = trained(made, model, optimizer, sampling="shuffle")
    return {**report, "looped": model._private_state.plan.looped_reason}


def exact(made: Made) -> dict[str, Any]:
    """Return the error of a step without noise, over the clipping norm."""
    x, y, *weights = rows = exact_rows(made)
    options = {name: made.fit[name] for name in ("class_weight",) if name in made.fit}
    model = private_model(made)
    sgd = keras.optimizers.SGD(LEARNING_RATE)
    optimizer = ka.optimizers.DPOptimizer(sgd, clipping=CLIP_NORM, noise_multiplier=0.0)
    model.compile(optimizer, **compile_options(made))
    model(taken(x, slice(1)))  # Builds it. What a pass assigns is assigned before the comparison.
    one = single_row_model(made, model, x)
    for variable in (*model.variables, *one.variables):
        variable.regularizer = None  # Added after the noise, whatever the rows.
    start = model.get_weights()
    expected, norms = [np.zeros(value.shape) for value in one.trainable_variables], []
    for place in range(EXACT_ROWS):
        one.set_weights(start)
        # Three times: their mean is the same. PyTorch cannot differentiate every batch of one, and
        # Keras takes two rows for the targets of two outputs.
        row = taken(rows, [place] * 3)
        moved = movement(one, lambda row=row: one.train_on_batch(*row, **options))
        norms.append(float(np.sqrt(sum(np.sum(part**2) for part in moved))))
        factor = CLIP_NORM / max(CLIP_NORM, norms[-1])
        expected = [total + factor * part for total, part in zip(expected, moved, strict=True)]
    if not all(norms):
        raise ValueError(f"A row without a gradient shows nothing. Received: norms={norms}")
    model.set_weights(start)
    if weights:
        options["sample_weight"] = weights[0]
    options |= {"batch_size": EXACT_ROWS, "verbose": 0, "sampling": "shuffle"}
    found = movement(model, lambda: model.fit(x, y, **options))
    gaps = [
        np.sum((EXACT_ROWS * one - other) ** 2) for one, other in zip(found, expected, strict=True)
    ]
    return {"error": float(np.sqrt(sum(gaps))) / CLIP_NORM, "norms": norms}


def exact_rows(made: Made) -> tuple[Any, ...]:
    """Return a few rows; those of a task are preprocessed, and the task does it no more."""
    rows = taken((made.x, made.y), slice(EXACT_ROWS))
    preprocessor = getattr(made.model, "preprocessor", None)
    if preprocessor is None:
        return rows
    made.model.preprocessor = None
    x, y = rows
    x = x.tolist() if x.dtype.kind == "U" else x
    done = preprocessor(x) if y is None else preprocessor(x, y)
    return keras.tree.map_structure(keras.ops.convert_to_numpy, done)


def single_row_model(made: Made, model: Any, x: Any) -> Any:
    """Return a plain model that shares the layers of a private one, or has its weights.

    Args:
        made: The program.
        model: The compiled private model.
        x: A few rows.
    """
    if isinstance(made.model, keras.Model):
        is_sequential = isinstance(model, keras.Sequential)
        ends = (model.inputs, model.outputs) if is_sequential else (model.input, model.output)
        one = keras.Model(*ends)
    else:
        one = made.model(keras.Model)
        one(taken(x, slice(1)))
    for layer in (*one._flatten_layers(), *model._flatten_layers()):
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0  # That of Keras's own networks.
    one.compile(keras.optimizers.SGD(LEARNING_RATE), loss=model.loss)
    return one


def movement(model: Any, step: Callable[[], Any]) -> list[np.ndarray]:
    """Return what a step subtracts from the trainable variables, over the learning rate."""

    def values() -> list[np.ndarray]:
        tensors = (value for value in model.trainable_variables)
        return [np.array(keras.ops.convert_to_numpy(each), np.float64) for each in tensors]

    before = values()
    step()
    return [(a - b) / LEARNING_RATE for a, b in zip(before, values(), strict=True)]


def failed(error: BaseException) -> dict[str, str]:
    """Return the words of a refusal of this package, or of a crash, and where it was."""
    words = f"{type(error).__name__}: {' '.join(str(error).split())}"[:MOST_WORDS]
    last = traceback.extract_tb(error.__traceback__)[-1]
    is_refusal = "keras_adaclip/" in last.filename and isinstance(error, (TypeError, ValueError))
    if is_refusal:
        return {"refusal": words}
    return {"crash": f"{words} ({last.filename.rpartition('site-packages/')[2]}:{last.lineno})"}


def main() -> None:
    """Run what the command line names."""
    name, way = sys.argv[1:]
    keras.utils.set_random_seed(0)
    warnings.simplefilter("ignore")
    try:
        made = SUITE[name].make(0.0 if way == "exact" else 1.0)
        report = {"plain": plain, "private": private, "exact": exact}[way](made)
    except Exception as error:
        if "-v" in sys.argv:
            raise
        report = failed(error)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
