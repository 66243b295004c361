"""Keras models whose `fit` is private."""

from keras_adaclip.examination import PrivacyIssue
from keras_adaclip.models.checking import PrivacyCheck, check
from keras_adaclip.models.private_model import PrivateModel, PrivateSequential
from keras_adaclip.models.private_task import privatize
from keras_adaclip.models.step import private_step as private_step

__all__ = [
    "PrivacyCheck",
    "PrivacyIssue",
    "PrivateModel",
    "PrivateSequential",
    "check",
    "privatize",
]
