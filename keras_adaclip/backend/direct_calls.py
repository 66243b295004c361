"""What backends share: no records where steps are compiled, and what a traced function does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Tensor = Any


@dataclass(frozen=True)
class Effects:
    """What a traced function does besides returning something.

    Args:
        writes: whether it writes to what is no Keras variable, or calls Python.
        draws: whether it draws random numbers that do not come from Keras's seed generators.
        branches: whether it decides by values what runs, where that cannot be vectorized and
            differentiated.
    """

    writes: bool = False
    draws: bool = False
    branches: bool = False


class Recording:
    """Calls functions; the compiled step around them is their record."""

    def clear(self) -> None:
        """Nothing is kept."""

    def call(
        self, function: Callable[[list[Tensor]], list[Tensor]], values: Sequence[Tensor]
    ) -> list[Tensor]:
        """What `function(values)` returns.

        Args:
            function: takes and returns a list of tensors.
            values: tensors.
        """
        return function(list(values))
