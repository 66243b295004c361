"""Shows the examples of docstrings as code on the pages of the API.

They stand under `Example:`, at the margin, as Keras has them. The parser of docstrings takes only
what is indented for a section, and would leave quotations of quotations.
"""

import re
import textwrap
from typing import Any

import griffe

# The title, a blank line, and all up to the next title at the margin.
_EXAMPLE = re.compile(r"^Example:\n\n(.*?)(?=^\w[\w ]*:\n|\Z)", flags=re.DOTALL | re.MULTILINE)


class ExampleSections(griffe.Extension):
    """Indents the examples of every docstring."""

    def on_instance(self, *, obj: Any, **kwargs: Any) -> None:
        """Called for each thing that has a docstring, and for others.

        Args:
            obj: the function, class or module.
            kwargs: not used.
        """
        del kwargs
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(_indented, obj.docstring.value)


def _indented(found: re.Match[str]) -> str:
    return f"Examples:\n{textwrap.indent(found[1], '    ')}"
