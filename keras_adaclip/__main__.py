"""The command line: `keras-adaclip plan` and `keras-adaclip report`, without Keras.

`keras_adaclip/__init__.py` imports no Keras in the process of the command, and the accountant is
imported by the commands that need it.
"""

import argparse
import io
import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from keras_adaclip import __version__

_PLAN = """\
Give delta, the number of examples, the batch size, and two of epsilon, epochs and noise: the third
is solved for. Epsilon counts training alone: no choice of hyperparameters, and no other use of the
data.
"""
_PLAN_EXAMPLES = """\
examples:
  the least noise for 40 epochs within epsilon 3
    keras-adaclip plan --epsilon 3 --delta 1e-5 --examples 60000 --batch-size 1024 --epochs 40
  epsilon of a run
    keras-adaclip plan --noise 1.2 --delta 1e-5 --examples 60000 --batch-size 1024 --epochs 40
  the most epochs within epsilon 3
    keras-adaclip plan --noise 1.2 --epsilon 3 --delta 1e-5 --examples 60000 --batch-size 1024
"""
_REPORT = """\
Read the privacy report of a private model from its file. The model's own layers, losses and metrics
are not needed, and no code of the file runs.
"""
_REPORT_EXAMPLES = """\
examples:
  as text
    keras-adaclip report model.keras --delta 1e-5
  as a document to print or to send
    keras-adaclip report model.keras --delta 1e-5 --data-description "Adult" --output report.html
  the best of a random number of runs
    keras-adaclip report model.keras --delta 1e-5 --mean-trials 10 --distribution geometric
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors take one line and end the process with status 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        """Print the error in one line and exit with status 2."""
        self.exit(2, f"{self.prog}: {self.with_flags(message)}\n")

    def with_flags(self, message: object) -> str:
        """Return a message in one line that names the flags instead of the arguments."""
        text = " ".join(str(message).split())
        for flag, action in self._option_string_actions.items():
            text = re.sub(rf"`{action.dest}`|\b{action.dest}(?==)", flag, text)
        return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit status.

    Args:
        arguments: the words after the name of the program; None means those of this process.
    """
    parser = _Parser(
        prog="keras-adaclip",
        description="Plans and reports of differentially private training.",
        epilog="`keras-adaclip plan --help` and `keras-adaclip report --help` have examples.",
    )
    parser.add_argument("--version", action="version", version=f"keras_adaclip {__version__}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="{plan,report}", parser_class=_Parser
    )
    _add_plan(commands)
    _add_report(commands)
    options = vars(parser.parse_args(arguments))
    del options["command"]
    command, command_parser = options.pop("run"), options.pop("parser")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # Replace what the encoding cannot show.
            stream.reconfigure(errors="replace")

    def print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
        """Print a warning in one line."""
        print(f"Warning: {command_parser.with_flags(message)}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = print_warning
        try:
            print(command(**options))
        except (OSError, TypeError, ValueError) as error:
            command_parser.error(str(error))
    return 0


def _add_delta(parser: argparse.ArgumentParser) -> None:
    """Add the flag of delta."""
    parser.add_argument(
        "--delta",
        type=float,
        required=True,
        metavar="N",
        help="probability with which the bound may fail, well below 1 / examples",
    )


def _add_plan(commands: Any) -> None:
    """Add the command `plan`."""
    parser = commands.add_parser(
        "plan",
        help="epsilon, noise or epochs of a run, from the others",
        description=_PLAN,
        epilog=_PLAN_EXAMPLES,
    )
    add = parser.add_argument
    _add_delta(parser)
    add(
        "--examples",
        dest="num_examples",
        type=int,
        required=True,
        metavar="N",
        help="number of training examples, or of clients in federated training",
    )
    add(
        "--batch-size",
        type=int,
        required=True,
        metavar="N",
        help="expected number of examples (clients) a step",
    )
    add(
        "--epsilon",
        dest="target_epsilon",
        type=float,
        metavar="N",
        help="the budget; solved for if left out",
    )
    add(
        "--epochs",
        type=int,
        metavar="N",
        help="number of epochs, of examples / batch size steps each; solved for if left out",
    )
    add(
        "--noise",
        dest="noise_multiplier",
        type=float,
        metavar="N",
        help="noise multiplier, the standard deviation of the noise over the clipping norm; solved "
        "for if left out",
    )
    add(
        "--sampling",
        default="poisson",
        metavar="NAME",
        help="poisson, shuffle, stream (each batch a full release) or fixed (batches of a fixed "
        "size); default: poisson",
    )
    add(
        "--accountant",
        default="pld",
        metavar="NAME",
        help="pld (tight) or rdp; default: pld, and rdp for --sampling fixed",
    )
    add(
        "--parameters",
        dest="num_parameters",
        type=int,
        metavar="N",
        help="number of trainable parameters, to compare the norms of noise and signal",
    )
    parser.set_defaults(run=_plan, parser=parser)


def _add_report(commands: Any) -> None:
    """Add the command `report`."""
    parser = commands.add_parser(
        "report",
        help="the privacy that the training of a saved model has spent",
        description=_REPORT,
        epilog=_REPORT_EXAMPLES,
    )
    add = parser.add_argument
    add("path", metavar="MODEL", help="file of a private model: `.keras` or `.weights.h5`")
    _add_delta(parser)
    written = parser.add_mutually_exclusive_group()
    written.add_argument(
        "--format",
        dest="output_format",
        default="text",
        choices=("text", "markdown", "json", "html"),
        help="format of the report that is printed; default: text",
    )
    written.add_argument(
        "--output",
        metavar="FILE",
        help="write the report to a file: `.html`, `.json`, `.md` or `.txt` decides the format",
    )
    add(
        "--data-description",
        metavar="TEXT",
        help="which data the model was trained on, in your words",
    )
    add(
        "--mean-trials",
        type=float,
        metavar="N",
        help="the mean, if the model is the best of a random number of runs",
    )
    add(
        "--distribution",
        metavar="NAME",
        help="the law of that number: geometric (the default), logarithmic or poisson",
    )
    parser.set_defaults(run=_report, parser=parser)


def _plan(**options: Any) -> Any:
    """Return the plan of a run."""
    from keras_adaclip.accounting import plan

    return plan(**options)


def _report(
    path: str,
    delta: float,
    output_format: str,
    output: str | None,
    data_description: str | None,
    mean_trials: float | None,
    distribution: str | None,
) -> str:
    """Return the report of a saved model in the given format, or the name of its file."""
    from keras_adaclip.accounting import PrivacyReport, RandomSelection, check_report_path

    if output is not None:
        check_report_path(output)
    if mean_trials is None and distribution is not None:
        raise ValueError("--distribution needs --mean-trials, the mean of the number of runs")
    selection = None
    if mean_trials is not None:
        selection = RandomSelection(mean_trials, distribution or "geometric")
    report = PrivacyReport.from_file(
        path, delta, selection=selection, data_description=data_description
    )
    if output is not None:
        report.save(output)
        return f"Written to {output}"
    texts = {
        "text": report.to_text,
        "markdown": report.to_markdown,
        "json": report.to_json,
        "html": report.to_html,
    }
    return texts[output_format]().rstrip("\n")


if __name__ == "__main__":
    sys.exit(main())
