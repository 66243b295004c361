"""Other libraries for differential privacy as parts of this one.

tensorflow_privacy      its queries as the aggregation of a round of `FederatedModel`
"""

from keras_adaclip.integrations import tensorflow_privacy

__all__ = ["tensorflow_privacy"]
