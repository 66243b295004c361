"""The state of a query of TensorFlow Privacy as a list of tensors with names."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

Tensor = Any


class Packing:
    """A structure of tensors as a list, and back; `None` stays where it is.

    Args:
        structure: Tensors and numbers in tuples, named tuples, lists and dictionaries.

    Attributes:
        names: The path to each tensor.

    Raises:
        ValueError: If it holds something else.
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
        self.names = list(itertools.compress(names, self._is_tensor))

    def flat(self, structure: Any) -> list[Tensor]:
        """Return the tensors of such a structure."""
        leaves = itertools.compress(tf.nest.flatten(structure), self._is_tensor)
        return [tf.convert_to_tensor(leaf) for leaf in leaves]

    def packed(self, tensors: Sequence[Tensor]) -> Any:
        """Return the structure of such tensors."""
        remaining = iter(tensors)
        leaves = [next(remaining) if is_tensor else None for is_tensor in self._is_tensor]
        return tf.nest.pack_sequence_as(self._structure, leaves)


def _leaf_names(structure: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the path to each leaf, in the order of `tf.nest`."""
    if hasattr(structure, "_asdict"):
        parts = structure._asdict()
    elif isinstance(structure, dict):
        parts = {key: structure[key] for key in sorted(structure)}
    elif isinstance(structure, (list, tuple)):
        parts = dict(enumerate(structure))
    else:
        yield "/".join(path) or "state"
        return
    for name, part in parts.items():
        yield from _leaf_names(part, (*path, str(name)))
