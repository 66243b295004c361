"""Figures of private training, of its audits and of searches."""

from keras_adaclip.plots.audit import audit, membership_inference
from keras_adaclip.plots.clients import clients
from keras_adaclip.plots.history import history
from keras_adaclip.plots.privacy_curve import privacy_curve
from keras_adaclip.plots.quantile_tracking import quantile_tracking
from keras_adaclip.plots.search import search
from keras_adaclip.plots.thresholds import thresholds

__all__ = [
    "audit",
    "clients",
    "history",
    "membership_inference",
    "privacy_curve",
    "quantile_tracking",
    "search",
    "thresholds",
]
