"""How the per-example gradients of each kind of layer follow from its inputs and cotangents.

One file a layer kind. A rule is registered for a layer class and used for a layer whose `call`
is that class's own; every other layer with weights goes through `general.py`.
"""

from keras_adaclip.gradients.layers import (
    convolution,
    dense,
    depthwise_convolution,
    einsum_dense,
    embedding,
    normalization,
    prelu,
    recurrent,
    time_distributed,
    transposed_convolution,
)
from keras_adaclip.gradients.layers.general import GeneralRule
from keras_adaclip.gradients.layers.rule import LayerRule, TappedCall, register, rule_for

__all__ = [
    "GeneralRule",
    "LayerRule",
    "TappedCall",
    "convolution",
    "dense",
    "depthwise_convolution",
    "einsum_dense",
    "embedding",
    "normalization",
    "prelu",
    "recurrent",
    "register",
    "rule_for",
    "time_distributed",
    "transposed_convolution",
]
