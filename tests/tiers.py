"""Which tests the gate runs, and where: see CONTRIBUTING.md.

    python -m tests.tiers once | contract | rest

prints paths for pytest. *once*: no test of these depends on the backend. *contract*: what must hold
on every backend, each file that the table of faults names included. *rest*: all others, which the
gate runs on one backend. `make test-all` runs everything on every backend.
"""

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
    "tests/federated/test_cohorts.py",
    "tests/federated/test_partition.py",
    "tests/packaging",
    "tests/plots",
    "tests/tuners",
)
_CONTRACT = (
    "tests/backend",
    "tests/clipping",
    "tests/federated/test_round.py",
    "tests/gradients",
    "tests/models/test_golden_runs.py",
    "tests/models/test_saved_by_0_1.py",
    "tests/models/test_saving.py",
    "tests/models/test_sampling_in_fit.py",
    "tests/test_noise.py",
)
# Processes of their own, of minutes each: `make test-all` alone runs them.
NIGHTLY = ("tests/distribution", "tests/docs/test_notebooks.py")
# Compares what the runs on the three backends have recorded.
_APART = ("tests/golden",)


def contract() -> list[str]:
    """The paths of the tests that must pass on every backend."""
    named = (test.partition("::")[0] for fault in FAULTS for test in fault.tests.split())
    wanted = sorted({*_CONTRACT, *(path for path in named if not _within(path, ONCE))})
    return [path for path in wanted if not _within(path, set(wanted) - {path})]


def rest() -> list[str]:
    """The test files and folders of the package that are in no other tier."""
    others = (*ONCE, *contract(), *NIGHTLY, *_APART)
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
    return any(path == other or path.startswith(f"{other}/") for other in others)


def _is_code(path: Path) -> bool:
    return path.suffix == ".py" or (path / "__init__.py").exists()


if __name__ == "__main__":
    (tier,) = sys.argv[1:]
    paths = {"once": ONCE, "contract": contract(), "rest": rest()}[tier]
    if missing := [path for path in paths if not (ROOT / path).exists()]:
        sys.exit(f"tests/tiers.py names what is not there: {', '.join(missing)}")
    print(*paths)
