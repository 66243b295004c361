"""Whether the ledger counts every step, and whether anything that is done to a model lowers it."""

import math
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.models import privatize
from keras_adaclip.testing.comparing import require

_DELTA, _ROWS = 1e-5, 100


def assert_ledger(model: keras.Model, x: Any = None, y: Any = None) -> None:
    """Assert that each step is counted before it is applied, and that no step is ever forgotten.

    The model trains for two steps on all rows. Then it is saved and loaded, its weights are loaded
    into a copy and into itself, it is copied as a plain model, compiled again, and its optimizer is
    set back: the ledger must never have fewer steps or a smaller epsilon, and epsilon is compared
    with the formula of the Gaussian mechanism. No file may hold the key of the noise.

    Args:
        model: A compiled private model, made for this test: it is trained.
        x: Rows, or None for a hundred rows made up, for models with known inputs.
        y: Their targets, or None for zeros of the shape of the outputs.

    Raises:
        AssertionError: If the ledger has fewer steps or a smaller epsilon than the steps that ran,
            or a file holds the key of the noise.

    Example:

    >>> import keras, keras_adaclip as ka
    >>> model = ka.PrivateSequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> optimizer = ka.optimizers.DPOptimizer("sgd", clipping=0.1, noise_multiplier=1.0)
    >>> model.compile(optimizer, loss="mse")
    >>> assert_ledger(model)
    """
    if x is None:
        x = [np.zeros((_ROWS, *(n or 1 for n in v.shape[1:])), v.dtype) for v in model.inputs]
        y = [np.zeros((_ROWS, *v.shape[1:])) for v in model.outputs] if y is None else [y]
        x, y = (parts if len(parts) > 1 else parts[0] for parts in (x, y))
    optimizer, before = model.optimizer, model.privacy_ledger.steps
    apply = "apply_noised" if optimizer.plans_steps else "apply"
    calls, values = list[str](), list[list[np.ndarray]]()
    owners = (optimizer.account, "count_step"), (optimizer.inner_optimizer, apply)
    watched = [(owner, name, _noting(getattr(owner, name), calls)) for owner, name in owners]
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: values.append([*map(backend.array_of, optimizer.variables)])
    )
    size = len(keras.tree.flatten(x)[0])
    with keras_private.replaced_attributes([*watched, (model, "train_function", None)]):
        model.fit(x, y, size, epochs=2, steps_per_epoch=1, verbose=0, callbacks=[note])
    steps, epsilon = model.privacy_ledger.steps, model.privacy_spent(_DELTA).epsilon
    require(calls[:2] == ["count_step", apply], f"A step is {calls[:2]}: count, then apply.")
    require(steps >= before + 2, f"The ledger counts {steps - before} of 2 steps.")
    # Every row takes part in each step: one Gaussian mechanism.
    delta = _delta_of(epsilon, optimizer.open_row.noise_multiplier / math.sqrt(2))
    require(delta <= 1.001 * _DELTA, f"At epsilon {epsilon:.6g}, delta is {delta:.3g}.")
    for what, other in _ways(model, values[0]):
        left, after = other.privacy_ledger.steps, other.privacy_spent(_DELTA).epsilon
        is_whole = left >= steps and after >= epsilon * (1 - 1e-6)
        figures = f"{left} of {steps} steps, and epsilon {after:.6g} of {epsilon:.6g}"
        require(is_whole, f"The ledger of {what} has {figures}.")


def _noting(function: Any, calls: list[str]) -> Any:
    """Return the function, with a note of each call."""

    def noted(*arguments: Any) -> Any:
        """Note the call."""
        calls.append(function.__name__)
        return function(*arguments)

    return noted


def _ways(model: keras.Model, values: list[np.ndarray]) -> Iterator[tuple[str, keras.Model]]:
    """Yield what could forget steps, with the model that must not."""
    optimizer, layers = model.optimizer, keras_private.flatten_layers(model)
    kinds: list[Any] = [*map(type, [*layers, optimizer.clipping, model.loss])]
    kinds += [model.loss] * hasattr(model.loss, "__name__")
    names = {each.__name__: each for each in kinds}
    with tempfile.TemporaryDirectory() as folder, keras.saving.custom_object_scope(names):
        path, of_weights = Path(folder) / "model.keras", Path(folder) / "model.weights.h5"
        model.save(path)
        model.save_weights(of_weights)
        # Keras makes none where two variables have one path, as with Adafactor.
        key, (tree, _) = _key(model), backend.attempt(model.get_state_tree, "numpy_array")
        shutil.unpack_archive(path, folder, "zip")
        files = [each.read_bytes() for each in Path(folder).glob("*.*")]
        files += [np.asarray(value).tobytes() for value in keras.tree.flatten(tree)]
        require(not any(key in each for each in files), "A file or tree holds the noise key.")
        yield "the loaded model", keras.models.load_model(path, safe_mode=False)
        if type(model).__module__.startswith("keras_adaclip"):
            copy = type(model).from_config(model.get_config())
            copy.load_weights(of_weights)
            yield "a copy with the loaded weights", copy
            yield "a plain copy that is made private", privatize(model.to_keras())
        if tree is not None:
            model.set_state_tree(tree)
            is_new = _key(model) != key
            require(is_new, "A model with a loaded state has the noise key of the old one.")
        for variable, value in zip(optimizer.variables, values, strict=True):
            variable.assign(value)
        yield "the model with its optimizer set back", model
        model.compile(type(optimizer).from_config(optimizer.get_config()), loss=model.loss)
        yield "the model compiled again", model


def _key(model: keras.Model) -> bytes:
    """Return the bits of the noise."""
    return np.asarray(backend.array_of(model.optimizer.secret_variables[0])).tobytes()


def _delta_of(epsilon: float, noise: float) -> float:
    """Return delta of a Gaussian mechanism (Balle & Wang 2018), 0 at infinity."""
    from scipy import stats

    if noise == 0.0 or math.isinf(epsilon):
        return 0.0 if math.isinf(epsilon) else 1.0
    far, half = epsilon * noise, 0.5 / noise
    return float(stats.norm.cdf(half - far) - math.exp(epsilon) * stats.norm.cdf(-half - far))
