"""The public names of the package: those in the `__all__` of a public module.

Folders of the package also import other names from each other; those may change without notice. The
build of the documentation and the tests use this file, so it imports the standard library alone.
"""

import ast
from pathlib import Path

PACKAGE = "keras_adaclip"
ROOT = Path(__file__).parents[1]

# Modules that have no leading underscore and are not public.
INTERNAL_MODULES = frozenset(
    f"keras_adaclip.{name}" for name in ("backend", "examination", "noise", "training")
)

# Methods that Keras calls by itself, to save and to train: nothing to call, nothing to look up.
KERAS_PROTOCOL = frozenset(
    {
        "build_from_config",
        "compile_from_config",
        "from_config",
        "get_config",
        "ledger_in_files",
        "load_own_variables",
        "save_own_variables",
        "train_step",
    }
)


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
