"""The kinds of per-example gradients, each with its cheapest norm and weighted sum."""

from keras_adaclip.gradients.forms.combining import combined, shifted_and_scaled
from keras_adaclip.gradients.forms.grouped import GroupedOuterProduct
from keras_adaclip.gradients.forms.lookup import Lookup, LookupAndProduct
from keras_adaclip.gradients.forms.outer_product import OuterProduct, gram_is_cheaper
from keras_adaclip.gradients.forms.per_example_gradient import Materialized, PerExampleGradient

__all__ = [
    "GroupedOuterProduct",
    "Lookup",
    "LookupAndProduct",
    "Materialized",
    "OuterProduct",
    "PerExampleGradient",
    "combined",
    "gram_is_cheaper",
    "shifted_and_scaled",
]
