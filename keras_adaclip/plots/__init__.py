"""Figures of private training."""

from keras_adaclip.plots.history import history

__all__ = ["history"]
