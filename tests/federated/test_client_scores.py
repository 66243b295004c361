"""Scores of single clients."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_adaclip as ka
from keras_adaclip.federated import ClientData
from tests.federated.support import clients_of, compiled, mlp

SIZES = (5, 0, 1, 12, 3)
METRICS = {"metrics": ["accuracy"], "weighted_metrics": ["accuracy"]}


# The loss of probabilities divides by their sum, which padding must not make zero.
PROBABILITIES = [*mlp(), layers.Softmax()], {"loss": "sparse_categorical_crossentropy"}


@pytest.mark.parametrize(
    ("batch_size", "stack", "options"),
    [(1, mlp(), {}), (8, mlp(), {}), (None, *PROBABILITIES)],
    ids=["one", "eight", "probabilities"],
)
def test_scores_are_those_of_evaluating_each_client_alone(batch_size, stack, options):
    model, clients = compiled(stack, **METRICS, **options), clients_of(SIZES)
    scores = model.evaluate_clients(clients, batch_size)
    assert scores.client_ids == [0, 2, 3, 4]
    assert scores.num_examples.tolist() == [5, 1, 12, 3]
    for client_id in scores.client_ids:
        expected = model.evaluate(*clients[client_id], verbose=0, return_dict=True)
        found = scores[client_id]
        assert found.pop("num_examples") == len(clients[client_id][1])
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
    # Weighted by examples, they are those of the pool.
    pooled = model.evaluate(clients, verbose=0, return_dict=True)
    for name, values in scores.values.items():
        assert np.average(values, weights=scores.num_examples) == pytest.approx(pooled[name], 1e-5)


def test_scores_of_sequences_with_masks_and_regularizers():
    stack = [
        keras.Input((6,), dtype="int32"),
        layers.Embedding(5, 4, mask_zero=True, embeddings_regularizer=keras.regularizers.L2(0.1)),
        layers.GRU(4, return_sequences=True),
        layers.Dense(3),
    ]
    model = compiled(stack, client_batch_size=2)
    generator = np.random.default_rng(0)
    x = generator.integers(1, 5, (9, 6)) * (np.arange(6) < generator.integers(2, 7, (9, 1)))
    clients = ClientData.from_arrays(x, generator.integers(0, 3, (9, 6)), [0] * 5 + [1] * 4)
    scores = model.evaluate_clients(clients)
    for client_id in clients:
        # One batch: Keras's mean over batches counts those of different lengths alike.
        expected = model.evaluate(*clients[client_id], batch_size=9, verbose=0)
        assert scores[client_id]["loss"] == pytest.approx(expected, rel=1e-5)


def test_scores_print_as_a_table():
    values = {"loss": np.array([0.5, 0.7, 0.1]), "accuracy": np.array([1.0, 0.25, 0.5])}
    scores = ka.federated.ClientScores(["a", "b", "c"], np.array([3, 1, 2]), values)
    assert len(scores) == 3
    head, _, accuracy = (" ".join(line.split()) for line in str(scores).splitlines())
    assert head == "3 clients mean min 5% 25% 50% 75% 95% max"
    assert accuracy == "accuracy 0.5833 0.25 0.275 0.375 0.5 0.75 0.95 1"
    assert scores["b"] == {"num_examples": 1, "loss": 0.7, "accuracy": 0.25}
    with pytest.raises(KeyError, match="no client 'z' with examples"):
        scores["z"]


def test_other_data_and_models_that_are_not_compiled_are_refused():
    with pytest.raises(TypeError, match=r"must be `keras_adaclip\.federated"):
        compiled().evaluate_clients([1])
    with pytest.raises(ValueError, match="Call `compile`"):
        ka.federated.FederatedSequential(mlp()).evaluate_clients(clients_of(SIZES))
