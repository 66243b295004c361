"""From keras.io/examples: the first of structured data, recommendation and graphs."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from catalogue import ROWS, Made, example, labels, numbers, one_hot, stopping
from keras import layers, ops
from keras.utils import FeatureSpace


def choices(*values: Any) -> np.ndarray:
    """Return one of some values for each row."""
    return np.array(values)[labels(len(values), seed=len(values))]


def columns() -> dict[str, np.ndarray]:
    """Return features of patients: numbers, whole numbers and words."""
    return {
        "sex": labels(2),
        "cp": labels(4, seed=2),
        "age": labels(50, seed=3),
        "chol": 200 * numbers(),
        "slope": labels(3, seed=4),
        "thal": choices("fixed", "normal", "reversible"),
        "job": choices("admin", "services", "student", "technician"),
    }


def on_features(features: dict[str, Any], crosses: list[Any], width: int, random: float) -> Made:
    """Return dense layers on what a `FeatureSpace` makes of columns before training.

    Args:
        features: Kinds of columns, by name.
        crosses: Pairs of columns.
        width: Of the hidden layer.
        random: 0.0 leaves out dropout.
    """
    space = FeatureSpace(features=features, crosses=crosses, output_mode="concat")
    rows = {name: values for name, values in columns().items() if name in features}
    data = tf.data.Dataset.from_tensor_slices(rows)
    space.adapt(data.batch(32))
    x_rows = np.stack([np.asarray(row) for row in data.map(space)])
    inputs = space.get_encoded_features()
    x = layers.Dropout(0.5 * random)(layers.Dense(width, "relu")(inputs))
    model = keras.Model(inputs, layers.Dense(1, "sigmoid")(x))
    return Made(model, x_rows, labels(2), "binary_crossentropy", ["accuracy"])


@example("structured_data")
def structured_data_classification_with_feature_space(random: float) -> Made:
    """Return layers on encoded and crossed features."""
    features = {
        "sex": FeatureSpace.integer_categorical(num_oov_indices=0),
        "cp": FeatureSpace.integer_categorical(num_oov_indices=0),
        "thal": FeatureSpace.string_categorical(num_oov_indices=0),
        "age": FeatureSpace.float_discretized(num_bins=6),
        "chol": FeatureSpace.float_normalized(),
        "slope": FeatureSpace.float_normalized(),
    }
    crosses = [
        FeatureSpace.cross(feature_names=("sex", "age"), crossing_dim=8),
        FeatureSpace.cross(feature_names=("thal", "cp"), crossing_dim=4),
    ]
    return on_features(features, crosses, 32, random)


@example("structured_data")
def feature_space_advanced(random: float) -> Made:
    """Return layers on encoded, hashed and crossed features."""
    features = {
        "sex": FeatureSpace.integer_categorical(num_oov_indices=0),
        "thal": FeatureSpace.string_categorical(num_oov_indices=0),
        "job": FeatureSpace.string_hashed(num_bins=3),
        "cp": FeatureSpace.integer_hashed(num_bins=4),
        "age": FeatureSpace.float_discretized(num_bins=4),
        "chol": FeatureSpace.float_normalized(),
    }
    crosses = [
        FeatureSpace.cross(feature_names=("age", "job"), crossing_dim=8),
        FeatureSpace.cross(feature_names=("thal", "sex"), crossing_dim=2),
    ]
    return on_features(features, crosses, 64, random)


@example("structured_data")
def imbalanced_classification(random: float) -> Made:
    """Return dense layers with the smallest of class weights and six metrics."""
    model = keras.Sequential([keras.Input((30,)), layers.Dense(16, "relu")])
    for _ in range(2):
        model.add(layers.Dense(16, "relu"))
        model.add(layers.Dropout(0.3 * random))
    model.add(layers.Dense(1, "sigmoid"))
    metrics = [
        keras.metrics.FalseNegatives(name="fn"),
        keras.metrics.FalsePositives(name="fp"),
        keras.metrics.TrueNegatives(name="tn"),
        keras.metrics.TruePositives(name="tp"),
        keras.metrics.Precision(name="precision"),
        keras.metrics.Recall(name="recall"),
    ]
    callbacks = [keras.callbacks.ModelCheckpoint("fraud_model_at_epoch_{epoch}.keras")]
    extra = {"callbacks": callbacks, "class_weight": {0: 1 / 227_429, 1: 1 / 417}}
    y_rows, optimizer = labels(2, 1, dtype="uint8"), keras.optimizers.Adam(1e-2)
    return Made(model, numbers(30), y_rows, "binary_crossentropy", metrics, optimizer, extra)


class Classifier(layers.Layer):
    """Dense layers on a dictionary of features."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.first, self.last = layers.Dense(32, "relu"), layers.Dense(1, "sigmoid")
        self.dropout = layers.Dropout(rate)

    def call(self, inputs: Any) -> Any:
        """Return chances."""
        joined = layers.concatenate(list(inputs.values()))
        return self.last(self.dropout(self.first(joined)))

    def build(self, shape: Any) -> None:
        """Say that the layer is built; its parts are built when they are called."""
        self.built = True


@example("structured_data")
def structured_data_classification_from_scratch(random: float) -> Made:
    """Return one layer on inputs by name; what normalizes is before the inputs of the model."""
    rows = {"oldpeak": 6 * numbers(), "slope": 3 * numbers(seed=1)}
    inputs = {}
    for name, values in rows.items():
        normalizer = layers.Normalization()
        normalizer.adapt(values[:, None])
        inputs[name] = normalizer(keras.Input((1,), name=name, dtype="float32"))
    for name, number in (("sex", 2), ("cp", 4), ("thal", 3)):
        inputs[name] = keras.Input((number,), name=name, dtype="int64")
        rows[name] = one_hot(number).astype("int64")
    model = keras.Model(inputs, Classifier(0.5 * random)(inputs))
    return Made(model, rows, labels(2), "binary_crossentropy", ["accuracy"])


@example("structured_data")
def collaborative_filtering_movielens(random: float) -> Made:
    """Return a subclassed model; as in the source, `tensordot` sums over all rows."""

    def build(base: Any) -> Any:
        class Recommender(base):
            """Embeddings and biases of users and films."""

            def __init__(self) -> None:
                super().__init__()
                decay = keras.regularizers.l2(1e-6)
                options = {"embeddings_initializer": "he_normal", "embeddings_regularizer": decay}
                self.users, self.films = (layers.Embedding(20, 8, **options) for _ in range(2))
                self.user_bias, self.film_bias = (layers.Embedding(20, 1) for _ in range(2))

            def call(self, inputs: Any) -> Any:
                users, films = self.users(inputs[:, 0]), self.films(inputs[:, 1])
                matches = ops.tensordot(users, films, 2)
                x = matches + self.user_bias(inputs[:, 0]) + self.film_bias(inputs[:, 1])
                return ops.sigmoid(x)

        return Recommender()

    loss, y_rows = keras.losses.BinaryCrossentropy(), numbers().astype("float64")
    return Made(build, labels(20, 2), y_rows, loss, None, keras.optimizers.Adam(1e-3))


def normalized_dense(rate: float) -> keras.Sequential:
    """Return batch normalization, dropout and a dense layer, twice."""
    steps: list[layers.Layer] = []
    for _ in range(2):
        steps += [layers.BatchNormalization(), layers.Dropout(rate), layers.Dense(8, "gelu")]
    return keras.Sequential(steps)


class GraphConvolution(layers.Layer):
    """Sums what neighbours say, joins it to what a node says, and scales to length one."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.prepare, self.update = normalized_dense(rate), normalized_dense(rate)

    def call(self, inputs: Any) -> Any:
        """Return nodes; inputs are nodes, edges and the weights of edges."""
        nodes, edges, weights = inputs
        messages = self.prepare(ops.take(nodes, edges[1], axis=0)) * ops.expand_dims(weights, -1)
        found = ops.segment_sum(messages, edges[0], num_segments=nodes.shape[0])
        return ops.normalize(self.update(ops.concatenate([nodes, found], axis=1)), axis=-1)


@example("graph")
def gnn_citations(random: float) -> Made:
    """Return a subclassed model that holds a whole graph; a row is the number of a node."""
    nodes = labels(2, 12, dtype="float32")
    edges = np.random.default_rng(5).integers(0, ROWS, (2, 200))

    def build(base: Any) -> Any:
        class NodeClassifier(base):
            """Two convolutions of the graph, of which rows take their nodes."""

            def __init__(self) -> None:
                super().__init__()
                self.nodes, self.edges = ops.convert_to_tensor(nodes), edges
                self.weights_of_edges = ops.ones(200) / 200
                self.before, self.after = (normalized_dense(0.5 * random) for _ in range(2))
                self.steps = [GraphConvolution(0.5 * random) for _ in range(2)]
                self.logits = layers.Dense(5)

            def call(self, indices: Any) -> Any:
                x = self.before(self.nodes)
                for step in self.steps:
                    x = step((x, self.edges, self.weights_of_edges)) + x
                return self.logits(ops.take(self.after(x), indices, axis=0))

        return NodeClassifier()

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = [keras.metrics.SparseCategoricalAccuracy(name="acc")]
    extra = {"callbacks": [stopping(50, monitor="val_acc")]}
    optimizer = keras.optimizers.Adam(0.01)
    return Made(build, np.arange(ROWS), labels(5), loss, metrics, optimizer, extra)


PROGRAMS = (
    structured_data_classification_with_feature_space,
    feature_space_advanced,
    imbalanced_classification,
    structured_data_classification_from_scratch,
    collaborative_filtering_movielens,
    gnn_citations,
)
