"""Clipping strategies: how far a contribution may reach, and how that bound is chosen."""

from keras_adaclip.clipping.fixed import FixedClipping
from keras_adaclip.clipping.identify import get
from keras_adaclip.clipping.quantile import QuantileClipping
from keras_adaclip.clipping.strategy import ClippingStrategy

__all__ = ["ClippingStrategy", "FixedClipping", "QuantileClipping", "get"]
