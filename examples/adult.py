"""Private classification of the rows of a table: incomes of the census, Adult at epsilon 1.

Each row is a person: age, work, family, and whether they earn more than 50,000 dollars. A small
network learns to tell that, by DP-Adam: each step draws rows at random, clips the gradient of each
one to a norm, adds noise to their sum, and gives the mean to Adam.

    python examples/adult.py

**Expected**: this script was not run on the real Adult here, only with `--smoke`, on rows made up
on the spot. About 76% of the people earn less, so that is what guessing gives.

**Data**: the UCI repository or a folder of your own; see `docs/examples.md`.
"""

import time
from collections.abc import Iterable

import keras
import numpy as np
from keras import layers

import keras_adaclip as ka
from keras_adaclip.datasets import TableData, load_adult, make_up_table
from private_classification import (
    CLIPPINGS,
    Task,
    Training,
    callbacks,
    loaded,
    parse_options,
    private_optimizer,
    report,
)

"""
## What to choose

None of this was tuned. Adam divides by the size of the gradients it has seen, so that the clipping
norm hardly changes the size of its steps, and one learning rate serves all methods.
"""

LEARNING_RATE, EPOCHS = 3e-3, 20
TASK = Task(
    title="Adult",
    epsilon=1.0,
    delta=1e-5,
    batch_size=1024,
    trainings={
        name: Training(LEARNING_RATE, EPOCHS, momentum=None)
        for name in ("quantile", *(name for name in CLIPPINGS if name != "quantile"))
    },
)

"""
## The data

32,561 training and 16,281 test rows with five numbers and seven categories. Tables tempt most to
look at the data first: scale by means and deviations, list the categories that occur, drop what is
rare. All of that is computed from private rows, and no epsilon covers it. `load_adult` computes
nothing from the rows: its constants are what a column can hold at most, and its categories those of
the published description.

The categories of all columns are numbered through, so that one embedding serves them all.
"""


def load(is_smoke: bool) -> TableData:
    """The census, or made-up rows of its shape."""
    return make_up_table("Adult") if is_smoke else load_adult()


def inputs_of(
    numeric: np.ndarray, categorical: np.ndarray, sizes: Iterable[int]
) -> dict[str, np.ndarray]:
    """What the network takes: numbers, and ids that differ from column to column."""
    first_ids = np.cumsum([0, *sizes])[:-1]
    return {"numeric": numeric, "categories": categorical + first_ids.astype(np.int32)}


"""
## The network

Each category becomes eight learned numbers; with the numeric columns they go into a hidden layer.
"""


def build_model(num_numeric: int, sizes: list[int], units: int = 32) -> keras.Model:
    """An embedding, a hidden layer, and one output a class."""
    numeric = keras.Input((num_numeric,), name="numeric")
    categories = keras.Input((len(sizes),), dtype="int32", name="categories")
    embedded = layers.Flatten()(layers.Embedding(sum(sizes), 8)(categories))
    x = layers.Concatenate()([numeric, embedded])
    x = layers.Dense(units, activation="tanh")(x)
    inputs = {"numeric": numeric, "categories": categories}
    return ka.PrivateModel(inputs, layers.Dense(2)(x), name="census")


"""
## Compile, fit, report

The privacy is in the optimizer: `private_optimizer` finds the noise with which all epochs together
cost just epsilon, and wraps Adam in a `ka.optimizers.DPOptimizer` with that noise and the clipping
of the command line: by default the median of the gradient norms, estimated privately.
"""


def main() -> None:
    """Loads, trains and reports."""
    options = parse_options(__doc__, TASK)
    data = loaded(load, options)

    started = time.perf_counter()
    sizes = [len(values) for values in data.categories.values()]
    model = build_model(len(data.numeric), sizes)
    model.compile(
        optimizer=private_optimizer(
            keras.optimizers.Adam(options.learning_rate), options, num_examples=len(data.y_train)
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    test_data = (inputs_of(data.numeric_test, data.categorical_test, sizes), data.y_test)
    history = model.fit(
        inputs_of(data.numeric_train, data.categorical_train, sizes),
        data.y_train,
        batch_size=options.batch_size,
        epochs=options.epochs,
        validation_data=test_data,
        callbacks=callbacks(options),
        verbose=options.verbose,
    )
    report(model, history, test_data, options, time.perf_counter() - started)


if __name__ == "__main__":
    main()
