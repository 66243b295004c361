"""Rule 27: no decision of the mechanism reads private rows, and a blind examination proves nothing.

Plans are proved on rows that are made up. Rows within the range of the data may let `fit` refuse,
and never lead to another plan.
"""

from functools import partial

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_adaclip as ka
from keras_adaclip.gradients.layers import rule
from tests.models import helpers

BACKEND = keras.backend.backend()
NUM_ROWS = 64


class Penalized(ka.PrivateModel):
    """Uses a kernel outside of its layer, so that a layer-wise plan is wrong."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3, use_bias=False)

    def call(self, x):
        return self.dense(x) * (1.0 + ops.sum(ops.square(self.dense.kernel)))


def table(first=None, seed=0):
    """Rows and labels; the first three rows may be others."""
    x = helpers.features(NUM_ROWS, seed=seed)
    x[:3] = x[:3] if first is None else first
    return x, helpers.labels(NUM_ROWS)


def fit(model, x, y, **options):
    return helpers.quiet_fit(model, x, y, batch_size=16, steps_per_epoch=1, **options)


@pytest.mark.parametrize("kind", ["zeros", "weights", "class weights", "all"])
def test_rows_that_show_nothing_do_not_choose_the_plan(kind):
    """Nor does any other row: they are not looked at."""
    x, y = table(0.0 if kind == "zeros" else None)
    y[:3], y[3:] = 0, np.maximum(y[3:], 1)
    weights = np.r_[np.zeros(3), np.ones(NUM_ROWS - 3)]
    options = {
        "weights": {"sample_weight": weights},
        "class weights": {"class_weight": {0: 0.0}},
        "all": {"sample_weight": 0.0 * weights},
    }
    model = helpers.compiled(Penalized())
    fit(model, x, y, **options.get(kind, {}))
    assert "differ from plain ones" in model.gradient_plan.looped_reason


class Doubled(layers.Dense):
    """A layer that gets a wrong rule."""


class WrongRule(ka.gradients.LayerRule):
    def gradients(self, call, variables):
        gradients = ops.einsum("bi,bj->bij", call.inputs, call.cotangents[0])
        return [ka.gradients.Materialized(gradients * 2.0)]


def test_a_wrong_rule_behind_a_unit_that_is_off_is_not_used(monkeypatch):
    """Nothing was compared: all its gradients are zero, until training moves a bias far enough."""
    monkeypatch.setitem(rule._RULES, Doubled, WrongRule())
    inputs = keras.Input((helpers.NUM_FEATURES,))
    off = layers.Lambda(lambda x: ops.relu(x - 1e6))(Doubled(3, use_bias=False)(inputs))
    outputs = layers.Add()([layers.Dense(3)(inputs), off])
    model = helpers.compiled(ka.PrivateModel(inputs, outputs))
    fit(model, *table())
    assert "gradients are zero, which proves nothing, of" in model.gradient_plan.looped_reason


def test_columns_of_numbers_in_front_of_a_table_train_with_the_plan_of_ids():
    """Numbers of other columns are no ids: they would crash, or yield what is no number."""
    inputs = keras.Input((5,))
    ids, rest = layers.Lambda(lambda x: x[:, 3:])(inputs), layers.Lambda(lambda x: x[:, :3])(inputs)
    words = layers.Flatten()(layers.Embedding(40, 4)(ids))
    hidden = layers.Concatenate()([words, rest])
    model = helpers.compiled(ka.PrivateModel(inputs, layers.Dense(3)(hidden)))
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 40, (NUM_ROWS, 2))
    x = np.concatenate([rng.normal(scale=100.0, size=(NUM_ROWS, 3)), ids], axis=1)
    fit(model, x.astype("float32"), helpers.labels(NUM_ROWS))
    assert model.gradient_plan.is_layerwise


class Table(layers.Layer):
    """Looks up rows of a table that nothing declares, and has those from 5 to 12."""

    def build(self, shape):
        self.table = self.add_weight((8, 3), name="table")

    def call(self, x):
        places = ops.cast(x, "int32") - 5
        is_known = ops.logical_and(places >= 0, places < 8)
        found = ops.take(self.table, ops.where(is_known, places, 0), axis=0)
        return ops.mean(ops.where(is_known[..., None], found, float("nan")), axis=1)


def model_of_ids(is_penalized=False):
    inputs, dense = keras.Input((4,), name="words", dtype="int32"), layers.Dense(3)
    outputs = dense(Table(name="lookup")(inputs))
    if is_penalized:
        outputs = layers.Lambda(lambda x: x * (1.0 + ops.sum(ops.square(dense.kernel))))(outputs)
    return helpers.compiled(ka.PrivateModel(inputs, outputs))


def ids(highest=13):
    return np.random.default_rng(0).integers(5, highest, (NUM_ROWS, 4))


@pytest.mark.parametrize("ranges", [None, (5, 12)])
def test_what_is_proved_within_the_ranges_of_the_data_trains(ranges):
    model = model_of_ids()
    fit(model, ids(), helpers.labels(NUM_ROWS), input_ranges=ranges)
    assert model.gradient_plan.is_layerwise


def test_ranges_of_the_data_never_lead_to_another_plan():
    """They lead to a refusal that asks for public ranges, and these to the plan."""
    with pytest.raises(ValueError, match=r"not proved on rows within the range.*input_ranges="):
        fit(model_of_ids(True), ids(), helpers.labels(NUM_ROWS))
    given = model_of_ids(True)
    fit(given, ids(), helpers.labels(NUM_ROWS), input_ranges=(5, np.full(4, 12)))
    assert not given.gradient_plan.is_layerwise


def test_rows_that_do_not_run_are_refused_with_layer_and_column():
    """The ids of the second column are not in the table."""
    model, x = model_of_ids(), ids()
    x[:, 1] = 99
    with pytest.raises(ValueError, match=r"layer 'lookup'.*'words', column 1.*input_ranges="):
        fit(model, x, helpers.labels(NUM_ROWS))
    assert model.privacy_ledger.steps == 0


@pytest.mark.parametrize(
    "ranges", [(1, 0), (0, np.inf), (0, np.ones(3)), 3, {"x": (0, 1)}, [(0, 1), (0, 1)]]
)
def test_ranges_that_do_not_fit_are_refused(ranges):
    model = helpers.compiled()
    with pytest.raises(ValueError, match="Argument `input_ranges` must have the structure of `x`"):
        fit(model, *table(), input_ranges=ranges)


def mixed(x):
    return x + ops.mean(x, axis=0, keepdims=True)


class Blind(layers.Layer):
    """Mixes examples, and hides it from an examination that looks at nothing."""

    def __init__(self, kind, **kwargs):
        super().__init__(**kwargs)
        self.kind = kind

    def build(self, shape):
        start = keras.initializers.Constant
        self.gate = self.add_weight((), start(-0.5), name="gate")
        self.size = self.add_weight((), start(1.0), name="size")

    def call(self, x):
        gate = ops.relu(self.gate)
        if self.kind == "logarithm":  # The states in which signs change are not finite.
            return x + gate * mixed(x) + ops.log(self.size)
        if self.kind == "error":  # PyTorch runs eagerly.
            if float(self.size) < 0.0:
                raise MemoryError
            return x + gate * mixed(x)
        if self.kind == "infinite":
            return mixed(x) + ops.where(ops.abs(x) < 100.0, float("inf"), 0.0)
        # Between the ranges of the columns there is nothing.
        return mixed(x) + ops.where(ops.all(ops.abs(x) < 1e3), float("nan"), 0.0)


@pytest.mark.parametrize(
    "kind", ["logarithm", *(["error"] if BACKEND == "torch" else []), "infinite", "not a number"]
)
def test_what_a_blind_examination_would_accept_is_refused(kind):
    model = helpers.compiled(helpers.model_with(Blind(kind, name="blind")))
    x, y = table()
    with pytest.raises(ValueError, match=r"blind: It mixes examples|layer 'blind' yields numbers"):
        fit(model, x, y)
    assert model.privacy_ledger.steps == 0


def test_ids_outside_of_a_table_do_not_hide_a_layer_that_mixes():
    """On JAX, they yield numbers that are none, and so did all rows."""
    inputs = keras.Input((2,))
    ids = layers.Lambda(lambda x: ops.abs(x[:, :1]) * 1000.0)(inputs)
    hidden = layers.Lambda(mixed, name="mixes")(layers.Flatten()(layers.Embedding(400, 3)(ids)))
    model = helpers.compiled(ka.PrivateModel(inputs, layers.Dense(3)(hidden)))
    x = np.random.default_rng(0).uniform(0, [0.39, 900.0], (NUM_ROWS, 2)).astype("float32")
    with pytest.raises(ValueError, match="mixes: It mixes examples"):
        fit(model, x, helpers.labels(NUM_ROWS))


@pytest.mark.parametrize("rows", ["zeros", "ones"])
def test_constant_rows_hide_nothing(rows):
    model = helpers.compiled(helpers.model_with(layers.Lambda(mixed, name="mixes")))
    x = np.full((NUM_ROWS, helpers.NUM_FEATURES), float(rows == "ones"), "float32")
    with pytest.raises(ValueError, match="mixes: It mixes examples"):
        fit(model, x, helpers.labels(NUM_ROWS))


def drawing(x, seed, shape=None):
    return x + keras.random.normal(ops.shape(x) if shape is None else shape, seed=seed)


class ByPlace(layers.Layer):
    """Treats each row by its place in the batch, or by what it draws there."""

    def __init__(self, kind, **kwargs):
        super().__init__(**kwargs)
        self.kind, self.seed_generator = kind, keras.random.SeedGenerator(3)

    def call(self, x, training=None):
        if not training:
            return x
        places = ops.cast(ops.arange(ops.shape(x)[0]), x.dtype)[:, None]
        features, seed = (1, helpers.NUM_FEATURES), self.seed_generator
        shapes = {
            "place": lambda: x + places,
            "parity": lambda: ops.where(places % 2 == 0, x, -x),
            "constant seed": lambda: drawing(x, 1),
            "constant beside random": lambda: drawing(drawing(x, seed), 1),
            "derivative": lambda: x + places * (x - ops.stop_gradient(x)),
            "constant dropout": lambda: keras.random.dropout(x, 0.5, seed=1),
            "random": lambda: drawing(x, seed),
            "random twice": lambda: drawing(keras.random.dropout(x, 0.5, seed=seed), seed),
            "one mask": lambda: drawing(x, seed, features),
            "one constant mask": lambda: drawing(x, 1, features),
            "as many as rows": lambda: x + keras.random.normal((16, 4), seed=seed)[0],
        }
        return shapes[self.kind]()


BY_PLACE = ["place", "parity", "constant seed", "constant beside random", "constant dropout"]
BY_PLACE += ["derivative"]
ALONE = ["random", "random twice", "one mask", "one constant mask", "as many as rows"]


@pytest.mark.parametrize("kind", [*BY_PLACE, *ALONE])
def test_a_layer_that_heeds_the_place_of_a_row_is_refused(kind):
    """Removing a row moves those behind it; draws from a seed generator can move along."""
    model = helpers.compiled(helpers.model_with(ByPlace(kind, name="by_place")))
    if kind in BY_PLACE:
        with pytest.raises(ValueError, match=r"by_place: .*depends on the place of the row in"):
            fit(model, *table())
    else:
        fit(model, *table())
        assert model.gradient_plan.is_layerwise
    assert model.privacy_ledger.steps == int(kind in ALONE)


def test_clients_train_with_ranges_and_refuse_those_that_do_not_fit():
    x, y = table()
    clients = ka.federated.ClientData.from_arrays(x, y, np.arange(NUM_ROWS) % 8)
    model = helpers.compiled(ka.federate(helpers.dense_model(keras.Model)))
    train = partial(model.fit, clients, 4, verbose=0, steps_per_epoch=1)
    with pytest.raises(ValueError, match="Argument `input_ranges`"):
        train(input_ranges=3)
    train(input_ranges=(-3, 3))
    assert model.privacy_ledger.steps == 1


def test_a_plan_that_is_wrong_for_the_data_alone_is_refused():
    """Small numbers do not show it. Public ranges do, and lead to the right plan."""

    def model():
        inputs, dense = keras.Input((helpers.NUM_FEATURES,)), layers.Dense(3)
        hidden = dense(inputs)
        outputs = layers.Lambda(
            lambda x: x[0] * (1.0 + ops.sum(dense.kernel) * ops.relu(x[1][:, :1] - 50.0))
        )((hidden, inputs))
        return helpers.compiled(ka.PrivateModel(inputs, outputs))

    x, y = table()
    x = 100.0 + 10.0 * x
    with pytest.raises(ValueError, match=r"not proved on rows within the range.*input_ranges="):
        fit(model(), x, y)
    given = model()
    fit(given, x, y, input_ranges=(0, 200))
    assert not given.gradient_plan.is_layerwise
