"""What a round trains: a model, a population of clients, the cohort that is drawn of it.

Nothing but NumPy is imported here, so that the module loads in the environment of every peer.
"""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import speed_path  # noqa: F401
from suite import SUITE

Arrays = tuple[np.ndarray, np.ndarray]

NUM_CLASSES = 10
CLIENT_LEARNING_RATE, SERVER_LEARNING_RATE = 0.1, 1.0
CLIP_NORM, NOISE_MULTIPLIER = 1.0, 1.0
_NUM_DISTINCT_CLIENTS = 1000


@dataclass(frozen=True)
class Model:
    """A model that every framework has.

    Args:
        title: what it is.
        build: makes inputs and outputs of a functional Keras model, with the `keras` module that it
            is given; outputs are logits.
        input_shape: of one example.
        num_trainable: trainable numbers, the same in every framework.
        units: of the hidden layers of a multilayer perceptron; None for another network.
    """

    title: str
    build: Callable[[Any], tuple[Any, Any]]
    input_shape: tuple[int, ...]
    num_trainable: int
    units: tuple[int, ...] | None = None


def _perceptron(title: str, *units: int) -> Model:
    def build(keras: Any) -> tuple[Any, Any]:
        inputs = x = keras.Input((784,))
        for width in units:
            x = keras.layers.Dense(width, activation="relu")(x)
        return inputs, keras.layers.Dense(NUM_CLASSES)(x)

    sizes = (784, *units, NUM_CLASSES)
    num_trainable = sum((rows + 1) * columns for rows, columns in itertools.pairwise(sizes))
    return Model(title, build, (784,), num_trainable, units)


MODELS = {
    "linear": _perceptron("multinomial regression"),
    "mlp": _perceptron("MLP 784-200-100-10", 200, 100),
    "cnn": Model(
        "CNN of table B1", SUITE["cnn-256"].build, (28, 28, 1), SUITE["cnn-256"].num_trainable
    ),
    "mlp-512": _perceptron("MLP 784-512-512-10", 512, 512),
    "mlp-1024": _perceptron("MLP 784-1024-1024-10", 1024, 1024),
    "mlp-2048": _perceptron("MLP 784-2048-2048-10", 2048, 2048),
}


@dataclass(frozen=True)
class Workload:
    """Rounds over clients of 60 images of Fashion-MNIST's shape, three local batches each.

    Args:
        model: a key of `MODELS`.
        cohort_size: clients in a round.
        num_clients: of the population.
    """

    model: str
    cohort_size: int = 50
    num_clients: int = 1000

    num_examples = 60
    batch_size = 20
    num_steps = num_examples // batch_size

    @property
    def name(self) -> str:
        """A key for results."""
        return f"{self.model}-{self.cohort_size}-{self.num_clients}"

    @property
    def about(self) -> Model:
        """The model."""
        return MODELS[self.model]

    def check_size(self, num_trainable: int) -> None:
        """Refuses a model of another size.

        Args:
            num_trainable: trainable numbers of the model as a framework counts them.

        Raises:
            ValueError: where that is not the number of this model.
        """
        if num_trainable != self.about.num_trainable:
            raise ValueError(
                f"{self.about.title} has {self.about.num_trainable} trainable numbers. "
                f"Received: num_trainable={num_trainable}"
            )

    def arrays(self) -> Arrays:
        """Random images and targets, `(clients, num_examples, ...)`, of at most 1,000 clients."""
        return _arrays(
            min(self.num_clients, _NUM_DISTINCT_CLIENTS), self.num_examples, self.about.input_shape
        )

    def client(self, number: int) -> Arrays:
        """The examples of a client; beyond the first 1,000 they come again.

        Args:
            number: of the client.
        """
        x, y = self.arrays()
        return x[number % len(x)], y[number % len(x)]

    def cohort(self, generator: np.random.Generator) -> np.ndarray:
        """Draws the clients of a round.

        Args:
            generator: random numbers.
        """
        return generator.choice(self.num_clients, self.cohort_size, replace=False)

    def local_batches(self, generator: np.random.Generator) -> np.ndarray:
        """A client's rows in a new order, `(num_steps, batch_size)`.

        Args:
            generator: random numbers.
        """
        return generator.permutation(self.num_examples).reshape(self.num_steps, self.batch_size)


@functools.cache
def _arrays(num_clients: int, num_examples: int, shape: tuple[int, ...]) -> Arrays:
    generator = np.random.default_rng(0)
    x = generator.random((num_clients, num_examples, *shape), dtype=np.float32)
    return x, generator.integers(0, NUM_CLASSES, (num_clients, num_examples))
