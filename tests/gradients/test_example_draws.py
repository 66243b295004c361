"""Keras's preprocessing layers: all examples at once, each with random numbers of its own."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients import Batch, example_draws, finite_rows, unproven_plan
from keras_adaclip.gradients.forward import call_model
from keras_adaclip.training.probe import probe

RANGE = {"value_range": (0, 1)}
# With every layer that draws, what is not random in it says yes.
RANDOM = {
    "RandomFlip": lambda: layers.RandomFlip(),
    "RandomRotation": lambda: layers.RandomRotation(0.2),
    "RandomZoom": lambda: layers.RandomZoom(0.4),
    "RandomTranslation": lambda: layers.RandomTranslation(0.3, 0.3),
    "RandomCrop": lambda: layers.RandomCrop(4, 5),
    "RandomShear": lambda: layers.RandomShear(0.5, 0.5),
    "RandomPerspective": lambda: layers.RandomPerspective(1.0, scale=0.8),
    "RandomElasticTransform": lambda: layers.RandomElasticTransform(1.0, (0.2, 1.0), **RANGE),
    "RandomBrightness": lambda: layers.RandomBrightness(0.4, **RANGE),
    "RandomContrast": lambda: layers.RandomContrast(0.4, **RANGE),
    "RandomHue": lambda: layers.RandomHue(0.4, **RANGE),
    "RandomSaturation": lambda: layers.RandomSaturation((0.2, 0.8), **RANGE),
    "RandomColorJitter": lambda: layers.RandomColorJitter(
        brightness_factor=0.2, contrast_factor=0.2, saturation_factor=(0.4, 0.6), **RANGE
    ),
    "RandomColorDegeneration": lambda: layers.RandomColorDegeneration((0.2, 0.9), **RANGE),
    "RandomGrayscale": lambda: layers.RandomGrayscale(0.5),
    "RandomGaussianBlur": lambda: layers.RandomGaussianBlur(1.0, 3, (0.3, 2.0), **RANGE),
    "RandomInvert": lambda: layers.RandomInvert(0.5, **RANGE),
    "RandomPosterization": lambda: layers.RandomPosterization([1, 8], **RANGE),
    "RandomSharpness": lambda: layers.RandomSharpness((0.1, 0.9), **RANGE),
    "RandomErasing": lambda: layers.RandomErasing((0.5, 0.5), **RANGE),
    "Solarization": lambda: layers.Solarization(0.3, 0.3, **RANGE),
    "RandAugment": lambda: layers.RandAugment(num_ops=1, **RANGE),
    "AugMix": lambda: layers.AugMix(**RANGE),
    "Pipeline": lambda: layers.Pipeline(
        [layers.RandomCrop(5, 6), layers.RandomGaussianBlur(1.0, 3, (0.3, 2.0), **RANGE)]
    ),
}
FIXED = {
    "AutoContrast": lambda: layers.AutoContrast(**RANGE),
    "CenterCrop": lambda: layers.CenterCrop(4, 5),
    "CLAHE": lambda: layers.ContrastLimitedAdaptiveHistogramEqualization(
        tile_grid_size=(2, 2), **RANGE
    ),
    "Equalization": lambda: layers.Equalization(**RANGE),
    "Normalization": lambda: layers.Normalization(mean=0.5, variance=0.1),
    "Rescaling": lambda: layers.Rescaling(2.0),
    "Resizing": lambda: layers.Resizing(5, 5),
}
SHAPE = (6, 7, 3)


# Keras cannot trace the two for the shape of what they return, the second one on JAX.
NOT_FUNCTIONAL = ("Equalization", "Pipeline")


class Stack(keras.Model):
    """Layers one after another."""

    def __init__(self, *stack):
        super().__init__()
        self.stack = list(stack)

    def call(self, x, training=None):  # Keras hands `training` on to the layers.
        for layer in self.stack:
            x = layer(x)
        return x


def outputs(model, x, num_calls):
    """What a model in training mode returns, compiled where steps are, at several states."""
    seeds = keras_private.seed_generator_states(model)
    states = [
        [backend.array_of(state) + np.array([9 * call, 0]) for state in seeds]
        for call in range(num_calls)
    ]

    def run(arguments):
        values, rows = arguments
        mapping = [
            (seed, ops.convert_to_tensor(value, seed.dtype))
            for seed, value in zip(seeds, values, strict=True)
        ]
        with keras.StatelessScope(mapping):
            return call_model(model, ops.convert_to_tensor(rows), training=True)

    return backend.evaluate_each(run, model.variables, [(state, x) for state in states])


@pytest.mark.parametrize("kind", [*RANDOM, *FIXED])
def test_all_examples_at_once(kind):
    """No example depends on another, two runs agree, and the plan goes layer by layer."""
    layer = {**RANDOM, **FIXED}[kind]()
    rows = Batch(np.random.default_rng(1).uniform(size=(3, *SHAPE)).astype("float32"))
    stack = [layer, layers.Flatten(), layers.Dense(2)]
    if kind in NOT_FUNCTIONAL:
        model = Stack(*stack)
        model(rows.x)
    else:
        model = keras.Sequential([keras.Input(SHAPE), *stack])
    finding = probe(model, rows)
    assert finding.issues == []
    assert finding.is_repeatable
    plan, is_random = unproven_plan(model, finite_rows(rows))
    assert plan.is_layerwise
    assert is_random or kind in FIXED


@pytest.mark.parametrize("kind", RANDOM)
def test_equal_examples_get_numbers_of_their_own(kind):
    """In none of several draws does a whole batch of equal images stay equal."""
    image = np.random.default_rng(1).uniform(size=SHAPE).astype("float32")
    found = outputs(Stack(RANDOM[kind]()), np.stack([image] * 16), num_calls=12)
    for batch in found:
        assert np.abs(batch - batch[:1]).max() > 1e-4
    assert np.abs(found[0] - found[1]).max() > 1e-4


# Keras transposes a number, of which PyTorch warns.
@pytest.mark.filterwarnings("ignore:(?s).*Tensor.T is deprecated:UserWarning")
@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_images_are_equalized_as_keras_equalizes_each_alone(data_format):
    layer = layers.Equalization(value_range=(0, 255), bins=64, data_format=data_format)
    x = np.random.default_rng(1).integers(0, 256, size=(4, 3, 5, 3)).astype("float32")
    x[3] = 7.0
    alone = np.concatenate([ops.convert_to_numpy(layer(x[row : row + 1])) for row in range(4)])
    (found,) = outputs(Stack(layer), x, num_calls=1)
    np.testing.assert_allclose(found, alone, atol=1e-3)
    together = ops.convert_to_numpy(layer(x))
    assert np.abs(together - found).max() > 1.0


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_a_blur_of_one_width_is_that_of_keras(data_format):
    layer = layers.RandomGaussianBlur(
        1.0, 5, (0.8, 0.8), data_format=data_format, value_range=(0, 1)
    )
    x = np.random.default_rng(1).uniform(size=(3, 6, 7, 4)).astype("float32")
    (found,) = outputs(Stack(layer), x, num_calls=1)
    np.testing.assert_allclose(found, ops.convert_to_numpy(layer(x, training=True)), atol=1e-5)


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_crops_are_windows_of_the_images(data_format):
    layer = layers.RandomCrop(2, 3, data_format=data_format)
    shape = (4, 5, 2) if data_format == "channels_last" else (2, 4, 5)
    x = np.arange(6 * 40, dtype="float32").reshape(6, *shape)
    (found,) = outputs(Stack(layer), x, num_calls=1)
    if data_format == "channels_first":
        x, found = np.moveaxis(x, 1, -1), np.moveaxis(found, 1, -1)
    for image, crop in zip(x, found, strict=True):
        windows = [image[top : top + 2, left : left + 3] for top in range(3) for left in range(3)]
        assert any(np.array_equal(window, crop) for window in windows)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a size that graphs lack")
# `Normalization` keeps tensors of the graph that it was built in.
@pytest.mark.parametrize("kind", [*RANDOM, *(kind for kind in FIXED if kind != "Normalization")])
def test_no_example_goes_to_others_in_a_batch_of_unknown_size(kind):
    """Keras's `RandomElasticTransform` gave the first image to all."""
    import tensorflow as tf

    model = Stack({**RANDOM, **FIXED}[kind]())
    x = np.random.default_rng(1).uniform(size=(4, *SHAPE)).astype("float32")
    x[1:] = 0.5

    @tf.function(input_signature=[tf.TensorSpec((None, *SHAPE))])
    def run(rows):
        with keras.StatelessScope([(each, each.value) for each in model.variables]):
            return call_model(model, rows, training=True)

    model(x)
    changed = x.copy()
    changed[0] = 1.0 - changed[0]
    np.testing.assert_allclose(run(x)[1:], run(changed)[1:], atol=1e-6)


@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
@pytest.mark.parametrize("fill_mode", ["constant", "nearest", "wrap", "mirror", "reflect"])
def test_values_between_pixels_are_those_of_keras(fill_mode, interpolation):
    layer = layers.RandomElasticTransform(
        fill_mode=fill_mode, interpolation=interpolation, fill_value=0.3
    )
    random = np.random.default_rng(1)
    images = random.uniform(size=(2, 4, 5, 2)).astype("float32")
    # Farther out the backends of Keras differ.
    if keras.backend.backend() == "tensorflow" and fill_mode in ("mirror", "reflect"):
        pytest.skip("Keras is off by one at the edges")
    rows, columns = random.uniform(-2.9, 5.9, size=(2, 2, 4, 5)).astype("float32")
    found = ops.convert_to_numpy(
        example_draws._values_at(*map(ops.convert_to_tensor, (images, rows, columns)), layer)
    )
    for image, row, column, values in zip(images, rows, columns, found, strict=True):
        for channel in range(2):
            expected = ops.image.map_coordinates(
                ops.convert_to_tensor(image[..., channel]),
                ops.convert_to_tensor(np.stack([row, column])),
                order=1 if interpolation == "bilinear" else 0,
                fill_mode=fill_mode,
                fill_value=0.3,
            )
            np.testing.assert_allclose(values[..., channel], expected, atol=1e-5)


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_elastic_transforms_without_strength_move_nothing(data_format):
    layer = layers.RandomElasticTransform(
        1.0, (1e-6, 1e-6), data_format=data_format, value_range=(0, 1)
    )
    x = np.random.default_rng(1).uniform(size=(3, 6, 7, 4)).astype("float32")
    (found,) = outputs(Stack(layer), x, num_calls=1)
    np.testing.assert_allclose(found, x, atol=1e-4)


def test_a_layer_is_afterwards_what_it_was():
    layer = layers.RandomCrop(4, 5)
    before = dict(vars(layer))
    outputs(Stack(layer), np.zeros((2, *SHAPE), "float32"), num_calls=1)
    assert not {"transform_images", "get_random_transformation"} & set(vars(layer))
    assert set(before) <= set(vars(layer))


class OwnCrop(layers.RandomCrop):
    """A user's own layer, which may do what Keras's does not."""

    def transform_images(self, images, transformation, training=True):
        return images[:, :4, :5]


def test_layers_of_users_stay_as_they_are():
    x = np.random.default_rng(1).uniform(size=(3, *SHAPE)).astype("float32")
    (found,) = outputs(Stack(OwnCrop(4, 5)), x, num_calls=1)
    np.testing.assert_array_equal(found, x[:, :4, :5])
