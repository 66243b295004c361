"""Training over two processes, each with a share of the data."""

import shutil

import keras
import numpy as np
import pytest

from tests.distribution.running import results_of, start

BACKEND = keras.backend.backend()
pytestmark = pytest.mark.skipif(BACKEND == "torch", reason="trains in one process")

TRAINED = ["everyone", "everyone_noised"]
REFUSED = {
    "same_rows": "Two processes were given the same rows",
    "shuffled_share": "takes arrays, of which each process gives its own share",
    "own_draws": "takes arrays, of which each process gives its own share",
    "other_thresholds": "have compiled the model with different optimizers",
    "other_seeds": "have compiled the model with different optimizers",
    "other_state": "Received different values of: clip_norm",
    "other_state_later": "Received different values of: clip_norm",
}
if BACKEND == "tensorflow":
    REFUSED["other_weights"] = "Received different values of: weights"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What one process told, and each of two."""
    folder = tmp_path_factory.mktemp("processes")
    kind = "data"
    scenarios = [*TRAINED, "poisson", "noise_alone", *REFUSED]
    two = start(folder, kind=kind, processes=2, scenarios=scenarios)
    found = results_of(two())
    (alone,) = results_of(start(folder, scenarios=TRAINED)())
    return alone, found


@pytest.mark.parametrize("scenario", TRAINED)
def test_twenty_steps_lead_to_the_weights_of_one_process(runs, scenario):
    alone, processes = runs
    scale = np.abs(alone[scenario]["weights"]).max()
    for told in processes:
        weights, expected = told[scenario]["weights"], alone[scenario]["weights"]
        np.testing.assert_allclose(weights, expected, atol=1e-5 * scale)
        assert told[scenario]["steps"] == 20
        assert told[scenario]["epsilon"] == alone[scenario]["epsilon"]
        np.testing.assert_allclose(
            told[scenario]["clip_norm"], alone[scenario]["clip_norm"], rtol=1e-5
        )


@pytest.mark.parametrize("scenario", ["poisson", "noise_alone"])
def test_processes_have_one_model_one_noise_and_one_ledger(runs, scenario):
    _, (first, second) = runs
    np.testing.assert_array_equal(first[scenario]["weights"], second[scenario]["weights"])
    np.testing.assert_array_equal(first[scenario]["identity"], second[scenario]["identity"])
    assert first[scenario]["steps"] == second[scenario]["steps"]
    assert first[scenario]["clip_norm"] == second[scenario]["clip_norm"]


def test_the_noise_is_what_is_accounted(runs):
    _, (first, _) = runs
    changes = first["noise_alone"]["changes"]
    assert abs(np.std(changes) - 1.0) < 5.0 / np.sqrt(2.0 * changes.size)
    assert abs(np.mean(changes)) < 5.0 / np.sqrt(changes.size)


@pytest.mark.parametrize(("scenario", "message"), REFUSED.items())
def test_what_would_not_be_private_is_refused_in_each_process(runs, scenario, message):
    _, processes = runs
    for told in processes:
        assert message in str(told[scenario].get("message")), told[scenario]


def test_a_run_whose_process_ended_is_resumed_with_its_ledger(tmp_path):
    arguments = {"kind": "data", "processes": 2, "scenarios": ["resumed"], "errors_end_it": True}
    broken = start(tmp_path, ends=1, folder=str(tmp_path), **arguments)()
    (_, of_other, log), (_, of_ended, _) = broken
    assert of_ended == 7
    # The other one fails as well, and says why.
    assert of_other not in (0, None), log[-2000:]
    assert "rror" in log, log[-2000:]
    # All go on from the files of one: the end may have left some of them a step apart.
    shutil.rmtree(tmp_path / "backup-1")
    shutil.copytree(tmp_path / "backup-0", tmp_path / "backup-1")
    first, second = results_of(start(tmp_path, folder=str(tmp_path), **arguments)())
    # What the end has interrupted may be the writing of a backup: then the one before counts.
    epochs = first["resumed"]["epochs"].tolist()
    assert epochs in ([2, 3], [1, 2, 3])
    for results in (first, second):
        assert results["resumed"]["epochs"].tolist() == epochs
        assert results["resumed"]["steps"] == 20
    np.testing.assert_array_equal(first["resumed"]["weights"], second["resumed"]["weights"])
