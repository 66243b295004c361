"""Training over two processes, each with a share of the data."""

import shutil

import keras
import numpy as np
import pytest

from tests.distribution.running import assert_noise_as_accounted, assert_one_run, results_of, start

BACKEND = keras.backend.backend()
pytestmark = pytest.mark.skipif(BACKEND == "torch", reason="trains in one process")

REFUSED = {
    "same_rows": "Two processes were given the same rows",
    "shuffled_share": "and each process gives its own share",
    "other_draws": "Received different values of: expected_batch_size",
    "other_thresholds": "Received different values of: optimizer",
    "other_local_epochs": "Received different values of: clients",
    "other_state_later": "Received different values of: clip_norm",
}
TRAINED = ["poisson", "truncated", "shared_clients", "clients_in_turn", "clients_whole"]
if BACKEND == "tensorflow":
    REFUSED["other_weights"] = "Received different values of: weights"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    scenarios = [*TRAINED, "own_source", "noise_alone", "clients_without_seed", *REFUSED]
    two = start(folder, kind="data", processes=2, scenarios=scenarios)
    found = results_of(two())
    (alone,) = results_of(start(folder, scenarios=TRAINED)())
    return alone, found


@pytest.mark.parametrize("scenario", TRAINED)
def test_two_processes_lead_to_the_weights_of_one(runs, scenario):
    for each in runs[1]:
        assert_one_run(runs[0][scenario], each[scenario])


def test_shares_that_are_read_by_number_train_as_arrays_do(runs):
    for found in runs[1]:
        np.testing.assert_array_equal(found["own_source"]["weights"], found["poisson"]["weights"])
        assert found["own_source"]["epsilon"] == found["poisson"]["epsilon"]


def test_four_processes_train_clients_as_one_does(runs, tmp_path):
    found = results_of(start(tmp_path, kind="data", processes=4, scenarios=["shared_clients"])())
    for each in found:
        assert_one_run(runs[0]["shared_clients"], each["shared_clients"])


@pytest.mark.parametrize("scenario", ["poisson", "noise_alone", "clients_without_seed"])
def test_processes_have_one_model_one_noise_and_one_ledger(runs, scenario):
    first, second = (each[scenario] for each in runs[1])
    for name in ("weights", "owner", "steps", "clip_norm"):
        np.testing.assert_array_equal(first[name], second[name])


def test_the_noise_of_two_processes_is_what_is_accounted(runs):
    assert_noise_as_accounted(runs[1][0]["noise_alone"])


@pytest.mark.parametrize(("scenario", "message"), REFUSED.items())
def test_what_would_not_be_private_is_refused_in_each_process(runs, scenario, message):
    for found in runs[1]:
        assert message in str(found[scenario].get("message")), found[scenario]


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
    # The end may have interrupted the writing of a backup: then the one before counts.
    epochs = first["resumed"]["epochs"].tolist()
    assert epochs in ([2, 3], [1, 2, 3])
    for results in (first, second):
        assert results["resumed"]["epochs"].tolist() == epochs
        assert results["resumed"]["steps"] == 20
    np.testing.assert_array_equal(first["resumed"]["weights"], second["resumed"]["weights"])
