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
is solved for. --true-positives, the most that an attacker finds, may take the place of epsilon.
Epsilon counts training alone: no choice of hyperparameters, and no other use of the data.
"""
_PLAN_EXAMPLES = """\
examples:
  the least noise for 40 epochs within epsilon 3
    keras-adaclip plan --epsilon 3 --delta 1e-5 --examples 60000 --batch-size 1024 --epochs 40
  epsilon of a run
    keras-adaclip plan --noise 1.2 --delta 1e-5 --examples 60000 --batch-size 1024 --epochs 40
  the least noise with which an attacker who accuses 1% of others finds at most 5% of members
    keras-adaclip plan --true-positives 0.05 --delta 1e-5 --examples 9000 --batch-size 90 --epochs 9
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
_DELTA = "probability with which the bound may fail, well below 1 / examples"
_SOLVED = "; solved for if left out"
_REQUIRED: dict[str, Any] = {"required": True}


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
    """Run a command and return the exit status.

    Args:
        arguments: The words after the name of the program; None means those of this process.
    """
    parser = _Parser(
        prog="keras-adaclip",
        description="Plans and reports of differentially private training.",
        epilog="`keras-adaclip plan --help` and `keras-adaclip report --help` have examples.",
    )
    parser.add_argument("--version", action="version", version=f"keras_adaclip {__version__}")
    commands = parser.add_subparsers(required=True, metavar="{plan,report}", parser_class=_Parser)
    _add_plan(commands)
    _add_report(commands)
    options = vars(parser.parse_args(arguments))
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


def _add_plan(commands: Any) -> None:
    """Add the command `plan`."""
    help_text = "epsilon, noise or epochs of a run, from the others"
    parser = commands.add_parser("plan", help=help_text, description=_PLAN, epilog=_PLAN_EXAMPLES)
    parser.set_defaults(run=_plan, parser=parser)
    examples = "number of training examples, or of clients in federated training"
    parameters = "number of trainable parameters, to compare the norms of noise and signal"
    sampling = "poisson, shuffle, stream (each batch a full release) or fixed (batches of one size)"
    found = "largest share of members that an attacker finds, in the place of --epsilon"
    alarms = "share of others whom that attacker takes for members; default: 0.01"
    accountant = "pld (tight) or rdp; default: pld, and rdp for --sampling fixed"
    for flag, argument, kind, help_text, options in (
        ("--delta", "delta", float, _DELTA, _REQUIRED),
        ("--examples", "num_examples", int, examples, _REQUIRED),
        ("--batch-size", "batch_size", int, "expected examples (clients) a step", _REQUIRED),
        ("--epsilon", "target_epsilon", float, f"the budget{_SOLVED}", {}),
        ("--true-positives", "max_true_positive_rate", float, found, {}),
        ("--false-positives", "at_false_positive_rate", float, alarms, {"default": 0.01}),
        ("--epochs", "epochs", int, f"epochs, of examples / batch size steps each{_SOLVED}", {}),
        ("--noise", "noise_multiplier", float, f"noise stddev over the clipping norm{_SOLVED}", {}),
        ("--sampling", "sampling", str, f"{sampling}; default: poisson", {"default": "poisson"}),
        ("--accountant", "accountant", str, accountant, {"default": "pld"}),
        ("--parameters", "num_parameters", int, parameters, {}),
    ):
        metavar = "NAME" if kind is str else "N"
        parser.add_argument(
            flag, dest=argument, type=kind, help=help_text, metavar=metavar, **options
        )


def _add_report(commands: Any) -> None:
    """Add the command `report`."""
    parser = commands.add_parser(
        "report",
        help="the privacy that the training of a saved model has spent",
        description=_REPORT,
        epilog=_REPORT_EXAMPLES,
    )
    parser.set_defaults(run=_report, parser=parser)
    add, formats = parser.add_argument, ("text", "markdown", "json", "html")
    add("path", metavar="MODEL", help="file of a private model: `.keras` or `.weights.h5`")
    add("--delta", type=float, metavar="N", help=_DELTA, **_REQUIRED)
    written = parser.add_mutually_exclusive_group().add_argument
    text = "format of the report that is printed; default: text"
    written("--format", dest="output_format", default="text", choices=formats, help=text)
    text = "write the report to a file: `.html`, `.json`, `.md` or `.txt` decides the format"
    written("--output", metavar="FILE", help=text)
    text = "which data the model was trained on, in your words"
    add("--data-description", metavar="TEXT", help=text)
    text = "the mean, if the model is the best of a random number of runs"
    add("--mean-trials", type=float, metavar="N", help=text)
    text = "the law of that number: geometric (the default), logarithmic or poisson"
    add("--distribution", metavar="NAME", help=text)


def _plan(**options: Any) -> Any:
    """Return the plan of a run."""
    from keras_adaclip.accounting import plan

    return plan(**options)


def _report(
    path: str,
    delta: float,
    output_format: str,
    output: str | None,
    mean_trials: float | None,
    distribution: str | None,
    **words: Any,
) -> str:
    """Return the report of a saved model in the given format, or the name of its file."""
    from keras_adaclip.accounting import PrivacyReport, RandomSelection, check_report_path

    if output is not None:
        check_report_path(output)
    if mean_trials is None and distribution is not None:
        raise ValueError("--distribution needs --mean-trials, the mean of the number of runs")
    law = distribution or "geometric"
    selection = None if mean_trials is None else RandomSelection(mean_trials, law)
    report = PrivacyReport.from_file(path, delta, selection=selection, **words)
    if output is not None:
        report.save(output)
        return f"Written to {output}"
    return str(getattr(report, f"to_{output_format}")()).rstrip("\n")


if __name__ == "__main__":
    sys.exit(main())
