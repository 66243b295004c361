"""A search whose best run may be released (Papernot and Steinke 2022)."""

from keras_adaclip.tuners.private.search import PrivateSearch

__all__ = ["PrivateSearch"]
