"""The code of `docs/monitoring.md` runs and prints what the page says."""

import csv

import pytest

from tests.docs import pages


def test_the_code_runs_and_prints_what_the_page_says(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    names = pages.run(pages.DOCS / "monitoring.md")
    with open("run.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for name in ("epsilon", "clip_norm", "unclipped_fraction"):
        assert [float(row[name]) for row in rows] == pytest.approx(names["history"].history[name])
    assert {path.name for path in tmp_path.glob("*.png")} == {
        "tracking.png",
        "norms.png",
        "spent.png",
    }
