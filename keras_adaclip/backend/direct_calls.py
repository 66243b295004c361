"""What takes the place of PyTorch's records where the backend compiles steps itself."""

from collections.abc import Callable, Sequence
from typing import Any

Tensor = Any


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
