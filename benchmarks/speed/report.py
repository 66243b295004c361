"""Writes `results.md` and `results.png` from `results.json`.

python benchmarks/speed/report.py
"""

import argparse
from pathlib import Path

from chart import draw
from results import ResultsFile
from summary import Summary
from tables import markdown


def write(results: ResultsFile, path: Path) -> list[Path]:
    """Writes the report beside the results.

    Args:
        results: the results.
        path: their file; the report has its name with other endings.

    Returns:
        The files.
    """
    summary = Summary(results.records)
    clocks = sorted({record["clock"] for record in results.records if "clock" in record})
    clock = " and ".join(clocks) or "none"
    text, picture = path.with_suffix(".md"), path.with_suffix(".png")
    text.write_text(markdown(summary, results.machine, clock))
    if not summary.models:
        return [text]
    cpu = results.machine.get("accelerator") or results.machine["cpu"]
    draw(summary, picture, f"A private training step beside a plain one: {cpu}, {clock}")
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
