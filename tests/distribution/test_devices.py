"""Training over several devices of one process is training on one device.

The backends fix the number of devices when they start, so that each number has a process.
"""

import keras
import numpy as np
import pytest

from tests.distribution.running import results_of, start

BACKEND = keras.backend.backend()
pytestmark = pytest.mark.skipif(BACKEND == "torch", reason="trains on one device")
IS_JAX = BACKEND == "jax"

TRAINED = [
    "poisson",
    "everyone",
    "everyone_noised",
    "in_chunks",
    "shuffled_in_chunks",
    "images",
    "regularized",
    "clients",
]
OF_TENSORFLOW = ["made_before", "built_outside", "compiled_by_xla", "one_batch", "joined_batches"]
REFUSED = ["uneven", "made_before"] if IS_JAX else OF_TENSORFLOW
COSTS = ["traces", "data_sets_move"]
COSTS += ["bytes_reduced", "one_batch_moves"] if IS_JAX else ["adapted_outside"]
KINDS = [("data", 2), ("data", 4), *([("model", 4)] if IS_JAX else [])]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What each number of devices told, by kind of distribution and number."""
    folder = tmp_path_factory.mktemp("devices")
    waiting = {("none", 1): start(folder, scenarios=[*TRAINED, "noise_alone", "one_more"])}
    found = {}
    for kind, devices in KINDS:
        further = (
            ["noise_alone", "one_more", *COSTS, *REFUSED] if (kind, devices) != ("data", 4) else []
        )
        key = (kind, devices)
        waiting[key] = start(folder, kind=kind, devices=devices, scenarios=[*TRAINED, *further])
        if len(waiting) == 2 or (kind, devices) == KINDS[-1]:
            ended = {each: wait() for each, wait in waiting.items()}
            found |= {each: results_of(told)[0] for each, told in ended.items()}
            waiting.clear()
    return found


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("scenario", TRAINED)
def test_twenty_steps_lead_to_the_weights_of_one_device(runs, scenario, kind):
    alone, spread = runs["none", 1][scenario], runs[kind][scenario]
    assert alone["steps"] == 20
    scale = np.abs(alone["weights"]).max()
    np.testing.assert_allclose(spread["weights"], alone["weights"], atol=1e-5 * scale)
    np.testing.assert_allclose(spread["clip_norm"], alone["clip_norm"], rtol=1e-5)
    np.testing.assert_allclose(spread["loss"], alone["loss"], rtol=1e-4)
    np.testing.assert_allclose(spread["accuracy"], alone["accuracy"], rtol=1e-5)
    assert spread["steps"] == alone["steps"]
    assert spread["epsilon"] == alone["epsilon"]


@pytest.mark.parametrize("kind", [("none", 1), *KINDS], ids=str)
def test_the_noise_is_what_is_accounted(runs, kind):
    if "noise_alone" not in runs[kind]:
        pytest.skip("looked at with other numbers of devices")
    changes = runs[kind]["noise_alone"]["changes"]
    assert changes.size == 4 * 41 * 30
    # Of so many the standard deviation is known to 1 in 100: five of these, the margin included.
    assert abs(np.std(changes) - 1.0) < 5.0 / np.sqrt(2.0 * changes.size)
    assert abs(np.mean(changes)) < 5.0 / np.sqrt(changes.size)
    assert runs[kind]["noise_alone"]["steps"] == 4


@pytest.mark.parametrize("kind", [("none", 1), *KINDS], ids=str)
def test_an_example_moves_the_sum_by_the_clipping_norm_on_any_device(runs, kind):
    if "one_more" not in runs[kind]:
        pytest.skip("looked at with other numbers of devices")
    distances = runs[kind]["one_more"]["distances"]
    # Both are clipped or small, so that they differ by twice the norm at most.
    assert np.all(distances <= 2 * 0.5 * (1 + 1e-3)), distances
    assert np.all(distances > 0.25), distances


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_step_is_traced_no_more_often_than_there_are_shapes(runs, kind):
    if "traces" not in runs[kind]:
        pytest.skip("looked at with other numbers of devices")
    by_epoch = runs[kind]["traces"]["by_epoch"]
    num_replicas = 1 if IS_JAX else kind[1]
    assert by_epoch[-1] <= 2 * num_replicas
    # The first epochs have seen every shape.
    assert by_epoch[5] == by_epoch[-1]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_devices_send_one_copy_of_the_weights_and_the_counts(runs, kind):
    if "traces" not in runs[kind]:
        pytest.skip("looked at with other numbers of devices")
    told = runs[kind]["traces"]
    assert set(told["summed"].tolist()) == {int(told["num_weights"]) + 1}
    if not IS_JAX:
        return
    sent = runs[kind]["bytes_reduced"]
    own = sent["num_weights"] + 1 + sent["num_metrics"]
    if kind[0] == "data":
        assert sent["all_reduce"] == own
        assert sent["all_gather"] == sent["all_to_all"] == sent["collective_permute"] == 0


def test_a_row_of_any_data_set_contributes_once(runs):
    for kind, distance in runs["data", 2]["data_sets_move"].items():
        assert 0.99 < distance < 1.0 + 1e-4, kind


@pytest.mark.skipif(IS_JAX, reason="about the scope of a strategy")
def test_layers_that_only_are_read_may_be_made_outside_of_the_scope(runs):
    assert runs["data", 2]["adapted_outside"]["steps"] == 5


@pytest.mark.skipif(not IS_JAX, reason="refused on TensorFlow")
def test_a_batch_of_train_on_batch_contributes_once(runs):
    assert 0.99 < runs["data", 2]["one_batch_moves"]["distance"] < 1.0 + 1e-4


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_cannot_be_private_is_refused(runs, kind):
    if "made_before" not in runs[kind]:
        pytest.skip("looked at with other numbers of devices")
    told = {name: str(runs[kind][name].get("message")) for name in REFUSED}
    if IS_JAX:
        assert "Received: a batch of 45 examples" in told["uneven"]
        assert "made before the distribution was set" in told["made_before"]
    else:
        for name in ("made_before", "built_outside"):
            assert "made outside of the `tf.distribute` strategy's scope" in told[name]
        assert "drop_remainder=True" in told["joined_batches"]
        assert "whole batch to each of the 2 replicas" in told["one_batch"]
        assert "`jit_compile=True` does not go with several replicas" in told["compiled_by_xla"]
