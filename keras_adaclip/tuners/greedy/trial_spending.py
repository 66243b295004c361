"""What every trial of a search has spent, on disk before it is spent.

A trial that has run without a file in its folder means that accounts were lost. Each run of a trial
has a file of its own, written before its first step: the rows of the ledger that the epoch will add
if it runs to its end. A run that is interrupted stays counted as a whole epoch, and a trial that is
run again is counted again. Nothing here is ever deleted.
"""

import dataclasses
import json
import uuid
from collections.abc import Iterable
from pathlib import Path

from keras_adaclip.accounting import Ledger, LedgerRow
from keras_adaclip.tuners.project_files import write_whole

_PATTERN = "trial_*/spent_*.json"


class RunSpending:
    """The account of one run of a trial.

    Args:
        folder: the trial's folder.
    """

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / f"spent_{uuid.uuid4().hex}.json"
        self._rows: list[LedgerRow] = []

    def add(self, rows: Iterable[LedgerRow]) -> None:
        """Counts rows, on disk when this returns."""
        self._rows.extend(row for row in rows if row.steps > 0)
        document = [[row.to_integers().tolist(), row.noise_multiplier] for row in self._rows]
        write_whole(self._path, json.dumps(document) + "\n", is_lasting=True)


def epoch_row(row: LedgerRow, steps: int) -> LedgerRow:
    """What an epoch of so many steps adds, where `row` is the one that counts them."""
    return dataclasses.replace(row, steps=0, releases=0).begin_segment().advance(steps)


def rows_beyond(ledger: Ledger, known: Ledger) -> list[LedgerRow]:
    """What of a ledger another one does not cover, at least.

    Args:
        ledger: what ran.
        known: what is counted already.
    """
    counted = {row.mechanism: row for row in known}
    rows = []
    for row in ledger:
        before = counted.get(row.mechanism)
        steps = row.steps - (before.steps if before else 0)
        releases = row.releases - (before.releases if before else 0)
        if steps > 0 or releases > 0:
            # Each release has at least one step.
            releases = max(releases, 1)
            steps = max(steps, releases)
            rows.append(dataclasses.replace(row, steps=steps, releases=releases))
    return rows


def spent_in(project: str | Path) -> Ledger:
    """Everything that the trials of a search have spent.

    Args:
        project: the folder of the search.

    Raises:
        ValueError: where a file holds something else.
    """
    ledger = Ledger()
    for path in sorted(Path(project).glob(_PATTERN)):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            rows = [LedgerRow.from_integers(integers, noise) for integers, noise in document]
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} holds no account of a trial: {error}") from error
        for row in rows:
            ledger = ledger.append(row)
    return ledger


def has_account(project: Path, trial_id: str) -> bool:
    """Whether an account of a trial is there.

    Args:
        project: the folder of the search.
        trial_id: the trial.
    """
    return any((project / f"trial_{trial_id}").glob("spent_*.json"))


def refuse_to_forget(project: str | Path) -> None:
    """Raises where a folder that is to be deleted holds the account of private data.

    Args:
        project: the folder of a search.

    Raises:
        ValueError: where something was spent there.
    """
    if spent_in(project).steps:
        raise ValueError(
            "Argument `overwrite` must be False here: the folder holds the account of a search on "
            "private data, and what that has spent stays spent. Give another `project_name`, or "
            f"move the folder away. Received: overwrite=True, folder {project}"
        )
