"""Assertions on your own layers, losses, clipping strategies and gradient rules, for your tests.

Each runs the package's own code on small examples and their neighbours, compares it with formulas
written out in NumPy, and raises an `AssertionError` that names the layer or variable, the row and
the figure. Passing is no proof: what was tried is sound.

Source: "Privacy in Theory, Bugs in Practice" (2026), which records what a library computes and
replays it on neighbouring data sets.
"""

from keras_adaclip.testing.bounds import assert_bounded
from keras_adaclip.testing.isolation import assert_isolated
from keras_adaclip.testing.ledger import assert_ledger
from keras_adaclip.testing.noise import assert_noise

__all__ = ["assert_bounded", "assert_isolated", "assert_ledger", "assert_noise"]
