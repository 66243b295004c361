"""The forms of per-example gradients, each with its cheapest norm and weighted sum."""

from keras_adaclip.gradients.forms.grouped import GroupedOuterProduct
from keras_adaclip.gradients.forms.lookup import Lookup
from keras_adaclip.gradients.forms.outer_product import OuterProduct, gram_is_cheaper
from keras_adaclip.gradients.forms.written_out import Materialized, PerExampleGradient, combined

__all__ = [
    "GroupedOuterProduct",
    "Lookup",
    "Materialized",
    "OuterProduct",
    "PerExampleGradient",
    "combined",
    "gram_is_cheaper",
]
