"""Queries that add up integers: contributions on a grid, within the query's norm bound."""

import importlib.util
import os
import sys

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("queries run on TensorFlow", allow_module_level=True)
for needed in ("tensorflow_privacy", "tf_keras"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed: make test-tensorflow-privacy", True)

# For TensorFlow Probability, which the queries of discrete noise import; Keras stays Keras 3.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
sys.skip_tf_privacy_import = True

import tensorflow as tf  # noqa: E402

import keras_adaclip as ka  # noqa: E402
from keras_adaclip.integrations.tensorflow_privacy.integer_records import (  # noqa: E402
    IntegerRecords,
)
from tests.integrations.support import (  # noqa: E402
    NUM_CLIENTS,
    arrays,
    compiled,
    contributions,
    population,
    weights,
)

queries = ka.integrations.tensorflow_privacy
pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
CLIP, BOUND = 0.35, 1e5


def distributed(local_stddev=0.0, bound=BOUND):
    return queries.DistributedDiscreteGaussianSumQuery(bound, local_stddev)


MAKES = {
    "distributed discrete Gaussian": distributed,
    "discrete Gaussian": lambda: queries.DiscreteGaussianSumQuery(BOUND, 0.0),
    "distributed Skellam": lambda: queries.DistributedSkellamSumQuery(4 * BOUND, BOUND, 0.0),
}


def expected_sum(values):
    """The clipped contributions of everybody, added up."""
    x, y, _ = arrays()
    everyone = {
        "x": x.reshape(NUM_CLIENTS, -1, x.shape[1]),
        "y": y.reshape(NUM_CLIENTS, -1),
        "order": np.tile(np.arange(5), (NUM_CLIENTS, 1)),
        "mask": np.ones(NUM_CLIENTS, bool),
    }
    flat = [
        np.concatenate([part.ravel() for part in parts])
        for parts in contributions(values, everyone)
    ]
    norms = [np.linalg.norm(each) for each in flat]
    assert min(norms) < CLIP < max(norms)
    return sum(each * min(1.0, CLIP / norm) for each, norm in zip(flat, norms, strict=True))


@pytest.mark.filterwarnings("ignore:Epsilon is infinite")
@pytest.mark.parametrize("name", list(MAKES))
def test_without_noise_it_is_the_clipped_mean_on_a_fine_grid(name):
    model = compiled(MAKES[name](), clip_norm=CLIP)
    before = weights(model)
    expected = expected_sum([variable.numpy() for variable in model.trainable_variables])
    model.fit(population(), NUM_CLIENTS, epochs=1, verbose=0)
    moved = NUM_CLIENTS * (before - weights(model))
    np.testing.assert_allclose(moved, expected, atol=2 * NUM_CLIENTS * CLIP / BOUND, rtol=1e-4)


def test_its_noise_is_one_share_a_client_and_epsilon_is_infinite():
    stddev = 3000
    model = compiled(distributed(stddev), clip_norm=CLIP, client_rate=0.0)
    scale = IntegerRecords.of(distributed(), CLIP, 15).scale
    seen = [weights(model)]
    look = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(weights(model))
    )
    with pytest.warns(UserWarning, match="Epsilon is infinite.*unsupported"):
        model.fit(population(), NUM_CLIENTS, epochs=40, verbose=0, callbacks=[look])
    noise = NUM_CLIENTS * scale * np.diff(seen, axis=0)
    assert np.std(noise) == pytest.approx(
        stddev * np.sqrt(NUM_CLIENTS), rel=5 / np.sqrt(2 * noise.size)
    )
    assert model.privacy_spent(1e-2).epsilon == np.inf


@pytest.mark.parametrize("seed", range(20))
def test_records_keep_to_the_bound(seed):
    generator = np.random.default_rng(seed)
    size = int(generator.integers(1, 400))
    bound = np.sqrt(size) * generator.uniform(1.1, 50.0)
    grid = IntegerRecords.of(distributed(bound=bound), 1.0, size)
    record = generator.normal(size=size).astype("float32") * generator.lognormal()
    # The worst draw rounds all up.
    for uniform in (tf.random.uniform, lambda shape: tf.fill(shape, np.float32(1.0 - 2.0**-24))):
        (found,) = grid.encode([tf.constant(record)], uniform)
        assert found.dtype == tf.int32
        assert np.linalg.norm(np.float64(found)) <= bound


def test_rounding_leaves_the_mean_as_it_is():
    grid = IntegerRecords.of(distributed(bound=40.0), 1.0, 3)
    record = [tf.constant([0.31, -0.22, 0.105])]
    draws = np.stack([grid.encode(record, tf.random.uniform)[0] for _ in range(4000)])
    (decoded,) = grid.decode([tf.constant(draws.mean(axis=0))])
    np.testing.assert_allclose(decoded, record[0], atol=5 * 0.5 / np.sqrt(4000) / grid.scale)


@pytest.mark.parametrize(
    ("query", "clip_norm", "match"),
    [
        (lambda: distributed(), None, "give `clip_norm`"),
        (lambda: distributed(), -1.0, "positive"),
    ],
)
def test_arguments(query, clip_norm, match):
    with pytest.raises(ValueError, match=match):
        queries.QueryOptimizer("sgd", query(), clip_norm=clip_norm)


@pytest.mark.parametrize(("bound", "match"), [(3.0, "square root"), (1e9, "would not fit 32 bits")])
def test_bounds_that_leave_no_grid(bound, match):
    model = compiled(distributed(bound=bound), clip_norm=1.0)
    with pytest.raises(ValueError, match=match):
        model.fit(population(), 4, epochs=1, verbose=0)
