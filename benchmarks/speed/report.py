"""Writes `results.md` and `results.png` from `results.json`.

python benchmarks/speed/report.py
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chart import draw
from results import PROCESSOR, WALL, ResultsFile
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
    summaries = [Summary(results.records, clock) for clock in (WALL, PROCESSOR)]
    title = "A private training step beside a plain one"
    is_drawn = any(summary.models for summary in summaries)
    return written(results, path, summaries, markdown, draw if is_drawn else None, title)


def written(
    results: ResultsFile,
    path: Path,
    summary: Any,
    markdown: Callable[..., str],
    draw: Callable[..., None] | None,
    title: str,
) -> list[Path]:
    """Writes tables and a picture beside the results.

    Args:
        results: the results.
        path: their file.
        summary: of the results, as `markdown` and `draw` take it.
        markdown: makes the text from summary, machine and clock.
        draw: draws the summary to a path, with a title; None draws nothing.
        title: of the picture, before machine and clock.

    Returns:
        The files.
    """
    clocks = {record["clock"] for record in results.records if "clock" in record}
    clock = " and ".join(sorted(clocks, reverse=True)) or "none"
    text, picture = path.with_suffix(".md"), path.with_suffix(".png")
    text.write_text(markdown(summary, results.machine, clock))
    if draw is None:
        return [text]
    processor = results.machine.get("accelerator") or results.machine["cpu"]
    draw(summary, picture, f"{title}: {processor}, {clock}")
    return [text, picture]


def command(
    description: str | None, folder: Path, write: Callable[[ResultsFile, Path], list[Path]]
) -> None:
    """The command that writes a report from a file of results.

    Args:
        description: docstring of the script.
        folder: where `results.json` is unless the command line names another.
        write: writes the report and returns its files.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="?", default=folder / "results.json")
    path = parser.parse_args().results
    if not path.exists():
        parser.error(f"{path} does not exist: bench.py writes it")
    for each in write(ResultsFile(path), path):
        print(f"Written: {each}")


def main() -> None:
    """The command."""
    command(__doc__, Path(__file__).parent, write)


if __name__ == "__main__":
    main()
