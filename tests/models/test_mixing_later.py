"""Layers that mix examples only later: at other shapes, with other variables, through state."""

import contextlib
from functools import partial

import keras
import numpy as np
import pytest
from keras import ops

import keras_adaclip as ka
from keras_adaclip import backend
from keras_adaclip.examination import Examination
from tests.models import helpers

BACKEND = keras.backend.backend()
NUM_ROWS, BATCH_SIZE = 512, 256


def add_mean(x, factor=1.0):
    return x + factor * ops.mean(x, axis=0, keepdims=True)


def is_many(num_rows):
    """Whether there are more than eight rows, or TensorFlow does not know while it traces."""
    return num_rows > 8 if isinstance(num_rows, int) else num_rows is None


class MixesLargeBatches(keras.layers.Layer):
    """Mixes where there are more than eight rows, or a number that is not known when traced."""

    def call(self, x):
        return add_mean(x) if is_many(x.shape[0]) else x


class MixesThroughGate(keras.layers.Layer):
    """Mixes where a gate is open, which is closed at first."""

    def __init__(self, trainable_gate=True, opens_above=0.0, **kwargs):
        super().__init__(**kwargs)
        self.trainable_gate, self.opens_above = trainable_gate, opens_above

    def build(self, shape):
        start = keras.initializers.Constant(-0.5)
        self.gate = self.add_weight((), start, trainable=self.trainable_gate, name="gate")

    def call(self, x):
        return add_mean(x, ops.relu(self.gate - self.opens_above))


class MixesLargeBatchesThroughGate(MixesThroughGate):
    """The same where there are more than eight rows, with a gate that begins at zero."""

    def build(self, shape):
        self.gate = self.add_weight((), "zeros", name="gate")

    def call(self, x):
        return add_mean(x, self.gate) if is_many(x.shape[0]) else x + 0.0 * self.gate


class HeedsCount(MixesThroughGate):
    """Heeds how many rows there are where a gate is open, in training alone."""

    def call(self, x, training=None):
        if not training:
            return x
        gate = ops.relu(self.gate - self.opens_above)
        return x * (1.0 + gate * ops.cast(ops.shape(x)[0], x.dtype))


class DrawsAndHeedsCount(HeedsCount):
    """As that, with a random number for each row, if `kind` is not "one number"."""

    def __init__(self, kind, **kwargs):
        super().__init__(trainable_gate=False, **kwargs)
        self.kind, self.seed_generator = kind, keras.random.SeedGenerator(1)

    def call(self, x, training=None):
        if training and self.kind == "each row":
            x = keras.random.dropout(x, 0.5, seed=self.seed_generator)
        elif training:
            shape = (1, 1) if self.kind == "one number" else ops.shape(x)
            x = x + keras.random.normal(shape, seed=self.seed_generator)
        return super().call(x, training=training)


class MixesBy(keras.layers.Layer):
    """Mixes as much as a function says, which may read a variable that the model does not have."""

    def __init__(self, read, **kwargs):
        super().__init__(**kwargs)
        self.read = read

    def call(self, x):
        return add_mean(x, ops.cast(self.read(), x.dtype))


class MixesAfterWarmUp(keras.layers.Layer):
    """Counts its own steps, and mixes after some of them."""

    def __init__(self, dtype_of_steps="float32", shape=(), after=20, until=1e30, **kwargs):
        super().__init__(**kwargs)
        self.dtype_of_steps, self.shape_of_steps = dtype_of_steps, shape
        self.after, self.until = after, until

    def build(self, shape):
        self.steps = self.add_weight(
            self.shape_of_steps, "zeros", self.dtype_of_steps, trainable=False
        )

    def call(self, x, training=None):
        if training:
            self.steps.assign(self.steps + 1)
        steps = ops.max(ops.cast(self.steps, "float32"))
        is_open = ops.logical_and(steps > self.after, steps < self.until)
        return add_mean(x, ops.cast(is_open, x.dtype))


class MixesBackward(keras.layers.Layer):
    """Its outputs are those of each row; its gradients, of many rows, those of all."""

    def call(self, x):
        if not is_many(x.shape[0]):
            return x

        @ops.custom_gradient
        def through(value):
            def backward(*args, upstream=None):
                (upstream,) = args or (upstream,)
                return upstream + ops.mean(upstream, axis=0, keepdims=True)

            return value, backward

        return through(x)


# Something that no attribute leads to.
HELD = [0.0]


def in_buffer():
    import torch

    return torch.nn.Buffer(torch.zeros(()))


def in_variable():
    import tensorflow as tf

    return tf.Variable(0.0, trainable=False)


# What makes something that remembers a number, reads it and writes it.
STATES: dict[str, tuple] = {}
if BACKEND == "torch":
    STATES["buffer"] = in_buffer, lambda buffer: buffer, lambda buffer, x: buffer.copy_(x.detach())
    STATES["list"] = int, lambda _: HELD[0], lambda _, x: HELD.__setitem__(0, x.detach())
if BACKEND == "tensorflow":
    STATES["variable"] = (
        in_variable,
        lambda variable: variable,
        lambda variable, x: variable.assign(x),
    )


class Remembers(keras.layers.Layer):
    """Adds the mean of the rows before these, which no step discards."""

    def __init__(self, kind, **kwargs):
        super().__init__(**kwargs)
        self.make, self.read, self.write = STATES[kind]

    def build(self, shape):
        self.seen = self.make()

    def call(self, x, training=None):
        outputs = x + ops.cast(self.read(self.seen), x.dtype)
        # Where Keras finds shapes, PyTorch has no numbers.
        if training and not getattr(x, "is_meta", False):
            self.write(self.seen, ops.mean(ops.stop_gradient(x)))
        return outputs


class RemembersInAttribute(keras.layers.Layer):
    """The mean of the rows in an attribute of the class, used after many calls only."""

    num_calls, seen = 0, 0.0

    def call(self, x, training=None):
        outputs = x if self.num_calls < 1000 else x + self.seen
        self.num_calls += 1
        self.seen = ops.mean(ops.stop_gradient(x), axis=0)
        return outputs


class WithOwnWeight(ka.PrivateModel):
    """Has a weight that no layer owns, so that examples are differentiated one by one."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.dense = layer, keras.layers.Dense(3)
        self.factor = self.add_weight(shape=(3,), initializer="ones")

    def call(self, x, training=None):
        return self.factor * self.dense(self.layer(x, training=training))


def model_with(layer, **options):
    inputs = keras.Input((helpers.NUM_FEATURES,))
    hidden = layer(keras.layers.Dense(5, activation="tanh")(inputs))
    model = ka.PrivateModel(inputs, keras.layers.Dense(3)(hidden))
    return helpers.compiled(model, **options)


def data():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(NUM_ROWS, helpers.NUM_FEATURES)).astype("float32")
    return x, generator.integers(0, 3, NUM_ROWS)


def batch():
    return [part[:BATCH_SIZE] for part in data()]


def fit(model, **options):
    options = {"batch_size": BATCH_SIZE, "verbose": 0, **options}
    return model.fit(*data(), **options)


def others_variable():
    """A gate that a variable opens which is not the model's."""
    variable = keras.Variable(0.0, dtype="float32")
    return lambda: ops.relu(variable.value)


def steps_of(optimizer):
    """Whether there were many steps, which is no variable of the model either."""
    optimizer.build([])
    return lambda: optimizer.iterations.value > 2000


SGD = keras.optimizers.SGD(0.1)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (MixesLargeBatches, {}),
        (MixesLargeBatches, {"run_eagerly": True}),
        (MixesThroughGate, {}),
        (partial(MixesThroughGate, trainable_gate=False), {"run_eagerly": True}),
        (MixesLargeBatchesThroughGate, {}),
        (partial(MixesBy, lambda: 1e-7), {"run_eagerly": True}),
        (partial(MixesBy, lambda: 1e-14), {}),
        (MixesBackward, {}),
        (partial(MixesBy, others_variable()), {}),
        (partial(MixesBy, steps_of(SGD)), {"optimizer": SGD}),
        (MixesAfterWarmUp, {}),
        (partial(MixesAfterWarmUp, "int32", (1,), 10**5), {}),
        (partial(MixesAfterWarmUp, "float32", (3,)), {}),
    ],
)
def test_what_mixes_later_is_refused_by_name(make, options):
    model = model_with(make(name="late"), **options)
    before = helpers.weights_of(model)
    with pytest.raises(ValueError, match="late: It mixes examples"):
        fit(model)
    helpers.assert_same_weights(model, before)
    assert model.privacy_spent(1e-3).steps == 0
    with pytest.raises(ValueError, match="late: It mixes examples"):
        model.train_on_batch(*batch())


ANY_SIZE = pytest.mark.skipif(BACKEND == "jax", reason="batches have one size there")


@ANY_SIZE
@pytest.mark.parametrize(
    ("kind", "batch_size"),
    [("alone", 40), ("behind dropout", 40), ("one number", 40), ("each row", 40), ("shape", 4)],
)
def test_a_layer_that_heeds_how_many_rows_there_are_is_refused(kind, batch_size):
    """The numbers of rows that were drawn differ between neighbouring data sets."""
    draws = kind in ("one number", "each row", "shape")
    layer = DrawsAndHeedsCount(kind, name="late") if draws else HeedsCount(name="late")
    if kind == "behind dropout":
        layer = keras.Sequential([keras.layers.Dropout(0.3), layer])
    with pytest.raises(ValueError, match="late: Its output for one row depends on how many"):
        fit(model_with(layer), batch_size=batch_size)


@pytest.mark.skipif(BACKEND != "jax", reason="batches of convolutions have two sizes there")
def test_a_size_that_compiles_to_something_else_is_examined_too(monkeypatch):
    seen, found, find = set(), [], Examination.finding
    monkeypatch.setattr(Examination, "finding", lambda each: found.append(0) or find(each))

    def fit_where(mixes):
        late = keras.layers.Lambda(lambda x: add_mean(x) if mixes(x.shape[0]) else x, name="late")
        made = [keras.layers.Reshape((-1, 1)), keras.layers.Conv1D(3, helpers.NUM_FEATURES)]
        fit(helpers.compiled(ka.PrivateSequential([*made, keras.layers.Flatten(), late])))

    fit_where(seen.add)
    sizes = [each for each in seen if isinstance(each, int) and each > 8]
    assert (len(sizes), len(found)) == (2, 1)
    for size in sizes:
        with pytest.raises(ValueError, match="late: It mixes examples"):
            fit_where(lambda num_rows, size=size: str(num_rows) == str(size))


class DrawsInOtherShapes(keras.layers.Layer):
    """Draws for parts of rows, for rows along the last axis, and for no rows at all."""

    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(1)

    def call(self, x, training=None):
        if not training:
            return x
        shape, seed = (-1, *x.shape[1:]), self.seed_generator
        x = ops.reshape(keras.random.dropout(ops.reshape(x, (-1, 5)), 0.3, seed=seed), shape)
        x = x + ops.expand_dims(
            ops.transpose(keras.random.normal((5, ops.shape(x)[0]), seed=seed)), 1
        )
        return x + ops.sum(keras.random.normal((2, 5), seed=seed), axis=0)


def drawing_layers():
    """Layers of Keras that draw a number for each row, by the shape of an example."""
    layers = keras.layers
    moving = [layers.RandomPerspective(), layers.RandomTranslation(0.1, 0.1)]
    colours = [layers.RandomContrast(0.5), layers.RandomBrightness(0.5), layers.RandomErasing()]
    noisy = [layers.GaussianNoise(0.1), layers.GaussianDropout(0.3), layers.AlphaDropout(0.3)]
    return {
        (6, 6, 3): [layers.RandomFlip(), layers.RandomZoom(0.1), *moving, *colours],
        # Unseeded dropout of PyTorch draws in the order of the memory, which `Permute` changes.
        (5, 3): [
            *(layers.Permute((2, 1)), layers.Dropout(0.3), DrawsInOtherShapes(), *noisy),
            layers.LSTM(2, dropout=0.3),
        ],
    }


@ANY_SIZE
@pytest.mark.parametrize("shape", [(6, 6, 3), (5, 3)])
def test_layers_that_draw_for_each_row_heed_no_count(shape):
    hidden = inputs = keras.Input(shape)
    for layer in drawing_layers()[shape]:
        hidden = layer(hidden)
    outputs = keras.layers.Dense(3)(keras.layers.Flatten()(hidden))
    model = helpers.compiled(ka.PrivateModel(inputs, outputs))
    x = np.random.default_rng(0).uniform(size=(NUM_ROWS, *shape)).astype("float32")
    model.fit(x, data()[1], batch_size=40, steps_per_epoch=2, verbose=0)
    assert model.privacy_ledger.steps == 2
    # Otherwise examples would not meet, and nothing would have been examined.
    assert model.gradient_plan.is_layerwise


class RelativeToLongest(keras.layers.Layer):
    """Scales a sequence by how much shorter it is than the longest one of its batch."""

    supports_masking = True

    def call(self, x, mask=None):
        lengths = ops.sum(ops.cast(mask, "float32"), axis=1, keepdims=True)
        return x * ops.expand_dims(1.0 + ops.max(lengths) - lengths, -1)


@pytest.mark.parametrize("kind", ["numbers", "ids"])
def test_a_layer_that_mixes_through_masks_is_refused(kind):
    """Even where the data at hand have no padding at all."""
    rng, inputs = np.random.default_rng(0), keras.Input((6, 2) if kind == "numbers" else (6,))
    if kind == "numbers":
        x = rng.normal(size=(NUM_ROWS, 6, 2)).astype("float32")
        masked = keras.layers.Masking(-1.0)(inputs)
    else:
        x = rng.integers(1, 9, (NUM_ROWS, 6))
        masked = keras.layers.Embedding(9, 2, mask_zero=True)(inputs)
    pooled = keras.layers.GlobalAveragePooling1D()(RelativeToLongest(name="relative")(masked))
    model = helpers.compiled(ka.PrivateModel(inputs, keras.layers.Dense(3)(pooled)))
    with pytest.raises(ValueError, match="relative: It mixes examples"):
        model.fit(x, data()[1], batch_size=BATCH_SIZE, verbose=0)


@pytest.mark.parametrize("kind", ["layerwise", "one by one", "clients"])
@pytest.mark.parametrize("state", [*STATES, *(["attribute"] if BACKEND == "torch" else [])])
def test_state_outside_of_keras_variables_is_refused(state, kind):
    HELD[0] = 0.0
    layer = RemembersInAttribute() if state == "attribute" else Remembers(state)
    model = helpers.compiled(WithOwnWeight(layer)) if kind == "one by one" else model_with(layer)
    if kind == "clients":
        model = helpers.compiled(ka.federate(keras.Model(model.input, model.output)))
        x = ka.federated.ClientData.from_arrays(*data(), np.arange(NUM_ROWS) % 6)
    # What a vectorized pass leaves in a list is of no use to the next one.
    with pytest.raises(
        ValueError, match=r"outside of Keras's variables|'remembers' yields an error"
    ):
        model.fit(x, cohort_size=2) if kind == "clients" else fit(model)


@pytest.mark.parametrize("remembers", [False, True])
def test_layers_of_one_name_are_told_apart(remembers):
    class Scale(keras.layers.Layer):
        """Holds a number, and in every pass another one where it remembers."""

        def __init__(self, number, remembers=False):
            super().__init__(name="scale")
            self.number, self.remembers = number, remembers

        def call(self, x):
            self.number += float(self.remembers)
            return x * self.number

    inputs = keras.Input((helpers.NUM_FEATURES,))
    blocks = [
        keras.Sequential([inputs, Scale(2.0, remembers), keras.layers.Dense(5, name="dense")]),
        keras.Sequential([keras.Input((5,)), Scale(3.0), keras.layers.Dense(3, name="dense")]),
    ]
    model = helpers.compiled(ka.privatize(keras.Sequential([inputs, *blocks])), run_eagerly=True)
    context = (
        pytest.raises(ValueError, match=r"scale: .*outside")
        if remembers
        else contextlib.nullcontext()
    )
    with context:
        fit(model)


def test_an_augmentation_that_mixes_large_batches_is_refused():
    with pytest.raises(ValueError, match=r"late:? It mixes examples"):
        fit(helpers.compiled(), augmentation=MixesLargeBatches(name="late"))


class ChangesItsMind(keras.layers.Layer):
    """Mixes examples once somebody says so."""

    mixes = False

    def call(self, x):
        return add_mean(x) if self.mixes else x + 0.0


def compiled_again(model, how):
    """What makes Keras trace the step anew: a call, or options of the next `fit`."""
    if how == "forced":
        model.make_train_function(force=True)
    if how == "compiled":
        helpers.compiled(model)
    if how == "one batch":
        model.train_on_batch(*[part[:8] for part in data()])
    if how == "microbatches":
        model.optimizer.microbatch_size = 16
    options = {
        "other batches": {"batch_size": 64},
        "class weights": {"class_weight": {0: 2.0}},
        "augmentation": {"augmentation": keras.layers.GaussianNoise(0.1)},
        "diagnostics": {"callbacks": [ka.callbacks.ClippingMonitor(private_diagnostics=True)]},
    }
    return options.get(how, {})


HOW = (
    *("other batches", "class weights", "augmentation", "diagnostics", "forced", "compiled"),
    *("one batch", "microbatches"),
)


@pytest.mark.parametrize(
    ("how", "sampling"),
    [
        *((how, "poisson") for how in HOW),
        *((how, "shuffle") for how in ("class weights", "other batches")),
    ],
)
def test_a_layer_that_changes_between_fits_is_noticed_where_it_has_an_effect(how, sampling):
    layer = ChangesItsMind(name="late")
    model = model_with(layer)
    fit(model, sampling=sampling)
    options = compiled_again(model, how)
    layer.mixes = True
    with pytest.raises(ValueError, match="late: It mixes examples"):
        fit(model, sampling=sampling, **options)


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
def test_a_second_fit_compiles_and_examines_nothing(sampling, monkeypatch):
    model = model_with(keras.layers.Dropout(0.1))
    fit(model, sampling=sampling)
    monkeypatch.setattr(backend.Evaluator, "__call__", pytest.fail)
    if BACKEND != "torch":
        monkeypatch.setattr(type(model), "train_step", pytest.fail)
    fit(model, sampling=sampling, epochs=2)
    assert model.privacy_ledger.steps == 6


def test_what_a_first_pass_makes_is_no_state_and_what_counts_in_python_is():
    class Counts(keras.layers.Layer):
        num_calls, table, limit = 0, None, np.inf

        def __init__(self, by):
            super().__init__(name="counts")
            self.by = by

        def call(self, x):
            self.num_calls += self.by
            self.table = np.arange(4.0) if self.table is None else self.table
            return x + 0.0 * self.table.sum()

    fit(model_with(Counts(0), run_eagerly=True))
    with pytest.raises(ValueError, match=r"counts: .*outside of Keras's variables"):
        fit(model_with(Counts(1), run_eagerly=True))


def test_state_that_large_batches_alone_leave_is_refused():
    class Bank(keras.layers.Layer):
        """Adds what the last large batch left behind."""

        bank = None

        def call(self, x):
            y = x if self.bank is None else x + self.bank
            if x.shape[0] is not None and x.shape[0] > 20:
                self.bank = ops.mean(x, axis=0, keepdims=True)
            return y

        def compute_output_shape(self, input_shape):
            return input_shape

    # A compiled step keeps no such state.
    model = model_with(Bank(), run_eagerly=True)
    with pytest.raises(ValueError, match="state outside of Keras's variables"):
        fit(model, batch_size=32)
    assert model.privacy_ledger.steps == 0
