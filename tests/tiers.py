"""Which tests the gate runs, and where: see CONTRIBUTING.md.

    python -m tests.tiers once | contract-BACKEND | rest

prints paths for pytest. *once*: no test of these depends on the backend. *contract*: what differs
between the backends, and the tests that the table of faults names for this one, on PyTorch with the
files that they are in. *rest*: all others, on PyTorch.
So the gate runs every fast test on PyTorch; `make test-all` runs every test on every backend.
"""

import itertools
import sys
from pathlib import Path

from tests.faults.table import FAULTS

ROOT = Path(__file__).parents[1]

ONCE = (
    "keras_adaclip/accounting",
    "tests/accounting",
    "tests/audit/test_canaries.py",
    "tests/audit/test_lower_bound.py",
    "tests/docs",
    "tests/examples/test_data.py",
    "tests/federated/test_clients.py",
    "tests/federated/test_processes.py",
    "tests/federated/test_cohorts.py",
    "tests/packaging",
    "tests/plots",
    "tests/test_arguments.py",
    "tests/tuners",
)
_RULES = (
    *("ledger", "metrics", "noise_keys", "noise_scale", "refilled_arrays", "rounding"),
    *("saved_state", "secret_draws", "steps"),
)
_SCHEDULES = (
    "test_a_scheduled_threshold_clips_step_by_step",
    "test_each_epoch_has_the_noise_of_its_first_step",
)
_REFUSALS = (
    "test_a_model_that_would_not_be_private_is_refused",
    "test_a_layer_that_changes_between_fits_is_refused_where_the_step_is_compiled_again",
)
_TEMPERATURES = (
    "test_sums_are_those_of_a_loop_over_the_rows_that_may_be_drawn",
    "test_a_run_ends_in_the_release_that_it_has_counted",
)
_GRADIENTS = ("architectures", "cancellation", "cross_entropies", "not_finite", "precision")
_GRADIENTS += ("recurrent",)
# Where the backends differ. All other tests run on PyTorch.
_CONTRACT = (
    "tests/backend",
    "tests/federated/test_round.py",
    *(f"tests/gradients/test_{kind}.py" for kind in _GRADIENTS),
    "tests/models/test_before_the_first_step.py::test_a_mistake_is_told_before_the_first_step",
    "tests/models/test_golden_runs.py",
    *(f"tests/models/test_refusals.py::{name}" for name in _REFUSALS),
    "tests/models/test_strings.py",
    *(f"tests/models/test_temperature.py::{name}" for name in _TEMPERATURES),
    *(f"tests/soundness/test_rules_{rules}.py" for rules in _RULES),
    *(f"tests/soundness/test_rules_schedules.py::{name}" for name in _SCHEDULES),
)
# Minutes each: `make test-all` alone runs them.
NIGHTLY = (
    "tests/benchmarks",
    "tests/distribution",
    "tests/docs/test_notebooks.py",
    "tests/models/test_conveniences.py",
)
# Compares what the runs on the three backends have recorded.
_APART = ("tests/golden",)


def contract(backend: str) -> list[str]:
    """The paths of the tests that must pass on a backend."""
    faults = (fault.tests.split() for fault in FAULTS if fault.backend == backend)
    wanted = {*_CONTRACT, *itertools.chain.from_iterable(faults)}
    if backend == "torch":
        wanted = {test.partition("::")[0] for test in wanted}
    wanted = {test for test in wanted if not _within(test, ONCE)}
    return sorted(test for test in wanted if not _within(test, wanted - {test}))


def rest() -> list[str]:
    """The test files and folders of the package that are in no other tier."""
    others = (*ONCE, *contract("torch"), *NIGHTLY, *_APART)
    files = (path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/test_*.py"))
    modules = (
        path.relative_to(ROOT).as_posix() for path in ROOT.glob("keras_adaclip/*") if _is_code(path)
    )
    left = {path for path in (*files, *modules) if not _within(path, others)}
    # Whole folders where nothing of them is in another tier, so that their conftest.py is heeded.
    folders = {str(Path(path).parent) for path in left if path.startswith("tests/")}
    for folder in folders - {"tests"}:
        inside = {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).glob("test_*.py")}
        if inside <= left:
            left = left - inside | {folder}
    return sorted(left)


def _within(path: str, others: object) -> bool:
    return any(path == other or path.startswith((f"{other}/", f"{other}::")) for other in others)


def _is_code(path: Path) -> bool:
    return path.suffix == ".py" or (path / "__init__.py").exists()


if __name__ == "__main__":
    (tier,) = sys.argv[1:]
    name, _, backend = tier.partition("-")
    paths = {"once": ONCE, "contract": contract(backend), "rest": rest()}[name]
    if missing := [path for path in paths if not (ROOT / path.partition("::")[0]).exists()]:
        sys.exit(f"tests/tiers.py names what is not there: {', '.join(missing)}")
    print(*paths)
