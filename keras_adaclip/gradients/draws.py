"""Random numbers of a model's layers in private steps: secret, and without a trace.

Layers draw by the place of a row in its batch. Removing a row moves all rows behind it to other
places, so a sum whose draws are known changes by far more than one contribution. Draws that nobody
knows, independent between rows and of one law, can be coupled so that each row keeps its own.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private

Tensor = Any
_GENERATORS, _PLACES = 0, 1


@dataclass(frozen=True)
class Draws:
    """The random numbers of one place in one step.

    Args:
        seed: Int32 tensor of shape `(2,)`, 64 bits that nobody knows.
    """

    seed: Tensor

    def at(self, place: Any) -> "Draws":
        """Return independent draws for a part of this place, such as a chunk or a row of it.

        Args:
            place: Its number, an integer or a scalar tensor.
        """
        return Draws(backend.seed_of_step(self.seed, place, _PLACES))

    @contextmanager
    def made(
        self, values: Iterable[tuple[keras.Variable, Tensor]]
    ) -> Iterator[keras.StatelessScope]:
        """Let layers draw from the seed within the context, which discards all updates.

        Args:
            values: Pairs of a variable and its value within the context.
        """
        with backend.seeded_outside(self.seed), DrawingScope(values, self.seed) as scope:
            yield scope


class DrawingScope(keras.StatelessScope):
    """A scope in which every draw of every `keras.random.SeedGenerator` has a seed of its own.

    Args:
        values: Pairs of a variable and its value within the scope.
        seed: Int32 tensor of shape `(2,)`, 64 secret bits.
    """

    def __init__(self, values: Iterable[tuple[keras.Variable, Tensor]], seed: Tensor) -> None:
        super().__init__(
            [pair for pair in values if not keras_private.is_seed_generator_state(pair[0])]
        )
        self._seed, self._num_draws = seed, 0

    def get_current_value(self, variable: keras.Variable) -> Tensor:
        """Return a variable's value; a seed generator's stays the same until it is used."""
        is_seed = keras_private.is_seed_generator_state(variable)
        if is_seed and id(variable) not in self.state_mapping:
            seed = backend.seed_of_step(self._seed, self._num_draws, _GENERATORS)
            self._num_draws += 1
            self.state_mapping[id(variable)] = ops.cast(seed, variable.dtype)
        return super().get_current_value(variable)

    def add_update(self, update: tuple[keras.Variable, Tensor]) -> None:
        """Note an update; a seed generator gets another seed instead."""
        if keras_private.is_seed_generator_state(update[0]):
            self.state_mapping.pop(id(update[0]), None)
        else:
            super().add_update(update)
