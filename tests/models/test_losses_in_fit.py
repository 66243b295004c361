"""Losses that are more than a function of targets and predictions."""

import keras
import pytest
from keras import layers, ops

import keras_adaclip as ka
from tests.models import helpers


class LossOfStashed(ka.PrivateModel):
    """Its loss reads what `call` left behind: features of the whole batch."""

    def __init__(self, place, through):
        super().__init__()
        self.hidden, self.logits = layers.Dense(5, activation="tanh"), layers.Dense(3)
        self.place, self.through = place, through

    def call(self, x):
        features = self.hidden(x)
        if self.place == "attribute":
            self.features = features
        else:
            KEPT["features"] = features
        return self.logits(features)

    def further(self):
        features = self.features if self.place == "attribute" else KEPT["features"]
        if self.through == "derivative":
            return 1e-3 * ops.mean(ops.square(features))
        return 1e-3 * ops.cast(ops.argmax(features[:, 0]), "float32")


class WithOwnComputeLoss(LossOfStashed):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss * (1.0 + self.further())


# Something that no attribute leads to.
KEPT = {}


@pytest.mark.parametrize(
    ("own", "place", "through"),
    [
        ("compute_loss", "attribute", "derivative"),
        ("compute_loss", "elsewhere", "argmax"),
        ("function", "elsewhere", "derivative"),
        ("subclass", "elsewhere", "derivative"),
        ("subclass", "attribute", "argmax"),
    ],
)
def test_a_loss_that_reads_what_other_rows_left_is_refused(own, place, through):
    model = (WithOwnComputeLoss if own == "compute_loss" else LossOfStashed)(place, through)
    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def distance(y, y_pred):
        return crossentropy(y, y_pred) * (1.0 + model.further())

    class Distance(keras.losses.SparseCategoricalCrossentropy):
        def call(self, y, y_pred):
            return super().call(y, y_pred) * (1.0 + model.further())

    losses = {"function": distance, "subclass": Distance(from_logits=True)}
    helpers.compiled(model, loss=losses.get(own, crossentropy))
    mixes = "It mixes" if place == "elsewhere" else "cannot be trained privately"
    with pytest.raises(ValueError, match=mixes):
        model.fit(helpers.features(64), helpers.labels(64), batch_size=16, verbose=0)
    assert model.privacy_spent(1e-3).steps == 0


def test_a_tensor_that_a_pass_leaves_in_an_attribute_is_state():
    """Where a step is compiled, whatever the step computes later may still read it."""

    class Leaves(layers.Layer):
        def call(self, x):
            self.seen = [ops.mean(x)]
            return x

    model = ka.PrivateSequential([layers.Dense(3), Leaves(name="leaves"), layers.Dense(3)])
    helpers.compiled(model, loss="mse")
    x = helpers.features(64, (3,))
    with pytest.raises(ValueError, match=r"leaves: .*outside of Keras's variables"):
        model.fit(x, x, batch_size=16, verbose=0)


def test_a_loss_that_changes_variables_of_its_own_is_refused():
    """Keras would change them in each step; a private step would leave them as they are."""

    class Adapting(keras.losses.Loss):
        def __init__(self):
            super().__init__()
            self.scale = keras.Variable(1.0, name="scale")

        def call(self, y, y_pred):
            self.scale.assign(0.9 * self.scale)
            return ops.mean(ops.square(y - y_pred), axis=-1) * self.scale

    model = ka.PrivateSequential([layers.Dense(3)])
    helpers.compiled(model, loss=Adapting())
    x = helpers.features(64, (3,))
    with pytest.raises(
        ValueError, match="scale: It is assigned in the forward pass or in the loss"
    ):
        model.fit(x, x, batch_size=16, verbose=0)


def test_random_numbers_and_metrics_are_no_assignments_of_a_loss():
    generator = keras.random.SeedGenerator(0)

    class Tracks(ka.PrivateSequential):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.tracker = keras.metrics.Mean(name="squares")

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            self.tracker.update_state(ops.mean(ops.square(y_pred)))
            noise = keras.random.normal(ops.shape(y_pred), seed=generator)
            return ops.mean(ops.square(y - y_pred + 0.0 * noise))

    model = Tracks([layers.Dense(3)])
    model.compile(ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0))
    x = helpers.features(64, (3,))
    model.fit(x, x, batch_size=16, verbose=0)
