"""Figures of private training and of its audits."""

from keras_adaclip.plots.audit import audit, membership_inference
from keras_adaclip.plots.history import history

__all__ = ["audit", "history", "membership_inference"]
