"""Keras models whose `fit` is private."""

from keras_adaclip.models.preflight import PrivacyIssue, check
from keras_adaclip.models.private_model import PrivateModel
from keras_adaclip.models.private_sequential import PrivateSequential
from keras_adaclip.models.privatize import privatize

__all__ = ["PrivacyIssue", "PrivateModel", "PrivateSequential", "check", "privatize"]
