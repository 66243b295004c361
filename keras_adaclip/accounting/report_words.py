"""A privacy report in words: as text, as Markdown, and as a document of HTML.

The words say what epsilon and delta mean, what they ask of people, and what they leave out. The
document is one file, which loads nothing and runs nothing. It prints on two pages of A4 if few
mechanisms ran.

An (epsilon, delta)-private training bounds every test of whether a unit was in the data, with a
true positive rate t and a false positive rate f:

    t <= e^epsilon f + delta,    1 - f <= e^epsilon (1 - t) + delta

The best guess between two equally likely cases is then right with probability at most
(e^epsilon + delta) / (1 + e^epsilon).

References:
    Wasserman and Zhou 2010, "A statistical framework for differential privacy"; Ponomareva et al.
    2023, "How to DP-fy ML", on the sizes of epsilon.
"""

import html
import importlib.resources
import math
from string import Template
from typing import TYPE_CHECKING

from keras_adaclip.accounting.epsilon import RELATIONS_IN_WORDS, rounded_up
from keras_adaclip.accounting.events import ADD_OR_REMOVE_ONE, REPLACE_ONE, ZERO_OUT
from keras_adaclip.accounting.kinds import Sampling

if TYPE_CHECKING:
    from keras_adaclip.accounting.report import PrivacyReport

Rows = list[tuple[str, str]]
# What a user states is shown as it is: no HTML, no link, no image.
_IN_MARKDOWN = str.maketrans(
    {"\\": "\\\\", "|": "\\|", "[": "\\[", "]": "\\]", "<": "&lt;", ">": "&gt;", "&": "&amp;"}
)

NOTHING_RAN = "No step has run: the training data have not been used."
_NEIGHBORS = {
    ADD_OR_REMOVE_ONE: "without the {unit}",
    ZERO_OUT: "with an empty place in the batches instead of the {unit}",
    REPLACE_ONE: "with any other {unit} in its place",
}
_UNITS = {
    "example": "any one example (one row of the training data)",
    "client": "any one client (all of its data together)",
}
_CHOICES = "Choosing hyperparameters, architectures or the best of several runs on the same data."
_OTHER_CHOICES = "Choosing anything on the same data by other means than the selection stated here."
_NOT_COVERED = (
    "Metrics and losses on the training data, in logs, plots and callbacks.",
    "{choices}",
    "Stopping early by a score on private data, unless those data are covered otherwise.",
    "The number of {unit}s, which counts as public.",
    "The validation {unit}s of `validation_split`, and their number, which counts as public.",
    "Other uses of the data: preprocessing fitted to them, other models trained on them.",
    "Gaussian noise is drawn in floating point, with finite precision and finite tails.",
)
_SCORES_OF_SELECTION = "Validation data whose scores decided which run was selected."
_LARGEST_EXPONENT = 700.0
_FALSE_POSITIVE_RATES = (0.01, 0.001)


def best_guess(epsilon: float, delta: float) -> float:
    """The largest probability of a right guess between two equally likely cases.

    Args:
        epsilon: Epsilon, at least 0; may be infinite.
        delta: Delta, between 0 and 1.

    Returns:
        A probability between 0.5 and 1.
    """
    return 1.0 - (1.0 - delta) / (1.0 + math.exp(min(epsilon, _LARGEST_EXPONENT)))


def most_true_positives(false_positives: float, epsilon: float, delta: float) -> float:
    """The largest true positive rate of a test with a given false positive rate.

    Args:
        false_positives: The share of absent units that the test takes for present, up to 1.
        epsilon: Epsilon, at least 0 and finite.
        delta: Delta, between 0 and 1.

    Returns:
        A rate between 0 and 1.
    """
    ratio = math.exp(min(epsilon, _LARGEST_EXPONENT))
    return min(ratio * false_positives + delta, 1.0 - (1.0 - delta - false_positives) / ratio, 1.0)


def percent(share: float) -> str:
    """A share in percent, rounded up.

    Args:
        share: The share, between 0 and 1.
    """
    return f"{math.ceil(1000 * share - 1e-9) / 10:g}%"


def protection(report: "PrivacyReport") -> tuple[str, ...]:
    """What is protected, and from whom."""
    unit, neighbor = report.unit, _NEIGHBORS[report.neighboring_relation]
    what = (
        f"Protected: whether {_UNITS[unit]} was used for training, and what it contained. Training "
        f"{neighbor.format(unit=unit)} gives nearly the same distribution of models; "
        "epsilon and delta bound the difference."
    )
    seen = (
        "the weights of the selected run, but neither other runs nor their number"
        if report.is_best_of_several
        else "the trained weights, the weights after every step, and the clipping norms"
    )
    return (
        what,
        f"From whom: anyone who sees {seen}, even if they know the method and all other {unit}s, "
        "and whatever they compute or learn later.",
        "Not from: anyone who sees the data, the memory of the training process, or its random "
        "numbers.",
    )


def meaning(report: "PrivacyReport") -> tuple[str, ...]:
    """What epsilon and delta mean for an attacker."""
    if not report.mechanisms:
        return (NOTHING_RAN,)
    epsilon, delta, unit = report.epsilon, report.delta, report.unit
    num_examples = max(mechanism.num_examples for mechanism in report.mechanisms)
    if math.isinf(epsilon):
        return (
            "Epsilon is infinite: nothing is promised. An attacker may find out with certainty "
            f"whether any {unit} was in the training data.",
        )
    one_in = f"{math.floor(1 / delta * (1 + 1e-12)):,}"
    texts = [
        f"Epsilon is at most {rounded_up(epsilon)}: whatever an attacker looks for is at most "
        f"e^epsilon = {_ratio(epsilon)} times as likely with one of the two data sets as with the "
        "other.",
        f"Delta is {delta:g}, or 1 in {one_in}: a probability that may be added to each of these "
        "bounds.",
        f"An attacker to whom it is as likely as not that the {unit} was used, and who then sees "
        f"all this, guesses right with probability at most {percent(best_guess(epsilon, delta))}. "
        "A blind guess is right with probability 50%.",
        *(
            f"A membership test with a false positive rate of {rate:.1%} has a true positive rate "
            f"of at most {percent(most_true_positives(rate, epsilon, delta))}."
            for rate in _FALSE_POSITIVE_RATES
        ),
        "Ponomareva et al. (2023) call an epsilon of up to 1 strong, up to 10 reasonable, and "
        "above 10 weak or worse.",
    ]
    if delta * num_examples >= 1:
        texts.append(
            f"DELTA IS TOO LARGE: it should be well below 1 in {num_examples:,}, the number of "
            f"{unit}s. With this one, publishing a random {unit} would count as private."
        )
    return tuple(texts)


def assumptions(report: "PrivacyReport") -> tuple[str, ...]:
    """What people must have done for epsilon to hold."""
    unit, samplings = report.unit, {mechanism.sampling for mechanism in report.mechanisms}
    person = (
        "Data: each person has one row. For a person with several, epsilon is that of a person "
        "with so many examples."
        if unit == "example"
        else "Data: all data of a person belong to one client."
    )
    texts = [
        person,
        "Data: initial weights, vocabularies, normalization and the like were made without these "
        "data, or are covered otherwise.",
    ]
    if Sampling.PASS in samplings:
        texts.append(
            f"Training: no {unit} comes twice in a pass over the data. The user has stated this "
            "(`once_per_pass=True`); it was not checked."
        )
    if Sampling.STREAM in samplings:
        texts.append(f"Training: no {unit} comes twice in a batch. This was not checked.")
    if report.is_best_of_several:
        texts.append(
            "Training: the number of runs was drawn from the stated law and stays secret; the "
            "runs had the stated mechanism, hyperparameters drawn independently, and nothing else "
            "of them is published."
        )
    return (
        *texts,
        "Training: validation data, and whatever decided on hyperparameters or on when to stop, "
        "are public or covered otherwise.",
        "Training: a seed of noise or sampling, if one was set, stays secret, and no other run has "
        "used it.",
        "Publication: only weights and what is computed from them, no metrics, logs or plots of "
        "the training data.",
    )


def not_covered(report: "PrivacyReport") -> tuple[str, ...]:
    """What epsilon does not cover."""
    choices = _OTHER_CHOICES if report.is_best_of_several else _CHOICES
    texts = (*_NOT_COVERED, *([_SCORES_OF_SELECTION] if report.is_selected else []))
    return tuple(text.format(unit=report.unit, choices=choices) for text in texts)


def _ratio(epsilon: float) -> str:
    """Return e^epsilon, rounded up."""
    return rounded_up(math.exp(epsilon), 3) if epsilon < _LARGEST_EXPONENT else "more than 1e300"


def as_text(report: "PrivacyReport") -> str:
    """The report as text."""
    return _written(report, "Privacy report", "{:<25}  {}", "{}:\n", {})


def as_markdown(report: "PrivacyReport") -> str:
    """The report as Markdown."""
    head = "# Privacy report\n\n| | |\n| --- | --- |"
    return _written(report, head, "| {} | {} |", "## {}\n\n", _IN_MARKDOWN)


def _written(
    report: "PrivacyReport", head: str, row: str, title: str, escapes: dict[int, str]
) -> str:
    """Return the table and the lists in lines of the given forms, with characters replaced."""
    table = [row.format(name, value.translate(escapes)) for name, value in rows(report)]
    lists = [
        title.format(name) + "\n".join(f"- {each}" for each in texts)
        for name, texts in titled_lists(report).items()
    ]
    lists.append(f"Made with {software(report)}.\n")
    return "\n".join([head, *table, "", "\n\n".join(lists).translate(escapes)])


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
        ("neighbouring data sets", RELATIONS_IN_WORDS[report.neighboring_relation]),
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


def _line(text: str) -> str:
    """Return a text in one line."""
    return " ".join(text.split())
