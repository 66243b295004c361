"""Fails the build of the documentation where the page of the API leaves a public name out.

`mkdocstrings` leaves out what has no docstring, what a page does not name, and what hides behind a
module of the same name. None of these is an error for it; here each of them is.
"""

import functools
import re
from typing import Any

import griffe
from mkdocs.exceptions import PluginError
from public_names import KERAS_PROTOCOL, PACKAGE, ROOT, public_modules

PAGE = "api.md"


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Compares the anchors of the page of the API with what is public.

    Args:
        output: the page as HTML.
        page: the page.
        config: not used.
    """
    del config
    if page.file.src_uri == PAGE:
        shown = set(re.findall(rf'id="({PACKAGE}[^"]*)"', output))
        missing = [name for name in _required() if not any(way in shown for way in name)]
        if missing:
            names = "\n".join(f"  {ways[0]}" for ways in missing)
            raise PluginError(
                f"docs/{PAGE} leaves out public names, or they have no docstring:\n{names}\n"
                "Give them a docstring, and the page a `:::` that shows them; or take them out of "
                "`__all__`."
            )
    return output


@functools.cache
def _required() -> list[tuple[str, ...]]:
    """Each public name as the anchors of which one must be there, the best one first."""
    package = griffe.load(PACKAGE, search_paths=[ROOT], resolve_aliases=True)
    found = []
    for module, names in public_modules().items():
        for name in names:
            if f"{module}.{name}" in public_modules():
                continue
            target = _target(package, module, name)
            anchors = (f"{module}.{name}", target.path)
            found.append(anchors)
            if target.is_class:
                found += _required_members(target, anchors)
    return found


def _target(package: Any, module: str, name: str) -> Any:
    """What a public name stands for, also where a submodule has the same name."""
    path = module.removeprefix(f"{PACKAGE}.")
    found = package[path][name]
    if found.is_alias:
        found = found.final_target
    return found[name] if found.is_module else found


def _required_members(target: Any, anchors: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Methods and properties, also of the bases within the package that nobody calls by name."""
    found = []
    for name, member in target.all_members.items():
        owner = member.final_target.parent if member.is_alias else member.parent
        is_shown = member.is_function or "property" in getattr(member, "labels", ())
        if not name.startswith("_") and name not in KERAS_PROTOCOL and is_shown:
            # A base that is public itself shows its members for all of its children.
            owners = [owner.path, *(base.path for base in target.mro() if name in base.members)]
            ways = (*anchors, *owners, *(way for path in owners for way in _public_paths(path)))
            found.append(tuple(f"{way}.{name}" for way in ways))
    return found


def _public_paths(path: str) -> list[str]:
    """Under which public names a class may stand on the page."""
    name = path.rpartition(".")[2]
    return [f"{module}.{name}" for module, names in public_modules().items() if name in names]
