"""The command line: `python -m keras_adaclip plan --help`."""

import argparse
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from keras_adaclip.accounting import plan


class _Parser(argparse.ArgumentParser):
    """Says what is wrong on one line, and ends with status 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; the exit status.

    Args:
        arguments: the words after the program's name; None takes those of this process.
    """
    parser = _Parser(prog="python -m keras_adaclip", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    _add_plan(commands)
    options = vars(parser.parse_args(arguments))
    del options["command"]
    command, command_parser = options.pop("run"), options.pop("parser")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = _print_warning
        try:
            print(command(**options))
        except (OSError, TypeError, ValueError) as error:
            command_parser.error(" ".join(str(error).split()))
    return 0


def _add_plan(commands: Any) -> None:
    parser = commands.add_parser(
        "plan",
        help="epsilon, noise, epochs, ... of a run, from the others",
        description=(
            "Give five of the first six, and the sixth is solved for. Epsilon counts training "
            "alone: no choice of hyperparameters, no other use of the data."
        ),
    )
    parser.add_argument("--epsilon", dest="target_epsilon", type=float, metavar="NUMBER")
    parser.add_argument("--delta", type=float, metavar="NUMBER")
    parser.add_argument("--examples", dest="num_examples", type=int, metavar="NUMBER")
    parser.add_argument("--batch-size", type=int, metavar="NUMBER")
    parser.add_argument("--epochs", type=int, metavar="NUMBER")
    parser.add_argument("--noise", dest="noise_multiplier", type=float, metavar="NUMBER")
    parser.add_argument("--sampling", default="poisson", help="poisson, shuffle, stream or fixed")
    parser.add_argument("--accountant", default="pld", help="pld or rdp")
    parser.add_argument(
        "--parameters",
        dest="num_parameters",
        type=int,
        metavar="NUMBER",
        help="trainable parameters, to set the noise's norm beside the signal's",
    )
    parser.set_defaults(run=plan, parser=parser)


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"Warning: {' '.join(str(message).split())}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
