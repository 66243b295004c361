"""Integrations of other libraries.

flower                  federated training over its nodes
tensorflow_privacy      its sum queries as a `DPOptimizer`
"""

from keras_adaclip.integrations import flower, tensorflow_privacy

__all__ = ["flower", "tensorflow_privacy"]
