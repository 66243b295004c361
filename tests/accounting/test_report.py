"""Reports: every number follows from the ledger, in three formats."""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from keras_adaclip.accounting import (
    Ledger,
    LedgerRow,
    PrivacyReport,
    RandomSelection,
    Sampling,
    Unit,
    compute_epsilon,
    gaussian_mu,
    group_epsilon,
    ledger_epsilon,
)

DELTA = 1e-5
POISSON = LedgerRow.open(Sampling.POISSON, 256, 6_000, noise_multiplier=2.0).advance(60)
SHUFFLED = LedgerRow.open(Sampling.SHUFFLE, 100, 6_000, noise_multiplier=5.0).advance(61)


def report(*rows, **arguments):
    return PrivacyReport.from_ledger(rows, DELTA, **{"group_sizes": (2,), **arguments})


def test_numbers_are_those_of_the_ledger():
    found = report(POISSON)
    assert found.epsilon_pld == ledger_epsilon([POISSON], DELTA)
    assert found.epsilon_rdp == ledger_epsilon([POISSON], DELTA, "rdp") > found.epsilon_pld
    # 60 steps of 256 are two full passes and a begun one, of 24 steps each.
    without = compute_epsilon(2.0, 6_000, 256, steps=60, delta=DELTA, sampling="shuffle")
    assert found.epsilon_without_amplification == without > found.epsilon_pld
    assert found.group_epsilons == {2: group_epsilon([POISSON], DELTA, 2)}
    assert found.gaussian_mu == gaussian_mu(found.epsilon_pld, DELTA)
    of_whom = (found.steps, found.unit, found.neighboring_relation)
    assert of_whom == (60, "example", "add_or_remove_one")


def test_every_mechanism_that_ran_is_listed():
    idle = LedgerRow.open(Sampling.STREAM, 10, 0, noise_multiplier=1.0)
    found = report(POISSON, SHUFFLED, idle)
    poisson, shuffled = found.mechanisms
    assert (poisson.sampling, poisson.steps, poisson.releases) == ("poisson", 60, 60)
    assert poisson.sampling_probability == 256 / 6_000
    assert (shuffled.sampling, shuffled.steps, shuffled.releases) == ("shuffle", 61, 2)
    assert shuffled.sampling_probability is None
    assert found.neighboring_relation == "zero_out"
    assert "61 steps, batches of 100 of 6,000, z = 5, 2 releases" in found.to_text()


def test_mu_is_that_of_the_gaussian():
    for noise in (0.5, 1.0, 20.0):
        running = LedgerRow.open(Sampling.STREAM, 10, 0, noise_multiplier=noise).advance(4)
        epsilon = ledger_epsilon([running], DELTA)
        assert gaussian_mu(epsilon, DELTA) == pytest.approx(2.0 / noise, rel=1e-3)
    assert gaussian_mu(math.inf, DELTA) == math.inf
    assert gaussian_mu(0.0, DELTA) == pytest.approx(2.5066e-5, rel=1e-3)  # delta is mu / sqrt(2 pi)
    with pytest.raises(ValueError, match="`epsilon` must not be negative"):
        gaussian_mu(-1.0, DELTA)


def test_json_holds_all_of_it(tmp_path):
    """And each field is documented."""
    found = report(POISSON, clipping="norm 1", versions={"keras": "3"})
    found.save(tmp_path / "report.json")
    read = json.loads((tmp_path / "report.json").read_text())
    assert (read["format"], read["version"]) == ("keras_adaclip.PrivacyReport", 1)
    assert (read["epsilon_pld"], read["clipping"]) == (found.epsilon_pld, "norm 1")
    assert read["group_epsilons"] == {"2": found.group_epsilons[2]}
    assert read["mechanisms"][0]["noise_multiplier"] == 2.0
    assert {"keras", "dp-accounting", "keras_adaclip", "numpy"} <= set(read["versions"])
    fields = {field.name for field in dataclasses.fields(PrivacyReport)}
    assert set(read) == fields | {"format", "version", "steps"}
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    assert [name for name in (*read, *read["mechanisms"][0]) if f"`{name}`" not in page] == []


def test_text_and_markdown_say_the_same(tmp_path):
    found = report(dataclasses.replace(POISSON, unit=Unit.CLIENT))
    for suffix, text in ((".md", found.to_markdown()), (".txt", str(found))):
        found.save(tmp_path / f"report{suffix}")
        assert (tmp_path / f"report{suffix}").read_text(encoding="utf-8") == text
        for line in found.not_covered:
            assert f"- {line}\n" in text
    for name, value in found._rows():
        assert f"| {name} | {value} |" in found.to_markdown()
        assert f"{name:<25}  {value}\n" in str(found)
    assert "person with 2 clients" in str(found)
    with pytest.raises(ValueError, match=r"must end with '\.json', '\.md' or '\.txt'"):
        found.save(tmp_path / "report.html")


def test_nothing_ran_and_no_noise():
    assert report().epsilon_pld == report().gaussian_mu == report().steps == 0
    assert PrivacyReport.from_ledger(Ledger(), DELTA).epsilon_rdp == 0.0
    bare = LedgerRow.open(Sampling.POISSON, 256, 6_000, noise_multiplier=0.0).advance(1)
    found = report(bare)
    assert found.epsilon_pld == found.gaussian_mu == found.group_epsilons[2] == math.inf
    assert json.loads(found.to_json())["epsilon_pld"] == "inf"
    assert "epsilon                    inf at delta" in found.to_text()


def test_the_cost_of_a_selection_is_counted_where_there_was_one():
    without = report(POISSON)
    assert without.epsilon_with_selection is None
    assert "with the selection" not in without.to_text()
    selection = RandomSelection(mean_trials=10, distribution="logarithmic")
    found = report(POISSON, selection=selection)
    assert found.epsilon_with_selection == selection.epsilon([POISSON], DELTA) > found.epsilon_rdp
    assert found.epsilon_pld == without.epsilon_pld
    assert "logarithmic law with mean 10" in found.tuning
    assert f"with the selection         {found.epsilon_with_selection:.2f}" in found.to_text()
    assert json.loads(found.to_json())["epsilon_with_selection"] == found.epsilon_with_selection
