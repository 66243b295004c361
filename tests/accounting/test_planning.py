"""Plans: what is left out follows from the rest, within the budget and near its edge."""

import math

import pytest

from keras_adaclip.accounting import compute_epsilon, plan

RUN = {
    "target_epsilon": 3.0,
    "delta": 1e-5,
    "num_examples": 6_000,
    "batch_size": 256,
    "epochs": 10,
    "noise_multiplier": 1.2,
}


def planned(missing, **changes):
    return plan(**{**RUN, missing: None, **changes})


def epsilon_of(found, **changes):
    values = {
        name: getattr(found, name)
        for name in ("num_examples", "batch_size", "epochs", "noise_multiplier", "delta")
    }
    return compute_epsilon(
        **{**values, **changes}, sampling=found.sampling, accountant=found.accountant
    )


def test_epsilon_is_that_of_the_run():
    found = planned("target_epsilon")
    assert found.epsilon == epsilon_of(found)
    assert found.solved_for == "target_epsilon"


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize(
    ("missing", "further"),
    [
        ("epochs", lambda value: value + 1),
        ("noise_multiplier", lambda value: value * 0.998),
    ],
)
def test_what_is_solved_for_is_within_the_budget_and_at_its_edge(missing, further, accountant):
    # Twice as much noise gives the epochs room to move.
    changes = {} if missing == "noise_multiplier" else {"noise_multiplier": 2.4}
    found = planned(missing, accountant=accountant, **changes)
    assert found.epsilon == epsilon_of(found) <= RUN["target_epsilon"]
    beyond = {missing: further(getattr(found, missing))}
    assert epsilon_of(found, **beyond) > RUN["target_epsilon"]


@pytest.mark.parametrize("sampling", ["shuffle", "stream", "fixed"])
@pytest.mark.parametrize("missing", ["target_epsilon", "epochs", "noise_multiplier"])
def test_other_samplings(sampling, missing):
    noise = {"shuffle": 8.0, "stream": 40.0, "fixed": 4.0}[sampling]
    changes = {} if missing == "noise_multiplier" else {"noise_multiplier": noise}
    found = planned(missing, sampling=sampling, **changes)
    assert found.epsilon == epsilon_of(found)
    assert missing == "target_epsilon" or found.epsilon <= 3.0
    assert found.accountant == ("rdp" if sampling == "fixed" else "pld")


def test_the_noise_beside_the_signal():
    found = planned("target_epsilon", num_parameters=400)
    assert found.steps == 240
    assert found.sampling_probability == 256 / 6_000
    # Sum of clipped gradients plus noise of deviation z C, over the expected batch size.
    assert found.noise_stddev == pytest.approx(1.2 / 256)
    assert found.noise_norm == pytest.approx(20 * 1.2 / 256)
    text = str(found)
    assert "0.00469 C" in text
    assert "signal over noise, one step, at most  10.7" in text
    assert planned("target_epsilon").noise_norm is None


def test_the_table_marks_what_was_solved_for_and_rounds_epsilon_up():
    for missing in ("target_epsilon", "epochs", "noise_multiplier"):
        found = planned(missing)
        (marked,) = [line for line in str(found).splitlines() if "<- solved for" in line]
        name = "epsilon" if missing == "target_epsilon" else missing.replace("_", " ")
        assert marked.startswith(name)
        if missing == "noise_multiplier":
            # What is copied from the table is within the budget too.
            shown = float(marked.split()[2])
            assert 0.0 <= shown / found.noise_multiplier - 1.0 <= 1e-4
            assert epsilon_of(found, noise_multiplier=shown) <= found.epsilon
    shown = float(str(planned("target_epsilon")).splitlines()[0].split()[1])
    assert 0.0 <= shown - planned("target_epsilon").epsilon <= 1e-3
    assert "inf" in str(planned("target_epsilon", noise_multiplier=0.0)).splitlines()[0]


@pytest.mark.parametrize("left_out", [(), ("epochs", "noise_multiplier")])
def test_exactly_one_is_left_out(left_out):
    with pytest.raises(ValueError, match="Exactly one of `target_epsilon`, `epochs` and"):
        plan(**{**RUN, **dict.fromkeys(left_out)})


@pytest.mark.parametrize("name", ["delta", "num_examples", "batch_size"])
def test_delta_and_sizes_must_be_given(name):
    with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{name}'"):
        plan(**{key: value for key, value in RUN.items() if key not in (name, "epochs")})
    with pytest.raises(TypeError, match=f"Argument `{name}` must be"):
        planned(name, epochs=None)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"noise_multiplier": 0.0}, ValueError, "one epoch has epsilon inf"),
        ({"batch_size": 7_000}, ValueError, "`batch_size` must lie between 1 and 6000"),
        ({"delta": 1.5}, ValueError, "`delta` must lie"),
        ({"target_epsilon": math.inf}, ValueError, "`target_epsilon` must be finite"),
        ({"num_examples": 6e3}, TypeError, "`num_examples` must be an integer"),
        ({"num_parameters": 0}, ValueError, "`num_parameters` must be at least 1"),
        ({"sampling": "lottery"}, ValueError, "`sampling` must be one of"),
        ({"noise_multiplier": 0.02}, ValueError, "No `epochs` reaches the target epsilon"),
    ],
)
def test_what_cannot_be(changes, error, message):
    with pytest.raises(error, match=message):
        planned("epochs", **changes)
