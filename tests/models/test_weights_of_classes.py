"""Class weights are those of single losses: of examples, or of their positions."""

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.models import helpers
from tests.soundness.setups import without_xla

ROWS, STEPS, CLASSES = 8, 7, 3
CLASS_WEIGHT = {0: 1.0, 1: 5.0, 2: 0.5}
LABELS = np.random.default_rng(1).integers(0, CLASSES, (ROWS, STEPS)).astype("int32")
WEIGHTS = np.vectorize(CLASS_WEIGHT.get)(LABELS).astype("float32")
ONE_HOT = np.eye(CLASSES, dtype="float32")[LABELS]
# Targets, the classes that outputs tell apart (1: sigmoid), and the weights of single losses.
CASES = {
    "numbers": (LABELS, CLASSES, WEIGHTS),
    "numbers with an axis": (LABELS[..., None], CLASSES, WEIGHTS),
    "one-hot": (ONE_HOT, CLASSES, WEIGHTS),
    "smoothed": (0.9 * ONE_HOT + 0.1 / CLASSES, CLASSES, WEIGHTS),
    "binary": (np.minimum(LABELS, 1)[..., None], 1, np.where(LABELS > 0, 5.0, 1.0)),
    # As many classes as steps, and rows that could be one-hot.
    "images": (LABELS.reshape(2, 2, 2, STEPS), CLASSES, WEIGHTS.reshape(2, 2, 2, STEPS)),
    "one label in each row": (np.eye(STEPS, dtype="int32")[:6], STEPS, None),
    "examples": (LABELS[:, 0], CLASSES, WEIGHTS[:, 0]),
    "one-hot examples": (ONE_HOT[:, 0], CLASSES, WEIGHTS[:, 0]),
}


def network(cls, y, classes):
    has_axis = y.ndim > 1 and y.shape[-1] == (classes if y.dtype.kind == "f" else 1)
    shape = (*y.shape[1 : y.ndim - has_axis], 2)
    x = np.random.default_rng(0).normal(size=(len(y), *shape)).astype("float32")
    if classes == 1:
        loss, activation = "binary_crossentropy", "sigmoid"
    else:
        kind = "categorical" if y.dtype.kind == "f" else "sparse_categorical"
        loss, activation = f"{kind}_crossentropy", "softmax"
    inputs = keras.Input(shape)
    start = keras.initializers.RandomNormal(stddev=0.5, seed=1)
    dense = keras.layers.Dense(classes, activation, kernel_initializer=start)
    model = cls(inputs, dense(inputs))
    sgd = keras.optimizers.SGD(0.5)
    private = cls is not keras.Model
    optimizer = helpers.dp_optimizer(0.0, 1e6, sgd) if private else sgd
    options = {"client_optimizer": sgd} if cls is ka.FederatedModel else {}
    model.compile(optimizer, loss=loss, **options, **without_xla({}))
    return model, x


@pytest.mark.parametrize("sampling", ["poisson", "shuffle", "dataset", "batch", "clients"])
@pytest.mark.parametrize("name", CASES)
def test_class_weights_are_those_of_each_loss(name, sampling):
    y, classes, weights = CASES[name]
    if weights is None:
        weights = np.where(y == 0, 1.0, 5.0)
    plain, x = network(keras.Model, y, classes)
    expected = plain.evaluate(x, y, sample_weight=weights.astype("float32"), verbose=0)
    options = {"class_weight": CLASS_WEIGHT, "verbose": 0}
    cls = ka.FederatedModel if sampling == "clients" else ka.PrivateModel
    model, x = network(cls, y, classes)
    if sampling == "batch":
        found = model.train_on_batch(x, y, class_weight=CLASS_WEIGHT)
    elif sampling == "dataset":
        data = ka.sampling.PoissonDataset(x, y, expected_batch_size=len(y))
        found = model.fit(data, **options).history["loss"]
    elif sampling == "clients":
        clients = ka.federated.ClientData.from_arrays(x, y, np.zeros(len(y), int))
        found = model.fit(clients, cohort_size=1, **options).history["loss"]
    else:
        found = model.fit(x, y, batch_size=len(y), sampling=sampling, **options).history["loss"]
    np.testing.assert_allclose(np.ravel(found)[0], expected, rtol=1e-5)


def stream(x, y):
    return iter([(x, y)])


@pytest.mark.parametrize(
    ("y", "classes", "data", "match"),
    [
        # Several labels in a row: a mean over them is one loss.
        (np.minimum(LABELS, 1), STEPS, None, "several classes in a row"),
        (np.minimum(LABELS, 1), 1, None, "several classes in a row"),
        (LABELS, CLASSES, stream, "one class for each example of a data set"),
        (ONE_HOT, CLASSES, stream, "one class for each example of a data set"),
    ],
)
def test_class_weights_without_one_class_are_refused(y, classes, data, match):
    shape = (STEPS,) if classes == STEPS else (STEPS, 2)
    inputs, x = keras.Input(shape), np.zeros((ROWS, *shape), "float32")
    model = ka.PrivateModel(inputs, keras.layers.Dense(classes, "sigmoid")(inputs))
    model.compile(helpers.dp_optimizer(), loss="binary_crossentropy")
    given = {"x": x, "y": y} if data is None else {"x": data(x, y), "num_examples": ROWS}
    with pytest.raises(ValueError, match=match):
        model.fit(**given, class_weight=CLASS_WEIGHT, verbose=0)
    assert model.privacy_ledger.steps == 0
