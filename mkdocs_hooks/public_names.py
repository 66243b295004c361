"""What is public of the package, and what its modules only share with each other.

A name is public where the `__all__` of a public module has it. The build of the documentation and
the tests ask here, so this file imports nothing but the standard library.
"""

import ast
from pathlib import Path

PACKAGE = "keras_adaclip"
ROOT = Path(__file__).parents[1]

# Below the public surface: one file a framework, arithmetic that the optimizer alone needs, and
# what the two kinds of models share.
INTERNAL_MODULES = frozenset(
    {"keras_adaclip.backend", "keras_adaclip.noise", "keras_adaclip.training"}
)

# Methods that Keras calls by itself, to save and to train: nothing to call, nothing to look up.
KERAS_PROTOCOL = frozenset(
    {
        "build_from_config",
        "compile_from_config",
        "from_config",
        "get_config",
        "load_own_variables",
        "save_own_variables",
        "train_step",
    }
)

# Names that stand in an `__all__` because a layer takes them from the layer below. They have
# docstrings, but no place on the page of the API, and may change without notice.
SHARED_NAMES = {
    "keras_adaclip.accounting": frozenset(
        {
            "LEDGER_KEYS",
            "NO_TUNING",
            "NUM_INTEGERS",
            "check_accountant",
            "check_report_path",
            "rows_relation",
            "quick_epsilon",
            "rounded_up",
            "warn_of_large_delta",
        }
    ),
    "keras_adaclip.audit": frozenset({"by_rising_score"}),
    "keras_adaclip.callbacks": frozenset({"EpochCheck", "PassCounter"}),
    "keras_adaclip.clipping": frozenset({"Clipper"}),
    "keras_adaclip.gradients": frozenset(
        {
            "Augmentation",
            "Batch",
            "BatchGradients",
            "ClippedSum",
            "GradientPlan",
            "LayerReport",
            "Observed",
            "add_to_output_loss_trackers",
            "call_model",
            "clipped_contributions",
            "clipped_sum",
            "compute_loss",
            "example_losses",
            "finite_rows",
            "layer_reports",
            "make_plan",
            "per_example_losses",
            "fast_calls_of",
            "regularization_loss",
            "repeated",
            "unproven_plan",
            "looped_plan",
            "with_regularization",
        }
    ),
    "keras_adaclip.optimizers": frozenset(
        {
            "AccountedOptimizer",
            "FORBIDDEN_OPTIONS",
            "MAX_ROWS",
            "NO_LEGACY_FILE",
            "Run",
            "RunSettings",
            "check_microbatch_size",
            "check_plain_optimizer",
            "refuse_legacy_file",
        }
    ),
}


def public_modules() -> dict[str, tuple[str, ...]]:
    """Dotted names of the public modules, each with the names of its `__all__`.

    Public are the modules directly under the package, and those that stand in the `__all__` of a
    public one.
    """
    folder = ROOT / PACKAGE
    found: dict[str, tuple[str, ...]] = {}
    waiting = sorted(
        f"{PACKAGE}.{path.stem}"
        for path in folder.iterdir()
        if not path.name.startswith(("_", ".")) and (path.suffix == ".py" or path.is_dir())
    )
    while waiting:
        module = waiting.pop(0)
        if module in INTERNAL_MODULES:
            continue
        found[module] = _all_of(_file_of(module))
        waiting += [f"{module}.{name}" for name in found[module] if _is_module(module, name)]
    return found


def _file_of(module: str) -> Path:
    """Of a module or a package; a file that is not there where the name is no module."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _is_module(module: str, name: str) -> bool:
    """Whether a module's name is a submodule, not a function out of one that is called the same."""
    if not _file_of(f"{module}.{name}").is_file():
        return False
    tree = ast.parse(_file_of(module).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return not any(
        node.module == f"{module}.{name}" and name in [alias.name for alias in node.names]
        for node in imports
    )


def _all_of(path: Path) -> tuple[str, ...]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__":
            return tuple(ast.literal_eval(node.value))
    raise ValueError(f"{path.relative_to(ROOT)} is public and must have an `__all__`.")
