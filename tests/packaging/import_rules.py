"""Which module of the package may import which, checked on the syntax tree alone.

1. Imports point down the list `LAYERS`; inside one layer they are free. Type-only imports and
   imports inside functions count too.
2. TensorFlow, JAX and PyTorch are imported in `backend/` alone, and TensorFlow in the files
   `tensorflow_*.py` of `integrations/tensorflow_privacy/`.
3. So are private Keras names: `keras.src`, or a part that starts with an underscore.
4. `accounting` imports no Keras, neither directly nor through another layer.
5. What another folder offers is imported from its `__init__`, not from a file inside of it;
   `backend/` has files that are imported whole.
6. `models` and `federated` share `training` and do not import each other.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "keras_adaclip"

# From top to bottom. A new module or folder directly under the package gets its place here.
LAYERS = (
    "__main__",
    "__init__",
    "tuners",
    "federated",
    "models",
    "training",
    "callbacks",
    "plots",
    "audit",
    "integrations",
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
BACKEND_LIBRARIES = {"tensorflow", "jax", "jaxlib", "torch"}
# Modules outside of `backend/` that import TensorFlow; other files import them inside of functions.
TENSORFLOW_MODULES = f"{PACKAGE}.integrations.tensorflow_privacy.tensorflow_"


def layer_of(module: str) -> str:
    """The part directly under the package: `keras_adaclip.models.fit` belongs to `models`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """One line for each broken rule in the source of `module` (its dotted name)."""
    tree = ast.parse(source)
    layer = layer_of(module)
    problems = []
    for line, name in imported_names(tree, module, is_package):
        if name.split(".")[0] == "tensorflow" and module.startswith(TENSORFLOW_MODULES):
            continue
        for problem in _problems_of_import(name, layer):
            problems.append(f"{module}:{line}: {problem}")
    if layer != "backend":
        for line, name in private_keras_attributes(tree):
            problems.append(f"{module}:{line}: {name} is private to Keras: move it to backend/")
    if not _is_leaf(layer) and layer not in LAYERS:
        problems.append(f"{module}:1: {layer} has no place in LAYERS of {Path(__file__).name}")
    return problems


def imported_names(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of all that a module imports, `from a import b` as `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                kept = module.split(".")[: None if is_package else -1]
                kept = kept[: len(kept) - (node.level - 1)]
                base = ".".join([*kept, base] if base else kept)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else None
            called = node.func.id if isinstance(node.func, ast.Name) else called
            argument = node.args[0]
            if called in {"import_module", "__import__"} and isinstance(argument, ast.Constant):
                yield node.lineno, str(argument.value)


def private_keras_attributes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of each `keras.src` or `keras.ops._name`, also by a module's alias."""
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "keras":
                    aliases[alias.asname or "keras"] = alias.name if alias.asname else "keras"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "keras":
            for alias in node.names:
                # Modules only: a class may have protected members for the classes that subclass it.
                if not node.level and alias.name.islower():
                    aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts = [node.attr]
            value = node.value
            while isinstance(value, ast.Attribute):
                parts.insert(0, value.attr)
                value = value.value
            if isinstance(value, ast.Name) and value.id in aliases and _is_private(parts[-1:]):
                yield node.lineno, ".".join([aliases[value.id], *parts])


def _problems_of_import(name: str, layer: str) -> Iterator[str]:
    parts = name.split(".")
    root = parts[0]
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
    """A module like `_checks`, directly under the package: all layers use it, it uses none."""
    return layer.startswith("_") and layer not in LAYERS


def _is_private(parts: list[str]) -> bool:
    return any(
        part == "src" or (part.startswith("_") and not part.endswith("__")) for part in parts
    )


def package_modules(root: Path) -> Iterator[tuple[str, bool, str]]:
    """Dotted name, whether it is a package, and source of every module under `root`."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        yield name, is_package, path.read_text(encoding="utf-8")
