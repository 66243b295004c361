"""Rule 27: no decision of the mechanism reads private rows, and a blind examination proves nothing.

Plans are proved on rows that are made up. Rows within the range of the data may let `fit` refuse,
and never lead to another plan.
"""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_adaclip as ka
from keras_adaclip.examination import SampleRows
from keras_adaclip.gradients import Batch
from keras_adaclip.gradients.layers import rule
from tests.models import helpers, unsafe
from tests.models.unsafe import Unsafe, add_mean, bounded_backward, closed_gate, weight

BACKEND = keras.backend.backend()
NUM_ROWS = 64


class Penalized(ka.PrivateModel):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3, use_bias=False)

    def call(self, x):
        return self.dense(x) * (1.0 + ops.sum(ops.square(self.dense.kernel)))


def table(first=None, seed=0):
    x = helpers.features(NUM_ROWS, seed=seed)
    x[:3] = x[:3] if first is None else first
    return x, helpers.labels(NUM_ROWS)


def fit(model, x, y, **options):
    return helpers.quiet_fit(model, x, y, batch_size=16, steps_per_epoch=1, **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"class_weight": {0: 0.0, 1: 1.0, 2: 1.0}}, {"sample_weight": np.zeros(NUM_ROWS)}],
)
def test_rows_that_show_nothing_do_not_choose_the_plan(options):
    x, y = table(0.0 if not options else None)
    y[:3], y[3:] = 0, np.maximum(y[3:], 1)
    model = helpers.compiled(Penalized())
    fit(model, x, y, **options)
    assert "differ from plain ones" in model.gradient_plan.looped_reason


class Doubled(layers.Dense):
    """A layer that gets a wrong rule."""


class WrongRule(ka.gradients.LayerRule):
    def gradients(self, call, variables):
        gradients = ops.einsum("bi,bj->bij", call.inputs, call.cotangents[0])
        return [ka.gradients.Materialized(gradients * 2.0)]


@pytest.mark.parametrize("is_off", [True, False])
def test_a_wrong_rule_behind_zeros_is_not_used(is_off, monkeypatch):
    """Of a unit that is off until training moves a bias far enough, or of weights that begin so."""
    monkeypatch.setitem(rule._RULES, Doubled, WrongRule())
    inputs = keras.Input((helpers.NUM_FEATURES,))
    hidden = Doubled(3, use_bias=False)(inputs)
    last = layers.Lambda(lambda x: ops.relu(x - 1e6))
    last = last if is_off else layers.Dense(3, kernel_initializer="zeros")
    outputs = layers.Add()([layers.Dense(3)(inputs), last(hidden)])
    model = helpers.compiled(ka.PrivateModel(inputs, outputs))
    fit(model, *table())
    assert "differ from plain ones" in model.gradient_plan.looped_reason


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
def test_a_plan_that_is_proved_within_the_ranges_of_the_data_trains(ranges):
    model = model_of_ids()
    fit(model, ids(), helpers.labels(NUM_ROWS), input_ranges=ranges)
    assert model.gradient_plan.is_layerwise


def model_of_large_numbers():
    """Layer by layer its plan is wrong for numbers beyond 50 alone."""
    inputs, dense = keras.Input((helpers.NUM_FEATURES,)), layers.Dense(3)
    outputs = layers.Lambda(
        lambda x: x[0] * (1.0 + ops.sum(dense.kernel) * ops.relu(x[1][:, :1] - 50.0))
    )((dense(inputs), inputs))
    return helpers.compiled(ka.PrivateModel(inputs, outputs))


@pytest.mark.parametrize(
    ("make", "x", "ranges"),
    [
        (lambda: model_of_ids(True), ids(), (5, np.full(4, 12))),
        (model_of_large_numbers, 100.0 + 10.0 * table()[0], (0, 200)),
    ],
)
def test_a_plan_that_is_wrong_within_the_range_of_the_data_is_refused(make, x, ranges):
    with pytest.raises(ValueError, match=r"not proved on rows within the range.*input_ranges="):
        fit(make(), x, helpers.labels(NUM_ROWS))
    given = make()
    fit(given, x, helpers.labels(NUM_ROWS), input_ranges=ranges)
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


def test_clients_train_with_ranges():
    x, y = table()
    clients = ka.federated.ClientData.from_arrays(x, y, np.arange(NUM_ROWS) % 8)
    model = helpers.compiled(ka.federate(helpers.dense_model(keras.Model)))
    model.fit(clients, 4, verbose=0, steps_per_epoch=1, input_ranges=(-3, 3))
    assert model.privacy_ledger.steps == 1


def failing_once_negative(layer, x, training):
    if float(layer.size) < 0.0:  # PyTorch runs eagerly.
        raise MemoryError
    return x + ops.relu(layer.gate) * add_mean(x)


# Layers that mix examples, and hide it from an examination that looks at nothing.
BLIND = {
    # The states in which signs change are not finite.
    "logarithm": lambda layer, x, _: x + ops.relu(layer.gate) * add_mean(x) + ops.log(layer.size),
    "infinite": lambda _, x, __: add_mean(x) + ops.where(ops.abs(x) < 100.0, float("inf"), 0.0),
    # Between the ranges of the columns there is nothing.
    "not a number": lambda _, x, __: (
        add_mean(x) + ops.where(ops.all(ops.abs(x) < 1e3), float("nan"), 0.0)
    ),
    **({"error": failing_once_negative} if BACKEND == "torch" else {}),
}


def mixing_after_a_table():
    """On JAX, ids outside of the table yield numbers that are none, and so did all rows."""
    inputs = keras.Input((2,))
    ids = layers.Lambda(lambda x: ops.abs(x[:, :1]) * 1000.0)(inputs)
    hidden = layers.Lambda(add_mean, name="mixes")(layers.Flatten()(layers.Embedding(400, 3)(ids)))
    return helpers.compiled(ka.PrivateModel(inputs, layers.Dense(3)(hidden)))


@pytest.mark.parametrize("kind", [*BLIND, "ids", "zeros", "ones", "whole zeros"])
def test_what_a_blind_examination_would_accept_is_refused(kind):
    x, y = table()
    layer = layers.Lambda(add_mean, name="mixes")
    if kind in BLIND:
        parts = {"gate": closed_gate(True), "size": weight((), "ones", True)}
        layer = Unsafe(BLIND[kind], "blind", **parts)
    model = helpers.compiled(helpers.model_with(layer)) if kind != "ids" else mixing_after_a_table()
    if kind == "whole zeros":
        inputs = keras.Input((helpers.NUM_FEATURES,), dtype="int32")
        layer = layers.Lambda(lambda x: add_mean(ops.cast(x, "float32")), name="mixes")
        model = helpers.compiled(ka.PrivateModel(inputs, layers.Dense(3)(layer(inputs))))
    if kind == "ids":
        x = np.random.default_rng(0).uniform(0, [0.39, 900.0], (NUM_ROWS, 2)).astype("float32")
    elif kind not in BLIND:
        # Rows that are all equal.
        x = np.full_like(x, kind == "ones", dtype=model.inputs[0].dtype)
    named = r"blind: It mixes|layer 'blind' yields numbers" if kind in BLIND else "mixes: It mixes"
    with pytest.raises(ValueError, match=named):
        fit(model, x, y)
    assert model.privacy_ledger.steps == 0


def drawing(x, seed, shape=None):
    return x + keras.random.normal(ops.shape(x) if shape is None else shape, seed=seed)


NUM_FEATURES = helpers.NUM_FEATURES
# What a layer makes of rows, their places in the batch, and a seed generator.
BY_PLACE = {
    "place": lambda x, places, seed: x + places,
    "parity": lambda x, places, seed: ops.where(places % 2 == 0, x, -x),
    "constant seed": lambda x, places, seed: drawing(x, 1),
    "constant beside random": lambda x, places, seed: drawing(drawing(x, seed), 1),
    "derivative": lambda x, places, seed: x + places * (x - ops.stop_gradient(x)),
    "constant dropout": lambda x, places, seed: keras.random.dropout(x, 0.5, seed=1),
}
ALONE = {
    "random": lambda x, places, seed: drawing(x, seed),
    "random twice": lambda x, _, seed: drawing(keras.random.dropout(x, 0.5, seed=seed), seed),
    "one mask": lambda x, places, seed: drawing(x, seed, (1, NUM_FEATURES)),
    "one constant mask": lambda x, places, seed: drawing(x, 1, (1, NUM_FEATURES)),
    "as many as rows": lambda x, places, seed: x + keras.random.normal((16, 4), seed=seed)[0],
}


@pytest.mark.parametrize("kind", [*BY_PLACE, *ALONE])
def test_a_layer_that_heeds_the_place_of_a_row_is_refused(kind):
    """Removing a row moves those behind it; draws from a seed generator can move along."""

    def call(layer, x, training):
        places = ops.cast(ops.arange(ops.shape(x)[0]), x.dtype)[:, None]
        return {**BY_PLACE, **ALONE}[kind](x, places, layer.seeds) if training else x

    layer = Unsafe(call, "by_place", seeds=lambda: keras.random.SeedGenerator(3))
    model = helpers.compiled(helpers.model_with(layer))
    if kind in BY_PLACE:
        with pytest.raises(ValueError, match=r"by_place: .*depends on the place of the row in"):
            fit(model, *table())
    else:
        fit(model, *table())
        assert model.gradient_plan.is_layerwise
    assert model.privacy_ledger.steps == int(kind in ALONE)


def test_a_bound_on_the_gradient_of_the_whole_batch_is_refused():
    """One row with a large weight would take from all others what they contribute.

    Gradients of the three rows with which a plan is proved stay below the bound.
    """
    x, y = table()
    weights = np.where(np.arange(NUM_ROWS) == 0, 100.0, 1.0)

    def total(rows, most):
        model = helpers.model_with(Unsafe(bounded_backward(most), "bounds"))
        model.set_weights([np.ones_like(each) / 2.0 for each in model.get_weights()])
        helpers.compiled(model, 0.0, optimizer=keras.optimizers.SGD(1.0))
        before = np.concatenate([each.ravel() for each in model.get_weights()])
        num_rows, given = len(x[rows]), (x[rows], y[rows])
        helpers.quiet_fit(model, *given, batch_size=num_rows, sample_weight=weights[rows])
        return num_rows * (before - np.concatenate([e.ravel() for e in model.get_weights()]))

    all_rows, others = np.arange(NUM_ROWS), np.arange(1, NUM_ROWS)
    assert np.linalg.norm(total(all_rows, 1e9) - total(others, 1e9)) <= 1.0001
    with pytest.raises(ValueError, match="bounds: It mixes"):
        total(all_rows, 10.0)


@pytest.mark.skipif(BACKEND == "torch", reason="no step is compiled")
def test_a_compiled_step_that_calls_python_is_refused():
    """Python may remember rows for a later step, past clipping and noise."""
    model = helpers.compiled(helpers.model_with(Unsafe(unsafe.remembering_in_python, "calls")))
    with pytest.raises(ValueError, match=r"calls|functional.*outside of Keras's variables"):
        fit(model, *table())


@pytest.mark.skipif(BACKEND != "torch", reason="a compiled step keeps nothing in Python")
def test_a_layer_that_remembers_single_rows_is_refused_where_steps_run_on_these():
    layer = Unsafe(unsafe.remembering_single_rows, "remembers", seen=lambda: np.zeros(1))
    model = helpers.compiled(unsafe.WithOwnWeight(layer))
    with pytest.raises(ValueError, match=r"remembers: .*outside of Keras's variables"):
        fit(model, *table())


def test_made_up_weights_are_one_and_made_up_targets_are_targets():
    x, y = table()
    model = helpers.compiled()
    rows = Batch(x, y, np.full(NUM_ROWS, 0.5, "float32"))
    for known in (None, rows):
        sample = SampleRows(model, rows, known)
        for batch in [*sample.batches()[0], sample.batch(-1)]:
            assert set(ops.convert_to_numpy(batch.sample_weight)) == {1.0}
            assert keras.backend.standardize_dtype(batch.y.dtype) == "int32"


class Positions(layers.Layer):
    """Adds the positions in a sequence, or the first one of them to all."""

    def __init__(self, is_first):
        super().__init__()
        self.is_first, self.table = is_first, layers.Embedding(4, 3)

    def call(self, inputs):
        places = self.table(ops.arange(4))
        return inputs + (places[0] if self.is_first else places)


@pytest.mark.parametrize("is_first", [False, True])
def test_a_table_of_as_many_positions_as_rows_does_not_mix_rows(is_first):
    stack = [keras.Input((4, 3)), Positions(is_first), layers.Flatten(), layers.Dense(3)]
    model = helpers.compiled(ka.PrivateSequential(stack))
    x, y = helpers.features(8, (4, 3)), helpers.labels(8)
    model.fit(x, y, batch_size=4, sampling="shuffle", verbose=0)
    assert model.gradient_plan.is_layerwise is not is_first


def test_a_mixing_layer_behind_such_a_table_is_refused():
    mixing = [Positions(False), layers.Flatten(), Unsafe(lambda _, x, training: add_mean(x))]
    model = helpers.compiled(ka.PrivateSequential([keras.Input((4, 3)), *mixing, layers.Dense(3)]))
    x, y = helpers.features(8, (4, 3)), helpers.labels(8)
    with pytest.raises(ValueError, match="mixes examples"):
        model.fit(x, y, batch_size=4, sampling="shuffle", verbose=0)
