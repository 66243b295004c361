"""Measures one model in one framework: its plain step beside its private ones, in turns.

    python benchmarks/speed/measure.py cnn-256 --framework jax --pin
    python benchmarks/speed/measure.py cnn-256 --framework jax --pin --ways shuffle --memory

prints one JSON object. Times are processor seconds of one pinned core with `--pin`, else wall time
on all cores. Without `--framework`, the backend that KERAS_BACKEND names. `bench.py` runs this for
everything.
"""

import argparse
import json
import os

from framework import BACKENDS, MODULES, WAYS, load
from process import add_options, check_options, measured, set_up_process
from suite import SUITE


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line.

    Args:
        arguments: instead of those of the process.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", choices=SUITE)
    add("--framework", choices=MODULES, default=os.environ.get("KERAS_BACKEND", "tensorflow"))
    add_options(parser)
    options = parser.parse_args(arguments)
    check_options(parser, options, WAYS[options.framework])
    return options


if __name__ == "__main__":
    given = parse_options()
    if given.framework in BACKENDS:
        os.environ["KERAS_BACKEND"] = given.framework
    set_up_process(given.device, given.pin)
    print(json.dumps(measured(load(given.framework), SUITE[given.model], given)))
