"""`dp_accounting`, imported at first use, because its import takes as long as the package's."""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("dp_accounting"), name)
