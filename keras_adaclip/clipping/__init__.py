"""Clipping strategies: how far a contribution may reach, and how that bound is chosen."""

from keras_adaclip.clipping.adaclip import AdaClip
from keras_adaclip.clipping.automatic import AutomaticClipping
from keras_adaclip.clipping.current import CurrentClipping
from keras_adaclip.clipping.fixed import FixedClipping
from keras_adaclip.clipping.groups import ParameterGroups
from keras_adaclip.clipping.identify import get
from keras_adaclip.clipping.mean_norm import MeanNormClipping
from keras_adaclip.clipping.quantile import QuantileClipping
from keras_adaclip.clipping.scheduled import ScheduledClipping
from keras_adaclip.clipping.strategy import ClippingStrategy, Release

__all__ = [
    "AdaClip",
    "AutomaticClipping",
    "ClippingStrategy",
    "CurrentClipping",
    "FixedClipping",
    "MeanNormClipping",
    "ParameterGroups",
    "QuantileClipping",
    "Release",
    "ScheduledClipping",
    "get",
]
