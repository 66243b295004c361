"""The temperature at the end of an `AutoDPOptimizer`'s run: exact, bounded, counted and noised."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_adaclip as ka
from keras_adaclip.backend import keras_losses
from keras_adaclip.models import temperature

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype("float32")
LABELS = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)
SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
ONE_HOT = np.eye(3, dtype="float32")[LABELS]
LOSSES = keras.losses
# Number of outputs, last activation, loss and targets.
KINDS = {
    "sparse logits": (3, None, SPARSE, LABELS),
    "a column": (3, "softmax", "sparse_categorical_crossentropy", LABELS[:, None]),
    "one hot": (3, "softmax", "categorical_crossentropy", ONE_HOT),
    "two classes": (1, "sigmoid", "binary_crossentropy", (LABELS > 0).astype("float32")),
    "two classes, logits": (1, None, LOSSES.BinaryCrossentropy(from_logits=True), LABELS > 0),
}


def classifier(outputs=3, activation=None, kind=ka.PrivateSequential):
    keras.utils.set_random_seed(0)
    hidden = [layers.Dense(8, activation="relu"), layers.Dropout(0.1)]
    return kind([keras.Input((4,)), *hidden, layers.Dense(outputs, activation=activation)])


def planned(model, loss, **options):
    model.compile(ka.optimizers.AutoDPOptimizer(3.0, **options), loss)
    return model


def releases(model):
    return sum(row.steps for row in model.privacy_ledger if row.expected_batch_size == 60)


def oracle(probabilities, y):
    """The sums of the release, by a loop over rows."""
    total = np.zeros(9)
    for shares, label in zip(probabilities.astype("float64"), np.asarray(y), strict=True):
        shares = np.array([1 - shares[0], shares[0]]) if len(shares) == 1 else shares
        label = int(np.argmax(label)) if np.size(label) > 1 else int(np.squeeze(label))
        for place, each in enumerate(temperature.TEMPERATURES):
            tempered = shares ** (1 / each) / np.sum(shares ** (1 / each))
            total[place] += tempered.max() - (shares.argmax() == label)
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_those_of_a_loop_over_the_rows_that_may_be_drawn(kind):
    outputs, activation, loss, y = KINDS[kind]
    model = planned(classifier(outputs, activation), loss, plan={"calibrate": False})
    model.fit(X, y, epochs=1, batch_size=20, verbose=0)
    present = RNG.random(60) < 0.7
    data = ka.sampling.PoissonDataset(X, y, expected_batch_size=5, present=present)
    probabilities = keras.ops.convert_to_numpy(model.predict(X, verbose=0))
    if activation is None:
        to_shares = keras.activations.sigmoid if outputs == 1 else keras.activations.softmax
        probabilities = keras.ops.convert_to_numpy(to_shares(probabilities))
    found = temperature.sums_of_gaps(model, data, 7)
    np.testing.assert_allclose(found, oracle(probabilities[present], y[present]), atol=1e-4)


@pytest.mark.parametrize("row", [np.nan, np.inf, 1e30, 3.0])
@pytest.mark.parametrize("kind", ["sparse logits", "one hot", "two classes, logits"])
def test_no_row_adds_more_than_the_sensitivity(kind, row):
    outputs, activation, loss, y = KINDS[kind]
    model = planned(classifier(outputs, activation), loss, plan={"calibrate": False})
    model.fit(X, y, epochs=1, batch_size=20, verbose=0)

    def sums(x, y):
        data = ka.sampling.PoissonDataset(x, y, expected_batch_size=5)
        return temperature.sums_of_gaps(model, data, 16)

    x = np.concatenate([X, np.full((1, 4), row, "float32")])
    for label in (-1.0, 2.0, 1e3, np.nan):
        odd = np.full((1, *y.shape[1:]), label, "float32")
        added = sums(x, np.concatenate([y, odd])) - sums(X, y)
        assert np.linalg.norm(added) <= temperature.SENSITIVITY * (1 + 1e-6)


@pytest.mark.parametrize(("outputs", "activation", "loss", "y"), KINDS.values(), ids=KINDS)
def test_a_run_ends_in_the_release_that_it_has_counted(monkeypatch, outputs, activation, loss, y):
    model, seen = planned(classifier(outputs, activation), loss), {}

    def watched(sums, stddev):
        seen.update(stddev=stddev, ledger=model.privacy_ledger, weights=model.get_weights())
        return 2.0

    monkeypatch.setattr("keras_adaclip.models.private_training.temperature_at", watched)
    model.fit(X, y, epochs=2, verbose=0)
    (release,) = (row for row in seen["ledger"] if row.expected_batch_size == 60)
    assert release.steps == release.releases == 1
    assert release.num_examples == 60
    assert seen["stddev"] == pytest.approx(3.0 * release.noise_multiplier)
    assert model.privacy_spent().epsilon <= 3.0
    *first, kernel, bias = zip(seen["weights"], model.get_weights(), strict=True)
    for before, after in (kernel, bias):
        np.testing.assert_allclose(after, before / 2.0, rtol=1e-6)
    for before, after in first:
        np.testing.assert_array_equal(after, before)


def test_the_release_is_counted_before_it_is_made(monkeypatch):
    """And not in a run that is interrupted before, nor one that another callback ends."""
    model = planned(classifier(), SPARSE)
    counted = []
    monkeypatch.setattr(
        "keras_adaclip.models.private_training.sums_of_gaps",
        lambda model, *_: (counted.append(releases(model)), np.zeros(9))[1],
    )

    class Interrupts(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit(X, LABELS, epochs=2, verbose=0, callbacks=[Interrupts()])
    assert releases(model) == 0
    history = model.fit(X, LABELS, epochs=2, verbose=0)
    assert counted == [1]
    assert history.history["epsilon"][-1] == pytest.approx(model.privacy_spent().epsilon, 1e-3)
    model.compile(ka.optimizers.AutoDPOptimizer(6.0), SPARSE)

    class Ends(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True

    history = model.fit(X, LABELS, epochs=3, verbose=0, callbacks=[Ends()])
    assert counted == [1]
    assert history.history["epsilon"][-1] == pytest.approx(model.privacy_spent().epsilon, 1e-3)


def test_the_last_validation_and_checkpoint_are_of_the_calibrated_model(tmp_path):
    model = planned(classifier(), SPARSE)
    path = str(tmp_path / "{epoch}.weights.h5")
    saves = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    history = model.fit(
        X, LABELS, epochs=3, verbose=0, validation_data=(X, LABELS), callbacks=[saves]
    ).history
    assert releases(model) == 1
    assert history["val_loss"][-1] == pytest.approx(model.evaluate(X, LABELS, verbose=0), rel=1e-5)
    expected = model.get_weights()
    model.load_weights(tmp_path / "3.weights.h5")
    for one, other in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_no_release_passes_another_budget(capsys):
    """Steps of another run may have used up what the plan has left for it."""
    model = planned(classifier(), SPARSE)
    less = ka.callbacks.PrivacyCallback(target_epsilon=2.0)
    model.fit(X, LABELS, epochs=4, batch_size=4, verbose=2, callbacks=[less])
    assert releases(model) == 0
    assert model.privacy_spent().epsilon <= 2.0
    assert "Logits divided by" not in capsys.readouterr().out


def test_a_second_fit_counts_a_second_release():
    model = planned(classifier(), SPARSE)
    model.fit(X, LABELS, epochs=2, verbose=0)
    model.compile(ka.optimizers.AutoDPOptimizer(6.0), SPARSE)
    model.fit(X, LABELS, epochs=2, verbose=0)
    assert releases(model) == 2
    assert 5.9 < model.privacy_spent().epsilon <= 6.0


def test_noise_is_that_of_the_counted_row_and_is_drawn_once():
    model = planned(classifier(), SPARSE)
    model.fit(X, LABELS, epochs=1, verbose=0)
    optimizer = model.optimizer
    with pytest.raises(RuntimeError, match="made already"):
        optimizer.make_last_release(np.zeros(3), 3.0)
    row = ka.accounting.LedgerRow(ka.accounting.Sampling.POISSON, 60, 60, 7.0)
    found = []
    for _ in range(2):
        optimizer.counted_release = row
        noised, stddev = optimizer.make_last_release(np.full(40_000, 1e8 + 0.25), 3.0)
        assert stddev == 21.0
        found.append(noised.astype("float64") - 1e8)
    assert np.std(found[0]) == pytest.approx(21.0, rel=0.03)
    assert np.std(found[0]) > 20.0
    assert np.std(found[0] - found[1]) > 25.0


@pytest.mark.parametrize("seed", [None, 5])
def test_variables_of_an_earlier_run_do_not_bring_back_its_noise(monkeypatch, seed):
    model, states, draws = planned(classifier(), SPARSE, seed=seed), [], []
    monkeypatch.setattr(
        "keras_adaclip.models.private_training.temperature_at",
        lambda noised, stddev: (draws.append(noised / stddev), 1.0)[1],
    )
    monkeypatch.setattr(
        "keras_adaclip.models.private_training.sums_of_gaps", lambda *_: np.zeros(9)
    )

    class GoesBack(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            variables = self.model.optimizer.variables
            states.append([np.array(keras.ops.convert_to_numpy(each.value)) for each in variables])
            for variable, value in zip(variables, states[0], strict=True):
                variable.assign(value)

    for target in (3.0, 6.0):
        model.optimizer.target_epsilon = target
        model.fit(X, LABELS, epochs=2, verbose=0, callbacks=[GoesBack()])
    assert releases(model) == len(draws) == 2
    assert np.abs(draws[0] - draws[1]).max() > 0.1


def test_targets_and_outputs_may_be_a_list_or_a_dict_of_one():
    model = planned(functional(layers.Dense(3)), SPARSE)
    model.fit(X, [LABELS], epochs=2, verbose=0)
    assert releases(model) == 1
    model = functional(lambda x: {"kind": layers.Dense(3, name="kind")(x)})
    planned(model, {"kind": SPARSE}).fit(X, {"kind": LABELS}, epochs=2, verbose=0)
    assert releases(model) == 1


def test_people_with_several_rows_are_accounted_as_such():
    model = planned(classifier(), SPARSE)
    ids = np.arange(60) // 3
    model.fit(X, LABELS, epochs=2, verbose=0, unit_ids=ids, max_rows_per_unit=2)
    (release,) = (row for row in model.privacy_ledger if row.expected_batch_size == 40)
    assert release.rows_per_unit == 2
    assert release.num_examples == 40
    assert model.privacy_spent().epsilon <= 3.0


def mixed_at_inference(inputs, training):
    return inputs if training else inputs - keras.ops.mean(inputs, 0)


class SlowerAtInference(layers.Layer):
    """Mixes rows, but not in training."""

    def call(self, inputs, training=None):
        return mixed_at_inference(inputs, training)


class OwnLayer(layers.Layer):
    """Draws by the place of a row at inference too, and without `training` in its arguments."""

    def __init__(self):
        super().__init__()
        self.generator = keras.random.SeedGenerator(1)

    def call(self, inputs):
        return keras.random.dropout(inputs, 0.1, seed=self.generator)


def functional(last, kind=ka.PrivateModel, inner=lambda x: x):
    inputs = keras.Input((4,))
    return kind(inputs, last(inner(inputs)))


def shared():
    layer = layers.Dense(4)
    return functional(lambda x: layer(layer(x)))


def frozen():
    model = classifier()
    model.layers[-1].trainable = False
    return model


class OwnLoss(ka.PrivateModel):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, y_pred, sample_weight)


CONSTRAINED = {"kernel_constraint": keras.constraints.MaxNorm(3.0)}
NOT_CALIBRATED = {
    "another loss": (lambda: classifier(), "mse", ONE_HOT, {}),
    "several labels": (lambda: classifier(3, "sigmoid"), "binary_crossentropy", ONE_HOT, {}),
    "weights": (classifier, SPARSE, LABELS, {"sample_weight": np.ones(60)}),
    "classes": (classifier, SPARSE, LABELS, {"class_weight": {0: 1.0, 1: 1.0, 2: 1.0}}),
    "a pass": (classifier, SPARSE, LABELS, {"sampling": "shuffle", "batch_size": 20}),
    "a frozen layer": (frozen, SPARSE, LABELS, {}),
    "a shared layer": (shared, SPARSE, LABELS, {}),
    "a constraint": (lambda: functional(layers.Dense(3, **CONSTRAINED)), SPARSE, LABELS, {}),
    "another activation": (lambda: classifier(3, "tanh"), SPARSE, LABELS, {}),
    "smoothed labels": (
        lambda: classifier(),
        LOSSES.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        ONE_HOT,
        {},
    ),
    "own loss": (lambda: functional(layers.Dense(3), OwnLoss), SPARSE, LABELS, {}),
    "another path at inference": (
        lambda: functional(layers.Dense(3), inner=SlowerAtInference()),
        SPARSE,
        LABELS,
        {},
    ),
    "an own layer": (lambda: functional(layers.Dense(3), inner=OwnLayer()), SPARSE, LABELS, {}),
}
if keras.backend.backend() == "jax":
    NOT_CALIBRATED["a function of JAX"] = (
        lambda: functional(
            layers.Dense(3),
            inner=layers.JaxLayer(
                lambda params, inputs, training: mixed_at_inference(inputs, training),
                lambda rng, inputs: None,
            ),
        ),
        SPARSE,
        LABELS,
        {},
    )


@pytest.mark.filterwarnings("ignore:.*bounds contributions by a norm")
@pytest.mark.parametrize("name", NOT_CALIBRATED)
def test_other_models_and_runs_release_nothing_more(name):
    make, loss, y, options = NOT_CALIBRATED[name]
    model = planned(make(), loss)
    model.fit(X, y, epochs=2, verbose=0, **options)
    assert model.optimizer.counted_release is None
    assert all(row.expected_batch_size < 60 for row in model.privacy_ledger)
    assert keras_losses.layer_of_logits(model) is None or options


@pytest.mark.parametrize(
    "options", [{"plan": {"calibrate": False}}, {"optimizer": "adam"}], ids=str
)
def test_plans_of_the_user_release_nothing_more(options):
    model = planned(classifier(), SPARSE, **options)
    model.fit(X, LABELS, epochs=2, verbose=0)
    assert all(row.expected_batch_size < 60 for row in model.privacy_ledger)


def test_the_temperature_is_where_sums_fall_to_zero_drawn_to_three_by_noise():
    logs = np.log(temperature.TEMPERATURES)
    assert temperature.temperature_at(1e4 * (np.log(2.0) - logs), 1.0) == pytest.approx(2, rel=0.01)
    assert temperature.temperature_at(np.zeros(9), 1.0) == pytest.approx(3.0)
    assert temperature.temperature_at(np.full(9, 1e9), 1.0) == pytest.approx(12.0)
    assert temperature.temperature_at(np.full(9, -1e9), 1.0) == pytest.approx(0.75)
    noise = [temperature.temperature_at(5.0 * RNG.normal(size=9), 5.0) for _ in range(200)]
    assert np.quantile(noise, 0.05) > 1.0
    assert np.quantile(noise, 0.95) < 8.0


def test_probabilities_are_better_and_predictions_the_same(capsys):
    x = RNG.normal(size=(2_000, 6)).astype("float32")
    y = (x[:, :3].sum(1) + RNG.normal(size=2_000) > 0).astype("float32")
    found = {}
    for calibrate in (True, False):
        keras.utils.set_random_seed(0)
        model = ka.PrivateSequential(
            [keras.Input((6,)), layers.Dense(16, "relu"), layers.Dense(1, activation="sigmoid")]
        )
        optimizer = ka.optimizers.AutoDPOptimizer(3.0, plan={"calibrate": calibrate})
        model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
        model.fit(x, y, epochs=10, verbose=2 * calibrate)
        found[calibrate] = model.evaluate(x, y, verbose=0)
    assert "Logits divided by" in capsys.readouterr().out
    (loss, accuracy), (raw_loss, raw_accuracy) = found[True], found[False]
    assert loss < raw_loss - 0.02
    assert accuracy > raw_accuracy - 0.03
