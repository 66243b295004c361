"""A privacy report in words: as text, as Markdown, and as a document of HTML.

The words say what epsilon and delta mean, what they ask of people, and what they leave out. The
document is one file, which loads nothing and runs nothing. It prints on two pages of A4 if few
mechanisms ran.

What an attacker can find out at most follows from the trade-off curve: see `tradeoff`.

References:
    Ponomareva et al. 2023, "How to DP-fy ML", on the sizes of epsilon; Near et al. 2025, NIST SP
    800-226, "Guidelines for evaluating differential privacy guarantees", on what a report must say.
"""

import dataclasses
import html
import importlib.resources
import math
from collections.abc import Mapping
from string import Template

from keras_adaclip.accounting.epsilon import RELATIONS_IN_WORDS, percent, rounded_up, unit_in_words
from keras_adaclip.accounting.events import ADD_OR_REMOVE_ONE, REPLACE_ONE, ZERO_OUT, rows_per_unit
from keras_adaclip.accounting.kinds import Sampling
from keras_adaclip.accounting.row import LedgerRow
from keras_adaclip.accounting.tradeoff import TradeoffCurve

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
    "person": "Data: ids (`unit_ids`) name the same people in each run, each person by one. Who "
    "trained the model has stated this; it was not checked.",
}
_CHOICES = "Choosing hyperparameters, architectures or the best of several runs on the same data."
_OTHER_CHOICES = "Choosing anything on the same data by other means than the selection stated here."
_NOT_COVERED = (
    "Metrics and losses on the training data, in logs, plots and callbacks.",
    "{choices}",
    "Stopping early by a score on private data, unless those data have a report of their own.",
    "The number of {part}s, which counts as public.",
    "The validation {part}s of `validation_split`, and their number, which counts as public.",
    "Other uses of the data: preprocessing fitted to them, other models trained on them.",
    "Rounding: noise is drawn in floating point, with finite precision and finite tails. What that "
    "may reveal was not measured.",
)
_SCORES_OF_SELECTION = "Validation data whose scores decided which run was selected."
_LARGEST_EXPONENT = 700.0
_FLOATING_POINT = "noise is drawn in floating point; epsilon does not cover what that reveals"


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
    best_guess: float
    true_positive_rates: Mapping[float, float]
    gaussian_mu: float
    gaussian_mu_gap: float
    risk_basis: str
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
    public_changes: str = ""
    data_description: str = _NOT_STATED
    statements: Mapping[str, str] = dataclasses.field(default_factory=dict)
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
            f"Training {neighbor.format(unit=unit)} would have led to any given result with "
            "nearly the same probability; epsilon and delta bound the difference."
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
    def summary(self) -> tuple[str, ...]:
        """What an attacker can find out at most, for those who decide about the model."""
        if not self.mechanisms or math.isinf(self.epsilon):
            return self.meaning[:1]
        unit, seen = self.unit, "someone who sees all that was released"
        texts = [
            f"If it is as likely as not that one particular {unit} was in the training data, "
            f"{seen} guesses right at most {percent(self.best_guess)} of the time. A coin is right "
            "50% of the time.",
            *(
                f"A test that flags {100 * rate:g} in 100 {unit}s outside of the data flags at "
                f"most {percent(share).removesuffix('%')} in 100 of those inside. A blind guess "
                f"flags {100 * rate:g}."
                for rate, share in self.true_positive_rates.items()
            ),
            f"All steps of training are counted, at epsilon {rounded_up(self.epsilon)} and delta "
            f"{self.delta:g}. Using the model later reveals nothing more. Other uses of the data "
            "do, such as training again, or trying several settings: see below.",
        ]
        if self.risk_basis == "pair":
            texts.append(
                "These figures follow from epsilon and delta alone, which is all that is known of "
                "batches of a fixed size, of the best of several runs, and of very little noise. "
                "They are those of the worst training with this epsilon and delta."
            )
        return tuple(texts)

    @property
    def meaning(self) -> tuple[str, ...]:
        """What epsilon, delta and mu mean."""
        if not self.mechanisms:
            return (NOTHING_RAN,)
        epsilon, delta, unit = self.epsilon, self.delta, self.unit
        num_examples = max(mechanism.num_examples for mechanism in self.mechanisms)
        if math.isinf(epsilon):
            return (
                "Epsilon is infinite: nothing is promised. An attacker may find out with certainty "
                f"whether any {unit} was in the training data.",
            )
        least = TradeoffCurve.mu_range
        one_in = f"{math.floor(1 / delta * (1 + 1e-12)):,}"
        texts = [
            f"Epsilon is at most {rounded_up(epsilon)}, a ceiling for the worst case: whatever an "
            f"attacker looks for is at most e^epsilon = {_ratio(epsilon)} times as likely with the "
            f"{unit} in the data as {_NEIGHBORS[self.neighboring_relation].format(unit=unit)}, or "
            "the other way round. What that means for one attacker is said above.",
            f"Delta is {delta:g}, or 1 in {one_in}: a probability that may be added to each of "
            f"these bounds, as if nothing were promised with that probability. It is no share of "
            f"the {unit}s.",
            f"For experts: mu is {rounded_up(self.gaussian_mu, 3)}. Telling whether the {unit} was "
            "used is at least as hard as telling two normal distributions apart whose means differ "
            "by mu standard deviations, where the false alarms and the share of missed members are "
            f"both at least {least:g}. At some of these rates, the bound on members found is up to "
            f"{percent(self.gaussian_mu_gap)} of members lower than by mu.",
            "Researchers (Ponomareva et al. 2023) call an epsilon of up to 1 strong, up to 10 "
            "reasonable, and above 10 weak or worse. This is no legal standard.",
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
            "these data, or are covered by a report of their own.",
        ]
        if unit == "example" and any(mechanism.rows_per_unit for mechanism in self.mechanisms):
            texts.append(
                "Data: only some steps were told whose the rows are (`unit_ids`), so that no "
                "person with several rows is protected by this epsilon."
            )
        if Sampling.PASS in samplings:
            texts.append(
                f"Training: no {unit} comes twice in a pass over the data. Who trained the "
                "model has stated this (`once_per_pass=True`); it was not checked."
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
            "stop, are public or covered by a report of their own.",
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
        return self._written("Privacy report\n", "", "{:<25}  {}\n", "{}:\n", {})

    def to_markdown(self) -> str:
        """Return the report as Markdown."""
        table = "## Numbers and facts\n\n| | |\n| --- | --- |\n"
        return self._written(
            "# Privacy report\n", table, "| {} | {} |\n", "## {}\n\n", _IN_MARKDOWN
        )

    def to_html(self) -> str:
        """Return the report as a document in one file of HTML, to read and to print."""
        lists = [
            f"<h2>{html.escape(title)}</h2>\n<ul>\n"
            + "\n".join(f"<li>{html.escape(each)}</li>" for each in texts)
            + "\n</ul>"
            for title, texts in self._titled_lists().items()
        ]
        epsilon = "is infinite" if math.isinf(self.epsilon) else f"≤ {rounded_up(self.epsilon)}"
        template = importlib.resources.files("keras_adaclip.accounting").joinpath("report.html")
        return Template(template.read_text(encoding="utf-8")).substitute(
            model=html.escape(self.model_name),
            date=html.escape(self.date.replace("T", " ").replace("+00:00", " UTC")),
            epsilon=f"Epsilon {epsilon} at delta = {self.delta:g}, for one {self._unit_in_words}",
            guess=percent(self.best_guess),
            guess_width=f"{200 * (self.best_guess - 0.5):.1f}",
            unit=html.escape(self.unit),
            lists="\n".join(lists),
            numbers=as_table(self._numbers()),
            facts=as_table(self._facts()),
            review=as_table(self._review()),
            identity=as_table(self._identity()),
        )

    def _repr_html_(self) -> str:
        """Return the table of the report, for notebooks."""
        return as_table(self.rows())

    def __str__(self) -> str:
        return self.to_text()

    def rows(self) -> Rows:
        """Return the names and values of the table, each in one line."""
        return [*self._numbers(), *self._facts(), *self._review(), *self._identity()]

    def _written(self, head: str, table: str, row: str, title: str, escapes: dict[int, str]) -> str:
        """Return the lists and the table in lines of the given forms, with characters replaced."""
        lists = [
            title.format(name) + "\n".join(f"- {each}" for each in texts) + "\n"
            for name, texts in self._titled_lists().items()
        ]
        rows = (row.format(*(each.translate(escapes) for each in pair)) for pair in self.rows())
        return "\n".join(
            [head, *(each.translate(escapes) for each in lists), table + "".join(rows)]
        )

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
        found = (
            f"{percent(share)} at {100 * rate:g}% false alarms"
            for rate, share in self.true_positive_rates.items()
        )
        least = f"at rates from {TradeoffCurve.mu_range:g}"
        gap = f", up to {percent(self.gaussian_mu_gap)} above the curve {least}"
        aim = f"; {self.at_target}, for which the target was set" if self.at_target else ""
        return [
            (f"epsilon{of_one}", f"{epsilon} at delta = {self.delta:g} ({accountant}){aim}"),
            *with_selection,
            ("by Rényi divergences", rounded_up(self.epsilon_rdp)),
            ("if passes were shuffled", without_amplification),
            *(
                (f"person with {size} {self.unit}s{of_one}", rounded_up(epsilon))
                for size, epsilon in self.group_epsilons.items()
            ),
            ("right guess, at most", percent(self.best_guess)),
            ("members found, at most", ", ".join(found)),
            ("mu of Gaussian DP", f"{rounded_up(self.gaussian_mu, 3)}{gap}"),
        ]

    def _facts(self) -> Rows:
        """Return what ran."""
        return [
            ("steps", f"{self.steps:,}"),
            *(("mechanism", str(mechanism)) for mechanism in self.mechanisms),
            ("clipping", _line(self.clipping)),
        ]

    def _review(self) -> Rows:
        """Return what NIST SP 800-226 asks: what the library knows, and what the user states."""
        numbers = dict.fromkeys(map(self._size, self.mechanisms))
        numbers.pop("0", None)
        ran = sorted({each for row in self.mechanisms for each in row.samplings})
        made = f"tables made from data: {self.preprocessing}; " if self.preprocessing else ""
        texts = {
            "unit": self._unit_in_words,
            "neighbouring data sets": RELATIONS_IN_WORDS[self.neighboring_relation],
            f"number of {self._part}s": f"{', '.join(numbers) or 'unknown'}; public, not protected",
            "trust model": "central: whoever runs the training is trusted with the data",
            "sampling": "; ".join(each.describe() for each in ran) or "none",
            "tuning": self.tuning,
            "other data": f"{made}data beside those of the steps are not counted",
            "randomness": self.seeds,
            "floating point": _FLOATING_POINT,
        }
        for name, text in self.statements.items():
            texts[name] = f"{texts.get(name, '')}; as stated: {text}".removeprefix("; ")
        return [(_line(name), _line(text)) for name, text in texts.items()]

    def _size(self, row: LedgerRow) -> str:
        """Return how many units or rows the data had, and how many persons have as many rows."""
        size, most = f"{row.num_examples:,}", row.rows_per_unit
        if not self.rows_per_unit or not row.num_examples:
            return size
        least = f"{math.ceil(row.num_examples / most):,} to " * (most > 1)
        return f"{size}, of {least}{size} persons"

    def _identity(self) -> Rows:
        """Return what the report is about."""
        file, declared = "not stated", self.public_changes and "; public steps since, as declared: "
        if self.model_file is not None:
            file = f"{self.model_file}, SHA-256 {self.model_file_sha256}"
        return [
            ("weights", _line(f"{self.weights}{declared}{self.public_changes}")),
            ("model", _line(self.model_name)),
            ("file", _line(file)),
            ("data, as stated", _line(self.data_description)),
            ("date", self.date),
            ("made with", ", ".join(f"{name} {each}" for name, each in self.versions.items())),
        ]

    def _titled_lists(self) -> dict[str, tuple[str, ...]]:
        """Return all that is said in sentences, by title."""
        return {
            "In short": self.summary,
            "What is protected, and from whom": self.protection,
            "What epsilon means": self.meaning,
            "Assumptions: who must have done what": self.assumptions,
            "Not covered by epsilon": self.not_covered,
        }


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
