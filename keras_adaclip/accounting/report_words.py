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

import dataclasses
import html
import importlib.resources
import math
from collections.abc import Mapping
from string import Template

from keras_adaclip.accounting.epsilon import RELATIONS_IN_WORDS, rounded_up, unit_in_words
from keras_adaclip.accounting.events import ADD_OR_REMOVE_ONE, REPLACE_ONE, ZERO_OUT, rows_per_unit
from keras_adaclip.accounting.kinds import Sampling
from keras_adaclip.accounting.row import LedgerRow

Rows = list[tuple[str, str]]
# What a user states is shown as it is: no HTML, no link, no image.
_IN_MARKDOWN = str.maketrans(
    {"\\": "\\\\", "|": "\\|", "[": "\\[", "]": "\\]", "<": "&lt;", ">": "&gt;", "&": "&amp;"}
)

NO_TUNING = "none is counted: epsilon is that of the training run alone"
STATED_PUBLIC = "of public data, as stated"
_NOT_KNOWN = "not known here"
_NOT_STATED = "not stated"
NOTHING_RAN = "No step has run: the training data have not been used."
_NEIGHBORS = {
    ADD_OR_REMOVE_ONE: "without the {unit}",
    ZERO_OUT: "with an empty place in the batches instead of the {unit}",
    REPLACE_ONE: "with any other {unit} in its place",
}
_UNITS = {
    "example": "any one example (one row of the training data)",
    "client": "any one client (all of its data together)",
    "person": "any one person (all of their rows, of which each run used at most {rows:,})",
}
_OF_PERSONS = {
    "example": "Data: each person has one row. For a person with several, epsilon is that of a "
    "person with so many examples.",
    "client": "Data: all data of a person belong to one client.",
    "person": "Data: ids (`unit_ids`) name the same people in each run, each person by one. The "
    "user has stated this; it was not checked.",
}
_CHOICES = "Choosing hyperparameters, architectures or the best of several runs on the same data."
_OTHER_CHOICES = "Choosing anything on the same data by other means than the selection stated here."
_NOT_COVERED = (
    "Metrics and losses on the training data, in logs, plots and callbacks.",
    "{choices}",
    "Stopping early by a score on private data, unless those data are covered otherwise.",
    "The number of {part}s, which counts as public.",
    "The validation {part}s of `validation_split`, and their number, which counts as public.",
    "Other uses of the data: preprocessing fitted to them, other models trained on them.",
    "Gaussian noise is drawn in floating point, with finite precision and finite tails.",
)
_SCORES_OF_SELECTION = "Validation data whose scores decided which run was selected."
_LARGEST_EXPONENT = 700.0
_FALSE_POSITIVE_RATES = (0.01, 0.001)


def best_guess(epsilon: float, delta: float) -> float:
    """Return the largest probability of a right guess between two equally likely cases.

    Args:
        epsilon: Epsilon, at least 0; may be infinite.
        delta: Delta, between 0 and 1.

    Returns:
        A probability between 0.5 and 1.
    """
    return 1.0 - (1.0 - delta) / (1.0 + math.exp(min(epsilon, _LARGEST_EXPONENT)))


def most_true_positives(false_positives: float, epsilon: float, delta: float) -> float:
    """Return the largest true positive rate of a test with a given false positive rate.

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
    """Return a share in percent, rounded up.

    Args:
        share: The share, between 0 and 1.
    """
    return f"{math.ceil(1000 * share - 1e-9) / 10:g}%"


@dataclasses.dataclass(frozen=True)
class ReportInWords:
    """The facts of a `PrivacyReport`, and what they mean in sentences and tables."""

    delta: float
    unit: str
    neighboring_relation: str
    mechanisms: tuple[LedgerRow, ...]
    epsilon_pld: float
    epsilon_rdp: float
    epsilon_without_amplification: float
    group_epsilons: Mapping[int, float]
    gaussian_mu: float
    epsilon_with_selection: float | None
    versions: Mapping[str, str]
    at_target: str = ""
    clipping: str = _NOT_KNOWN
    seeds: str = _NOT_KNOWN
    tuning: str = NO_TUNING
    preprocessing: str = ""
    weights: str = _NOT_KNOWN
    model_name: str = _NOT_KNOWN
    model_file: str | None = None
    model_file_sha256: str | None = None
    data_description: str = _NOT_STATED
    date: str = dataclasses.field(default="", compare=False)

    @property
    def steps(self) -> int:
        """Steps that ran."""
        return sum(mechanism.steps for mechanism in self.mechanisms)

    @property
    def rows_per_unit(self) -> int:
        """The most rows of the person whom epsilon is about; 0 for another unit."""
        return rows_per_unit(self.mechanisms)

    @property
    def is_selected(self) -> bool:
        """Whether the ledger counts that the model is the best of several runs."""
        return any(mechanism.selection is not None for mechanism in self.mechanisms)

    @property
    def epsilon(self) -> float:
        """The epsilon to quote: with the selection, if there was one."""
        chosen = self.epsilon_with_selection
        return self.epsilon_pld if chosen is None else chosen

    @property
    def is_best_of_several(self) -> bool:
        """Whether the model is the best of several runs, in the ledger or as stated."""
        return self.is_selected or self.epsilon_with_selection is not None

    @property
    def protection(self) -> tuple[str, ...]:
        """What is protected, and from whom."""
        unit, neighbor = self.unit, _NEIGHBORS[self.neighboring_relation]
        protected = _UNITS[unit].format(rows=self.rows_per_unit)
        what = (
            f"Protected: whether {protected} was used for training, and what it contained. "
            f"Training {neighbor.format(unit=unit)} gives nearly the same distribution of models; "
            "epsilon and delta bound the difference."
        )
        seen = (
            "the weights of the selected run, but neither other runs nor their number"
            if self.is_best_of_several
            else "the trained weights, the weights after every step, and the clipping norms"
        )
        return (
            what,
            f"From whom: anyone who sees {seen}, even if they know the method and all other "
            f"{unit}s, and whatever they compute or learn later.",
            "Not from: anyone who sees the data, the memory of the training process, or its random "
            "numbers.",
        )

    @property
    def meaning(self) -> tuple[str, ...]:
        """What epsilon and delta mean, with an attacker's best odds."""
        if not self.mechanisms:
            return (NOTHING_RAN,)
        epsilon, delta, unit = self.epsilon, self.delta, self.unit
        num_examples = max(mechanism.num_examples for mechanism in self.mechanisms)
        if math.isinf(epsilon):
            return (
                "Epsilon is infinite: nothing is promised. An attacker may find out with certainty "
                f"whether any {unit} was in the training data.",
            )
        one_in = f"{math.floor(1 / delta * (1 + 1e-12)):,}"
        texts = [
            f"Epsilon is at most {rounded_up(epsilon)}: whatever an attacker looks for is at most "
            f"e^epsilon = {_ratio(epsilon)} times as likely with one of the two data sets as with "
            "the other.",
            f"Delta is {delta:g}, or 1 in {one_in}: a probability that may be added to each of "
            "these bounds.",
            f"An attacker to whom it is as likely as not that the {unit} was used, and who then "
            "sees all this, guesses right with probability at most "
            f"{percent(best_guess(epsilon, delta))}. A blind guess is right with probability 50%.",
            *(
                f"A membership test with a false positive rate of {rate:.1%} has a true positive "
                f"rate of at most {percent(most_true_positives(rate, epsilon, delta))}."
                for rate in _FALSE_POSITIVE_RATES
            ),
            "Ponomareva et al. (2023) call an epsilon of up to 1 strong, up to 10 reasonable, and "
            "above 10 weak or worse.",
        ]
        if delta * num_examples >= 1:
            texts.append(
                f"DELTA IS TOO LARGE: it should be well below 1 in {num_examples:,}, the number of "
                f"{self._part}s. With this one, publishing a random {unit} would count as private."
            )
        return tuple(texts)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What people must have done for epsilon to hold."""
        unit, samplings = self.unit, {mechanism.sampling for mechanism in self.mechanisms}
        texts = [
            _OF_PERSONS[unit],
            "Data: initial weights, vocabularies, normalization and the like were made without "
            "these data, or are covered otherwise.",
        ]
        if unit == "example" and any(mechanism.rows_per_unit for mechanism in self.mechanisms):
            texts.append(
                "Data: only some steps were told whose the rows are (`unit_ids`), so that no "
                "person with several rows is protected by this epsilon."
            )
        if Sampling.PASS in samplings:
            texts.append(
                f"Training: no {unit} comes twice in a pass over the data. The user has stated "
                "this (`once_per_pass=True`); it was not checked."
            )
        if Sampling.STREAM in samplings:
            texts.append(f"Training: no {unit} comes twice in a batch. This was not checked.")
        if self.is_best_of_several:
            texts.append(
                "Training: the number of runs was drawn from the stated law and stays secret; the "
                "runs had the stated mechanism, hyperparameters drawn independently, and nothing "
                "else of them is published."
            )
        return (
            *texts,
            "Training: validation data, and whatever decided on hyperparameters or on when to "
            "stop, are public or covered otherwise.",
            "Training: a seed of noise or sampling, if one was set, stays secret, and no other run "
            "has used it.",
            "Publication: only weights and what is computed from them, no metrics, logs or plots "
            "of the training data.",
        )

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What epsilon does not cover."""
        choices = _OTHER_CHOICES if self.is_best_of_several else _CHOICES
        texts = (*_NOT_COVERED, *([_SCORES_OF_SELECTION] if self.is_selected else []))
        words = [text.format(part=self._part, choices=choices) for text in texts]
        if self.preprocessing:
            made = f"These tables were made from data: {self.preprocessing}."
            words.append(f"{made} Not covered, unless the data were public.")
        return tuple(words)

    @property
    def _part(self) -> str:
        """What is counted: the units, or the rows of persons."""
        return "row" if self.unit == "person" else self.unit

    @property
    def _unit_in_words(self) -> str:
        """The unit, with the most rows of a person."""
        most = self.rows_per_unit
        return unit_in_words(self.unit, most) if most else self.unit

    def to_text(self) -> str:
        """Return the report as text."""
        return self._written("Privacy report", "{:<25}  {}", "{}:\n", {})

    def to_markdown(self) -> str:
        """Return the report as Markdown."""
        head = "# Privacy report\n\n| | |\n| --- | --- |"
        return self._written(head, "| {} | {} |", "## {}\n\n", _IN_MARKDOWN)

    def to_html(self) -> str:
        """Return the report as a document in one file of HTML, to read and to print."""
        lists = [
            f"<h2>{html.escape(title)}</h2>\n<ul>\n"
            + "\n".join(f"<li>{html.escape(each)}</li>" for each in texts)
            + "\n</ul>"
            for title, texts in self._titled_lists().items()
        ]
        unit = html.escape(self.unit)
        epsilon = "is infinite" if math.isinf(self.epsilon) else f"≤ {rounded_up(self.epsilon)}"
        guess = best_guess(self.epsilon, self.delta) if self.mechanisms else 0.5
        template = importlib.resources.files("keras_adaclip.accounting").joinpath("report.html")
        return Template(template.read_text(encoding="utf-8")).substitute(
            model=html.escape(self.model_name),
            date=html.escape(self.date.replace("T", " ").replace("+00:00", " UTC")),
            verdict=f"Epsilon {epsilon} at delta = {self.delta:g}, for one {self._unit_in_words}",
            guess=percent(guess),
            guess_width=f"{200 * (guess - 0.5):.1f}",
            unit=unit,
            lists="\n".join(lists),
            numbers=as_table(self._numbers()),
            facts=as_table(self._facts()),
            identity=as_table([*self._identity(), ("made with", self._software())]),
        )

    def _repr_html_(self) -> str:
        """Return the table of the report, for notebooks."""
        return as_table(self.rows())

    def __str__(self) -> str:
        return self.to_text()

    def rows(self) -> Rows:
        """Return the names and values of the table, each in one line."""
        return [*self._numbers(), *self._facts(), *self._identity()]

    def _written(self, head: str, row: str, title: str, escapes: dict[int, str]) -> str:
        """Return the table and the lists in lines of the given forms, with characters replaced."""
        table = [row.format(name, value.translate(escapes)) for name, value in self.rows()]
        lists = [
            title.format(name) + "\n".join(f"- {each}" for each in texts)
            for name, texts in self._titled_lists().items()
        ]
        lists.append(f"Made with {self._software()}.\n")
        return "\n".join([head, *table, "", "\n\n".join(lists).translate(escapes)])

    def _numbers(self) -> Rows:
        """Every epsilon."""
        is_rdp = self.is_selected or self.neighboring_relation == REPLACE_ONE
        without_amplification = rounded_up(self.epsilon_without_amplification)
        if self.is_selected:
            without_amplification = "not known, since a search has selected the model"
        # With a selection, the other epsilons are those of a single run.
        of_one, with_selection = "", []
        if self.epsilon_with_selection is not None:
            of_one = ", one run"
            with_selection = [("with the selection", rounded_up(self.epsilon_with_selection))]
        accountant, epsilon = "RDP" if is_rdp else "PLD", rounded_up(self.epsilon_pld)
        aim = f"; {self.at_target}, for which the target was set" if self.at_target else ""
        return [
            (f"epsilon{of_one}", f"{epsilon} at delta = {self.delta:g} ({accountant}){aim}"),
            *with_selection,
            ("by Rényi divergences", rounded_up(self.epsilon_rdp)),
            ("without amplification", without_amplification),
            *(
                (f"person with {size} {self.unit}s{of_one}", rounded_up(epsilon))
                for size, epsilon in self.group_epsilons.items()
            ),
            (f"mu of Gaussian DP{of_one}", rounded_up(self.gaussian_mu)),
        ]

    def _facts(self) -> Rows:
        """Return what ran."""
        return [
            ("unit", self._unit_in_words),
            ("neighbouring data sets", RELATIONS_IN_WORDS[self.neighboring_relation]),
            ("steps", f"{self.steps:,}"),
            *(("mechanism", str(mechanism)) for mechanism in self.mechanisms),
            *((name, _line(getattr(self, name))) for name in ("clipping", "seeds", "tuning")),
        ]

    def _identity(self) -> Rows:
        """Return what the report is about."""
        file = "not stated"
        if self.model_file is not None:
            file = f"{self.model_file}, SHA-256 {self.model_file_sha256}"
        return [
            ("weights", self.weights),
            ("model", _line(self.model_name)),
            ("file", _line(file)),
            ("data, as stated", _line(self.data_description)),
            ("date", self.date),
        ]

    def _titled_lists(self) -> dict[str, tuple[str, ...]]:
        """Return all that is said in sentences, by title."""
        return {
            "What is protected, and from whom": self.protection,
            "What epsilon means": self.meaning,
            "Assumptions: who must have done what": self.assumptions,
            "Not covered by epsilon": self.not_covered,
        }

    def _software(self) -> str:
        """Return the versions in one line."""
        return ", ".join(f"{name} {version}" for name, version in self.versions.items())


def _ratio(epsilon: float) -> str:
    """Return e^epsilon, rounded up."""
    return rounded_up(math.exp(epsilon), 3) if epsilon < _LARGEST_EXPONENT else "more than 1e300"


def as_table(rows: Rows) -> str:
    """Return names and values as a table.

    Args:
        rows: The names and values, not escaped.
    """
    cells = [
        f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(value)}</td></tr>'
        for name, value in rows
    ]
    return "\n".join(["<table>", *cells, "</table>"])


def _line(text: str) -> str:
    """Return a text in one line."""
    return " ".join(text.split())
