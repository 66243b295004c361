"""Keras's preprocessing layers: all examples at once, each with its own random numbers."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from keras_adaclip import backend, check
from keras_adaclip.examination import Examination, SampleRows
from keras_adaclip.gradients import Batch, call_model, suggested_plan

RANGE = {"value_range": (0, 1)}
# Every layer that draws, with options such that it always changes an image.
RANDOM = {
    "RandomFlip": lambda: layers.RandomFlip(),
    "RandomRotation": lambda: layers.RandomRotation(0.2),
    "RandomZoom": lambda: layers.RandomZoom(0.4),
    "RandomTranslation": lambda: layers.RandomTranslation(0.3, 0.3),
    "RandomCrop": lambda: layers.RandomCrop(4, 5),
    "RandomShear": lambda: layers.RandomShear(0.5, 0.5),
    "RandomPerspective": lambda: layers.RandomPerspective(1.0, scale=0.8),
    "RandomBrightness": lambda: layers.RandomBrightness(0.4, **RANGE),
    "RandomContrast": lambda: layers.RandomContrast(0.4, **RANGE),
    "RandomHue": lambda: layers.RandomHue(0.4, **RANGE),
    "RandomSaturation": lambda: layers.RandomSaturation((0.2, 0.8), **RANGE),
    "RandomColorDegeneration": lambda: layers.RandomColorDegeneration((0.2, 0.9), **RANGE),
    "RandomGrayscale": lambda: layers.RandomGrayscale(0.5),
    "RandomGaussianBlur": lambda: layers.RandomGaussianBlur(1.0, 3, (0.3, 2.0), **RANGE),
    "RandomInvert": lambda: layers.RandomInvert(0.5, **RANGE),
    "RandomPosterization": lambda: layers.RandomPosterization([1, 8], **RANGE),
    "RandomSharpness": lambda: layers.RandomSharpness((0.1, 0.9), **RANGE),
    "RandomErasing": lambda: layers.RandomErasing((0.5, 0.5), **RANGE),
    "Solarization": lambda: layers.Solarization(0.3, 0.3, **RANGE),
    "Pipeline": lambda: layers.Pipeline(
        [layers.RandomCrop(5, 6), layers.RandomGaussianBlur(1.0, 3, (0.3, 2.0), **RANGE)]
    ),
}
FIXED = {
    "AutoContrast": lambda: layers.AutoContrast(**RANGE),
    "CenterCrop": lambda: layers.CenterCrop(4, 5),
    "Normalization": lambda: layers.Normalization(mean=0.5, variance=0.1),
    "Rescaling": lambda: layers.Rescaling(2.0),
    "Resizing": lambda: layers.Resizing(5, 5),
}
SHAPE = (6, 7, 3)


class Stack(keras.Model):
    """Layers one after another."""

    def __init__(self, *stack):
        super().__init__()
        self.stack = list(stack)

    def call(self, x, training=None):  # Keras hands `training` on to the layers.
        for layer in self.stack:
            x = layer(x)
        return x


def in_training(model, rows):
    with keras.StatelessScope([(each, each.value) for each in model.variables]):
        return call_model(model, ops.convert_to_tensor(rows), training=True)


def outputs(model, x):
    """The outputs of a model in training mode, compiled where steps are."""
    (found,) = backend.evaluate_each(lambda rows: in_training(model, rows), model.variables, [x])
    return found


class OwnCrop(layers.RandomCrop):
    """A user's own layer, which may do what Keras's does not."""

    def transform_images(self, images, transformation, training=True):
        return images[:, :4, :5]


@pytest.mark.parametrize("kind", [*RANDOM, *FIXED])
def test_preprocessing_keeps_examples_apart_and_the_plan_layerwise(kind):
    layer = {**RANDOM, **FIXED}[kind]()
    rows = Batch(np.random.default_rng(1).uniform(size=(3, *SHAPE)).astype("float32"))
    stack = [layer, layers.Flatten(), layers.Dense(2)]
    # Keras cannot infer the shape of what a pipeline returns.
    model = Stack(*stack) if kind == "Pipeline" else keras.Sequential([keras.Input(SHAPE), *stack])
    model(rows.x)
    examination = Examination(model, SampleRows(model, rows, rows), counts_rows=True)
    assert examination.finding().issues == []
    plan = suggested_plan(model, [rows])
    assert plan.is_layerwise
    assert plan.draws or kind in FIXED


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_crops_are_windows_of_the_images(data_format):
    layer = layers.RandomCrop(2, 3, data_format=data_format)
    shape = (4, 5, 2) if data_format == "channels_last" else (2, 4, 5)
    x = np.arange(6 * 40, dtype="float32").reshape(6, *shape)
    found = outputs(Stack(layer), x)
    if data_format == "channels_first":
        x, found = np.moveaxis(x, 1, -1), np.moveaxis(found, 1, -1)
    assert len({crop.tobytes() for crop in found - x[:, :1, :1]}) > 1
    for image, crop in zip(x, found, strict=True):
        windows = [image[top : top + 2, left : left + 3] for top in range(3) for left in range(3)]
        assert any(np.array_equal(window, crop) for window in windows)
    # The layer is left as it was, and a user's own layer computes what it says.
    if data_format == "channels_last":
        found = outputs(Stack(OwnCrop(4, 5)), images := np.ones((3, *SHAPE), "float32"))
        np.testing.assert_array_equal(found, images[:, :4, :5])
    assert not {"transform_images", "get_random_transformation"} & set(vars(layer))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a size that graphs lack")
# Keras's `Normalization` keeps the tensors of the graph in which such a model builds it.
@pytest.mark.parametrize("kind", [*RANDOM, *(key for key in FIXED if key != "Normalization")])
def test_no_example_goes_to_others_in_a_batch_of_unknown_size(kind):
    import tensorflow as tf

    model = Stack({**RANDOM, **FIXED}[kind]())
    x = np.random.default_rng(1).uniform(size=(4, *SHAPE)).astype("float32")
    x[1:] = 0.5
    model(x)
    run = tf.function(
        lambda rows: in_training(model, rows), input_signature=[tf.TensorSpec((None, *SHAPE))]
    )
    changed = np.concatenate([1.0 - x[:1], x[1:]])
    np.testing.assert_allclose(run(x)[1:], run(changed)[1:], atol=1e-6)


MIXING = {"MixUp": {}, "CutMix": {}, "Equalization": RANGE, "RandAugment": RANGE, "AugMix": RANGE}


# Keras asks JAX for 64 bits, of which JAX warns in a process once.
@pytest.mark.filterwarnings("ignore:.*dtype int64")
@pytest.mark.parametrize("kind", [*MIXING, "RandomElasticTransform"])
def test_layers_that_mix_images_are_refused_in_training(kind):
    model = Stack(layers.Rescaling(1.0), getattr(layers, kind)(**MIXING.get(kind, RANGE)))
    # Some have one of the others inside.
    assert check(model)[0].layer == model.stack[1].name
    x = np.full((2, *SHAPE), 0.5, "float32")
    with pytest.raises(ValueError, match=rf"\({kind}\) cannot be used in private"):
        call_model(model, x, training=True)
    np.testing.assert_array_equal(ops.convert_to_numpy(call_model(model, x, training=False)), x)
