"""A privacy report as text, as Markdown, and as a document of HTML: the same facts in each.

The document is one file, which loads nothing and runs nothing. It prints on two pages of A4 if few
mechanisms ran.
"""

import html
import importlib.resources
import math
from string import Template
from typing import TYPE_CHECKING

from keras_adaclip.accounting.epsilon import relation_in_words, rounded_up
from keras_adaclip.accounting.events import REPLACE_ONE
from keras_adaclip.accounting.report_words import best_guess, percent

if TYPE_CHECKING:
    from keras_adaclip.accounting.report import PrivacyReport

Rows = list[tuple[str, str]]
_WIDTH = 25
# What a user states is shown as it is: no HTML, no link, no image.
_IN_MARKDOWN = str.maketrans(
    {"\\": "\\\\", "|": "\\|", "[": "\\[", "]": "\\]", "<": "&lt;", ">": "&gt;", "&": "&amp;"}
)


def as_text(report: "PrivacyReport") -> str:
    """The report as text."""
    table = [f"{name:<{_WIDTH}}  {value}" for name, value in rows(report)]
    return "\n".join(["Privacy report", *table, "", _lists(report, "{}:\n")])


def as_markdown(report: "PrivacyReport") -> str:
    """The report as Markdown."""
    table = [f"| {name} | {value.translate(_IN_MARKDOWN)} |" for name, value in rows(report)]
    head = ["# Privacy report", "", "| | |", "| --- | --- |"]
    lists = _lists(report, "## {}\n\n").translate(_IN_MARKDOWN)
    return "\n".join([*head, *table, "", lists])


def as_document(report: "PrivacyReport") -> str:
    """The report as a document."""
    lists = [
        f"<h2>{html.escape(title)}</h2>\n<ul>\n"
        + "\n".join(f"<li>{html.escape(each)}</li>" for each in texts)
        + "\n</ul>"
        for title, texts in titled_lists(report).items()
    ]
    unit = html.escape(report.unit)
    epsilon = "is infinite" if math.isinf(report.epsilon) else f"≤ {rounded_up(report.epsilon)}"
    guess = best_guess(report.epsilon, report.delta) if report.mechanisms else 0.5
    template = importlib.resources.files("keras_adaclip.accounting").joinpath("report.html")
    return Template(template.read_text(encoding="utf-8")).substitute(
        model=html.escape(report.model_name),
        date=html.escape(report.date.replace("T", " ").replace("+00:00", " UTC")),
        verdict=f"Epsilon {epsilon} at delta = {report.delta:g}, for one {unit}",
        guess=percent(guess),
        guess_width=f"{200 * (guess - 0.5):.1f}",
        unit=unit,
        lists="\n".join(lists),
        numbers=as_table(numbers(report)),
        facts=as_table(facts(report)),
        identity=as_table([*identity(report), ("made with", software(report))]),
    )


def as_table(rows: Rows) -> str:
    """Names and values as a table.

    Args:
        rows: The names and values, not escaped.
    """
    cells = [
        f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(value)}</td></tr>'
        for name, value in rows
    ]
    return "\n".join(["<table>", *cells, "</table>"])


def rows(report: "PrivacyReport") -> Rows:
    """The names and values of the table, each in one line."""
    return [*numbers(report), *facts(report), *identity(report)]


def numbers(report: "PrivacyReport") -> Rows:
    """Every epsilon."""
    is_rdp = report.is_selected or report.neighboring_relation == REPLACE_ONE
    without_amplification = rounded_up(report.epsilon_without_amplification)
    if report.is_selected:
        without_amplification = "not known, since a search has selected the model"
    # With a selection, the other epsilons are those of a single run.
    of_one, with_selection = "", []
    if report.epsilon_with_selection is not None:
        of_one = ", one run"
        with_selection = [("with the selection", rounded_up(report.epsilon_with_selection))]
    accountant, epsilon = "RDP" if is_rdp else "PLD", rounded_up(report.epsilon_pld)
    return [
        (f"epsilon{of_one}", f"{epsilon} at delta = {report.delta:g} ({accountant})"),
        *with_selection,
        ("by Rényi divergences", rounded_up(report.epsilon_rdp)),
        ("without amplification", without_amplification),
        *(
            (f"person with {size} {report.unit}s{of_one}", rounded_up(epsilon))
            for size, epsilon in report.group_epsilons.items()
        ),
        (f"mu of Gaussian DP{of_one}", rounded_up(report.gaussian_mu)),
    ]


def facts(report: "PrivacyReport") -> Rows:
    """What ran."""
    return [
        ("unit", report.unit),
        ("neighbouring data sets", relation_in_words(report.neighboring_relation)),
        ("steps", f"{report.steps:,}"),
        *(("mechanism", str(mechanism)) for mechanism in report.mechanisms),
        *((name, _line(getattr(report, name))) for name in ("clipping", "seeds", "tuning")),
    ]


def identity(report: "PrivacyReport") -> Rows:
    """What the report is about."""
    file = "not stated"
    if report.model_file is not None:
        file = f"{report.model_file}, SHA-256 {report.model_file_sha256}"
    return [
        ("weights", report.weights),
        ("model", _line(report.model_name)),
        ("file", _line(file)),
        ("data, as stated", _line(report.data_description)),
        ("date", report.date),
    ]


def titled_lists(report: "PrivacyReport") -> dict[str, tuple[str, ...]]:
    """All that is said in sentences, by title."""
    return {
        "What is protected, and from whom": report.protection,
        "What epsilon means": report.meaning,
        "Assumptions: who must have done what": report.assumptions,
        "Not covered by epsilon": report.not_covered,
    }


def software(report: "PrivacyReport") -> str:
    """The versions in one line."""
    return ", ".join(f"{name} {version}" for name, version in report.versions.items())


def _lists(report: "PrivacyReport", title: str) -> str:
    """Return the sentences as lists under titles of the given form, and the versions."""
    lists = [
        title.format(name) + "\n".join(f"- {each}" for each in texts)
        for name, texts in titled_lists(report).items()
    ]
    return "\n\n".join([*lists, f"Made with {software(report)}.\n"])


def _line(text: str) -> str:
    """Return a text in one line."""
    return " ".join(text.split())
