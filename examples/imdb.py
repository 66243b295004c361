"""Private classification of texts by a small transformer: film reviews, IMDB at epsilon 3.

A review reveals something about its writer. The model learns to classify friendly and unfriendly
reviews. `AutoDPOptimizer` plans everything but the number of epochs: each step draws reviews at
random, gives the gradient of each review the same norm, and adds noise to their sum.

    python examples/imdb.py

**Expected**: this script was run with `--smoke` only, a narrow network on made-up texts. Half of
the reviews are friendly, so guessing gives 50%.

**Data**: Keras downloads it; without a network, see `docs/examples.md`.
"""

from typing import Any

import keras
import numpy as np
from keras import layers

import keras_adaclip as ka
from data import LabelledData, load_imdb, make_up_texts
from private_classification import Task, main, planned_or_adam

"""
## What to choose

None of this was tuned. `--clipping` clips the gradients by another method, and Adam makes the
steps. It divides by the size of the gradients it has seen, so that the clipping norm has little
effect on the size of its steps, and one learning rate serves all methods. One review is one unit of
privacy; a writer of several is protected less.
"""

TASK = Task(
    title="IMDB",
    epsilon=3.0,
    delta=1e-5,
    batch_size=1024,
    trainings=planned_or_adam(learning_rate=2e-3, epochs=20),
)

"""
## The data

25,000 training and 25,000 test reviews, each as the ids of its last 256 words. The vocabulary needs
care. One that is made of the private texts themselves, say their 5,000 commonest words, gives away
that somebody used a rare one, and no epsilon covers it. Keras numbers the words of these reviews by
their frequency. That was published long ago with this data set; for texts of your own take a public
vocabulary, or hashes of the words.
"""

NUM_TOKENS, LENGTH = 5_000, 256


def load(is_smoke: bool) -> LabelledData:
    """The reviews, or made-up texts of their shape."""
    return make_up_texts("IMDB", NUM_TOKENS, LENGTH) if is_smoke else load_imdb(NUM_TOKENS, LENGTH)


"""
## The network

An embedding, one block of self-attention with a hidden layer, and the mean over the words. All
weights together are few, 170,000, since noise goes to each of them: the positions are sines, which
need none. Layer normalization looks at one example alone; batch normalization would be refused.

`mask_zero=True` keeps the filling at the end of a text out of the attention and out of the mean.
"""


@keras.saving.register_keras_serializable("examples")
class SinePositions(layers.Layer):
    """Adds sines of the position, of many wavelengths (Vaswani et al. 2017)."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.supports_masking = True

    def call(self, x: Any) -> Any:
        """`x` of shape `(batch_size, length, width)`, plus the sines."""
        length, width = x.shape[1:]
        wavelengths = 10_000.0 ** (np.arange(width) // 2 * 2 / width)
        angles = np.arange(length)[:, None] / wavelengths
        sines = np.where(np.arange(width) % 2, np.cos(angles), np.sin(angles))
        return x + keras.ops.cast(sines, x.dtype)


def build_model(width: int = 32) -> keras.Model:
    """A transformer of one block."""
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(NUM_TOKENS, width, mask_zero=True)(inputs)
    x = SinePositions()(x)
    attended = layers.LayerNormalization()(x)
    attended = layers.MultiHeadAttention(num_heads=2, key_dim=width // 2)(attended, attended)
    x = layers.Add()([x, attended])
    hidden = layers.LayerNormalization()(x)
    hidden = layers.Dense(2 * width, activation="gelu")(hidden)
    x = layers.Add()([x, layers.Dense(width)(hidden)])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return ka.PrivateModel(inputs, layers.Dense(2)(x), name="small_transformer")


if __name__ == "__main__":
    main(__doc__, TASK, load, lambda options: build_model(width=8 if options.smoke else 32))
