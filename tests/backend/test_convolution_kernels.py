"""The gradients of a convolution's kernel, one an example."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_adaclip import backend

pytestmark = pytest.mark.skipif(keras.backend.backend() != "torch", reason="others have none")

CASES = {
    "one channel": ((9, 8, 1), (3, 3), 4, {}),
    "three channels": ((9, 8, 3), (3, 3), 5, {"pairs": [(1, 1), (1, 1)]}),
    "unequal padding": ((9, 8, 3), (2, 3), 8, {"pairs": [(0, 1), (1, 1)]}),
    "many channels": ((8, 8, 32), (3, 3), 16, {"pairs": [(1, 1), (1, 1)]}),
    "strides": ((9, 8, 16), (3, 2), 16, {"strides": (2, 3)}),
    "dilation": ((9, 8, 4), (2, 2), 6, {"dilation_rate": (3, 2)}),
    "groups": ((9, 8, 8), (3, 3), 16, {"groups": 4}),
    "a sequence": ((12, 3), (4,), 5, {"pairs": [(3, 0)]}),
    "a volume": ((4, 5, 6, 2), (2, 1, 3), 3, {}),
}


def setup(name, num_rows=5):
    shape, kernel_size, filters, options = CASES[name]
    rank = len(kernel_size)
    options = {
        "strides": (1,) * rank,
        "dilation_rate": (1,) * rank,
        "pairs": [(0, 0)] * rank,
        "groups": 1,
        **options,
    }
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(num_rows, *shape)).astype("float32")
    windows = [
        (size + sum(pair) - (elements - 1) * rate - 1) // stride + 1
        for size, elements, rate, stride, pair in zip(
            shape[:-1],
            kernel_size,
            options["dilation_rate"],
            options["strides"],
            options["pairs"],
            strict=True,
        )
    ]
    cotangents = rng.normal(size=(num_rows, *windows, filters)).astype("float32")
    return inputs, cotangents, {"kernel_size": kernel_size, **options}


def gradients(inputs, cotangents, options):
    found = backend.convolution_kernel_gradients(
        ops.convert_to_tensor(inputs), ops.convert_to_tensor(cotangents), **options
    )
    return ops.convert_to_numpy(found)


def plain_gradients(inputs, cotangents, options):
    """Of each row alone, by differentiating Keras's own convolution."""
    import torch

    groups, pairs = options["groups"], options["pairs"]
    shape = (*options["kernel_size"], inputs.shape[-1] // groups, cotangents.shape[-1])
    found = []
    for row, cotangent in zip(inputs, cotangents, strict=True):
        kernel = torch.zeros(shape, requires_grad=True)
        outputs = ops.conv(
            ops.pad(ops.convert_to_tensor(row[None]), [(0, 0), *pairs, (0, 0)]),
            kernel,
            strides=options["strides"],
            dilation_rate=options["dilation_rate"],
            data_format="channels_last",
        )
        total = torch.sum(outputs * torch.tensor(cotangent))
        found.append(torch.autograd.grad(total, kernel)[0].numpy())
    return np.stack(found)


@pytest.mark.parametrize("name", CASES)
def test_they_are_those_of_each_row_alone(name):
    inputs, cotangents, options = setup(name)
    found = np.moveaxis(gradients(inputs, cotangents, options), (1, 2), (-1, -2))
    expected = plain_gradients(inputs, cotangents, options)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.max(np.abs(expected)))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("where", ["inputs", "cotangents"])
@pytest.mark.parametrize("name", CASES)
def test_no_row_touches_another(name, where, value):
    inputs, cotangents, options = setup(name)
    before = gradients(inputs, cotangents, options)
    (inputs if where == "inputs" else cotangents)[2] = value
    after = gradients(inputs, cotangents, options)
    others = [0, 1, 3, 4]
    np.testing.assert_array_equal(after[others], before[others])
    assert not np.array_equal(after[2], before[2])


def test_the_order_in_memory_does_not_matter():
    inputs, cotangents, options = setup("many channels")
    expected = gradients(inputs, cotangents, options)
    turned = [
        ops.moveaxis(ops.convert_to_tensor(np.moveaxis(value, -1, 1).copy()), 1, -1)
        for value in (inputs, cotangents)
    ]
    found = backend.convolution_kernel_gradients(*turned, **options)
    np.testing.assert_array_equal(ops.convert_to_numpy(found), expected)


def test_where_a_product_does_it_there_are_none():
    inputs, cotangents, options = setup("many channels")
    options = {**options, "kernel_size": (1, 1), "pairs": [(0, 0), (0, 0)]}
    assert backend.convolution_kernel_gradients(inputs, cotangents, **options) is None
    tensors = [ops.convert_to_tensor(value[:0]) for value in (inputs, cotangents)]
    assert backend.convolution_kernel_gradients(*tensors, **options) is None
