"""The accuracies on `docs/clipping.md` are those of `docs/accuracy.md`, which explains them."""

import re

import pytest

from tests.docs import pages

# The name of a method on each of the pages; what has no strategy of its own is on one page only.
METHODS = {
    "`AdaClip`": "AdaClip (Pichapati)",
    "`PowerDecay`": "power decay (Lin)",
    "`FixedClipping`": "fixed norm (Abadi)",
    "`LinearDecay`": "linear decay (Yu)",
    "`ExponentialDecay`": "exponential decay (Du)",
    "`PiecewiseConstant`, transferred": "transfer (Lin)",
    "`AutomaticClipping`": "AUTO-S (Bu)",
    "`QuantileClipping`": "quantile (Andrew)",
    "`MeanNormClipping`": "mean norm (van der Veen)",
}
EPSILONS = ("1.5", "2.7", "4.5")


def accuracies(page, columns):
    """The rows of the table of methods on a page, as text: `{method: (accuracy, ...)}`.

    Args:
        page: the name of the page.
        columns: the heads of the columns, the first of which are the method's and three more.
    """
    text = (pages.DOCS / page).read_text(encoding="utf-8")
    heads = re.escape("| " + " | ".join(columns))
    tables = re.findall(rf"^{heads} \|.*\n\|[-| ]+\|\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    assert len(tables) == 1, f"{page}: {len(tables)} tables begin with {columns}"
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in tables[0].splitlines()
    ]
    return {row[0]: row[1:] for row in rows}


@pytest.fixture
def shown():
    return accuracies("clipping.md", ("method", "epsilon 1.5", *EPSILONS[1:]))


@pytest.fixture
def measured():
    heads = ("method", "written, 1.5", *EPSILONS[1:], "tuned, 1.5", *EPSILONS[1:], "paper, 1.5")
    rows = accuracies("accuracy.md", heads)
    return {method: [cell.strip("*") for cell in row[3:6]] for method, row in rows.items()}


def test_the_accuracies_are_those_of_the_comparison(shown, measured):
    assert set(shown) == set(METHODS)
    copied = {METHODS[method]: [cell.strip("*") for cell in row] for method, row in shown.items()}
    assert copied == {method: measured[method] for method in copied}


def test_the_best_accuracy_at_each_epsilon_is_bold(shown):
    for column, epsilon in enumerate(EPSILONS):
        cells = [row[column] for row in shown.values() if row[column] != "–"]
        best = max(cells, key=lambda cell: float(cell.strip("*")))
        assert [cell for cell in cells if cell.startswith("**")] == [best], epsilon
