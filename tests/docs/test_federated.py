"""The code of `docs/federated.md` runs and prints what the page says."""

from tests.docs import pages


def test_the_code_runs_and_prints_what_the_page_says():
    names = pages.run(pages.DOCS / "federated.md")
    assert names["model"].privacy_unit == "client"
    assert len(names["clients"]) == 200
