"""One table of models that would not be private: who refuses them by name, and what trains."""

from functools import partial

import keras
import numpy as np
import pytest
from keras import layers, ops
from keras.random import SeedGenerator

import keras_adaclip as ka
from keras_adaclip import backend
from keras_adaclip.examination import Examination
from tests.models import helpers, unsafe
from tests.models.unsafe import Unsafe, add_mean, closed_gate, is_many, weight

BACKEND = keras.backend.backend()
NUM_ROWS, BATCH_SIZE = 512, 256
X, Y = helpers.features(NUM_ROWS), helpers.labels(NUM_ROWS)
ONE_HOT = np.eye(3, dtype="float32")[Y]
CLIENTS = ka.federated.ClientData.from_arrays(X, Y, np.arange(NUM_ROWS) % 6)
MIXES = "It mixes examples"
ASSIGNED = "It is assigned in the forward pass"
STATE = "outside of Keras's variables"
DRAWS = "A forward.*draws random numbers outside"
HEEDS = "Its output for one row depends on how many"


def model_with(layer, model=ka.PrivateModel, **options):
    inputs = keras.Input((helpers.NUM_FEATURES,))
    hidden = layer(layers.Dense(5, activation="tanh")(inputs))
    return helpers.compiled(model(inputs, layers.Dense(3)(hidden)), **options)


def others_variable():
    """A gate that a variable opens which is not the model's."""
    variable = keras.Variable(0.0, dtype="float32")
    return lambda self, x, training: add_mean(x, ops.relu(variable.value))


SGD = keras.optimizers.SGD(0.1)


def steps_of_the_optimizer():
    """A gate that opens after many steps, which no variable of the model counts."""
    SGD.build([])
    is_late = lambda: ops.cast(SGD.iterations.value > 2000, "float32")  # noqa: E731
    return lambda self, x, training: add_mean(x, is_late())


# By what is said of a layer: its function, and its parts.
LAYERS = {
    MIXES: {
        "in training": (unsafe.centred, {}),
        "row 0 sees only itself": (lambda self, x, training: ops.cumsum(x, axis=0), {}),
        "large batches": (lambda self, x, training: add_mean(x) if is_many(x) else x, {}),
        "gate": (lambda self, x, training: add_mean(x, ops.relu(self.gate)), {"gate": True}),
        "fixed gate": (lambda self, x, training: add_mean(x, ops.relu(self.gate)), {"gate": False}),
        "gate of large batches": (
            lambda self, x, training: add_mean(x, self.gate) if is_many(x) else x + 0.0 * self.gate,
            {"gate": weight(trainable=True)},
        ),
        "1e-7 of the mean": (lambda self, x, training: add_mean(x, 1e-7), {}),
        "1e-14 of the mean": (lambda self, x, training: add_mean(x, 1e-14), {}),
        "gradients": (unsafe.mixed_backward, {}),
        "a bound on the gradient of all": (unsafe.bounded_backward(100.0), {}),
        "a variable of others": (others_variable(), {}),
        "steps of the optimizer": (steps_of_the_optimizer(), {}),
        "own steps": (unsafe.mixed_after(20), {"steps": weight()}),
        "integer steps": (unsafe.mixed_after(10**5), {"steps": weight((1,), dtype="int32")}),
        "steps of three": (unsafe.mixed_after(20), {"steps": weight((3,))}),
    },
    ASSIGNED: {
        "running mean": (unsafe.assigning("mean", 0.0), {"mean": weight((5,))}),
        "trainable": (unsafe.assigning("mean", -1.0), {"mean": weight((5,), trainable=True)}),
    },
    "It adds a loss of its own": {"loss": (unsafe.adding_a_loss, {})},
    STATE: {
        "of large batches": (unsafe.remembering_large_batches, {"seen": lambda: None}),
        "counted": (unsafe.counting(1), {"num_calls": int, "table": lambda: None}),
        "a tensor": (unsafe.leaving_a_tensor, {}),
    },
    DRAWS: {"": (unsafe.unseeded_noise, {})},
    HEEDS: {
        "alone": (unsafe.heeding_count(), {"gate": True}),
        "behind dropout": (unsafe.heeding_count(), {"gate": True}),
        **{
            name: (unsafe.heeding_count(draw), {"gate": False, "seeds": lambda: SeedGenerator(1)})
            for name, draw in {
                "one number": lambda x, seed: x + keras.random.normal((1, 1), seed=seed),
                "each row": lambda x, seed: keras.random.dropout(x, 0.5, seed=seed),
                "shape": lambda x, seed: x + keras.random.normal(ops.shape(x), seed=seed),
            }.items()
        },
    },
}
# A compiled step keeps no state in Python.
EAGERLY = {"fixed gate", "1e-7 of the mean", "of large batches", "counted"}


def with_layer(message, name):
    """A compiled model with a layer `culprit` of the table."""
    function, parts = LAYERS[message][name]
    parts = {
        part: closed_gate(each) if each in (True, False) else each for part, each in parts.items()
    }
    layer = Unsafe(function, **parts)
    if name == "behind dropout":
        layer = keras.Sequential([layers.Dropout(0.3), layer])
    options = {"optimizer": SGD} if name == "steps of the optimizer" else {}
    return model_with(layer, run_eagerly=name in EAGERLY, **options)


class AboveMean(layers.Layer):
    """Masks the rows below the mean of the batch."""

    supports_masking = True

    def compute_mask(self, x, mask=None):
        return x[:, 0] >= ops.mean(x[:, 0])

    def call(self, x, mask=None):
        return x * 1.0


def masking_for_the_loss():
    """No layer of the model heeds the mask; losses of Keras do."""
    stack = [keras.Input((helpers.NUM_FEATURES,)), layers.Dense(3), AboveMean()]
    return helpers.compiled(ka.PrivateSequential(stack))


def masked(inputs, layer):
    """Padding is refused even where the data at hand have none."""
    pooled = layers.GlobalAveragePooling1D()(
        unsafe.RelativeToLongest(name="culprit")(layer(inputs))
    )
    return helpers.compiled(ka.PrivateModel(inputs, layers.Dense(3)(pooled)))


def remembering(state, form):
    unsafe.HELD[0] = 0.0
    make, *access = unsafe.STATES.get(state, [float])
    function = unsafe.remembering(*access) if access else unsafe.remembering_in_attribute
    layer = Unsafe(function, seen=make, num_calls=int)
    if form == "fit":
        return helpers.compiled(unsafe.WithOwnWeight(layer))
    return model_with(layer, ka.FederatedModel if form == "clients" else ka.PrivateModel)


def two_of_one_name(grows):
    """Two layers of one name, each with a number; that of the first grows in every pass."""

    def scale(layer, x, training):
        layer.number += float(layer.grows)
        return x * layer.number

    def block(inputs, number, grows, units):
        layer = Unsafe(scale, "scale", number=lambda: number, grows=lambda: grows)
        return keras.Sequential([inputs, layer, layers.Dense(units, name="dense")])

    inputs = keras.Input((helpers.NUM_FEATURES,))
    blocks = block(inputs, 2.0, grows, 5), block(keras.Input((5,)), 3.0, False, 3)
    return helpers.compiled(ka.privatize(keras.Sequential([inputs, *blocks])), run_eagerly=True)


def other_weights():
    first, second = helpers.compiled(), helpers.dense_model()
    helpers.quiet_fit(first, X, Y, batch_size=6, steps_per_epoch=1)
    second.compile(first.optimizer, loss=helpers.sparse_crossentropy())
    return second


def without_trainable_weights():
    model = helpers.dense_model()
    model.trainable = False
    return helpers.compiled(model)


def stateful():
    remembers = layers.LSTM(3, stateful=True, name="remembers")
    stack = [keras.Input(batch_shape=(8, 4, 2)), remembers, layers.Dense(3)]
    return helpers.compiled(ka.PrivateSequential(stack))


def quantized():
    model = helpers.compiled()
    model.get_layer("hidden").quantize("float8")
    return helpers.compiled(model)


def normalized_out_of_reach(convert):
    """A layer of the user's that holds a batch normalization."""
    block = keras.Sequential([layers.Dense(5), layers.BatchNormalization(name="norm")])
    block.build((None, 5))
    layer = Unsafe(lambda self, x, training: self.inner(x), inner=lambda: block)
    return model_with(layer, lambda *parts: convert(keras.Model(*parts), True))


NORM, DENSE = layers.BatchNormalization, partial(layers.Dense, activity_regularizer="l2")
OUT_OF_REACH = r"norm: BatchNormalization.*If a layer class of your own creates it, use Group"
NUMBERS, EMBEDDING = keras.Input((6, 2)), layers.Embedding(9, 2, mask_zero=True)
AUGMENTATION = Unsafe(LAYERS[MIXES]["large batches"][0])
COMPILE = partial(partial, helpers.compiled)
# What makes a compiled model, and what is said of it.
MODELS = {
    "large batches, eagerly": (lambda: model_with(AUGMENTATION, run_eagerly=True), MIXES),
    "normalization": (lambda: model_with(NORM()), "batch_norm.*replace_batch_norm"),
    "normalization out of reach": (partial(normalized_out_of_reach, ka.privatize), OUT_OF_REACH),
    "clients, normalization": (partial(normalized_out_of_reach, ka.federate), OUT_OF_REACH),
    "regularizer": (lambda: model_with(DENSE(3)), "dense.*Remove `activity_reg"),
    "stateful": (stateful, "remembers: A stateful recurrent layer"),
    "quantized": (quantized, "hidden: Quantization to float8"),
    "masks of numbers": (partial(masked, NUMBERS, layers.Masking(-1.0)), f"culprit: {MIXES}"),
    "masks of ids": (partial(masked, keras.Input((6,)), EMBEDDING), f"culprit: {MIXES}"),
    "masks that losses heed": (masking_for_the_loss, MIXES),
    "layers of one name": (partial(two_of_one_name, True), f"scale: .*{STATE}"),
    "metric": (COMPILE(metrics=[unsafe.WithoutWeights()]), "without_weights: .* takes no"),
    # `check` knows neither the data nor what `fit` is given.
    "fit, augmentation": (helpers.compiled, f"culprit:? {MIXES}"),
    "fit, contrastive": (COMPILE(loss=unsafe.contrastive), "contrastive: .* a mean nor a sum"),
    "fit, loss with state": (COMPILE(loss=unsafe.Adapting()), f"scale: {ASSIGNED}"),
    "fit, other weights": (other_weights, "built for other trainable weights"),
    "fit, no weights": (without_trainable_weights, "has no trainable weights"),
}
for message, rows in LAYERS.items():
    # JAX draws once, while compiling; and batches have one size there.
    if BACKEND != "jax" or message not in (HEEDS, DRAWS):
        who = "fit, " if message == HEEDS else ""
        for name in rows:
            row = partial(with_layer, message, name), f"culprit.*: .*{message}"
            MODELS[f"{who}{message}: {name}"] = row
for own, make in unsafe.LOSSES_OF_STASHED.items():
    MODELS[f"fit, {own} of what rows left"] = make, "It mixes"
for state in (*unsafe.STATES, *(["attribute"] if BACKEND == "torch" else [])):
    for form in ("clients", "fit", "layers"):
        # What a vectorized pass leaves in a list is of no use to the next one.
        message = f"{STATE}|'culprit' yields an error"
        MODELS[f"{form}, {state}"] = partial(remembering, state, form), message
if BACKEND == "torch":
    MODELS["fit, jit_compile"] = COMPILE(jit_compile=True), "jit_compile"


def refused(model, error, message, x=X, y=Y, clients=None, **options):
    """Asserts that `fit` raises and leaves weights, steps and ledger as they were."""
    before, ledger = helpers.weights_of(model) if model.built else [], model.privacy_ledger
    data = (x, y) if clients is None else (clients,)
    sizes = {"batch_size": BATCH_SIZE} if clients is None else {}
    with pytest.raises(error, match=f"(?s){message}"):
        model.fit(*data, verbose=0, **{**sizes, **options})
    helpers.assert_same_weights(model, before or model.get_weights())
    assert [row for row in model.privacy_ledger if row.steps] == [r for r in ledger if r.steps]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_would_not_be_private_is_refused(name):
    make, message = MODELS[name]
    model = make()
    if BACKEND == "torch":  # Elsewhere each examination compiles for seconds.
        assert bool(ka.check(model)) == (not name.startswith("fit, "))
    options = {"x": helpers.features(NUM_ROWS, getattr(model, "input_shape", X.shape)[1:])}
    if name.startswith("clients, "):
        options = {"clients": CLIENTS, "cohort_size": 2}
    elif HEEDS in name:
        options["batch_size"] = 4 if "shape" in name else 40
    elif name == "fit, augmentation":
        options["augmentation"] = AUGMENTATION
    elif name == "masks of ids":
        options["x"] = np.random.default_rng(0).integers(1, 9, (NUM_ROWS, 6))
    refused(model, ValueError, message, **options)
    is_compiled = options.keys().isdisjoint({"augmentation", "clients"})
    if is_compiled and (BACKEND == "torch" or MIXES in message):
        with pytest.raises(ValueError, match=f"(?s){message}"):
            model.train_on_batch(options["x"][:BATCH_SIZE], Y[:BATCH_SIZE])


# Models that begin to mix after a first `fit`

COMPILED_AGAIN = {
    "other batches": lambda model: {"batch_size": 64},
    "class weights": lambda model: {"class_weight": {0: 2.0}},
    "augmentation": lambda model: {"augmentation": layers.GaussianNoise(0.1)},
    "diagnostics": lambda model: {
        "callbacks": [ka.callbacks.ClippingMonitor(private_diagnostics=True)]
    },
    "forced": lambda model: model.make_train_function(force=True),
    "compiled": lambda model: helpers.compiled(model) and {},
    "one batch": lambda model: model.train_on_batch(X[:8], Y[:8]) and {},
    "microbatches": lambda model: setattr(model.optimizer, "microbatch_size", 16),
}


@pytest.mark.parametrize(
    ("how", "sampling"),
    [
        *((how, "poisson") for how in COMPILED_AGAIN),
        *((how, "shuffle") for how in ("class weights", "other batches")),
    ],
)
def test_a_layer_that_changes_between_fits_is_refused_where_the_step_is_compiled_again(
    how, sampling
):
    mixes = []
    layer = Unsafe(lambda layer, x, training: add_mean(x) if mixes else x + 0.0)
    model = model_with(layer)
    helpers.quiet_fit(model, X, Y, batch_size=BATCH_SIZE, sampling=sampling)
    options = COMPILED_AGAIN[how](model)
    mixes.append(True)
    options = {"batch_size": BATCH_SIZE, "sampling": sampling, **(options or {})}
    with pytest.raises(ValueError, match=f"culprit: {MIXES}"):
        helpers.quiet_fit(model, X, Y, **options)


def test_a_layer_that_is_added_between_fits_is_refused():
    model = helpers.compiled(ka.PrivateSequential([keras.Input((4,)), layers.Dense(3)]))
    helpers.quiet_fit(model, X, Y, batch_size=BATCH_SIZE)
    model.add(Unsafe(lambda layer, x, training: add_mean(x)))
    with pytest.raises(ValueError, match=f"culprit: {MIXES}"):
        helpers.quiet_fit(model, X, Y, batch_size=BATCH_SIZE)


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
def test_a_second_fit_compiles_and_examines_nothing(sampling, monkeypatch):
    model = model_with(layers.Dropout(0.1))
    options = {"batch_size": BATCH_SIZE, "sampling": sampling}
    helpers.quiet_fit(model, X, Y, **options)
    monkeypatch.setattr(backend.Evaluator, "__call__", pytest.fail)
    if BACKEND != "torch":
        monkeypatch.setattr(type(model), "train_step", pytest.fail)
    helpers.quiet_fit(model, X, Y, epochs=2, **options)
    assert model.privacy_ledger.steps == 6


@pytest.mark.skipif(BACKEND != "jax", reason="batches of convolutions have two sizes there")
def test_a_size_that_compiles_to_something_else_is_examined_too(monkeypatch):
    seen, found, find = set(), [], Examination.finding
    monkeypatch.setattr(Examination, "finding", lambda each: found.append(0) or find(each))

    def fit_where(mixes):
        late = Unsafe(lambda layer, x, training: add_mean(x) if mixes(x.shape[0]) else x)
        made = [layers.Reshape((-1, 1)), layers.Conv1D(3, helpers.NUM_FEATURES)]
        model = helpers.compiled(ka.PrivateSequential([*made, layers.Flatten(), late]))
        helpers.quiet_fit(model, X, Y, batch_size=BATCH_SIZE)

    fit_where(seen.add)
    sizes = [each for each in seen if isinstance(each, int) and each > 12]  # Those of steps.
    assert (len(sizes), len(found)) == (2, 1), (sizes, seen, found)
    for size in sizes:
        with pytest.raises(ValueError, match=f"culprit: {MIXES}"):
            fit_where(lambda num_rows, size=size: str(num_rows) == str(size))


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_a_batch_normalization_whose_mode_changes_meanwhile_is_refused(run_eagerly):
    def normalized():
        layer = Unsafe(
            lambda layer, x, training: layer.norm(x, training=layer.mode),
            norm=lambda: layers.BatchNormalization(name="norm"),
            mode=bool,
        )
        return layer, model_with(layer, run_eagerly=run_eagerly)

    def fit(**options):
        helpers.quiet_fit(model, X, Y, batch_size=BATCH_SIZE, **options)

    is_eager = run_eagerly or BACKEND == "torch"
    layer, model = normalized()
    fit()
    layer.mode = True
    if not is_eager:
        # The compiled step goes on as it was.
        before = ops.convert_to_numpy(layer.norm.moving_mean)
        fit()
        np.testing.assert_array_equal(ops.convert_to_numpy(layer.norm.moving_mean), before)
        model.make_train_function(force=True)
    with pytest.raises(ValueError, match="norm: BatchNormalization"):
        fit()
    if is_eager:
        layer, model = normalized()
        change = keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda batch, logs: setattr(layer, "mode", batch > 0)
        )
        with pytest.raises(ValueError, match="norm: BatchNormalization"):
            fit(callbacks=[change])


# What is like them, and trains


class DrawsInOtherShapes(layers.Layer):
    """Draws for parts of rows, for rows along the last axis, and for no rows at all."""

    def __init__(self):
        super().__init__()
        self.seed_generator = SeedGenerator(1)

    def call(self, x, training=None):
        if not training:
            return x
        shape, seed = (-1, *x.shape[1:]), self.seed_generator
        x = ops.reshape(keras.random.dropout(ops.reshape(x, (-1, 5)), 0.3, seed=seed), shape)
        of_rows = ops.transpose(keras.random.normal((5, ops.shape(x)[0]), seed=seed))
        return x + ops.expand_dims(of_rows, 1) + ops.sum(keras.random.normal((2, 5), seed=seed), 0)


def drawing():
    """Layers of Keras that draw a number for each row; batches of 40 of them vary in size.

    Unseeded dropout of PyTorch draws in the order of the memory, which `Permute` changes.
    """
    stack = [layers.Permute((2, 1)), layers.Dropout(0.3), DrawsInOtherShapes()]
    stack += [layers.GaussianNoise(0.1), layers.GaussianDropout(0.3), layers.AlphaDropout(0.3)]
    stack = [keras.Input((5, 3)), *stack, layers.LSTM(2, dropout=0.3), layers.Dense(3)]
    return helpers.compiled(ka.PrivateSequential(stack))


class TracksInItsLoss(ka.PrivateModel):
    """Random numbers and metrics are no assignments of a loss."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tracker, self.seeds = keras.metrics.Mean("squares"), SeedGenerator(0)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        self.tracker.update_state(ops.mean(ops.square(y_pred)))
        noise = keras.random.normal(ops.shape(y_pred), seed=self.seeds)
        return ops.mean(ops.square(y_pred + 0.0 * noise))


ACCEPTED = {
    "draws for sequences": drawing,
    "two layers of one name": partial(two_of_one_name, False),
    # What a first pass makes is no state.
    "a table made in the first pass": lambda: model_with(
        Unsafe(unsafe.counting(0), num_calls=int, table=lambda: None), run_eagerly=True
    ),
    "loss that tracks": lambda: helpers.compiled(helpers.dense_model(TracksInItsLoss), loss=None),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_model_whose_rows_do_not_meet_is_trained(name):
    model = ACCEPTED[name]()
    x = np.abs(helpers.features(NUM_ROWS, model.input_shape[1:])) % 1.0
    helpers.quiet_fit(model, x, Y, batch_size=40, steps_per_epoch=2)
    assert model.privacy_ledger.steps == 2
    # Otherwise examples would not meet, and nothing would have been examined.
    assert model.gradient_plan.is_layerwise


# Data, and methods of the user's own

DATA = {
    "batch larger than the data": ({"batch_size": 513}, ValueError, "batch_size=513"),
    "unknown sampling": ({"sampling": "uniform"}, ValueError, "sampling='uniform'"),
    "objects": ({"x": np.array([[None]] * NUM_ROWS)}, TypeError, "`x` must be a dense array"),
    "lists of lists": ({"x": [[1.0, 2.0], [3.0]]}, ValueError, "all have the same shape"),
    "a list of others": ({"x": [X, len], "y": None, "batch_size": None}, TypeError, "type list"),
    "nothing": ({"x": None, "y": None, "batch_size": None}, TypeError, "must be arrays"),
    "negative split": ({"validation_split": -0.5}, ValueError, "validation_split=-0.5"),
    "both weights": ({"class_weight": {0: 2}, "sample_weight": Y}, ValueError, "not both"),
}


@pytest.fixture(scope="module")
def model():
    return helpers.compiled()


@pytest.mark.parametrize("name", DATA)
def test_bad_data_is_refused(name, model):
    options, error, message = DATA[name]
    refused(model, error, message, **options)


def test_a_model_that_is_not_compiled_and_a_train_step_on_its_own_are_refused():
    with pytest.raises(ValueError, match="Call `compile"):
        helpers.dense_model().fit(X, Y)
    model = helpers.compiled()
    with pytest.raises(ValueError, match="fit"):
        model.train_step((X, Y)) if BACKEND != "jax" else model.train_step(None, X)


@pytest.mark.parametrize("cls", [ka.PrivateModel, ka.federated.FederatedModel])
def test_an_own_function_that_trains_is_refused(cls):
    """Nothing would clip, noise or count what it does."""

    class Own(cls):
        def make_train_function(self, force=False):
            self.train_function = lambda iterator: {}

        def compute_loss_and_updates(self, *args, **kwargs):
            raise AssertionError

    model = helpers.compiled(helpers.dense_model(Own))
    # Keras calls it in the place of the class's.
    model.train_step = lambda *args: {}
    of_jax = ["compute_loss_and_updates"] if BACKEND == "jax" else []
    expected = ["train_step", "make_train_function", *of_jax]
    assert [issue.layer for issue in ka.check(model)] == expected
    if cls is ka.PrivateModel:
        refused(model, ValueError, "Remove the override")


@pytest.mark.parametrize("method", ["compute_loss", "compute_metrics"])
def test_methods_set_on_a_private_model_are_its_own(method):
    model = helpers.compiled(noise_multiplier=0.0)
    seen = []

    def own(x=None, y=None, y_pred=None, sample_weight=None, **options):
        seen.append(x is not None)
        of_class = getattr(ka.PrivateModel, method)
        return of_class(model, x, y, y_pred, sample_weight, **options)

    setattr(model, method, own)
    helpers.quiet_fit(model, X, Y, batch_size=BATCH_SIZE)
    assert seen
    assert all(seen)
