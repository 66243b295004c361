"""Plans and reports of privacy: `python -m keras_adaclip plan --help`, `... report --help`."""

import argparse
import io
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from keras_adaclip.accounting import PrivacyReport, RandomSelection, plan, read_ledger


class _Parser(argparse.ArgumentParser):
    """A parser whose errors take one line and end the process with status 2."""

    def error(self, message: str) -> NoReturn:
        """Print the error in one line and exit with status 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit status.

    Args:
        arguments: the words after the name of the program; None means those of this process.
    """
    parser = _Parser(prog="python -m keras_adaclip", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    _add_plan(commands)
    _add_report(commands)
    options = vars(parser.parse_args(arguments))
    del options["command"]
    command, command_parser = options.pop("run"), options.pop("parser")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # Replace what the encoding cannot show.
            stream.reconfigure(errors="replace")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = _print_warning
        try:
            print(command(**options))
        except (OSError, TypeError, ValueError) as error:
            command_parser.error(" ".join(str(error).split()))
    return 0


def _add_plan(commands: Any) -> None:
    """Add the command `plan`."""
    parser = commands.add_parser(
        "plan",
        help="epsilon, noise or epochs of a run, from the others",
        description=(
            "Give delta, the number of examples, the batch size, and two of epsilon, epochs and "
            "noise: the third is solved for. Epsilon counts training alone: no choice of "
            "hyperparameters, no other use of the data."
        ),
    )
    parser.add_argument("--delta", type=float, required=True, metavar="N")
    parser.add_argument("--examples", dest="num_examples", type=int, required=True, metavar="N")
    parser.add_argument("--epsilon", dest="target_epsilon", type=float, metavar="N")
    parser.add_argument("--batch-size", type=int, required=True, metavar="N")
    parser.add_argument("--epochs", type=int, metavar="N")
    parser.add_argument("--noise", dest="noise_multiplier", type=float, metavar="N")
    parser.add_argument("--sampling", default="poisson", help="poisson, shuffle, stream or fixed")
    parser.add_argument("--accountant", default="pld", help="pld or rdp")
    parser.add_argument(
        "--parameters",
        dest="num_parameters",
        type=int,
        metavar="N",
        help="number of trainable parameters, to compare the norms of noise and signal",
    )
    parser.set_defaults(run=plan, parser=parser)


def _add_report(commands: Any) -> None:
    """Add the command `report`."""
    parser = commands.add_parser(
        "report",
        help="the privacy that the training of a saved model has spent",
        description=(
            "Reads the ledger of a `.keras` file that a private model was saved to. The model's "
            "own layers, losses and metrics are not needed, and none of its code is run."
        ),
    )
    parser.add_argument("path", metavar="MODEL.keras")
    parser.add_argument("--delta", type=float, required=True, metavar="N")
    parser.add_argument(
        "--format", dest="output_format", default="text", choices=("text", "markdown", "json")
    )
    parser.add_argument(
        "--mean-trials",
        type=float,
        metavar="N",
        help="the mean, if the model is the best of a random number of runs",
    )
    parser.add_argument(
        "--distribution",
        help="the law of that number: geometric (the default), logarithmic or poisson",
    )
    parser.set_defaults(run=_report, parser=parser)


def _report(
    path: str, delta: float, output_format: str, mean_trials: float | None, distribution: str | None
) -> str:
    """Return the report of a saved model's ledger, in the given format."""
    unknown = "not read: the file's code is not run"
    if mean_trials is None and distribution is not None:
        raise ValueError("--distribution needs --mean-trials, the mean of the number of runs")
    selection = None
    if mean_trials is not None:
        selection = RandomSelection(mean_trials, distribution or "geometric")
    report = PrivacyReport.from_ledger(
        read_ledger(path), delta, clipping=unknown, seeds=unknown, selection=selection
    )
    texts = {"text": report.to_text, "markdown": report.to_markdown, "json": report.to_json}
    return texts[output_format]().rstrip("\n")


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning in one line."""
    print(f"Warning: {' '.join(str(message).split())}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
