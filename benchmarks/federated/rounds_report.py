"""Writes `results.md` and `results.png` from `results.json`.

python benchmarks/federated/rounds_report.py
"""

import argparse
from pathlib import Path

import speed_path  # noqa: F401
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
    summary = RoundsSummary(results.records)
    clocks = sorted({record["clock"] for record in results.records if "clock" in record})
    clock = " and ".join(clocks) or "none"
    text, picture = path.with_suffix(".md"), path.with_suffix(".png")
    text.write_text(markdown(summary, results.machine, clock))
    processor = results.machine.get("accelerator") or results.machine["cpu"]
    draw(summary, picture, f"Federated rounds: {processor}, {clock}")
    return [text, picture]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path(__file__).parent / "results.json"
    parser.add_argument("results", type=Path, nargs="?", default=default)
    path = parser.parse_args().results
    if not path.exists():
        parser.error(f"{path} does not exist: bench.py writes it")
    for written in write(ResultsFile(path), path):
        print(f"Written: {written}")


if __name__ == "__main__":
    main()
