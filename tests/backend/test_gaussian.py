"""The noise: its law, and that nothing but the same key, step and tensor draws it again."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_adaclip import backend
from tests.gradients.support import compiled

KEY = np.array([123456789, -987654321], np.int32)
SIZE = 200_000


def draw(shape=(64,), key=KEY, step=0, stream=0):
    noise = backend.gaussian(
        shape, ops.convert_to_tensor(key), ops.convert_to_tensor(np.int32(step)), stream
    )
    return ops.convert_to_numpy(noise)


def test_moments_are_those_of_a_standard_normal():
    noise = draw((SIZE,)).astype(np.float64)
    # Five standard errors each: a false alarm in about 1 of 300,000 keys, and the key is fixed.
    bound = 5 / np.sqrt(SIZE)
    assert abs(noise.mean()) < bound
    assert abs(noise.var() - 1.0) < bound * np.sqrt(2)
    assert abs((noise**3).mean()) < bound * np.sqrt(15)
    assert abs((noise**4).mean() - 3.0) < bound * np.sqrt(96)
    assert abs(np.mean(np.abs(noise) < 0.6744898) - 0.5) < bound * 0.5
    assert noise.max() > 3.9
    assert noise.min() < -3.9


@pytest.mark.parametrize(
    "other",
    [
        {"step": 1},
        {"step": 2**20},
        {"step": 2**31 - 1},
        {"stream": 1},
        {"stream": 2**20 - 1},
        {"step": 1, "stream": 2**20 - 1},
        {"key": KEY[::-1].copy()},
    ],
    ids=str,
)
def test_another_step_tensor_or_key_draws_independent_noise(other):
    one, another = draw((SIZE,)), draw((SIZE,), **other)
    assert not np.any(np.isin(one[:64], another[:1000]) & (np.abs(one[:64]) > 1e-3))
    # Five standard errors; the draws are fixed, so it does not flicker.
    assert abs(np.mean(one.astype(np.float64) * another)) < 5 / np.sqrt(SIZE)


def test_the_same_key_step_and_tensor_draw_the_same():
    np.testing.assert_array_equal(draw(step=3, stream=5), draw(step=3, stream=5))


def test_all_64_bits_of_the_key_matter():
    seen = {draw((4,)).tobytes()}
    for bit in range(64):
        key = np.array([KEY.view(np.uint64)[0] ^ np.uint64(1 << bit)]).view(np.int32)
        seen.add(draw((4,), key=key).tobytes())
    assert len(seen) == 65


def test_steps_and_tensors_never_repeat():
    seen = {
        draw((2,), step=step, stream=stream).tobytes() for step in range(12) for stream in range(12)
    }
    assert len(seen) == 144


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3)])
def test_any_shape(shape):
    noise = draw(shape)
    assert noise.shape == shape
    assert noise.dtype == np.float32


@pytest.mark.parametrize("shape", [(), (0,), (7, 5)])
def test_a_compiled_step_draws_what_an_eager_one_does(shape):
    step = compiled(lambda key, step: backend.gaussian(shape, key, step, 2))
    found = step(ops.convert_to_tensor(KEY), ops.convert_to_tensor(np.int32(9)))
    np.testing.assert_allclose(
        ops.convert_to_numpy(found), draw(shape, step=9, stream=2), rtol=1e-6
    )


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="XLA inside TensorFlow")
def test_under_xla_keys_steps_and_tensors_are_apart_too():
    import tensorflow as tf

    function = tf.function(
        lambda key, step: [backend.gaussian((64,), key, step, stream) for stream in (0, 1, 2**19)],
        jit_compile=True,
    )
    keys = [
        KEY,
        *(np.array([KEY.view(np.uint64)[0] ^ np.uint64(1 << b)]).view(np.int32) for b in range(64)),
    ]
    draws = [np.stack(function(tf.constant(key), tf.constant(0))) for key in keys]
    draws += [np.stack(function(tf.constant(KEY), tf.constant(step))) for step in (1, 2, 2**30)]
    np.testing.assert_array_equal(draws[0], np.stack(function(tf.constant(KEY), tf.constant(0))))
    values = np.concatenate(draws)
    assert len(np.unique(values[:, 0])) == len(values)
    # 204 rows of 64 draws: their correlations have standard error 1/8; six of them.
    correlation = np.corrcoef(values)
    assert np.abs(correlation - np.eye(len(values))).max() < 6 / np.sqrt(64)
