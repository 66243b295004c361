"""What a query of TensorFlow Privacy keeps, as a list of tensors with names."""

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

Tensor = Any


class Packing:
    """A structure of tensors as a list, and back; `None` stays where it is.

    Args:
        structure: tensors and numbers in tuples, named tuples, lists and dictionaries.

    Attributes:
        names: the path to each tensor.

    Raises:
        ValueError: where it holds something else.
    """

    def __init__(self, structure: Any) -> None:
        self._structure = structure
        leaves = tf.nest.flatten(structure)
        self._is_tensor = [leaf is not None for leaf in leaves]
        names = list(_leaf_names(structure))
        if len(names) != len(leaves):
            raise ValueError(
                "The state of a query must consist of tensors in tuples, named tuples, lists and "
                f"dictionaries. Received: {structure}"
            )
        self.names = [
            name for name, is_tensor in zip(names, self._is_tensor, strict=True) if is_tensor
        ]

    def flat(self, structure: Any) -> list[Tensor]:
        """The tensors of such a structure."""
        leaves = tf.nest.flatten(structure)
        return [
            tf.convert_to_tensor(leaf)
            for leaf, is_tensor in zip(leaves, self._is_tensor, strict=True)
            if is_tensor
        ]

    def packed(self, tensors: Sequence[Tensor]) -> Any:
        """The inverse of `flat`."""
        remaining = iter(tensors)
        leaves = [next(remaining) if is_tensor else None for is_tensor in self._is_tensor]
        return tf.nest.pack_sequence_as(self._structure, leaves)


def _leaf_names(structure: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """The path to each leaf, in the order of `tf.nest`."""
    if hasattr(structure, "_fields"):
        parts = list(zip(structure._fields, structure, strict=True))
    elif isinstance(structure, dict):
        parts = [(str(key), structure[key]) for key in sorted(structure)]
    elif isinstance(structure, (list, tuple)):
        parts = [(str(number), part) for number, part in enumerate(structure)]
    else:
        yield "/".join(path) or "state"
        return
    for name, part in parts:
        yield from _leaf_names(part, (*path, name))
