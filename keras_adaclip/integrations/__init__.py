"""Integrations of other libraries for differential privacy.

tensorflow_privacy      its queries aggregate the rounds of a `FederatedModel`
"""

from keras_adaclip.integrations import tensorflow_privacy

__all__ = ["tensorflow_privacy"]
