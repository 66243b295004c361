"""From a batch of examples to the sum of their clipped gradients."""

from keras_adaclip.gradients.augmentation import MIXING_LAYERS, Augmentation
from keras_adaclip.gradients.batch import Batch, finite_rows, mapped
from keras_adaclip.gradients.clipped_sum import (
    ClippedSum,
    Observed,
    clipped_contributions,
    clipped_sum,
    with_regularization,
    with_statistics,
)
from keras_adaclip.gradients.draws import DrawingScope, Draws
from keras_adaclip.gradients.forms import (
    GroupedOuterProduct,
    Lookup,
    Materialized,
    OuterProduct,
    PerExampleGradient,
)
from keras_adaclip.gradients.forward import call_model, example_losses
from keras_adaclip.gradients.layers import LayerRule, TappedCall, register
from keras_adaclip.gradients.layerwise import BatchGradients, GradientPlan, looped_plan
from keras_adaclip.gradients.losses import (
    compute_loss,
    per_example_losses,
    regularization_loss,
    tracker_variables,
    update_loss_trackers,
)
from keras_adaclip.gradients.plan import (
    LayerReport,
    fast_calls_of,
    layer_reports,
    layers_outside_loops,
    suggested_plan,
)
from keras_adaclip.gradients.proof import make_plan, moved_value
from keras_adaclip.gradients.totals import MOST_DRAWN_ROWS, MOST_ROWS, Totals

__all__ = [
    "GroupedOuterProduct",
    "LayerRule",
    "Lookup",
    "Materialized",
    "OuterProduct",
    "PerExampleGradient",
    "TappedCall",
    "register",
]
