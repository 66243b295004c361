"""The per-example gradients of a convolution's kernel, in one operation of PyTorch."""

import types

import keras
import numpy as np
import pytest
from keras import ops

from keras_adaclip import backend

pytestmark = pytest.mark.skipif(keras.backend.backend() != "torch", reason="others have none")

CASES = {
    "unequal padding": ((9, 8, 3), (2, 3), 8, {"pairs": [(0, 1), (1, 1)]}),
    "strides": ((9, 8, 16), (3, 2), 16, {"strides": (2, 3)}),
    "dilation": ((9, 8, 4), (2, 2), 6, {"dilation_rate": (3, 2)}),
    "groups": ((9, 8, 8), (3, 3), 16, {"groups": 4, "pairs": [(1, 1), (1, 1)]}),
    "a sequence": ((12, 3), (4,), 5, {"pairs": [(3, 0)]}),
    "a volume": ((4, 5, 6, 2), (2, 1, 3), 3, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_they_are_those_of_each_row_alone_and_no_row_touches_another(name):
    import torch

    shape, kernel_size, filters, options = CASES[name]
    rank, num_rows = len(kernel_size), 5
    convolution = {"strides": (1,) * rank, "dilation_rate": (1,) * rank}
    convolution |= {key: value for key, value in options.items() if key in convolution}
    pairs, groups = options.get("pairs", [(0, 0)] * rank), options.get("groups", 1)
    rng = np.random.default_rng(0)
    layer = types.SimpleNamespace(kernel_size=kernel_size, groups=groups, **convolution)
    inputs = rng.normal(size=(num_rows, *shape)).astype("float32")
    kernel = torch.zeros((*kernel_size, shape[-1] // groups, filters), requires_grad=True)
    padded = ops.pad(ops.convert_to_tensor(inputs), [(0, 0), *pairs, (0, 0)])
    outputs = ops.conv(padded, kernel, data_format="channels_last", **convolution)
    cotangents = rng.normal(size=tuple(outputs.shape)).astype("float32")

    def gradients():
        values = ops.convert_to_tensor(inputs), ops.convert_to_tensor(cotangents)
        found = backend.convolution_kernel_gradients(layer, *values, pairs)
        return np.moveaxis(ops.convert_to_numpy(found), (1, 2), (-1, -2))

    before = gradients()
    expected = [
        torch.autograd.grad(loss, kernel, retain_graph=True)[0].numpy()
        for loss in (outputs * torch.tensor(cotangents)).flatten(1).sum(1)
    ]
    np.testing.assert_allclose(before, expected, rtol=1e-5, atol=1e-4)
    for changed in (inputs, cotangents):
        for value in (np.nan, 1e30):
            kept = changed[2].copy()
            changed[2] = value
            after = gradients()
            changed[2] = kept
            np.testing.assert_array_equal(after[[0, 1, 3, 4]], before[[0, 1, 3, 4]])
            assert not np.array_equal(after[2], before[2])
