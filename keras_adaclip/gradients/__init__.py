"""From a batch of examples to the sum of their clipped gradients."""

from keras_adaclip.gradients.batch import Batch, finite_rows, mapped
from keras_adaclip.gradients.clipped_sum import (
    ClippedSum,
    Observed,
    clipped_sum,
    with_regularization,
    with_statistics,
)
from keras_adaclip.gradients.contributions import (
    MOST_DRAWN_ROWS,
    MOST_ROWS,
    BatchGradients,
    Totals,
    clipped_contributions,
)
from keras_adaclip.gradients.forms import Lookup, Materialized, PerExampleGradient
from keras_adaclip.gradients.forward import (
    call_model,
    compute_loss,
    example_losses,
    per_example_losses,
    regularization_loss,
    tracker_variables,
    update_loss_trackers,
)
from keras_adaclip.gradients.layers import LayerRule, TappedCall, is_differentiable, register
from keras_adaclip.gradients.layerwise import GradientPlan, looped_plan
from keras_adaclip.gradients.outer_products import OuterProduct
from keras_adaclip.gradients.plan import (
    LayerReport,
    fast_calls_of,
    layer_reports,
    suggested_plan,
    watched_calls,
)
from keras_adaclip.gradients.proof import make_plan, moved_value
from keras_adaclip.gradients.random_numbers import MIXING_LAYERS, Augmentation, DrawingScope, Draws

__all__ = [
    "LayerRule",
    "Lookup",
    "Materialized",
    "OuterProduct",
    "PerExampleGradient",
    "TappedCall",
    "register",
]
