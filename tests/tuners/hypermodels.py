"""Private searches over hypermodels of one layer, which take no time."""

import keras
import keras_tuner
import numpy as np

import keras_adaclip as ka
from keras_adaclip.accounting import Ledger, LedgerRow, RandomSelection, Sampling
from keras_adaclip.tuners import PrivateSearch

NUM_EXAMPLES, BATCH_SIZE, EPOCHS = 32, 8, 2
NOISE = 2.0


def data(seed=0, num_examples=NUM_EXAMPLES):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_examples, 3)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def planned(noise_multiplier=NOISE, steps=EPOCHS * NUM_EXAMPLES // BATCH_SIZE):
    row = LedgerRow.open(Sampling.POISSON, BATCH_SIZE, NUM_EXAMPLES, noise_multiplier)
    return Ledger((row.advance(steps),))


def private_model(learning_rate=0.1, noise_multiplier=NOISE):
    model = ka.privatize(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    optimizer = ka.optimizers.DPOptimizer(
        keras.optimizers.SGD(learning_rate), noise_multiplier=noise_multiplier
    )
    model.compile(optimizer, loss="mean_squared_error")
    return model


class Regression(keras_tuner.HyperModel):
    """Trains for real."""

    def __init__(self, noise_multiplier=NOISE, epochs=EPOCHS):
        super().__init__()
        self.noise_multiplier = noise_multiplier
        self.epochs = epochs

    def build(self, hp):
        rate = hp.Float("learning_rate", 1e-3, 1e-1, sampling="log")
        return private_model(rate, self.noise_multiplier)

    def fit(self, hp, model, x, y, **arguments):
        return model.fit(x, y, batch_size=BATCH_SIZE, epochs=self.epochs, **arguments)

    def privacy_plan(self, hp):
        return planned(self.noise_multiplier)

    def with_noise_multiplier(self, noise_multiplier):
        return type(self)(noise_multiplier)


class Scored(Regression):
    """Trains not at all: the score of a trial follows from its one hyperparameter.

    Attributes:
        seen: the values of all trials, in order.
    """

    values = (1, 2, 3)

    def __init__(self, score=float):
        super().__init__()
        self.score = score
        self.seen = []

    def build(self, hp):
        hp.Choice("level", list(self.values))
        return private_model()

    def fit(self, hp, model, x, y, **arguments):
        self.seen.append(hp.get("level"))
        value = self.score(self.seen[-1])
        model.set_weights([np.full((3, 1), self.seen[-1]), np.zeros(1)])
        return value


def search_of(hypermodel, folder, **arguments):
    arguments = {"objective": "val_loss", "directory": folder, "project_name": "p", **arguments}
    return PrivateSearch(hypermodel, **arguments)


def run(search, **arguments):
    search.search(*data(), validation_data=data(1), **arguments)
    return search


def draw_numbers(monkeypatch, *numbers):
    """Makes the secret numbers of the next searches known to the test; the last one stays."""
    left = list(numbers)
    monkeypatch.setattr(
        RandomSelection, "draw", lambda self, source=None: left.pop(0) if len(left) > 1 else left[0]
    )


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def sampled(x, y, **options):
    return ka.sampling.PoissonDataset(x, y, expected_batch_size=BATCH_SIZE, **options)
