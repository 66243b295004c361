"""A report of what the training of a model has spent and how, for those who have to trust it.

Every number follows from the ledger. Facts that are not in the ledger are stated in words.
"""

import dataclasses
import importlib.metadata
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from keras_adaclip._checks import check_between_0_and_1
from keras_adaclip.accounting.epsilon import (
    ledger_epsilon,
    relation_in_words,
    rounded_up,
    selections_in_words,
)
from keras_adaclip.accounting.events import REPLACE_ONE, neighboring_relation
from keras_adaclip.accounting.groups import gaussian_mu, group_epsilon
from keras_adaclip.accounting.kinds import Sampling
from keras_adaclip.accounting.row import LedgerRow
from keras_adaclip.accounting.selection import RandomSelection

_FORMAT, _VERSION = "keras_adaclip.PrivacyReport", 1
GROUP_SIZES = (2, 5, 10)
NO_TUNING = "none is counted: epsilon is that of the training run alone"
_SELECTED = "selected"
_NOT_KNOWN = "not known here"
_SUFFIXES = (".json", ".md", ".txt")
_SOFTWARE = ("keras_adaclip", "dp-accounting", "numpy")
_WIDTH = 25
_CHOICES = "Choosing hyperparameters, architectures or the best of several runs on the same data."
_OTHER_CHOICES = "Choosing anything on the same data by other means than the selection stated here."
_NOT_COVERED = (
    "Metrics and losses on the training data, in logs, plots and callbacks.",
    _CHOICES,
    "Stopping early by a score on private data, unless those data are covered otherwise.",
    "The number of {unit}s, which counts as public.",
    "Other uses of the data: preprocessing fitted to them, other models trained on them.",
    "Gaussian noise is drawn in floating point, with finite precision and finite tails.",
)
_SCORES_OF_SELECTION = "Validation data whose scores decided which run was selected."


@dataclasses.dataclass(frozen=True)
class ReportedMechanism:
    """One row of the ledger, in a report.

    Args:
        sampling: Label of the `Sampling`; `"selected"` for the best of several runs. Noise and
            batch size are then those of the run with the least noise.
        expected_batch_size: Expected number of units in a step.
        num_examples: Number of units in the data, 0 if unknown.
        sampling_probability: Probability of each unit at each step; None if the sampling does not
            amplify.
        noise_multiplier: Standard deviation of the noise over the clipping norm, in total.
        steps: Steps that ran.
        releases: Releases that they count as.
    """

    sampling: str
    expected_batch_size: int
    num_examples: int
    sampling_probability: float | None
    noise_multiplier: float
    steps: int
    releases: int

    @classmethod
    def of(cls, row: LedgerRow) -> Self:
        """The row, as a report shows it."""
        is_amplified = row.sampling.is_amplified and row.selection is None
        return cls(
            row.sampling.label if row.selection is None else _SELECTED,
            row.expected_batch_size,
            row.num_examples,
            row.sampling_probability if is_amplified else None,
            row.noise_multiplier,
            row.steps,
            row.releases,
        )

    def in_words(self, unit: str = "example") -> str:
        """The mechanism in a line.

        Args:
            unit: The unit of privacy, `"example"` or `"client"`.
        """
        drawn = "cohorts" if unit == "client" else "batches"
        size = f"{self.num_examples:,}" if self.num_examples else "unknown many"
        q, releases = self.sampling_probability, self.releases
        return (
            f"{self.sampling}: {self.steps:,} steps, {drawn} of {self.expected_batch_size:,} of "
            f"{size}{'' if q is None else f', q = {q:.4g}'}, z = {self.noise_multiplier:.6g}"
            f"{'' if releases == self.steps else f', {releases:,} releases'}"
        )


@dataclasses.dataclass(frozen=True)
class PrivacyReport:
    """The privacy of a model's training. `str()` of it is the report as text.

    Args:
        delta: Delta of every epsilon here.
        unit: The unit of privacy, `"example"` or `"client"`.
        neighboring_relation: `"add_or_remove_one"`, `"zero_out"` or `"replace_one"`.
        mechanisms: What ran.
        epsilon_pld: Epsilon by privacy loss distributions, the one to quote. It is by Rényi
            divergences if all batches were of a fixed size or a search has selected the model,
            which have no privacy loss distributions. The cost of the search is counted.
        epsilon_rdp: Epsilon by Rényi divergences, a looser bound.
        epsilon_without_amplification: Epsilon if the batches had been shuffled passes; infinite if
            unknown, because a search has selected the model.
        group_epsilons: For a number of units of one person, epsilon for the person.
        gaussian_mu: The shift of the Gaussian mechanism with this epsilon at this delta.
        clipping: How contributions are bounded and what that costs, in words.
        seeds: Whether noise and sampling can be reproduced, in words.
        tuning: What choosing hyperparameters cost, in words.
        epsilon_with_selection: Epsilon of the best of a random number of such runs, the one to
            quote if the run was chosen in this way; None if it was not.
        not_covered: What epsilon does not cover.
        versions: The versions of the software, by name.
        weights: Digest of the model's weights, and whether they are those that private training
            left, in words.

    Example:

    >>> row = LedgerRow.open(Sampling.POISSON, 256, 60_000, noise_multiplier=1.0).advance(3515)
    >>> report = PrivacyReport.from_ledger([row], delta=1e-5, group_sizes=())
    >>> print(report.to_text().split("Not covered")[0].strip())
    Privacy report
    epsilon                    1.3513 at delta = 1e-05 (PLD)
    by Rényi divergences       1.5597
    without amplification      23.347
    mu of Gaussian DP          0.35232
    unit                       example
    neighbouring data sets     one unit is added or removed
    steps                      3,515
    mechanism                  poisson: 3,515 steps, batches of 256 of 60,000, q = 0.004267, z = 1
    clipping                   not known here
    seeds                      not known here
    tuning                     none is counted: epsilon is that of the training run alone
    weights                    not known here
    """

    delta: float
    unit: str
    neighboring_relation: str
    mechanisms: tuple[ReportedMechanism, ...]
    epsilon_pld: float
    epsilon_rdp: float
    epsilon_without_amplification: float
    group_epsilons: Mapping[int, float]
    gaussian_mu: float
    clipping: str
    seeds: str
    tuning: str
    epsilon_with_selection: float | None
    not_covered: tuple[str, ...]
    versions: Mapping[str, str]
    weights: str = _NOT_KNOWN

    @classmethod
    def from_ledger(
        cls,
        rows: Iterable[LedgerRow],
        delta: float,
        *,
        unit: str = "example",
        group_sizes: Sequence[int] = GROUP_SIZES,
        clipping: str = _NOT_KNOWN,
        seeds: str = _NOT_KNOWN,
        weights: str = _NOT_KNOWN,
        selection: RandomSelection | None = None,
        tuning: str = NO_TUNING,
        versions: Mapping[str, str] | None = None,
    ) -> Self:
        """The report of what a ledger says has run.

        Args:
            rows: A `Ledger`, or rows of one.
            delta: Delta, between 0 and 1.
            unit: The unit of privacy if no step has run, `"example"` or `"client"`. Otherwise the
                steps tell.
            group_sizes: Numbers of units of one person for which epsilon is given; each takes
                seconds.
            clipping: How contributions are bounded, in words.
            seeds: Whether noise and sampling can be reproduced, in words.
            weights: Which weights the report is about, in words.
            selection: How this run was chosen from a random number of runs like it, if it was.
            tuning: How the run was chosen, in words, if no epsilon here counts that.
            versions: Versions of further software, by name.

        Returns:
            The report.

        Raises:
            TypeError: If an argument is of the wrong type.
            ValueError: If an argument is out of range.
        """
        delta = check_between_0_and_1("delta", delta)
        rows = tuple(row for row in rows if row.steps > 0)
        unit = rows[0].unit.label if rows else unit
        epsilon, relation = ledger_epsilon(rows, delta), neighboring_relation(rows)
        passes = [_without_amplification(row, relation) for row in rows]
        selected = selections_in_words(rows)
        choices = [f"counted: {selected}"] if selected else []
        if selection is not None:
            choices.append(f"{selection}, each like this one")
        not_covered = [
            _OTHER_CHOICES if choices and text is _CHOICES else text.format(unit=unit)
            for text in (*_NOT_COVERED, *([_SCORES_OF_SELECTION] if selected else []))
        ]
        return cls(
            delta=delta,
            unit=unit,
            neighboring_relation=relation,
            mechanisms=tuple(ReportedMechanism.of(row) for row in rows),
            epsilon_pld=epsilon,
            epsilon_rdp=ledger_epsilon(rows, delta, "rdp"),
            epsilon_without_amplification=math.inf if selected else ledger_epsilon(passes, delta),
            group_epsilons={size: group_epsilon(rows, delta, size) for size in group_sizes},
            gaussian_mu=gaussian_mu(epsilon, delta) if rows else 0.0,
            clipping=clipping,
            seeds=seeds,
            tuning="; ".join(choices) or tuning,
            epsilon_with_selection=None if selection is None else selection.epsilon(rows, delta),
            not_covered=tuple(not_covered),
            versions={name: _version(name) for name in _SOFTWARE} | dict(versions or {}),
            weights=weights,
        )

    @property
    def steps(self) -> int:
        """Steps that ran."""
        return sum(mechanism.steps for mechanism in self.mechanisms)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values. An infinite epsilon is the text `"inf"`, as in the JSON."""
        values = {**dataclasses.asdict(self), "steps": self.steps}
        groups = {str(size): _plain(each) for size, each in self.group_epsilons.items()}
        plain = {name: _plain(value) for name, value in values.items()}
        return {"format": _FORMAT, "version": _VERSION, **plain, "group_epsilons": groups}

    def to_json(self) -> str:
        """The report as JSON. `docs/report.md` lists the fields."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    def to_text(self) -> str:
        """The report as text."""
        rows = [f"{name:<{_WIDTH}}  {value}" for name, value in self._rows()]
        return "\n".join(["Privacy report", *rows, "", self._closing_lines("\n")])

    def to_markdown(self) -> str:
        """The report as Markdown."""
        cells = [(name, " ".join(text.split()).replace("|", "\\|")) for name, text in self._rows()]
        rows = [f"| {name} | {cell} |" for name, cell in cells]
        head = ["# Privacy report", "", "| | |", "| --- | --- |"]
        return "\n".join([*head, *rows, "", self._closing_lines("\n\n")])

    def _closing_lines(self, gap: str) -> str:
        """Return what epsilon does not cover, and the versions."""
        not_covered = "\n".join(f"- {each}" for each in self.not_covered)
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"Not covered by epsilon:{gap}{not_covered}\n\nMade with {versions}.\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the report. The suffix of the file decides the format.

        Args:
            path: A name that ends with `.json`, `.md` or `.txt`.

        Raises:
            ValueError: If it ends otherwise.
        """
        check_report_path(path)
        texts = {".json": self.to_json, ".md": self.to_markdown, ".txt": self.to_text}
        path = Path(path)
        path.write_text(texts[path.suffix](), encoding="utf-8")

    def __str__(self) -> str:
        return self.to_text()

    def _rows(self) -> list[tuple[str, str]]:
        """Return the names and values of the table."""
        is_selected = any(mechanism.sampling == _SELECTED for mechanism in self.mechanisms)
        is_rdp = is_selected or self.neighboring_relation == REPLACE_ONE
        without_amplification = rounded_up(self.epsilon_without_amplification)
        if is_selected:
            without_amplification = "not known, since a search has selected the model"
        # With a selection, the other epsilons are those of a single run.
        of_one, with_selection = "", []
        if self.epsilon_with_selection is not None:
            of_one = ", one run"
            with_selection = [("with the selection", rounded_up(self.epsilon_with_selection))]
        accountant, epsilon = "RDP" if is_rdp else "PLD", rounded_up(self.epsilon_pld)
        return [
            (f"epsilon{of_one}", f"{epsilon} at delta = {self.delta:g} ({accountant})"),
            *with_selection,
            ("by Rényi divergences", rounded_up(self.epsilon_rdp)),
            ("without amplification", without_amplification),
            *(
                (f"person with {size} {self.unit}s{of_one}", rounded_up(epsilon))
                for size, epsilon in self.group_epsilons.items()
            ),
            (f"mu of Gaussian DP{of_one}", rounded_up(self.gaussian_mu)),
            ("unit", self.unit),
            ("neighbouring data sets", relation_in_words(self.neighboring_relation)),
            ("steps", f"{self.steps:,}"),
            *(("mechanism", mechanism.in_words(self.unit)) for mechanism in self.mechanisms),
            *((name, getattr(self, name)) for name in ("clipping", "seeds", "tuning", "weights")),
        ]


def check_report_path(path: str | os.PathLike[str]) -> None:
    """Raises if the name of a report's file has an unknown suffix.

    Args:
        path: The file to write.

    Raises:
        ValueError: If its suffix is of no known format.
    """
    if Path(path).suffix not in _SUFFIXES:
        raise ValueError(
            "The path of a privacy report must end with '.json', '.md' or '.txt', which decides "
            f"the format. Received: {str(path)!r}"
        )


def _without_amplification(row: LedgerRow, relation: str) -> LedgerRow:
    """The row, if it had gone through the data in shuffled passes."""
    if not row.sampling.is_amplified:
        return row
    # Replacing a unit moves a sum twice as far as zeroing it out, which a pass is accounted for.
    noise_multiplier = row.noise_multiplier * (0.5 if relation == REPLACE_ONE else 1.0)
    size, num_examples = row.expected_batch_size, row.num_examples
    return LedgerRow.open(Sampling.SHUFFLE, size, num_examples, noise_multiplier).advance(row.steps)


def _version(name: str) -> str:
    """Return the version of a package."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _plain(value: Any) -> Any:
    """Return `value` as JSON can hold it."""
    return list(value) if isinstance(value, tuple) else "inf" if value == math.inf else value
