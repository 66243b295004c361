"""Figures of private training."""

from keras_adaclip.plots.history import history
from keras_adaclip.plots.tradeoff import tradeoff

__all__ = ["history", "tradeoff"]
