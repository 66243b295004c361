"""`backend.Evaluator` runs a function as steps run, and knows its side effects."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_adaclip import backend

BACKEND = keras.backend.backend()
ROWS = [np.ones((4, 2), "float32")]


def evaluator(function, **options):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    return backend.Evaluator(function, model)


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_an_evaluator_returns_arrays_and_traces_compiled_steps_once(run_eagerly):
    sizes = []

    def function(rows, further):
        sizes.append(rows[0].shape[0])
        return [rows[0] * further["factor"]]

    run = evaluator(function, run_eagerly=run_eagerly, jit_compile=False)
    for factor in (2.0, 3.0):
        (found,) = run(ROWS, {"factor": np.float32(factor)})
        np.testing.assert_array_equal(found, np.full((4, 2), factor))
    is_traced = not run_eagerly and BACKEND != "torch"
    # TensorFlow's steps take any number of rows where XLA does not compile them.
    assert sizes[-1] == (None if is_traced and BACKEND == "tensorflow" else 4)
    assert len(set(map(str, sizes))) <= 2
    assert (len(sizes) == 1) == is_traced or BACKEND == "jax"


@pytest.mark.skipif(BACKEND != "jax", reason="XLA chooses the precision for each size of a batch")
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_jax_computes_products_in_full_precision(run_eagerly):
    """On a GPU a convolution was refused: its output seemed to depend on the number of rows."""
    import jax

    seen = []

    def function(rows, further):
        kernel = ops.ones((2, 1, 3))
        traced = jax.make_jaxpr(lambda x: ops.conv(x, kernel))(ops.ones((4, 5, 1)))
        seen.append(str(traced))
        return [rows[0]]

    evaluator(function, run_eagerly=run_eagerly, jit_compile=not run_eagerly)(ROWS, {})
    assert seen
    assert all("precision=(HIGHEST" in each or "Precision.HIGHEST" in each for each in seen)


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch has a precision for each operation")
@pytest.mark.parametrize("precisions", [("tf32", "ieee"), ("ieee", "tf32")])
def test_pytorch_convolves_in_full_precision_and_gets_its_settings_back(precisions):
    """On a GPU a pooling layer was refused after a convolution in TF32."""
    import torch

    cudnn = torch.backends.cudnn
    if not hasattr(cudnn, "conv"):
        pytest.skip("before PyTorch 2.9")
    parts = [cudnn.conv, cudnn.rnn]
    defaults, seen = [part.fp32_precision for part in parts], []

    def function(rows, further):
        seen.extend(part.fp32_precision for part in parts)
        return [rows[0]]

    try:
        for part, precision in zip(parts, precisions, strict=True):
            part.fp32_precision = precision
        evaluator(function)(ROWS, {})
        assert seen == ["ieee", "ieee"]
        assert tuple(part.fp32_precision for part in parts) == precisions
    finally:
        for part, precision in zip(parts, defaults, strict=True):
            part.fp32_precision = precision


@pytest.mark.skipif(BACKEND == "torch", reason="PyTorch runs eagerly")
@pytest.mark.parametrize("run_eagerly", [False, True] if BACKEND == "tensorflow" else [False])
def test_writes_outside_of_keras_are_reported(run_eagerly):
    if BACKEND == "jax":
        import jax

        def writes(rows, further):
            jax.experimental.io_callback(lambda value: None, None, rows[0])
            return rows

        functions = {"nothing": lambda rows, further: [ops.sin(rows[0])], "writes": writes}
    else:
        import tensorflow as tf

        variable = tf.Variable(0.0)
        functions = {
            "nothing": lambda rows, further: [rows[0] + variable],
            "writes": lambda rows, further: [rows[0] + variable.assign_add(1.0)],
            "writes within": lambda rows, further: [
                tf.cond(rows[0][0, 0] > 0, lambda: variable.assign_add(1.0), lambda: 0.0)
            ],
        }
    for name, function in functions.items():
        run = evaluator(function, run_eagerly=run_eagerly)
        run(ROWS, [])
        assert run.effects.writes == name.startswith("writes"), name
