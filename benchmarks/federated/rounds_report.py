"""Writes `results.md` and `results.png` from `results.json`.

python benchmarks/federated/rounds_report.py
"""

from pathlib import Path

import speed_path  # noqa: F401
from report import command, written
from results import ResultsFile
from rounds_chart import draw
from rounds_summary import RoundsSummary
from rounds_tables import markdown


def write(results: ResultsFile, path: Path) -> list[Path]:
    """Writes the report beside the results.

    Args:
        results: the results.
        path: their file; the report has its name with other endings.

    Returns:
        The files.
    """
    return written(
        results, path, RoundsSummary(results.records), markdown, draw, "Federated rounds"
    )


def main() -> None:
    """The command."""
    command(__doc__, Path(__file__).parent, write)


if __name__ == "__main__":
    main()
