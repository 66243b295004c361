"""Private classification of the rows of a table: incomes of the census, Adult at epsilon 1.

Each row is a person: age, work, family, and whether they earn more than 50,000 dollars. A small
network learns to predict that. `AutoDPOptimizer` plans everything but the number of epochs: each
step draws rows at random, gives each row's gradient the same norm, and adds noise to their sum.

    python examples/adult.py

**Expected**: 84.7% at epsilon 1, after a quarter of a minute on two cores. About 76% of the people
earn less, so guessing gives 76%.

**Data**: downloaded from the UCI repository; without a network, see `docs/examples.md`.
"""

import keras
import numpy as np
from keras import layers

import keras_adaclip as ka
from data import ADULT_CATEGORIES, ADULT_NUMBERS, LabelledData, load_adult, make_up_table
from private_classification import Task, main, planned_or_adam

"""
## What to choose

None of this was tuned. `--clipping` clips the gradients by another method, and Adam makes the
steps. It divides by the size of the gradients it has seen, so that the clipping norm has little
effect on the size of its steps, and one learning rate serves all methods.
"""

TASK = Task(
    title="Adult",
    epsilon=1.0,
    delta=1e-5,
    batch_size=1024,
    trainings=planned_or_adam(learning_rate=3e-3, epochs=20),
)

"""
## The data

32,561 training and 16,281 test rows with five numbers and seven categories. Tables tempt most to
look at the data first: scale by means and deviations, list the categories that occur, drop what is
rare. All of that is computed from private rows, and no epsilon covers it. `load_adult` computes
nothing from the rows: its constants are what a column can hold at most, and its categories those of
the published description.
"""


def load(is_smoke: bool) -> LabelledData:
    """The census, or made-up rows of its shape."""
    return make_up_table("Adult") if is_smoke else load_adult()


"""
## The network

Each category becomes eight learned numbers; with the numeric columns they go into a hidden layer.
One embedding serves all columns, so the ids of a column begin where those of the column before end.
"""


def build_model(units: int = 32) -> keras.Model:
    """An embedding, a hidden layer, and one output for each class."""
    sizes = [len(values) for values in ADULT_CATEGORIES.values()]
    first_ids = np.cumsum([0, *sizes[:-1]], dtype="int32")
    inputs = {
        "numbers": keras.Input((len(ADULT_NUMBERS),), name="numbers"),
        "categories": keras.Input((len(sizes),), dtype="int32", name="categories"),
    }
    embedded = layers.Embedding(sum(sizes), 8)(inputs["categories"] + first_ids)
    x = layers.Concatenate()([inputs["numbers"], layers.Flatten()(embedded)])
    x = layers.Dense(units, activation="tanh")(x)
    return ka.PrivateModel(inputs, layers.Dense(2)(x), name="census")


if __name__ == "__main__":
    main(__doc__, TASK, load, lambda _: build_model())
