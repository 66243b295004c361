"""Measures a round of clients of unequal size, beside one of equal clients with as many examples.

    KERAS_BACKEND=jax python benchmarks/federated/unequal_clients.py mlp
    KERAS_BACKEND=tensorflow python benchmarks/federated/unequal_clients.py mlp --jit-compile

prints the median wall time of a round of each, in turns, and their ratio. All 1,000 clients take
part in each round. Of the unequal ones, client k has about 5,000 / k examples.
"""

import argparse
import statistics
import time

import keras
import numpy as np

import keras_adaclip as ka

NUM_CLIENTS, LARGEST = 1000, 5000
layers = keras.layers
STACKS = {
    "mlp": lambda: [keras.Input((784,)), layers.Dense(64, activation="relu"), layers.Dense(10)],
    "cnn": lambda: [
        keras.Input((28, 28, 1)),
        layers.Conv2D(8, 5, strides=2, activation="relu"),
        layers.Flatten(),
        layers.Dense(10),
    ],
}


class Rounds:
    """A model and its clients, and the seconds of each round.

    Args:
        name: A key of `STACKS`.
        sizes: The number of examples of each client.
        jit_compile: The argument of `compile`.
    """

    def __init__(self, name: str, sizes: np.ndarray, jit_compile: object) -> None:
        self.model = ka.federated.FederatedSequential(STACKS[name]())
        self.model.compile(
            optimizer=ka.optimizers.DPOptimizer(
                keras.optimizers.SGD(1.0), clipping=1.0, noise_multiplier=1.0
            ),
            client_optimizer=keras.optimizers.SGD(0.05),
            client_batch_size=10,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=jit_compile,
        )
        rng = np.random.default_rng(0)
        x = rng.normal(size=(int(sizes.sum()), *self.model.input_shape[1:])).astype("float32")
        y = rng.integers(0, 10, len(x))
        ids = np.repeat(np.arange(len(sizes)), sizes)
        self.clients = ka.federated.ClientData.from_arrays(x, y, ids)
        self.seconds: list[float] = []

    def run(self, num_rounds: int) -> None:
        """Train, and keep the time of each round.

        Args:
            num_rounds: The number of rounds.
        """
        begun = [0.0]

        def begin(batch: int, logs: object = None) -> None:
            """Start the clock."""
            begun[0] = time.perf_counter()

        def end(batch: int, logs: object = None) -> None:
            """Stop the clock."""
            self.seconds.append(time.perf_counter() - begun[0])

        clock = keras.callbacks.LambdaCallback(on_train_batch_begin=begin, on_train_batch_end=end)
        self.model.fit(
            self.clients,
            cohort_size=NUM_CLIENTS,
            steps_per_epoch=num_rounds,
            sampling="fixed",
            callbacks=[clock],
            verbose=0,
        )


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=STACKS)
    parser.add_argument("--rounds", type=int, default=5, help="rounds a turn (%(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--jit-compile", action="store_true", help="as Keras's argument")
    options = parser.parse_args()
    power = np.maximum(LARGEST // np.arange(1, NUM_CLIENTS + 1), 1)
    equal = np.full(NUM_CLIENTS, round(power.mean()))
    kinds = {
        name: Rounds(options.model, sizes, True if options.jit_compile else "auto")
        for name, sizes in (("equal", equal), ("unequal", power))
    }
    for rounds in kinds.values():
        rounds.run(1)  # Compiles.
        rounds.seconds.clear()
    for _ in range(options.turns):
        for rounds in kinds.values():
            rounds.run(options.rounds)
    medians = {name: statistics.median(rounds.seconds) for name, rounds in kinds.items()}
    print(
        f"{keras.backend.backend()}, {options.model}: a round of equal clients takes "
        f"{medians['equal']:.3f} s, of unequal clients {medians['unequal']:.3f} s, "
        f"ratio {medians['unequal'] / medians['equal']:.2f}"
    )


if __name__ == "__main__":
    main()
