"""QuantileClipping beside `QuantileAdaptiveClipSumQuery` of TensorFlow Privacy, noise off.

Batches have the expected size, since TensorFlow Privacy also cuts the share of unclipped units off
at 0 and 1, which the paper does not, and which other sizes would reach.
"""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import keras_adaclip as ka
from tests.clipping.support import SINGLE, summed_statistics, tensors, updated

queries = ka.integrations.tensorflow_privacy
NUM_STEPS, EXPECTED_UNITS = 50, 20


def records(generator):
    """What a batch of units adds, each a vector of three numbers."""
    scale = generator.lognormal(0.0, 1.0, (EXPECTED_UNITS, 1))
    return (scale * generator.normal(size=(EXPECTED_UNITS, 3))).astype(np.float32)


@pytest.mark.parametrize(("update", "target"), [("geometric", 0.5), ("linear", 0.8)])
def test_steps_take_the_same_course(update, target):
    learning_rate, start = 0.2, 0.7
    settings = (start, 0.0, target, learning_rate, 0.0, EXPECTED_UNITS, update == "geometric")
    query = queries.QuantileAdaptiveClipSumQuery(*settings)
    strategy = ka.clipping.QuantileClipping(target, start, learning_rate, update=update)
    theirs, ours = query.initial_global_state(), strategy.initial_state(SINGLE)
    generator = np.random.default_rng(5)
    norms_seen = []
    for _ in range(NUM_STEPS):
        batch = records(generator)
        parameters = query.derive_sample_params(theirs)
        sample = query.initial_sample_state(tf.zeros(3))
        for record in batch:
            sample = query.accumulate_record(parameters, sample, tf.constant(record))
        their_sum, theirs, _ = query.get_noised_result(sample, theirs)

        norms = np.linalg.norm(batch, axis=1, keepdims=True).astype(np.float32)
        factors = strategy.clip_factors(tensors(ours), ops.convert_to_tensor(norms))
        our_sum = np.sum(ops.convert_to_numpy(factors) * batch, axis=0)
        np.testing.assert_allclose(our_sum, np.asarray(their_sum), rtol=1e-4, atol=1e-5)
        ours = updated(strategy, ours, summed_statistics(strategy, ours, norms), EXPECTED_UNITS)
        their_norm = float(theirs.sum_state.l2_norm_clip)
        np.testing.assert_allclose(ours["clip_norm"], their_norm, rtol=1e-4)
        norms_seen.append(their_norm)
    assert max(norms_seen) / min(norms_seen) > 1.5
