"""Data sets that the examples share."""

from keras_adaclip.datasets.fashion_mnist import ImageData, load_fashion_mnist

__all__ = ["ImageData", "load_fashion_mnist"]
