"""The generator of the noise against published answers and an exact inverse of the normal law."""

import statistics

import keras
import numpy as np
import pytest
from keras import ops

if keras.backend.backend() == "torch":
    pytest.skip("PyTorch draws from generators of its own", allow_module_level=True)

from keras_adaclip.backend.counter_gaussian import normal_from_bits, threefry


def words(*values):
    return tuple(ops.convert_to_tensor(np.uint32(value)) for value in values)


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
    ids=["zeros", "ones", "digits of pi"],
)
def test_threefry_gives_the_known_answers_of_its_authors(key, counter, expected):
    """The file `kat_vectors` of Random123 1.14."""
    found = threefry(words(*key), words(*counter))
    assert tuple(int(ops.convert_to_numpy(word)) for word in found) == expected


def test_bits_become_the_quantiles_of_the_normal_law():
    rng = np.random.default_rng(0)
    small = np.arange(2000, dtype=np.uint32)
    powers = (2 ** np.arange(31)).astype(np.uint32)
    lower = np.concatenate([small, powers, 2**31 - 1 - small, rng.integers(0, 2**31, 20_000)])
    bits = np.concatenate([lower, lower + 2**31]).astype(np.uint32)
    found = ops.convert_to_numpy(normal_from_bits(ops.convert_to_tensor(bits)))
    law = statistics.NormalDist()
    expected = np.array([-law.inv_cdf((int(word) + 0.5) / 2**32) for word in lower])
    expected = np.concatenate([expected, -expected])
    central = np.abs(expected) < 5.4
    # Near zero what counts is the error itself: 1 - 2 p is rounded at 2^-24.
    np.testing.assert_allclose(found[central], expected[central], rtol=1e-6, atol=2e-7)
    np.testing.assert_allclose(found[~central], expected[~central], rtol=5e-4)
    assert found.max() > 6.3
