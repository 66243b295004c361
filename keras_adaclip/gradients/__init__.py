"""From a batch of examples to the sum of their clipped gradients."""

from keras_adaclip.gradients.augmentation import Augmentation
from keras_adaclip.gradients.batch import Batch
from keras_adaclip.gradients.clipped_sum import (
    ClippedSum,
    Observed,
    clipped_sum,
    with_regularization,
)
from keras_adaclip.gradients.factored import (
    Lookup,
    Materialized,
    OuterProduct,
    PerExampleGradient,
)
from keras_adaclip.gradients.grouped import GroupedOuterProduct
from keras_adaclip.gradients.losses import add_to_output_loss_trackers, regularization_loss
from keras_adaclip.gradients.plan import GradientPlan, whole_model_plan
from keras_adaclip.gradients.planning import make_plan
from keras_adaclip.gradients.rows import finite_rows, repeated
from keras_adaclip.gradients.rules import LayerRule, TappedCall, register

__all__ = [
    "Augmentation",
    "Batch",
    "ClippedSum",
    "GradientPlan",
    "GroupedOuterProduct",
    "LayerRule",
    "Lookup",
    "Materialized",
    "Observed",
    "OuterProduct",
    "PerExampleGradient",
    "TappedCall",
    "add_to_output_loss_trackers",
    "clipped_sum",
    "finite_rows",
    "make_plan",
    "register",
    "regularization_loss",
    "repeated",
    "whole_model_plan",
    "with_regularization",
]
