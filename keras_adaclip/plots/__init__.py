"""Figures of private training, of its audits and of searches."""

from keras_adaclip.plots.audit import audit, membership_inference
from keras_adaclip.plots.history import history
from keras_adaclip.plots.search import search

__all__ = ["audit", "history", "membership_inference", "search"]
