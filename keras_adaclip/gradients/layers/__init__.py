"""Rules for the per-example gradients of each kind of layer, one file per kind.

A rule is registered for a layer class and used for layers whose `call` is that class's own. Every
other layer with weights is handled by `GeneralRule`.
"""

# Importing a module registers its rules.
from keras_adaclip.gradients.layers import convolution, dense, normalization, recurrent
from keras_adaclip.gradients.layers.rule import (
    GeneralRule,
    LayerRule,
    TappedCall,
    is_differentiable,
    register,
    rule_for,
)

__all__ = ["GeneralRule", "LayerRule", "TappedCall", "is_differentiable", "register", "rule_for"]
