"""Measures the rounds of one workload in one framework: this package beside a loop, in turns.

    KERAS_BACKEND=jax python benchmarks/federated/measure.py cnn --cohort 500 --ways ours loop
    KERAS_BACKEND=torch python benchmarks/federated/measure.py mlp --device gpu
    python benchmarks/federated/measure.py mlp --framework pfl --pin
    python benchmarks/federated/measure.py mlp --framework jax --pin --ways ours --memory

prints one JSON object; `medians` has the milliseconds of a round by way, without compilation. Times
are processor seconds of one pinned core with `--pin`, wall time otherwise. Without `--framework`,
the backend that KERAS_BACKEND names. `bench.py` runs this for everything.
"""

import argparse
import json
import os

import speed_path  # noqa: F401
from process import add_options, check_options, measured, set_up_process
from ways import BACKENDS, MODULES, WAYS, load
from workloads import MODELS, Workload


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line.

    Args:
        arguments: instead of those of the process.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", choices=MODELS)
    add("--cohort", type=int, default=50, help="clients in a round (%(default)s)")
    add("--clients", type=int, default=1000, help="of the population (%(default)s)")
    add("--framework", choices=MODULES, default=os.environ.get("KERAS_BACKEND", "tensorflow"))
    add_options(parser, "round")
    options = parser.parse_args(arguments)
    check_options(parser, options, WAYS[options.framework])
    return options


if __name__ == "__main__":
    given = parse_options()
    if given.framework in BACKENDS:
        os.environ["KERAS_BACKEND"] = given.framework
    set_up_process(given.device, given.pin)
    workload = Workload(given.model, given.cohort, given.clients)
    framework = load(given.framework)
    result = measured(framework, workload, given)
    framework.close()
    print(json.dumps({**result, "model": workload.name}))
