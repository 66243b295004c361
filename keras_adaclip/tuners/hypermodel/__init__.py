"""The choices of private training as hyperparameters of any keras-tuner search."""

from keras_adaclip.tuners.hypermodel.choices import clipping_choices
from keras_adaclip.tuners.hypermodel.clipping_hypermodel import ClippingHyperModel

__all__ = ["ClippingHyperModel", "clipping_choices"]
