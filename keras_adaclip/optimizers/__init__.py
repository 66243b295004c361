"""Optimizers that noise clipped sums before they apply them."""

from keras_adaclip.optimizers.dp_optimizer import DPOptimizer

__all__ = ["DPOptimizer"]
