"""One run of the comparison: what it is, and what training it gives."""

import gc
import json
import time
import warnings
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import keras

import keras_adaclip as ka

from . import networks
from .data_sets import DATA_SETS, images
from .methods import METHODS, Settings


@dataclass(frozen=True)
class Run:
    """Everything that decides what a run gives; its fields are the first columns of the CSV.

    Args:
        data_set: a key of `DATA_SETS`.
        network: a key of `NETWORKS`.
        method: a key of `METHODS`.
        epsilon: the privacy budget, at the data set's delta.
        seed: of the initial weights, the batches and the noise.
        learning_rate: of plain SGD.
        epochs: number of epochs.
        activation: a key of `ACTIVATIONS`.
        hyperparameters: of the method, as JSON with sorted keys.
        scored_on: `"test"`, or `"validation"` for a run that chooses.
        accountant: `"pld"` or `"rdp"`.
    """

    data_set: str
    network: str
    method: str
    epsilon: float
    seed: int
    learning_rate: float
    epochs: int
    activation: str
    hyperparameters: str
    scored_on: str
    accountant: str

    @property
    def key(self) -> tuple[str, ...]:
        """What tells this run from all others, as text."""
        return tuple(str(getattr(self, field.name)) for field in fields(self))

    def __str__(self) -> str:
        """The run in one line."""
        return (
            f"{self.method}, epsilon {self.epsilon:g}, {self.network}, learning rate "
            f"{self.learning_rate:g}, {self.epochs} epochs, {self.activation}, seed {self.seed}, "
            f"{self.scored_on}"
        )


@dataclass(frozen=True)
class Scale:
    """How much data the runs see.

    Args:
        batch_size: expected number of examples in a Poisson-sampled batch.
        num_train: at most so many training images; None takes all of them.
    """

    batch_size: int = 1024
    num_train: int | None = None


# The moving average of the weights, which costs no privacy, goes back about so many steps.
AVERAGED_STEPS = 200
# The measured columns of the CSV.
RESULTS = (
    "noise_multiplier",
    "accuracy",
    "epsilon_spent",
    "seconds",
    "accuracy_by_epoch",
    "threshold_by_epoch",
    "accuracy_of_average",
    "computed_on",
)


def as_text(settings: Settings) -> str:
    """Hyperparameters as a run holds them."""
    return json.dumps(settings, sort_keys=True)


def train(run: Run, scale: Scale) -> dict[str, Any]:
    """Trains and scores; the values of `RESULTS`.

    Args:
        run: what to train.
        scale: on how much data.
    """
    started = time.perf_counter()
    data_set = DATA_SETS[run.data_set]
    data = images(run.data_set, run.scored_on, scale.num_train)
    noise_multiplier = calibrated_noise(
        run.epsilon, data_set.delta, len(data.x_train), scale.batch_size, run.epochs, run.accountant
    )
    steps = run.epochs * -(-len(data.x_train) // scale.batch_size)
    method = METHODS[run.method]
    keras.utils.clear_session()
    keras.utils.set_random_seed(run.seed)
    model = compiled(
        networks.build(run.network, run.activation),
        method.build(json.loads(run.hyperparameters), steps),
        run.learning_rate,
        noise_multiplier,
        seed=run.seed,
        averaged_steps=AVERAGED_STEPS,
    )
    thresholds = ThresholdRecorder()
    history = model.fit(
        data.x_train,
        data.y_train,
        batch_size=scale.batch_size,
        epochs=run.epochs,
        validation_data=(data.x_test, data.y_test),
        validation_batch_size=2_000,
        callbacks=[thresholds] if method.has_threshold else [],
        verbose=0,
    )
    accuracies = history.history["val_accuracy"]
    # `fit` leaves the averaged weights.
    averaged = model.evaluate(data.x_test, data.y_test, 2_000, verbose=0, return_dict=True)
    result = {
        "noise_multiplier": noise_multiplier,
        "accuracy": accuracies[-1],
        "epsilon_spent": model.privacy_spent(data_set.delta, run.accountant).epsilon,
        "accuracy_by_epoch": _rounded(accuracies),
        "threshold_by_epoch": _rounded(thresholds.values),
        "accuracy_of_average": averaged["accuracy"],
        "seconds": round(time.perf_counter() - started, 1),
        "computed_on": computed_on(),
    }
    del model, history
    gc.collect()
    return result


def compiled(
    model: keras.Model,
    clipping: ka.clipping.ClippingStrategy,
    learning_rate: float,
    noise_multiplier: float,
    seed: int,
    averaged_steps: int | None = None,
) -> keras.Model:
    """The model, compiled for plain SGD.

    The noise is seeded, so that every run can be repeated; nobody's privacy hangs on these images.

    Args:
        model: a private model.
        clipping: the clipping strategy.
        learning_rate: of plain SGD.
        noise_multiplier: of the whole release.
        seed: of the noise and the batches.
        averaged_steps: about how many steps the average of the weights goes back that `fit` leaves
            in the end; None leaves the last weights.
    """
    average = {}
    if averaged_steps is not None:
        average = {"use_ema": True, "ema_momentum": 1.0 - 1.0 / averaged_steps}
    model.compile(
        optimizer=ka.optimizers.DPOptimizer(
            keras.optimizers.SGD(learning_rate, **average),
            clipping=clipping,
            noise_multiplier=noise_multiplier,
            seed=seed,
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def computed_on() -> str:
    """The backend, and what it computes on: a run's noise and rounding are theirs."""
    on_cpu = ka.backend.computes_on_cpu()
    return f"{keras.backend.backend()}, {'CPU' if on_cpu else 'GPU'}"


@cache
def calibrated_noise(
    epsilon: float, delta: float, num_examples: int, batch_size: int, epochs: int, accountant: str
) -> float:
    """The noise multiplier that a budget asks for."""
    with warnings.catch_warnings():
        # The paper's delta is 1 / num_examples, larger than what the package advises.
        warnings.filterwarnings("ignore", message="Argument `delta` should be well below")
        return ka.accounting.calibrate_noise_multiplier(
            epsilon, delta, num_examples, batch_size, epochs=epochs, accountant=accountant
        )


class ThresholdRecorder(keras.callbacks.Callback):
    """Keeps the clipping norm with which each epoch begins."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Reads the norm of the epoch's first step."""
        self.values.append(self.model.optimizer.clip_norm)


def _rounded(values: list[float]) -> list[float]:
    return [float(f"{value:.5g}") for value in values]
