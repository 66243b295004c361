"""Checks private steps on a device: sums against gradients of single examples, and the noise.

    KERAS_BACKEND=torch python benchmarks/speed/check_device.py --device gpu

runs on JAX or PyTorch, prints a line for each check, and ends with status 1 if one fails. A check
of the noise fails by chance about once in a million runs.
"""

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from process import set_up_process
from suite import SUITE, Benchmark

_ROWS = 16
_EXACT, _COARSE = 1e-4, 1e-2
_NOISE_ROWS = 8
_NOISE_MULTIPLIER = 1000.0  # beside this noise the clipped sum, of norm 8 at most, is nothing


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Float32 throughout, where a GPU computes with fewer bits by default."""
    if keras.backend.backend() == "jax":
        import jax

        with jax.default_matmul_precision("highest"):
            yield
        return
    import torch

    parts = [torch.backends.cuda.matmul, getattr(torch.backends.cudnn, "conv", None)]
    name, value = "fp32_precision", "ieee"
    if not all(hasattr(part, name) for part in parts):  # before PyTorch 2.9
        parts = [torch.backends.cuda.matmul, torch.backends.cudnn]
        name, value = "allow_tf32", False
    before = [getattr(part, name) for part in parts]
    for part in parts:
        setattr(part, name, value)
    try:
        yield
    finally:
        for part, old in zip(parts, before, strict=True):
            setattr(part, name, old)


def flat(arrays: Any) -> np.ndarray:
    """Arrays as one vector of float64."""
    host = (keras.ops.convert_to_numpy(array) for array in arrays)
    return np.concatenate([array.astype("float64").ravel() for array in host])


def gradient(model: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The gradient of one example, by the framework's own differentiation."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if keras.backend.backend() == "jax":
        import jax

        def value(trained: Any) -> Any:
            frozen = [variable.value for variable in model.non_trainable_variables]
            return loss(y, model.stateless_call(trained, frozen, x)[0])

        return flat(jax.grad(value)([variable.value for variable in model.trainable_variables]))
    import torch

    parameters = [variable.value for variable in model.trainable_variables]
    return flat(torch.autograd.grad(loss(keras.ops.convert_to_tensor(y), model(x)), parameters))


def private_model(benchmark: Benchmark, clip_norm: float, noise_multiplier: float) -> Any:
    """A model whose update with learning rate 1 is the noised mean."""
    model = ka.PrivateModel(*benchmark.build(keras))
    optimizer = ka.optimizers.DPOptimizer(
        keras.optimizers.SGD(1.0),
        clipping=clip_norm,
        noise_multiplier=noise_multiplier,
        gradient_method="layerwise",
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss)
    return model


def update(model: Any, x: np.ndarray, y: np.ndarray, batch_size: int) -> np.ndarray:
    """The sum of the noised sums of one epoch; the weights are put back."""
    before = model.get_weights()
    start = flat(model.trainable_variables)
    model.fit(x, y, batch_size=batch_size, sampling="shuffle", verbose=0)
    moved = start - flat(model.trainable_variables)
    model.set_weights(before)
    return moved * batch_size


def sum_errors(name: str) -> Iterator[tuple[str, float, float]]:
    """What was checked, the relative error of the clipped sum, and the most that it may be."""
    benchmark = SUITE[name]
    x, y = benchmark.data(_ROWS)
    plain = keras.Model(*benchmark.build(keras))
    with full_precision():
        gradients = [gradient(plain, x[i : i + 1], y[i : i + 1]) for i in range(_ROWS)]
    norms = [float(np.linalg.norm(each)) for each in gradients]
    clip_norm = float(np.median(norms))
    factors = [min(1.0, clip_norm / norm) for norm in norms]
    expected = sum(factor * each for factor, each in zip(factors, gradients, strict=True))
    model = private_model(benchmark, clip_norm, 0.0)
    model.set_weights(plain.get_weights())
    for precision, context, most in (
        ("default precision", contextlib.nullcontext(), _COARSE),
        ("full precision", full_precision(), _EXACT),
    ):
        with context:
            found = update(model, x, y, _ROWS)
        error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
        yield f"{name}: clipped sum, {precision}, relative error", error, most


def noise_errors() -> Iterator[tuple[str, float, float]]:
    """What was checked of the noise, how far off it is, and the most that it may be."""
    benchmark = SUITE["cnn-256"]
    model = private_model(benchmark, 1.0, _NOISE_MULTIPLIER)
    x, y = benchmark.data(4 * _NOISE_ROWS)
    draws = {}
    for label, steps in (("first fit", 1), ("second fit", 1), ("four steps", 4)):
        rows = steps * _NOISE_ROWS
        found = update(model, x[:rows], y[:rows], _NOISE_ROWS)
        draws[label] = found / (_NOISE_MULTIPLIER * math.sqrt(steps))
    most = 5.0 / math.sqrt(benchmark.num_trainable)
    for label, draw in draws.items():
        # A draw that repeats within a fit has twice the deviation after four steps.
        yield f"noise, {label}: standard deviation - 1", draw.std() - 1.0, most / math.sqrt(2.0)
        yield f"noise, {label}: mean", draw.mean(), most
    labels = [*draws]
    for one, other in zip(labels, [*labels[1:], labels[0]], strict=True):
        correlation = np.corrcoef(draws[one], draws[other])[0, 1]
        yield f"noise, {one} and {other}: correlation", correlation, most


def main() -> int:
    """Prints a line for each check."""
    checks = {name: lambda name=name: sum_errors(name) for name in ("cnn-256", "transformer")}
    checks["noise"] = noise_errors
    is_sound = True
    for name, check in checks.items():
        try:
            for title, error, most in check():
                is_right = abs(error) <= most  # false for NaN
                is_sound &= is_right
                print(
                    f"{'ok' if is_right else 'WRONG':5} {title}: {error:.2g} (at most {most:.2g})"
                )
        except Exception as error:
            is_sound = False
            print(f"ERROR {name}: {type(error).__name__}: {error}")
    return 0 if is_sound else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    set_up_process(parser.parse_args().device, pin=False)

    import keras

    import keras_adaclip as ka

    print(f"{os.environ.get('KERAS_BACKEND')}, Keras {keras.version()}", flush=True)
    sys.exit(main())
