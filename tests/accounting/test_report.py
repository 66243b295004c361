"""Reports: every number follows from the ledger, in four formats."""

import dataclasses
import hashlib
import html
import json
import math
import re
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from keras_adaclip.accounting import (
    Ledger,
    LedgerRow,
    PrivacyReport,
    PrivacySpent,
    RandomSelection,
    Sampling,
    Unit,
    compute_epsilon,
    gaussian_mu,
    group_epsilon,
    ledger_epsilon,
    report_words,
    rounded_up,
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
    curve = PrivacySpent.from_ledger([POISSON], DELTA).tradeoff()
    assert (found.gaussian_mu, found.gaussian_mu_gap) == (curve.mu, curve.mu_gap)
    assert found.gaussian_mu > gaussian_mu(found.epsilon_pld, DELTA)  # Of one point of the curve.
    assert (found.best_guess, found.risk_basis) == (curve.best_guess(), "pld")
    rates = {rate: curve.true_positive_rate(rate) for rate in (0.01, 0.001)}
    assert found.true_positive_rates == rates
    assert found.epsilon_with_selection is None
    of_whom = (found.steps, found.unit, found.neighboring_relation)
    assert of_whom == (60, "example", "add_or_remove_one")


def test_mu_is_that_of_the_gaussian():
    for noise in (0.5, 1.0, 20.0):
        running = LedgerRow.open(Sampling.STREAM, 10, 0, noise_multiplier=noise).advance(4)
        epsilon = ledger_epsilon([running], DELTA)
        assert gaussian_mu(epsilon, DELTA) == pytest.approx(2.0 / noise, rel=1e-3)
    assert gaussian_mu(math.inf, DELTA) == math.inf
    assert gaussian_mu(0.0, DELTA) == pytest.approx(2.5066e-5, rel=1e-3)  # delta is mu / sqrt(2 pi)


def test_a_selection_with_an_epsilon_of_zero_is_still_one():
    """Epsilon of one run says nothing of the odds against the best of a thousand runs."""
    row = LedgerRow.open(Sampling.STREAM, 10, 1_000, noise_multiplier=1e3).advance(1)
    selection = RandomSelection(1_000.0)
    found = PrivacyReport.from_ledger([row], 0.5, group_sizes=(), selection=selection)
    assert (found.epsilon_with_selection, found.risk_basis) == (0.0, "pair")
    assert found.best_guess == pytest.approx(0.75)
    idle = PrivacyReport.from_ledger([], 0.5, group_sizes=(), selection=selection)
    assert idle.best_guess == 0.5


def test_every_format_holds_all_of_it(tmp_path):
    idle = LedgerRow.open(Sampling.STREAM, 10, 0, noise_multiplier=1.0)
    selection = RandomSelection(mean_trials=10, distribution="logarithmic")
    stated = {"clipping": "norm 1", "versions": {"keras": "3"}}
    found = report(POISSON, SHUFFLED, idle, selection=selection, **stated)
    assert found.epsilon_with_selection == selection.epsilon([POISSON, SHUFFLED], DELTA)
    assert "logarithmic law with mean 10" in found.tuning
    texts = {}
    for suffix in (".json", ".md", ".txt", ".html"):
        found.save(tmp_path / f"report{suffix}")
        texts[suffix] = (tmp_path / f"report{suffix}").read_text(encoding="utf-8")
    assert texts[".txt"] == str(found)
    assert "61 steps, batches of 100 of 6,000, z = 5, 2 releases" in texts[".txt"]
    sentences = (*found.summary, *found.protection)
    for line in (*sentences, *found.meaning, *found.assumptions, *found.not_covered):
        assert f"- {line}\n" in texts[".txt"]
        assert f"- {line}\n" in texts[".md"]
        assert f"<li>{html.escape(line)}</li>" in texts[".html"]
    for name, value in found.rows():
        assert f"| {name} | {value} |" in texts[".md"]
        assert f"{name:<25}  {value}\n" in texts[".txt"]
        row = f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(value)}</td></tr>'
        assert row in texts[".html"]
        assert row in found._repr_html_()
    # The document loads nothing.
    loads = r"<(script|link|img|iframe|object)|(src|href|onload)=|url\(|@import|https?:|\$"
    assert re.search(loads, texts[".html"]) is None
    # Each field of the JSON is documented.
    read = json.loads(texts[".json"])
    assert (read["format"], read["version"]) == ("keras_adaclip.PrivacyReport", 2)
    for name in ("epsilon_pld", "epsilon_with_selection", "clipping"):
        assert read[name] == getattr(found, name)
    assert read["group_epsilons"] == {"2": found.group_epsilons[2]}
    assert set(read["true_positive_rates"]) == {"0.01", "0.001"}
    names = ("sampling", "sampling_probability", "steps", "releases", "noise_multiplier")
    mechanisms = [tuple(row[name] for name in names) for row in read["mechanisms"]]
    poisson = ("poisson", 256 / 6_000, 60, 60, 2.0)
    assert mechanisms == [poisson, ("shuffle", None, 61, 2, 5.0)]
    assert {"keras", "dp-accounting", "keras_adaclip", "numpy"} <= set(read["versions"])
    fields = {field.name for field in dataclasses.fields(PrivacyReport)}
    sentences = {"summary", "protection", "meaning", "assumptions", "not_covered"}
    assert set(read) == fields | sentences | {"format", "version", "steps"}
    documented = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    names = (*read, *read["mechanisms"][0])
    assert [name for name in names if f"`{name}`" not in documented] == []
    with pytest.raises(ValueError, match=r"must end with '\.html', '\.json', '\.md' or '\.txt'"):
        found.save(tmp_path / "report.pdf")


def test_what_a_user_states_is_shown_as_it_is():
    stated = "<img src=x onerror=alert(1)> & $guess | [link](http://x) \\| \\[y](http://y)\nnext"
    names = ("data_description", "model_name", "clipping", "seeds", "tuning")
    stated_too = {"statements": {"trust model": stated, stated: "<i>"}}
    found = report(POISSON, **dict.fromkeys(names, stated), versions={"<b>": "<i>"}, **stated_too)
    shown = stated.replace("\n", " ")
    for text in (found.to_html(), found._repr_html_()):
        assert "<img" not in text
        assert "<i>" not in text.replace('<div class="scale"><i>', "")
        assert text.count(html.escape(shown)) >= len(names) + 2
    markdown = found.to_markdown()
    assert "<img" not in markdown
    assert "<i>" not in markdown
    link = r"\| \[link\](http://x) \\\| \\\[y\](http://y) next |"
    assert markdown.count(link + "\n") == len(names) + 1
    assert markdown.count(link) == len(names) + 2
    assert str(found).count(shown) == len(names) + 2


def test_the_identity_of_model_and_data(tmp_path):
    path = tmp_path / "model.keras"
    path.write_bytes(b"weights")
    before = datetime.now(UTC).replace(microsecond=0)
    found = report(POISSON, model_file=path, data_description="Adult", versions={"numpy": "1.0"})
    assert before <= datetime.fromisoformat(found.date) <= datetime.now(UTC)
    digest = hashlib.sha256(b"weights").hexdigest()
    assert (found.model_file, found.model_file_sha256) == ("model.keras", digest)
    assert f"model.keras, SHA-256 {digest}" in str(found)
    assert "data, as stated            Adult" in str(found)
    assert found.versions["numpy"] == f"{np.__version__} (the file: 1.0)"
    assert found == dataclasses.replace(found, date="another day")
    assert (report().model_file, report().data_description) == (None, "not stated")


def test_the_report_leads_with_the_risk_and_answers_what_nist_asks():
    stated = {"trust model": "the hospital", "retention": "two years"}
    found = report(POISSON, SHUFFLED, statements=stated, public_changes="rounded")
    text = str(found)
    guess = report_words.percent(found.best_guess)
    assert text.split("\n- ")[1].startswith("If it is as likely as not that one particular example")
    assert f"guesses right at most {guess} of the time" in text.split("\n- ")[1]
    assert f"<b>{guess}</b>" in found.to_html()
    rows = dict(found.rows())
    assert rows["right guess, at most"] == guess
    assert rows["members found, at most"].startswith(
        report_words.percent(found.true_positive_rates[0.01]) + " at 1% false alarms, "
    )
    topics = ("unit", "neighbouring data sets", "tuning", "other data", "randomness")
    assert all(rows[topic] for topic in (*topics, "floating point"))
    assert rows["number of examples"] == "6,000; public, not protected"
    assert rows["trust model"].startswith("central: ")
    assert rows["trust model"].endswith("; as stated: the hospital")
    assert rows["retention"] == "as stated: two years"
    assert "independently" in rows["sampling"]
    assert "shuffled" in rows["sampling"]
    assert rows["weights"].endswith("; public steps since, as declared: rounded")


@pytest.mark.parametrize("unit", Unit)
def test_validation_rows_are_not_covered_and_their_number_is_public(unit):
    found = report(dataclasses.replace(POISSON, unit=unit))
    words = f"validation {found.unit}s of `validation_split`, and their number, which counts as"
    assert any(words in line for line in found.not_covered)
    assert f"person with 2 {found.unit}s" in str(found)


PASS = LedgerRow.open(Sampling.PASS, 100, 6_000, noise_multiplier=5.0).advance(60)
STREAM = LedgerRow.open(Sampling.STREAM, 10, 0, noise_multiplier=50.0).advance(4)
FIXED = LedgerRow.open(Sampling.FIXED, 10, 6_000, noise_multiplier=5.0).advance(4)
CLIENTS = dataclasses.replace(POISSON, unit=Unit.CLIENT)


@pytest.mark.parametrize(
    ("row", "there", "not_there"),
    [
        (POISSON, "without the example would", "once_per_pass|TOO LARGE"),
        (SHUFFLED, "an empty place", "once_per_pass"),
        (PASS, "once_per_pass", "twice in a batch"),
        (STREAM, "twice in a batch", "once_per_pass"),
        (FIXED, "any other example in its place", "once_per_pass"),
        (CLIENTS, "any one client", "example"),
    ],
)
def test_the_words_follow_what_ran(row, there, not_there):
    text = str(report(row, group_sizes=()))
    assert there in text
    assert re.search(not_there, text) is None


def test_the_words_follow_delta_and_the_selection():
    assert "TOO LARGE" in str(PrivacyReport.from_ledger([POISSON], 1 / 6_000, group_sizes=()))
    chosen = report(POISSON, group_sizes=(), selection=RandomSelection(10))
    assert "drawn from the stated law" in str(chosen)
    assert "selected run" in chosen.protection[1]
    assert chosen.epsilon == chosen.epsilon_with_selection
    assert f"at most {rounded_up(chosen.epsilon_with_selection)}, a ceiling" in chosen.meaning[0]


def test_nothing_ran_and_no_noise():
    assert report().epsilon_pld == report().gaussian_mu == report().steps == 0
    assert PrivacyReport.from_ledger(Ledger(), DELTA).epsilon_rdp == 0.0
    bare = LedgerRow.open(Sampling.POISSON, 256, 6_000, noise_multiplier=0.0).advance(1)
    found = report(bare)
    assert found.epsilon_pld == found.gaussian_mu == found.group_epsilons[2] == math.inf
    assert json.loads(found.to_json())["epsilon_pld"] == "inf"
    assert "with certainty" in found.meaning[0]
    assert "is infinite" in found.to_html()
    assert report().meaning == (report_words.NOTHING_RAN,)
    assert report().summary == (report_words.NOTHING_RAN,)
    assert "with certainty" in found.summary[0]
    assert "50%</b>" in report().to_html()
    assert "epsilon                    inf at delta" in found.to_text()
