"""Private fine-tuning with LoRA: a public transformer learns from private reviews at epsilon 3.

The backbone was trained on public texts, and its weights are frozen. LoRA adds the product of two
narrow matrices to some of them; DP-Adam trains these matrices and the last layer. Few weights get
noise, so the noise does little harm, and frozen layers cost neither norms nor memory for gradients.

    python examples/lora.py --smoke
    python examples/lora.py --backbone distil_bert_base_en_uncased        # with keras-hub installed

**Expected**: this script was run with `--smoke` only: a tiny transformer, trained on made-up public
texts before.

**Data**: as for `imdb.py`; see `docs/examples.md`.
"""

import argparse
import math
import sys

import keras
from keras import layers

import keras_adaclip as ka
from data import make_up_texts
from imdb import LENGTH, NUM_TOKENS, SinePositions, load
from private_classification import Task, main, same_for_all

"""
## What to choose

The rank is the width of the two matrices. Li et al. 2022 ("Large language models can be strong
differentially private learners") and Yu et al. 2022 ("Differentially private fine-tuning of
language models") found ranks of 4 to 16 enough. Nothing here was tuned.
"""

RANK = 4
TASK = Task(
    title="LoRA",
    epsilon=3.0,
    delta=1e-5,
    batch_size=1024,
    trainings=same_for_all(learning_rate=1e-3, epochs=10),
)

"""
## The backbone

One of keras-hub, by the name of its preset, or a small transformer with weights of its own. The
texts are ids; a backbone of keras-hub has a vocabulary of its own, to which yours must be turned.
"""


def small_backbone(width: int = 8) -> keras.Model:
    """A transformer of one block, trained on public texts: here, texts that are made up."""
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = SinePositions()(layers.Embedding(NUM_TOKENS, width, mask_zero=True)(inputs))
    attended = layers.LayerNormalization()(x)
    attended = layers.MultiHeadAttention(num_heads=2, key_dim=width // 2)(attended, attended)
    x = layers.Add()([x, attended])
    hidden = layers.Dense(2 * width, activation="gelu")(layers.LayerNormalization()(x))
    x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(width)(hidden)]))
    backbone = keras.Model(inputs, x, name="backbone")
    public = make_up_texts("public texts", NUM_TOKENS, LENGTH)
    classes = layers.Dense(2)(layers.GlobalAveragePooling1D()(backbone.output))
    model = keras.Model(inputs, classes)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(1e-2), loss=loss)
    model.fit(public.x_train, public.y_train, batch_size=64, epochs=1, verbose=0)
    return backbone


def backbone_of(preset: str | None) -> keras.Model:
    """The backbone of keras-hub with that name, or the small one."""
    if preset is None:
        return small_backbone()
    import keras_hub

    return keras_hub.models.Backbone.from_preset(preset)


"""
## Freeze, and add the narrow matrices

Every weight is frozen, then `enable_lora` adds weights to the projections of queries and values.
"""


def add_lora(backbone: keras.Model, rank: int) -> int:
    """Freeze all weights, add LoRA to the attention, and return the number of its layers."""
    for variable in backbone.variables:
        variable.trainable = False
    adapted = 0
    for layer in backbone._flatten_layers():
        if type(layer).__name__ not in ("MultiHeadAttention", "CachedMultiHeadAttention"):
            continue
        for dense in (layer.query_dense, layer.value_dense):
            dense.enable_lora(rank)
            adapted += 1
    return adapted


def build_model(preset: str | None, rank: int) -> keras.Model:
    """A private classifier on the backbone."""
    backbone = backbone_of(preset)
    if add_lora(backbone, rank) == 0:
        sys.exit(f"Found no attention in {backbone.name!r} to adapt.")
    tokens = keras.Input((LENGTH,), dtype="int32")
    if isinstance(backbone.input, dict):
        is_text = keras.ops.cast(keras.ops.not_equal(tokens, 0), "int32")
        x = backbone({"token_ids": tokens, "padding_mask": is_text})
    else:
        x = backbone(tokens)
    x = layers.GlobalAveragePooling1D()(x)
    model = ka.PrivateModel(tokens, layers.Dense(2, name="classes")(x), name="lora")
    trained = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    print(f"{trained:,} of {model.count_params():,} numbers are trained")
    # Frozen layers take no part: only those with trained weights are listed.
    model.private_summary()
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--backbone", metavar="PRESET", help="of keras-hub")
    parser.add_argument("--rank", type=int, default=RANK)
    own, rest = parser.parse_known_args()
    main(__doc__, TASK, load, lambda _: build_model(own.backbone, own.rank), rest)
