"""Training over several devices of one process is training on one device.

The backends fix the number of devices when they start, so that each number has a process.
"""

import keras
import numpy as np
import pytest

from tests.distribution.running import assert_noise_as_accounted, assert_one_run, results_of, start

BACKEND = keras.backend.backend()
pytestmark = pytest.mark.skipif(BACKEND == "torch", reason="trains on one device")
IS_JAX = BACKEND == "jax"

# Replicas of TensorFlow take longer to trace.
NUM_DEVICES = 4 if IS_JAX else 2
TRAINED = ["poisson", "in_chunks", "shuffled_in_chunks", "images", "clients", "planned"]
ALWAYS = ["noise_alone", "one_more", "data_sets_move"]
ALWAYS += ["one_batch_moves"] if IS_JAX else ["adapted_outside"]
REFUSED = {
    "made_before": "made outside of the `tf.distribute` strategy's scope",
    "built_outside": "made outside of the `tf.distribute` strategy's scope",
    "joined_batches": "drop_remainder=True",
    "one_batch": f"whole batch to each of the {NUM_DEVICES} replicas",
    "compiled_by_xla": "`jit_compile=True` does not go with several replicas",
}
if IS_JAX:
    REFUSED = {"uneven": "Received: a batch of 45 examples"}
    REFUSED |= {"made_before": "made before the distribution was set"}
KINDS = ["data", "model"] if IS_JAX else ["data"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("devices")
    alone = start(folder, scenarios=TRAINED)
    found = {"none": results_of(alone())[0]}
    for kind in KINDS:
        scenarios = [*TRAINED, *ALWAYS, *REFUSED]
        wait = start(folder, kind=kind, devices=NUM_DEVICES, scenarios=scenarios)
        found[kind] = results_of(wait())[0]
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", TRAINED)
def test_twenty_steps_lead_to_the_weights_of_one_device(runs, scenario, kind):
    alone, spread = runs["none"][scenario], runs[kind][scenario]
    assert_one_run(alone, spread)
    assert spread["steps"] == 20
    np.testing.assert_allclose(spread["loss"], alone["loss"], rtol=1e-4)
    np.testing.assert_allclose(spread["accuracy"], alone["accuracy"], rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_noise_of_several_devices_is_what_is_accounted(runs, kind):
    assert_noise_as_accounted(runs[kind]["noise_alone"])


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_moves_the_sum_by_the_clipping_norm_on_any_device(runs, kind):
    distances = runs[kind]["one_more"]["distances"]
    # Both are clipped or small, so that they differ by twice the norm at most.
    assert np.all(distances <= 2 * 0.5 * (1 + 1e-3)), distances
    assert np.all(distances > 0.25), distances


def test_a_row_of_any_data_set_contributes_once(runs):
    found = dict(runs["data"]["data_sets_move"])
    if IS_JAX:
        found |= runs["data"]["one_batch_moves"]
    for kind, distance in found.items():
        assert 0.99 < distance < 1.0 + 1e-4, kind


@pytest.mark.skipif(IS_JAX, reason="about the scope of a strategy")
def test_layers_that_are_only_read_may_be_made_outside_of_the_scope(runs):
    assert runs["data"]["adapted_outside"]["steps"] == 5


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_private_is_refused(runs, kind):
    for name, message in REFUSED.items():
        assert message in str(runs[kind][name].get("message")), name
