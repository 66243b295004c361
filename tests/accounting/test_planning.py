"""Plans: what is left out follows from the rest, within the budget and near its edge."""

import pytest

from keras_adaclip.accounting import compute_epsilon, plan

RUN = {"delta": 1e-5, "num_examples": 6_000, "batch_size": 256, "epochs": 10}
RUN |= {"target_epsilon": 3.0, "noise_multiplier": 1.2}


def planned(missing, **changes):
    return plan(**{**RUN, missing: None, **changes})


def epsilon_of(found, **changes):
    names = {*RUN, "sampling", "accountant"} - {"target_epsilon"}
    return compute_epsilon(**{**{name: getattr(found, name) for name in names}, **changes})


@pytest.mark.parametrize(
    ("missing", "changes", "further"),
    [
        ("epochs", {"noise_multiplier": 2.4}, lambda value: value + 1),
        ("noise_multiplier", {}, lambda value: value * 0.998),
        ("epochs", {"noise_multiplier": 8.0, "sampling": "shuffle"}, lambda value: value + 1),
        ("noise_multiplier", {"sampling": "stream"}, lambda value: value * 0.998),
        ("epochs", {"noise_multiplier": 4.0, "sampling": "fixed"}, lambda value: value + 1),
    ],
)
def test_what_is_solved_for_is_within_the_budget_and_at_its_edge(missing, changes, further):
    found = planned(missing, **changes)
    assert found.accountant == ("rdp" if found.sampling == "fixed" else "pld")
    assert found.epsilon == epsilon_of(found) <= RUN["target_epsilon"]
    (marked,) = [line for line in str(found).splitlines() if "<- solved for" in line]
    assert marked.startswith(missing.replace("_", " "))
    assert epsilon_of(found, **{missing: further(getattr(found, missing))}) > RUN["target_epsilon"]


def test_what_is_copied_from_the_table_is_within_the_budget():
    found = planned("noise_multiplier")
    (marked,) = [line for line in str(found).splitlines() if "<- solved for" in line]
    assert epsilon_of(found, noise_multiplier=float(marked.split()[2])) <= found.epsilon
    found = planned("target_epsilon")
    assert (found.epsilon, found.solved_for) == (epsilon_of(found), "target_epsilon")
    assert str(found).splitlines()[0].endswith("  <- solved for")
    assert 0.0 <= float(str(found).splitlines()[0].split()[1]) - found.epsilon <= 1e-3
