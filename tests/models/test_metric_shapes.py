"""Metrics under padding are those of plain Keras on the rows that were drawn.

Targets and predictions have two to five axes, weights each shape that Keras allows.
"""

import keras
import numpy as np
import pytest
from keras import metrics, ops

import keras_adaclip as ka
from tests.models import helpers
from tests.soundness.setups import without_xla

ROWS, EXPECTED, EPOCH = 12, 4, 3
# More axes than rows and columns are alike: what broadcasts from the last axis would not show.
AXES = {2: (), 3: (3,), 4: (3, 4), 5: (2, 3, 4)}
CLASSES = 3


class Positives(metrics.Metric):
    """A metric of a user's: the weighted number of positive targets."""

    def __init__(self):
        super().__init__(name="positives")
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        found = ops.cast(y_true, "float32") * ops.ones_like(y_pred[..., :1])
        if sample_weight is not None:
            found = found * ops.reshape(sample_weight, ops.shape(found))
        self.total.assign_add(ops.sum(found))

    def result(self):
        return self.total.value


def binary():
    return [
        metrics.BinaryAccuracy(),
        metrics.Precision(),
        metrics.AUC(num_thresholds=20),
        metrics.BinaryIoU([0, 1]),
        metrics.MeanSquaredError(),
        metrics.Recall(thresholds=0.3),
        Positives(),
    ]


def sparse():
    return [
        metrics.SparseCategoricalAccuracy(),
        metrics.SparseTopKCategoricalAccuracy(2),
        metrics.MeanIoU(CLASSES, sparse_y_pred=False),
    ]


def one_hot():
    return [
        metrics.CategoricalAccuracy(),
        metrics.OneHotMeanIoU(CLASSES),
        metrics.CosineSimilarity(),
        metrics.AUC(num_thresholds=20, name="flat_auc"),
        metrics.F1Score(average="macro", name="f1"),
        metrics.R2Score(name="r2"),
    ]


def picked(y_true, y_pred):
    """Sparse cross-entropy, which PyTorch does not differentiate for four axes."""
    labels = ops.one_hot(ops.cast(y_true, "int32"), CLASSES)
    return -ops.sum(labels * ops.log(y_pred), axis=-1)


# Metrics, loss, number of outputs, and whether targets have classes along a last axis.
FAMILIES = {
    "binary": (binary, "binary_crossentropy", 1),
    "sparse": (sparse, picked, CLASSES),
    "one-hot": (one_hot, "categorical_crossentropy", CLASSES),
}
OF_ROWS = ("f1", "r2", "positives")  # For predictions of two axes.


def data_of(family, num_axes):
    generator, shape = np.random.default_rng(num_axes), (ROWS, *AXES[num_axes])
    x = generator.normal(size=(*shape, 2)).astype("float32")
    labels = generator.integers(0, 2 if family == "binary" else CLASSES, shape).astype("int32")
    if family == "one-hot":
        return x, np.eye(CLASSES, dtype="float32")[labels]
    return x, labels[..., None] if family == "binary" else labels


def weights_of(shape, losses):
    """Sample weights: one for each loss, or one for each row where losses have more axes."""
    shape = losses if shape == "losses" else (ROWS, *[1] * (len(losses) - 1))
    return np.random.default_rng(5).uniform(0.1, 2.0, shape).astype("float32")


def model_of(cls, family, x, weighted, **options):
    made, loss, units = FAMILIES[family]
    inputs = keras.Input(x.shape[1:])
    start = keras.initializers.RandomNormal(stddev=2.0, seed=1)
    activation = "sigmoid" if units == 1 else "softmax"
    outputs = keras.layers.Dense(units, activation, kernel_initializer=start)(inputs)
    model = cls(inputs, outputs)
    chosen = {}
    for kind in ("metrics", *(["weighted_metrics"] if weighted else [])):
        chosen[kind] = [each for each in made() if x.ndim == 2 or each.name not in OF_ROWS]
        for number, metric in enumerate(chosen[kind]):
            metric.name = f"{kind}_{number}_{type(metric).__name__}"
    sgd = keras.optimizers.SGD(0.0)
    optimizer = sgd if cls is keras.Model else helpers.dp_optimizer(optimizer=sgd, **options)
    model.compile(optimizer, loss=loss, **chosen, **without_xla({}))
    return model


def drawn(batches):
    """The rows of each draw, without padding."""
    for batch in batches:
        kept = batch["mask"]
        parts = map(batch.get, ("x", "y", "sample_weight"))
        if kept.any():
            yield [part[kept] for part in parts]


def of_plain_keras(plain, batches):
    plain.reset_metrics()
    for x, y, weight in batches:
        y_pred = ops.stop_gradient(plain(x))
        found = plain.compute_metrics(x, ops.convert_to_tensor(y), y_pred, weight)
    del found["loss"]
    return {name: float(ops.convert_to_numpy(value)) for name, value in found.items()}


SAMPLINGS = ["poisson", "truncated", "shuffle", "chunks"]


# Keras's own: of metrics that count in integers.
@pytest.mark.filterwarnings("ignore:You are passing weight as `float`")
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("num_axes", "weights"),
    [(2, "losses"), *((n, w) for n in (3, 4, 5) for w in ("losses", "rows"))],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_metrics_are_those_of_keras_on_drawn_rows(family, num_axes, weights, sampling):
    x, y = data_of(family, num_axes)
    losses = (ROWS, *AXES[num_axes])
    weight = weights_of(weights, losses)
    plain = model_of(keras.Model, family, x, weights == "losses")
    options = {"microbatch_size": 3} if sampling == "chunks" else {}
    model = model_of(ka.PrivateModel, family, x, weights == "losses", **options)
    model.set_weights(plain.get_weights())
    if sampling in ("shuffle", "chunks"):
        found = helpers.quiet_fit(
            model, x, y, sample_weight=weight, batch_size=5, sampling="shuffle", shuffle=False
        )
        parts = (slice(first, first + 5) for first in range(0, ROWS, 5))
        batches = [(x[p], y[p], weight[p]) for p in parts]
    else:
        most = {"max_batch_size": 6} if sampling == "truncated" else {}

        def dataset():
            return ka.sampling.PoissonDataset(
                x, y, weight, expected_batch_size=EXPECTED, seed=7, **most
            )

        found = helpers.quiet_fit(model, dataset())
        batches = dataset()
        batches.begin_run(0)
        batches = list(drawn(batches[step] for step in range(EPOCH)))
    expected = of_plain_keras(plain, batches)
    assert set(expected) <= set(found)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name][0], value, rtol=1e-5, atol=1e-6, err_msg=name)


def dice(y_true, y_pred):
    """One number for a batch."""
    labels = ops.cast(y_true, y_pred.dtype)
    return 2.0 * ops.sum(labels * y_pred) / (ops.sum(labels) + ops.sum(y_pred))


@pytest.mark.parametrize("convert", [ka.privatize, ka.federate])
def test_a_function_that_returns_one_number_for_padded_batches_is_refused(convert):
    x, y = data_of("binary", 4)
    plain = model_of(keras.Model, "binary", x, False)
    model = helpers.compiled(convert(plain), loss="binary_crossentropy", metrics=[dice])
    data = {"x": x, "y": y, "batch_size": ROWS}
    if convert is ka.federate:
        clients = ka.federated.ClientData.from_arrays(x, y, np.arange(ROWS) % 3)
        data = {"clients": clients, "cohort_size": 3}
    with pytest.raises(ValueError, match="dice: Batches are padded"):
        model.fit(**data, verbose=0)
    assert model.privacy_ledger.steps == 0
