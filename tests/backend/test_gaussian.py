"""The noise: nothing but the same key, step and stream draws it again; numbers do not correlate.

Its law is tested in `tests/test_noise.py`.
"""

import keras
import numpy as np
import pytest
from keras import ops

from keras_adaclip import backend
from tests.gradients.support import compiled

KEY = np.array([123456789, -987654321], np.int32)
# Four of the blocks that PyTorch's threads draw.
SIZE = 2**19
# Five standard errors: a false alarm in about 1 of 2 million draws, and the draws are fixed.
BOUND = 5 / np.sqrt(SIZE)


def draw(shape=(64,), key=KEY, step=0, stream=0):
    noise = backend.gaussian(
        shape, ops.convert_to_tensor(key), ops.convert_to_tensor(np.int32(step)), stream
    )
    return ops.convert_to_numpy(noise)


def key_with_other_bit(bit):
    return np.array([KEY.view(np.uint64)[0] ^ np.uint64(1 << bit)]).view(np.int32)


# On PyTorch the two numbers of a pair are 2**16 apart.
@pytest.mark.parametrize("lag", [1, 2, 3, 7, 2**16, SIZE // 2])
def test_numbers_of_one_draw_are_uncorrelated(lag):
    noise = draw((SIZE,)).astype(np.float64)
    one, other = noise[:-lag], noise[lag:]
    assert abs(np.mean(one * other)) < BOUND * np.sqrt(SIZE / len(one))
    assert abs(np.mean((one**2 - 1) * (other**2 - 1))) < 2 * BOUND * np.sqrt(SIZE / len(one))


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="the others share out one draw")
def test_the_number_of_threads_does_not_matter():
    import torch

    many, num_threads = draw((SIZE + 7,)), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        np.testing.assert_array_equal(draw((SIZE + 7,)), many)
    finally:
        torch.set_num_threads(num_threads)


def test_other_keys_steps_and_streams_draw_independent_noise():
    """Neither words with equal sums, nor words that change places, nor step against stream."""
    words = [(3, 5), (4, 4), (5, 3), (3, -5), (4, 5), (3 + 2**30, 5), (3, 5 - 2**31)]
    sources = [(key, 0, 0) for key in words]
    places = [(1, 0), (0, 1), (1, 1), (1, 2**20 - 1), (2**20, 0), (2**31 - 1, 0)]
    sources += [(words[0], step, stream) for step, stream in places]
    draws = [draw((2**14,), np.array(key, np.int32), *place) for key, *place in sources]
    # Of 78 correlations none passes six standard errors.
    assert np.abs(np.corrcoef(draws) - np.eye(len(draws))).max() < 6 / 2**7
    np.testing.assert_array_equal(draws[0], draw((2**14,), np.array(words[0], np.int32)))


def test_all_64_bits_of_the_key_every_step_and_every_stream_matter():
    draws = [draw((4,), key=key_with_other_bit(bit)) for bit in range(64)]
    draws += [draw((4,), step=step, stream=stream) for step in range(12) for stream in range(12)]
    assert len({each.tobytes() for each in draws}) == 64 + 144


@pytest.mark.parametrize("shape", [(), (0,), (7, 5)])
def test_a_compiled_step_draws_what_an_eager_one_does(shape):
    step = compiled(lambda key, step: backend.gaussian(shape, key, step, 2))
    found = step(ops.convert_to_tensor(KEY), ops.convert_to_tensor(np.int32(9)))
    expected = draw(shape, step=9, stream=2)
    assert (expected.shape, expected.dtype) == (shape, np.float32)
    np.testing.assert_allclose(ops.convert_to_numpy(found), expected, rtol=1e-6)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="XLA inside TensorFlow")
def test_under_xla_keys_steps_and_streams_are_apart_too():
    import tensorflow as tf

    function = tf.function(
        lambda key, step: [backend.gaussian((64,), key, step, stream) for stream in (0, 1, 2**19)],
        jit_compile=True,
    )
    keys = [KEY, *(key_with_other_bit(bit) for bit in range(64))]
    draws = [np.stack(function(tf.constant(key), tf.constant(0))) for key in keys]
    draws += [np.stack(function(tf.constant(KEY), tf.constant(step))) for step in (1, 2, 2**30)]
    values = np.concatenate(draws)
    assert len(np.unique(values[:, 0])) == len(values)
    # 204 rows of 64 draws: their correlations have standard error 1/8; six of them.
    assert np.abs(np.corrcoef(values) - np.eye(len(values))).max() < 6 / np.sqrt(64)
