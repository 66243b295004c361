"""Reports: every number follows from the ledger, in four formats."""

import dataclasses
import functools
import hashlib
import html
import json
import math
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
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
    assert found.gaussian_mu == gaussian_mu(found.epsilon_pld, DELTA)
    of_whom = (found.steps, found.unit, found.neighboring_relation)
    assert of_whom == (60, "example", "add_or_remove_one")


def test_every_mechanism_that_ran_is_listed():
    idle = LedgerRow.open(Sampling.STREAM, 10, 0, noise_multiplier=1.0)
    found = report(POISSON, SHUFFLED, idle)
    names = ("sampling", "sampling_probability", "steps", "releases")
    poisson, shuffled = (
        tuple(row[name] for name in names) for row in found.to_dict()["mechanisms"]
    )
    assert poisson == ("poisson", 256 / 6_000, 60, 60)
    assert shuffled == ("shuffle", None, 61, 2)
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
    sentences = {"protection", "meaning", "assumptions", "not_covered"}
    assert set(read) == fields | sentences | {"format", "version", "steps"}
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    assert [name for name in (*read, *read["mechanisms"][0]) if f"`{name}`" not in page] == []


def test_text_and_markdown_say_the_same(tmp_path):
    found = report(dataclasses.replace(POISSON, unit=Unit.CLIENT))
    for suffix, text in ((".md", found.to_markdown()), (".txt", str(found))):
        found.save(tmp_path / f"report{suffix}")
        assert (tmp_path / f"report{suffix}").read_text(encoding="utf-8") == text
        for line in (*found.protection, *found.meaning, *found.assumptions, *found.not_covered):
            assert f"- {line}\n" in text
    for name, value in report_words.rows(found):
        assert f"| {name} | {value} |" in found.to_markdown()
        assert f"{name:<25}  {value}\n" in str(found)
    assert "person with 2 clients" in str(found)
    with pytest.raises(ValueError, match=r"must end with '\.html', '\.json', '\.md' or '\.txt'"):
        found.save(tmp_path / "report.pdf")


class Page(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts = set(), set(), []
        self.feed(text)
        self.text = "\n".join(self.texts)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.texts.append(data)


def test_the_document_holds_all_of_it_and_loads_nothing(tmp_path):
    found = report(POISSON, SHUFFLED, model_name="digits")
    found.save(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    for line in (*found.protection, *found.meaning, *found.assumptions, *found.not_covered):
        assert line in page.texts
    for row in report_words.rows(found):
        assert set(row) <= set(page.texts)
    assert all(f"{name} {version}" in page.text for name, version in found.versions.items())
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "object"})
    assert page.attributes.isdisjoint({"src", "href", "style", "onload"})
    assert re.search(r"url\(|@import|https?:", text) is None
    assert "$" not in text
    table = found._repr_html_()
    assert table.startswith("<table>")
    assert set(Page(table).texts) - {"\n"} == {
        cell for row in report_words.rows(found) for cell in row
    }


def test_what_a_user_states_is_shown_as_it_is():
    stated = "<img src=x onerror=alert(1)> & $guess | [link](http://x) \\| \\[y](http://y)\nnext"
    names = ("data_description", "model_name", "clipping", "seeds", "tuning")
    found = report(POISSON, **dict.fromkeys(names, stated), versions={"<b>": "<i>"})
    shown = stated.replace("\n", " ")
    for text in (found.to_html(), found._repr_html_()):
        assert "<img" not in text
        assert "<i>" not in text.replace('<div class="scale"><i>', "")
        assert text.count(html.escape(shown)) >= len(names)
    markdown = found.to_markdown()
    assert "<img" not in markdown
    assert "<i>" not in markdown
    link = r"\| \[link\](http://x) \\\| \\\[y\](http://y) next |" + "\n"
    assert markdown.count(link) == len(names)
    assert str(found).count(shown) == len(names)


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


@pytest.mark.parametrize("delta", [1e-5, 0.1])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0, 30.0, math.inf])
def test_the_odds_of_an_attacker_are_those_of_the_best_test(epsilon, delta):
    """The randomized response of Kairouz et al. 2015 attains every (epsilon, delta)."""
    share = 1.0 if epsilon == math.inf else 1.0 / (1.0 + math.exp(-epsilon))
    present = np.array([delta, (1 - delta) * share, (1 - delta) * (1 - share), 0.0])
    absent = present[::-1]
    # The best tests accuse the outcomes of the largest ratios, the last of them at times.
    rates = np.concatenate([[0.0], np.cumsum(absent)])
    for rate in (0.0, 0.001, 0.01, 0.5, 1.0):
        best = np.interp(rate, rates[1:], np.cumsum(present))
        if epsilon < math.inf:
            assert report_words.most_true_positives(rate, epsilon, delta) == pytest.approx(best)
    right = (present[:2].sum() + absent[2:].sum()) / 2
    assert report_words.best_guess(epsilon, delta) == pytest.approx(right)


def test_validation_rows_are_not_covered_and_their_number_is_public():
    for row in (POISSON, dataclasses.replace(POISSON, unit=Unit.CLIENT)):
        found = report(row, group_sizes=())
        words = f"validation {found.unit}s of `validation_split`, and their number, which counts as"
        for text in (found.to_text(), found.to_markdown(), found.to_json()):
            assert words in text


def test_the_words_follow_what_ran():
    quick_report = functools.partial(report, group_sizes=())
    a_pass = LedgerRow.open(Sampling.PASS, 100, 6_000, noise_multiplier=5.0).advance(60)
    a_stream = LedgerRow.open(Sampling.STREAM, 10, 0, noise_multiplier=50.0).advance(4)
    fixed = LedgerRow.open(Sampling.FIXED, 10, 6_000, noise_multiplier=5.0).advance(4)
    assert "once_per_pass" in str(quick_report(a_pass))
    assert "twice in a batch" in str(quick_report(a_stream))
    assert "once_per_pass" not in str(quick_report(POISSON)) + str(quick_report(a_stream))
    assert "without the example gives" in quick_report(POISSON).protection[0]
    assert "an empty place" in quick_report(SHUFFLED).protection[0]
    assert "any other example in its place" in quick_report(fixed).protection[0]
    client = quick_report(dataclasses.replace(POISSON, unit=Unit.CLIENT))
    assert "any one client" in client.protection[0]
    assert "example" not in " ".join((*client.protection, *client.meaning, *client.assumptions))
    assert "TOO LARGE" in str(PrivacyReport.from_ledger([POISSON], 1 / 6_000, group_sizes=()))
    assert "TOO LARGE" not in str(quick_report(POISSON))
    chosen = quick_report(POISSON, selection=RandomSelection(10))
    assert "drawn from the stated law" in str(chosen)
    assert "selected run" in chosen.protection[1]
    assert chosen.epsilon == chosen.epsilon_with_selection
    assert f"at most {rounded_up(chosen.epsilon_with_selection)}:" in chosen.meaning[0]


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
    assert "50%</b>" in report().to_html()
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
