"""Figures of private training and of searches."""

from keras_adaclip.plots.history import history
from keras_adaclip.plots.privacy_curve import privacy_curve
from keras_adaclip.plots.search import search
from keras_adaclip.plots.thresholds import thresholds

__all__ = ["history", "privacy_curve", "search", "thresholds"]
