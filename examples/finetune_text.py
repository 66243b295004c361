"""Private fine-tuning with LoRA: a language model learns to judge film reviews at epsilon 3.

The model was trained on public text, and its weights are frozen. LoRA adds the product of two
narrow matrices to some of them; DP training fits these matrices and the last layer. Few weights get
noise, so the noise does little harm, and frozen layers cost neither norms nor memory for gradients.

    python examples/finetune_text.py
    python examples/finetune_text.py --preset distil_bert_base_en_uncased    # with keras-hub

With `--preset`, any text model of keras-hub. Without, a small GPT that the script first trains to
guess the next word of public text: novels or plays (`--public`), by default Shakespeare.

**What is protected**: one review. A writer of several is protected less; see `unit_ids` of `fit`.

**Expected**: 77.2% at epsilon 3 and 83.8% without privacy, with six novels by Jane Austen as the
public text, in half an hour on two cores. Guessing gives 50%.

**Data**: Keras downloads the reviews of IMDB, or `--data` takes the folder that holds `aclImdb`.
"""

import argparse
import dataclasses
import math
import re
import sys
import zlib
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

import keras_adaclip as ka
from data import LabelledData, load_reviews, load_texts
from language_model import build_gpt

"""
## Words as numbers

The hash of a word is a fixed function. A vocabulary of the reviews gives away that somebody used a
rare word, and no epsilon covers it. Number 0 fills a text up. Of a long review the end is kept.
"""

NUM_IDS, LENGTH = 4096, 256


def numbers_of(text: str) -> list[int]:
    """Return the hashes of all words, from 1."""
    words = re.findall(r"[a-z]+|[!?]", text.lower())
    return [1 + zlib.crc32(word.encode()) % (NUM_IDS - 1) for word in words]


def rows_of(texts: Any, length: int) -> np.ndarray:
    """Return int32 of shape `(num_texts, length)`."""
    return keras.utils.pad_sequences([numbers_of(text) for text in texts], length, padding="post")


def load(options: argparse.Namespace) -> tuple[LabelledData, str]:
    """The private reviews, and the public text if there is no preset."""
    if not options.smoke:
        public = {} if options.preset else load_texts(options.public)
        return load_reviews(options.data), "\n".join(public.values())
    rng = np.random.default_rng(0)
    words = (["dull", "poor", "bad", "weak"], ["good", "great", "fine", "warm"])
    labels = np.arange(384) % 2
    texts = [" ".join(rng.choice(["the", "film", *words[label]], 20)) for label in labels]
    x = np.array(texts, object)
    return LabelledData(x[:256], labels[:256], x[256:], labels[256:], "made-up"), " ".join(texts)


"""
## The public model

Guessing the next word of public text costs no privacy. It teaches the network which words are used
alike, though novels of 1800 are far from film reviews; a preset of keras-hub knows far more.
"""


def pretrained_gpt(text: str, options: argparse.Namespace) -> keras.Model:
    """A small GPT over hashed words, trained on a public text."""
    model = build_gpt(NUM_IDS, options.length, options.width)
    ids = np.array(numbers_of(text), np.int32)
    targets = ids[: len(ids) // options.length * options.length].reshape(-1, options.length)
    inputs = np.pad(targets, ((0, 0), (1, 0)))[:, :-1]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(2e-3), loss)
    model.fit(inputs, targets, batch_size=16, epochs=options.public_epochs, verbose=2)
    return model


"""
## Freeze, and add the narrow matrices

The rank is the width of the two matrices. Li et al. 2022 ("Large language models can be strong
differentially private learners") and Yu et al. 2022 ("Differentially private fine-tuning of
language models") found ranks of 4 to 16 enough.
"""


def with_lora(model: keras.Model, rank: int) -> keras.Model:
    """A classifier on a copy of the small GPT, whose embedding and attention get LoRA."""
    copied = keras.models.clone_model(model)
    copied.set_weights(model.get_weights())
    copied.trainable = False
    for layer in copied._flatten_layers():
        if isinstance(layer, layers.Embedding) or layer.name in ("query", "value"):
            layer.trainable = True
            layer.enable_lora(rank)
    is_word = keras.ops.not_equal(copied.input, 0)
    states = copied.get_layer("hidden_states").output
    pooled = layers.GlobalAveragePooling1D()(states, mask=is_word)
    return keras.Model(copied.input, layers.Dense(2, name="classes")(pooled), name="classifier")


def new_task(model: keras.Model | None, options: argparse.Namespace) -> keras.Model:
    """A classifier with pretrained weights: of a preset, or of the small GPT."""
    if model is not None:
        return with_lora(model, options.rank)
    import keras_hub

    task = keras_hub.models.TextClassifier.from_preset(options.preset, num_classes=2)
    task.preprocessor.sequence_length = options.length
    task.backbone.enable_lora(options.rank)
    return task


"""
## Train and compare

The same start, with privacy and without. `AutoDPOptimizer` plans noise, batch size and steps, with
which all steps together end at epsilon. LoRA's matrices and the last layer are new, so that it
needs no `pretrained=True`.
"""


def accuracy(task: Any, optimizer: Any, data: LabelledData, **settings: Any) -> float:
    """Train with these settings of `fit`, and return the accuracy on the test reviews."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    task.compile(optimizer, loss, metrics=["accuracy"])
    task.fit(data.x_train, data.y_train, verbose=2, **settings)
    return task.evaluate(data.x_test, data.y_test, verbose=0, return_dict=True)["accuracy"]


def main() -> None:
    """Load, pretrain, fine-tune with privacy and without, and report."""
    options = parse_options()
    try:
        data, public = load(options)
    except FileNotFoundError as error:
        sys.exit(f"{error}\n`--smoke` runs without it, on made-up texts.")
    print(f"Data: {data.source}; backend: {keras.backend.backend()}")
    keras.utils.set_random_seed(options.seed)
    model = None
    if options.preset is None:  # Presets bring their own preprocessors.
        model = pretrained_gpt(public, options)
        x_train, x_test = (rows_of(x, options.length) for x in (data.x_train, data.x_test))
        data = dataclasses.replace(data, x_train=x_train, x_test=x_test)

    private = ka.privatize(new_task(model, options))
    trained = sum(math.prod(variable.shape) for variable in private.trainable_variables)
    print(f"{trained:,} of {private.count_params():,} numbers are trained")
    private.private_summary()
    optimizer = ka.optimizers.AutoDPOptimizer(options.epsilon, options.delta)
    # The optimizer plans the batch size. Tasks of keras-hub have a default of their own.
    reached = accuracy(private, optimizer, data, batch_size=None, epochs=options.epochs)
    # Tasks of keras-hub do not shuffle on every backend; the reviews come in random order.
    settings = {"batch_size": 32, "epochs": options.epochs, "shuffle": options.preset is None}
    without = accuracy(new_task(model, options), keras.optimizers.Adam(1e-3), data, **settings)
    print(private.privacy_spent(options.delta))
    print(f"Test accuracy {reached:.2%} with privacy, {without:.2%} without.")


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--preset", help="of keras-hub, by name or folder")
    add("--data", type=Path, help="folder that holds aclImdb")
    add("--public", type=Path, help="public text: a file, or a folder of .txt files")
    add("--public-epochs", type=int, default=3, help="of training on it (%(default)s)")
    add("--epsilon", type=float, default=3.0, help="privacy budget (%(default)s)")
    add("--delta", type=float, default=1e-5, help="its delta (%(default)s)")
    add("--rank", type=int, default=4, help="of LoRA (%(default)s)")
    add("--epochs", type=int, default=3, help="over the reviews (%(default)s)")
    add("--seed", type=int, default=1, help="of initial weights, never of noise (%(default)s)")
    add("--smoke", action="store_true", help="a few steps on made-up texts")
    options = parser.parse_args()
    options.length, options.width = (16, 8) if options.smoke else (LENGTH, 64)
    if options.smoke:
        options.epochs = 2
    return options


if __name__ == "__main__":
    main()
