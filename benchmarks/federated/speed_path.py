"""Importing this module makes those of the speed benchmark importable, and the package itself.

They are scripts, which import each other by their names.
"""

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1]
sys.path += [
    path for path in (str(BENCHMARKS / "speed"), str(BENCHMARKS.parent)) if path not in sys.path
]
