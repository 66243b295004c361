"""Figures of private training."""

from keras_adaclip.plots.history import history
from keras_adaclip.plots.thresholds import thresholds

__all__ = ["history", "thresholds"]
