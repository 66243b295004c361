"""The noise and its keys: the normal law, and no correlation between any two draws."""

import keras
import numpy as np
import pytest
from keras import ops
from scipy import stats

from keras_adaclip import backend, noise
from tests.gradients.support import compiled

IS_TENSORFLOW = keras.backend.backend() == "tensorflow"
KEY = np.array([123456789, -987654321], np.int32)
# Four of the blocks that PyTorch's threads draw.
SIZE = 2**19
# Five standard errors: a false alarm in about 1 of 2 million draws, and the draws are fixed.
BOUND = 5 / np.sqrt(SIZE)


def draw(shape=(64,), key=KEY, step=0, stream=0):
    key, step = ops.convert_to_tensor(key), ops.convert_to_tensor(np.int32(step))
    return ops.convert_to_numpy(backend.gaussian(shape, key, step, stream))


def key_with_other_bit(bit):
    return np.array([KEY.view(np.uint64)[0] ^ np.uint64(1 << bit)]).view(np.int32)


# On PyTorch the two numbers of a pair are 2**16 apart.
@pytest.mark.parametrize("lag", [1, 2, 3, 7, 2**16, SIZE // 2])
def test_numbers_of_one_draw_are_uncorrelated(lag):
    drawn = draw((SIZE,)).astype(np.float64)
    one, other = drawn[:-lag], drawn[lag:]
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


@pytest.mark.parametrize("by_xla", [False, True] if IS_TENSORFLOW else [False])
def test_all_64_bits_of_the_key_every_step_and_every_stream_matter(by_xla):
    """Of some 300 rows of 64 draws no two have a correlation of six standard errors."""
    streams = compiled(
        lambda key, step: [backend.gaussian((64,), key, step, n) for n in (0, 1, 2, 2**19)], by_xla
    )
    places = [*((key_with_other_bit(bit), 0) for bit in range(64)), (KEY, 2**30)]
    places += [(KEY, step) for step in range(12)]
    draws = []
    for key, step in places:
        draws += streams(ops.convert_to_tensor(key), ops.convert_to_tensor(np.int32(step)))
    values = np.stack([ops.convert_to_numpy(each) for each in draws])
    assert len(values) == len({row[:4].tobytes() for row in values})
    assert np.abs(np.corrcoef(values) - np.eye(len(values))).max() < 6 / np.sqrt(64)


@pytest.mark.parametrize("shape", [(), (0,), (7, 5)])
def test_a_compiled_step_draws_what_an_eager_one_does(shape):
    step = compiled(lambda key, step: backend.gaussian(shape, key, step, 2))
    found = step(ops.convert_to_tensor(KEY), ops.convert_to_tensor(np.int32(9)))
    expected = draw(shape, step=9, stream=2)
    assert (expected.shape, expected.dtype) == (shape, np.float32)
    np.testing.assert_allclose(ops.convert_to_numpy(found), expected, rtol=1e-6)


def add_noise(values, stddev):
    tensors = [ops.convert_to_tensor(each) for each in (values, np.float32(stddev), KEY)]
    (noised,) = noise.add_noise(*([each] for each in tensors[:2]), tensors[2], np.int32(0))
    return ops.convert_to_numpy(noised)


@pytest.mark.parametrize("stddev", [1e-6, 1.0, 300.0])
def test_the_noise_is_normal_with_the_deviation_that_was_asked_for(stddev):
    """100,000 draws: Kolmogorov-Smirnov and chi-square, false alarm 1e-6 each."""
    drawn = add_noise(np.zeros((100, 1000), np.float32), stddev)
    drawn = drawn.astype(np.float64).ravel() / stddev
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], drawn.size)
    assert low < np.sum(drawn**2) < high
    assert stats.kstest(drawn, "norm").pvalue > 1e-6
    assert np.abs(drawn).max() > 3.5


@pytest.mark.parametrize("shape", [(), (1, 1, 5), (0,)])
def test_the_noise_is_added_to_the_values_in_float32(shape):
    values = np.full(shape, 0.5, np.float16)
    zero, noised = (add_noise(each, 0.25) for each in (0 * values, values))
    assert (noised.shape, noised.dtype) == (shape, np.float32)
    np.testing.assert_allclose(noised - values, zero, atol=1e-6)
    np.testing.assert_array_equal(add_noise(values, 0.0), values)


def test_fresh_keys_have_64_bits_that_differ():
    """Two of 1,000 keys of 64 bits agree with probability 3e-14."""
    keys = np.stack([noise.fresh_key() for _ in range(1000)])
    assert keys.dtype == np.int32
    assert len({tuple(key) for key in keys}) == 1000
    bits = np.unpackbits(keys.view(np.uint8), axis=1)
    # Each of the 64 bits is set in Binomial(1000, 1/2) keys; false alarm below 1e-6 in all.
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 6 * 0.5 / np.sqrt(1000)


def test_a_seeded_key_is_a_function_of_seed_and_earlier_steps():
    np.testing.assert_array_equal(noise.fresh_key(5), noise.fresh_key(5, 0))
    assert len({tuple(noise.fresh_key(s, n)) for s in range(20) for n in range(20)}) == 400
