"""Per-example gradients of all examples at once, by the way that the plan says."""

import keras

from keras_adaclip.gradients import layerwise, vectorized
from keras_adaclip.gradients.batch import Batch
from keras_adaclip.gradients.batch_gradients import BatchGradients
from keras_adaclip.gradients.forward import Forward
from keras_adaclip.gradients.plan import GradientPlan


def per_example_gradients(
    model: keras.Model, batch: Batch, plan: GradientPlan, training: bool = True
) -> tuple[BatchGradients, Forward]:
    """The gradients, and what the forward pass showed.

    Args:
        model: a built model with a compiled loss.
        batch: the examples.
        plan: a plan that is not for one example after another.
        training: the mode of the forward pass.
    """
    if plan.is_vectorized:
        return vectorized.per_example_gradients(model, batch, training)
    return layerwise.per_example_gradients(model, batch, plan, training)
