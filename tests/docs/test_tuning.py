"""The code of `docs/tuning.md` runs and prints what the page says."""

from tests.docs import pages


def test_the_code_runs_and_prints_what_the_page_says():
    names = pages.run(pages.DOCS / "tuning.md")
    assert names["schedule"].values == names["clipping"].schedule.values
    assert "geometric" in str(names["search"].privacy_spent(delta=1e-3))
