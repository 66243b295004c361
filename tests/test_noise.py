"""The Gaussian noise for a list of tensors, and the key that it comes from.

That other keys, steps and streams give other noise is tested in `tests/backend/test_gaussian.py`.
"""

import numpy as np
import pytest
from keras import ops
from scipy import stats

from keras_adaclip import noise

KEY = np.array([12345, -678], np.int32)


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
