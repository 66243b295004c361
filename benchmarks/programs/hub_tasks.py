"""Five tasks of KerasHub with small random weights, on texts and images as users have them."""

from collections.abc import Callable

import keras_hub
import numpy as np
from catalogue import ROWS, Made, Program, labels, numbers

WORDS = ["a", "bad", "film", "good", "great", "plot", "poor", "the", "was"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
hub = keras_hub.models


def texts() -> np.ndarray:
    """Return sentences of three to seven words."""
    rng = np.random.default_rng(0)
    return np.array([" ".join(rng.choice(WORDS, rng.integers(3, 8))) for _ in range(ROWS)])


def encoder(random: float) -> hub.BertBackbone:
    """Return a small BERT."""
    return hub.BertBackbone(
        vocabulary_size=len(SPECIAL) + len(WORDS),
        num_layers=2,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        dropout=0.1 * random,
        max_sequence_length=8,
    )


def bert_text_classifier(random: float) -> Made:
    """Return a classifier of texts."""
    tokenizer = hub.BertTokenizer(vocabulary=[*SPECIAL, *WORDS])
    preprocessor = hub.BertTextClassifierPreprocessor(tokenizer, sequence_length=8)
    task = hub.BertTextClassifier(
        encoder(random), 2, preprocessor=preprocessor, dropout=0.1 * random
    )
    return Made(task, texts(), labels(2))


def bert_masked_lm(random: float) -> Made:
    """Return a model of masked words, with tied embeddings and weights of tokens."""
    tokenizer = hub.BertTokenizer(vocabulary=[*SPECIAL, *WORDS])
    preprocessor = hub.BertMaskedLMPreprocessor(
        tokenizer, sequence_length=8, mask_selection_length=3, mask_selection_rate=0.3
    )
    return Made(hub.BertMaskedLM(encoder(random), preprocessor=preprocessor), texts())


def letters() -> hub.GPT2Tokenizer:
    """Return a tokenizer of letters."""
    names = ["<|endoftext|>", *sorted(set("".join(WORDS))), "Ġ", "ba"]
    return hub.GPT2Tokenizer({name: place for place, name in enumerate(names)}, ["b a"])


def gpt2_causal_lm(random: float) -> Made:
    """Return a causal language model with tied embeddings."""
    tokenizer = letters()
    backbone = hub.GPT2Backbone(
        vocabulary_size=tokenizer.vocabulary_size(),
        num_layers=2,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        dropout=0.1 * random,
        max_sequence_length=12,
    )
    preprocessor = hub.GPT2CausalLMPreprocessor(tokenizer, sequence_length=12)
    return Made(hub.GPT2CausalLM(backbone, preprocessor=preprocessor), texts())


def gemma_causal_lm_with_lora(random: float) -> Made:
    """Return Gemma without a preprocessor, whose low-rank matrices alone are trained."""
    backbone = hub.GemmaBackbone(
        vocabulary_size=32,
        num_layers=2,
        num_query_heads=2,
        num_key_value_heads=1,
        hidden_dim=16,
        intermediate_dim=32,
        head_dim=8,
        dropout=0.1 * random,
    )
    backbone.enable_lora(2)
    tokens = labels(32, 13).astype("int32")
    x = {"token_ids": tokens[:, :-1], "padding_mask": np.ones((ROWS, 12), bool)}
    return Made(hub.GemmaCausalLM(backbone, preprocessor=None), x, tokens[:, 1:])


def resnet_image_classifier(random: float) -> Made:
    """Return a classifier of images."""
    backbone = hub.ResNetBackbone(
        [64], [3], [64], [1], [1], "basic_block", use_pre_activation=True, image_shape=(16, 16, 3)
    )
    converter = keras_hub.layers.ResNetImageConverter(image_size=(16, 16), scale=1 / 255)
    preprocessor = hub.ResNetImageClassifierPreprocessor(converter)
    task = hub.ResNetImageClassifier(backbone, 3, preprocessor=preprocessor)
    return Made(task, 255 * numbers(16, 16, 3), labels(3))


TASKS: tuple[Callable[[float], Made], ...] = (
    bert_text_classifier,
    bert_masked_lm,
    gpt2_causal_lm,
    gemma_causal_lm_with_lora,
    resnet_image_classifier,
)
PROGRAMS = tuple(Program(make.__name__, "https://keras.io/keras_hub/", make) for make in TASKS)
