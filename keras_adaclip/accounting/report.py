"""A report of what the training of a model has spent and how, for those who have to trust it.

Every number follows from the ledger. Facts that are not in the ledger are stated in words.
"""

import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from keras_adaclip._checks import check_between_0_and_1, check_choice
from keras_adaclip.accounting.epsilon import PrivacySpent, ledger_epsilon, rounded_up
from keras_adaclip.accounting.events import REPLACE_ONE, unit_label
from keras_adaclip.accounting.groups import group_epsilon
from keras_adaclip.accounting.kinds import Sampling, Unit
from keras_adaclip.accounting.report_words import ReportInWords
from keras_adaclip.accounting.row import LedgerRow
from keras_adaclip.accounting.saved_ledger import read_saved_privacy
from keras_adaclip.accounting.selection import RandomSelection
from keras_adaclip.accounting.tradeoff import TradeoffCurve

_FORMAT, _VERSION = "keras_adaclip.PrivacyReport", 2
GROUP_SIZES = (2, 5, 10)
_SUFFIXES = (".html", ".json", ".md", ".txt")
_DERIVED = ("steps", "summary", "protection", "meaning", "assumptions", "not_covered")
_SOFTWARE = ("keras_adaclip", "dp-accounting", "numpy")


class PrivacyReport(ReportInWords):
    """The privacy of a model's training. `str()` of it is the report as text.

    Args:
        delta: Delta of every epsilon here.
        unit: The unit of privacy, `"example"`, `"client"` or `"person"`.
        neighboring_relation: `"add_or_remove_one"`, `"zero_out"` or `"replace_one"`.
        mechanisms: What ran.
        epsilon_pld: Epsilon by privacy loss distributions, the one to quote. It is by Rényi
            divergences if all batches were of a fixed size or a search has selected the model,
            which have no privacy loss distributions. The cost of the search is counted.
        epsilon_rdp: Epsilon by Rényi divergences, a looser bound.
        epsilon_without_amplification: Epsilon if the batches had been shuffled passes; infinite if
            unknown, because a search has selected the model.
        group_epsilons: For a number of units of one person, epsilon for the person.
        best_guess: The largest probability of a right guess whether a unit was in the data, if that
            is as likely as not.
        true_positive_rates: For a false positive rate, the largest true positive rate of a test of
            whether a unit was in the data.
        gaussian_mu: Mu of Gaussian differential privacy, an upper bound; see `TradeoffCurve.mu`.
        gaussian_mu_gap: The most by which the true positive rate that mu allows exceeds the bound.
        risk_basis: `"pld"` if these four follow from the privacy loss distribution of all steps,
            `"pair"` if they follow from the epsilon to quote and delta alone.
        epsilon_with_selection: Epsilon of the best of a random number of such runs, the one to
            quote if the run was chosen in this way; None if it was not.
        versions: The versions of the software, by name.
        at_target: Epsilon at the delta of the plan or of a target, in words, if that is another
            delta; otherwise empty.
        clipping: How contributions are bounded and what that costs, in words.
        seeds: Whether noise and sampling can be reproduced, in words.
        tuning: What choosing hyperparameters cost, in words.
        preprocessing: Layers whose tables or moments `adapt` has made from data, in words.
        public_changes: Changes of the weights after private training that touched no private data,
            in the user's words.
        weights: Digest of the model's weights, and whether they are those that private training
            left, in words.
        model_name: Name of the model.
        model_file: Name of a file of the model; None if none was given.
        model_file_sha256: SHA-256 of that file; None if none was given.
        data_description: Which data the model was trained on, in the user's words.
        statements: What else the user states, by topic.
        date: When the report was made, UTC, as ISO 8601. Reports of the same facts are equal.

    Example:

    >>> row = LedgerRow.open(Sampling.POISSON, 256, 60_000, noise_multiplier=1.0).advance(3515)
    >>> report = PrivacyReport.from_ledger([row], delta=1e-5, group_sizes=())
    >>> print(report.to_text().split("- A test")[0])
    Privacy report
    <BLANKLINE>
    In short:
    - If it is as likely as not that one particular example was in the training data, someone who
    sees all that was released guesses right at most 56.6% of the time. A coin is right 50% of the
    time.
    >>> for name, value in report.rows()[:7]:
    ...     print(f"{name:<25}  {value}")
    epsilon                    1.3513 at delta = 1e-05 (PLD)
    by Rényi divergences       1.5597
    if passes were shuffled    23.347
    right guess, at most       56.6%
    members found, at most     2.4% at 1% false alarms, 0.4% at 0.1% false alarms
    mu of Gaussian DP          0.359, up to 1.2% above the curve at rates from 1e-06
    steps                      3,515
    """

    @classmethod
    def from_ledger(
        cls,
        rows: Iterable[LedgerRow],
        delta: float,
        *,
        unit: str = "example",
        group_sizes: Sequence[int] = GROUP_SIZES,
        selection: RandomSelection | None = None,
        versions: Mapping[str, str] | None = None,
        model_file: str | os.PathLike[str] | None = None,
        statements: Mapping[str, str] | None = None,
        **facts: Any,
    ) -> Self:
        """Return the report of what a ledger says has run.

        Args:
            rows: A `Ledger`, or rows of one.
            delta: Delta, between 0 and 1.
            unit: The unit of privacy if no step has run, `"example"` or `"client"`. Otherwise the
                steps tell.
            group_sizes: Numbers of units of one person for which epsilon is given; each takes
                seconds. Without use where epsilon is that of a person.
            selection: How this run was chosen from a random number of runs like it, if it was.
            versions: Versions of further software, by name.
            model_file: A file of the model, whose name and SHA-256 the report states.
            statements: What you state on topics such as `"trust model"`, by topic. The report adds
                it to what the library knows of the topic.
            **facts: `clipping`, `seeds`, `weights`, `tuning` (unless an epsilon here counts it),
                `public_changes`, `model_name` and `data_description`: texts of the report.

        Returns:
            The report.

        Raises:
            OSError: If `model_file` cannot be read.
            TypeError: If an argument is of the wrong type.
            ValueError: If an argument is out of range.
        """
        delta = check_between_0_and_1("delta", delta)
        promised, at_target = getattr(rows, "promised_delta", 1.0), ""
        if promised < 1.0 and promised != delta:
            at_target = f"{rounded_up(ledger_epsilon(rows, promised))} at delta = {promised:g}"
        rows = tuple(row for row in rows if row.steps > 0)
        unit = check_choice("unit", unit, [each.label for each in Unit])
        unit = unit_label(rows, unit)
        group_sizes = () if unit == "person" else group_sizes
        spent = PrivacySpent.from_ledger(rows, delta)
        relation, selected = spent.neighboring_relation, spent.selection
        passes = [_without_amplification(row, relation) for row in rows]
        chosen = None if selection is None else selection.epsilon(rows, delta)
        curve = spent.tradeoff()
        if chosen is not None and rows:
            curve = TradeoffCurve((chosen,), (delta,))
        choices = [f"counted: {selected}"] if selected else []
        if selection is not None:
            choices.append(f"{selection}, each like this one")
        if choices:
            facts["tuning"] = "; ".join(choices)
        return cls(
            delta=delta,
            unit=unit,
            neighboring_relation=relation,
            mechanisms=rows,
            epsilon_pld=spent.epsilon,
            epsilon_rdp=ledger_epsilon(rows, delta, "rdp"),
            epsilon_without_amplification=math.inf if selected else ledger_epsilon(passes, delta),
            group_epsilons={size: group_epsilon(rows, delta, size) for size in group_sizes},
            best_guess=curve.best_guess(),
            true_positive_rates={rate: curve.true_positive_rate(rate) for rate in (0.01, 0.001)},
            gaussian_mu=curve.mu,
            gaussian_mu_gap=curve.mu_gap,
            risk_basis=curve.basis,
            epsilon_with_selection=chosen,
            versions=_with_own_versions(versions or {}),
            model_file=None if model_file is None else Path(model_file).name,
            model_file_sha256=None if model_file is None else _sha256(model_file),
            at_target=at_target,
            statements={str(name): str(text) for name, text in (statements or {}).items()},
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            **{name: str(text) for name, text in facts.items() if text},
        )

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        delta: float,
        *,
        group_sizes: Sequence[int] = GROUP_SIZES,
        selection: RandomSelection | None = None,
        data_description: str | None = None,
        statements: Mapping[str, str] | None = None,
    ) -> Self:
        """Return the report of a saved model. No layer is built, and no code of the model runs.

        Args:
            path: A `.keras` or `.weights.h5` file of a private model.
            delta: Delta, between 0 and 1.
            group_sizes: Numbers of units of one person for which epsilon is given.
            selection: How this run was chosen from a random number of runs like it, if it was.
            data_description: Which data the model was trained on, in the user's words.
            statements: What you state on further topics, by topic.

        Returns:
            The report, with the name and the SHA-256 of the file.

        Raises:
            OSError: If there is no such file, or it cannot be read.
            TypeError: If an argument is of the wrong type.
            ValueError: If the file holds no privacy ledger, or an argument is out of range.
        """
        saved = read_saved_privacy(Path(path))
        return cls.from_ledger(
            saved.ledger,
            delta,
            group_sizes=group_sizes,
            selection=selection,
            weights=saved.weights,
            model_file=path,
            data_description=data_description,
            statements=statements,
            **saved.facts,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, an infinite epsilon as `"inf"`, as in the JSON."""
        values = dataclasses.asdict(self)
        values |= {name: getattr(self, name) for name in _DERIVED}
        values["mechanisms"] = tuple(row.to_dict() for row in self.mechanisms)
        for name in ("group_epsilons", "true_positive_rates"):
            values[name] = {str(key): _plain(each) for key, each in values[name].items()}
        plain = {name: _plain(value) for name, value in values.items()}
        return {"format": _FORMAT, "version": _VERSION, **plain}

    def to_json(self) -> str:
        """Return the report as JSON. `docs/report.md` lists the fields."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report. The suffix of the file decides the format.

        Args:
            path: A name that ends with `.html`, `.json`, `.md` or `.txt`. The HTML is a document
                in one file, to read and to print.

        Raises:
            ValueError: If it ends otherwise.
        """
        check_report_path(path)
        texts = (self.to_html, self.to_json, self.to_markdown, self.to_text)
        path = Path(path)
        text = dict(zip(_SUFFIXES, texts, strict=True))[path.suffix]()
        path.write_text(text, encoding="utf-8")


def check_report_path(path: str | os.PathLike[str]) -> None:
    """Raise if the name of a report's file has an unknown suffix.

    Args:
        path: The file to write.

    Raises:
        ValueError: If its suffix is of no known format.
    """
    if Path(path).suffix not in _SUFFIXES:
        raise ValueError(
            "The path of a privacy report must end with '.html', '.json', '.md' or '.txt', which "
            f"decides the format. Received: {str(path)!r}"
        )


def _without_amplification(row: LedgerRow, relation: str) -> LedgerRow:
    """Return the row, if it had gone through the data in shuffled passes."""
    if not row.sampling.is_amplified:
        return row
    # Replacing a unit moves a sum twice as far as zeroing it out, which a pass is accounted for.
    noise_multiplier = row.noise_multiplier * (0.5 if relation == REPLACE_ONE else 1.0)
    kind: dict[str, Any] = {"sampling": Sampling.SHUFFLE, "max_batch_size": 0, "selection": None}
    shuffled = dataclasses.replace(row.emptied(), noise_multiplier=noise_multiplier, **kind)
    return shuffled.advance(row.steps)


def software_versions() -> dict[str, str]:
    """Return the versions of the software in this process that computes epsilon."""
    versions = {"Python": platform.python_version()}
    for name in _SOFTWARE:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _with_own_versions(others: Mapping[str, str]) -> dict[str, str]:
    """Return the versions in this process, and those of others, such as those in a file."""
    own = software_versions()
    changed = {
        name: f"{own[name]} (the file: {version})"
        for name, version in others.items()
        if own.get(name, version) != version
    }
    return own | dict(others) | changed


def _sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(value: Any) -> Any:
    """Return `value` as JSON can hold it."""
    return list(value) if isinstance(value, tuple) else "inf" if value == math.inf else value
