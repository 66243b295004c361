"""Which module of the package may import which, checked on the syntax tree alone.

1. Imports point down the list `LAYERS`; inside one layer they are free. Type-only imports and
   imports inside functions count too.
2. TensorFlow, JAX and PyTorch are imported in `backend/` alone.
3. So are private Keras names: `keras.src`, or a part that starts with an underscore.
4. `accounting` imports no Keras, neither directly nor through another layer.
5. What another folder offers is imported from its `__init__`, not from a file inside of it;
   `backend/` has files that are imported whole.
6. `models` and `federated` share `training` and do not import each other.
7. Imports are absolute.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "keras_adaclip"

# From top to bottom. A new module or folder directly under the package gets its place here.
LAYERS = (
    "__main__",
    "__init__",
    "tuners",
    "testing",
    "integrations",
    "federated",
    "models",
    "training",
    "callbacks",
    "plots",
    "audit",
    "examination",
    "optimizers",
    "gradients",
    "clipping",
    "schedules",
    "sampling",
    "noise",
    "activations",
    "accounting",
    "backend",
)
# Neither imports the other: what both need is in `training`.
APART = frozenset({"models", "federated"})
# Modules of Keras under the names that the package has for them. Classes may have protected members
# for their subclasses.
_PRIVATE_TO_KERAS = re.compile(r"(keras(\.[a-z]\w*)*|ops|layers)\.(src|_[^_]\w*)")
BACKEND_LIBRARIES = {"tensorflow", "jax", "jaxlib", "torch"}


def layer_of(module: str) -> str:
    """Return the part directly under the package: `models` of `keras_adaclip.models.fit`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def violations(source: str, module: str) -> list[str]:
    """Return one line for each broken rule in the source of `module` (its dotted name)."""
    tree = ast.parse(source)
    layer = layer_of(module)
    problems = []
    for line, name in imported_names(tree):
        for problem in _problems_of_import(name, layer):
            problems.append(f"{module}:{line}: {problem}")
    if layer != "backend":
        names = (ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute))
        private = filter(_PRIVATE_TO_KERAS.fullmatch, names)
        problems += [
            f"{module}: {name} is private to Keras: move it to backend/" for name in private
        ]
    if not _is_leaf(layer) and layer not in LAYERS:
        problems.append(f"{module}:1: {layer} has no place in LAYERS of {Path(__file__).name}")
    return problems


def imported_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of each import, `from a import b` as `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", None))
            argument = node.args[0]
            if called in {"import_module", "__import__"} and isinstance(argument, ast.Constant):
                yield node.lineno, str(argument.value)


def _problems_of_import(name: str, layer: str) -> Iterator[str]:
    parts = name.split(".")
    root = parts[0]
    if not root:
        yield f"{name} is a relative import"
    if root == PACKAGE:
        yield from _problems_of_direction(name, layer)
    elif root in BACKEND_LIBRARIES and layer != "backend":
        yield f"only backend/ imports {root}"
    elif root == "keras":
        if layer == "accounting":
            yield "accounting imports no Keras"
        if layer != "backend" and _is_private(parts[1:]):
            yield f"{name} is private to Keras: move it to backend/"


def _problems_of_direction(name: str, layer: str) -> Iterator[str]:
    target = layer_of(name)
    if target == layer or layer == "__init__" or _is_leaf(target):
        return
    if name.count(".") > 2 and target != "backend":
        yield f"{name} is inside of {target}/: import from keras_adaclip.{target}"
    if _is_leaf(layer):
        yield f"{layer} is shared by all layers and imports none, but imports {name}"
    elif target == "__init__" or target not in LAYERS:
        yield f"{name}: the package lies above every layer, import from the layer that defines it"
    elif {layer, target} == APART:
        yield f"{layer} and {target} share training/ alone, but {layer} imports {name}"
    elif layer in LAYERS and LAYERS.index(target) < LAYERS.index(layer):
        yield f"{layer} lies below {target}, but imports {name}"
    elif layer == "accounting":
        yield f"accounting imports no Keras, which {target} does"


def _is_leaf(layer: str) -> bool:
    """Return whether a module is like `_checks`: all layers use it, and it uses none."""
    return layer.startswith("_") and layer not in LAYERS


def _is_private(parts: list[str]) -> bool:
    return any(
        part == "src" or (part.startswith("_") and not part.endswith("__")) for part in parts
    )


def package_modules(root: Path) -> Iterator[tuple[str, str]]:
    """Yield dotted name and source of every module under `root`."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield name, path.read_text(encoding="utf-8")
