"""One round against a plain Keras loop over the clients."""

import types

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_adaclip as ka
from keras_adaclip.federated import cohorts
from keras_adaclip.federated.round_batch import RoundClient, round_batch
from tests.federated import oracle
from tests.federated.support import FROM_LOGITS, assert_close, clients_of, compiled, weights

COHORT = 4
# Sizes that differ, none and one among them; the last local batch is often smaller.
SIZES = (7, 0, 5, 12, 1, 6)


def mlp():
    return [keras.Input((6,)), layers.Dense(5, activation="tanh"), layers.Dense(3)]


def cnn():
    return [
        keras.Input((6, 6, 1)),
        layers.Conv2D(3, 3, activation="relu"),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.Dense(3),
    ]


def sequence():
    """Four positions, batches of four: a mask of rows must not be one of positions."""
    return [keras.Input((4, 6)), layers.Dense(3)]


# Layers, shapes of inputs and targets, and a norm that only some contributions exceed.
STACKS = {
    "mlp": (mlp, (6,), (), 0.45),
    "cnn": (cnn, (6, 6, 1), (), 2.0),
    "sequence": (sequence, (4, 6), (4,), 0.3),
}


@pytest.fixture
def recorded(monkeypatch):
    return oracle.record_batches(monkeypatch)


def plain(stack):
    model = keras.Sequential(stack())
    model.compile(loss=FROM_LOGITS)
    return model


def one_round(server, name="mlp", num_rounds=1, **options):
    """Return a federated model after a round without noise, and the weights before it."""
    stack, *shapes, clip_norm = STACKS[name]
    model = compiled(stack(), server, **{"clipping": clip_norm, "seed": 3, **options})
    generator = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign(generator.normal(0.0, 0.5, variable.shape))
    before = oracle.arrays(model.trainable_variables)
    clients = clients_of(SIZES, *shapes)
    model.fit(clients, cohort_size=COHORT, epochs=1, steps_per_epoch=num_rounds, verbose=0)
    return model, before


def expected_after(before, batch, server, client=None, clip_norm=None, name="mlp", **options):
    """Return the weights after the round by a plain loop; some contributions are clipped."""
    stack, *_, usual = STACKS[name]
    client, clip_norm = client or keras.optimizers.SGD(0.3), clip_norm or usual
    found = oracle.contributions(plain(stack), client, before, batch, **options)
    norms = [oracle.norm(contribution) for contribution in found]
    assert min(norms) < clip_norm < max(norms)
    return oracle.applied(server, before, oracle.clipped_mean(found, clip_norm, COHORT))


@pytest.mark.parametrize(
    ("name", "chunk"),
    [("mlp", None), ("mlp", 2), ("cnn", None), ("sequence", None), ("sequence", 1)],
)
def test_a_round_is_that_of_a_loop_over_the_clients(name, chunk, recorded):
    server = keras.optimizers.SGD(0.7)
    model, before = one_round(server, name, microbatch_size=chunk)
    expected = expected_after(before, recorded[0], server, name=name)
    assert_close(oracle.arrays(model.trainable_variables), expected)
    assert 1 <= model._private_state.chunk_size <= (chunk or COHORT)


SGD = keras.optimizers.SGD
HALVED = keras.optimizers.schedules.ExponentialDecay(0.5, decay_steps=1, decay_rate=0.5)
# The server's optimizer and the clients'.
OPTIMIZERS = {
    "FedAvgM": (lambda: SGD(0.5, momentum=0.9), lambda: SGD(0.3)),
    "FedAdam": (lambda: keras.optimizers.Adam(0.1, epsilon=1e-3), lambda: SGD(0.3)),
    "momentum": (lambda: SGD(1.0), lambda: SGD(0.1, momentum=0.9, nesterov=True)),
    "AdamW": (
        lambda: SGD(1.0),
        lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1, epsilon=1e-3),
    ),
    "schedule": (lambda: SGD(1.0), lambda: SGD(HALVED)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_server_steps_by_the_mean_and_each_client_has_an_optimizer_of_its_own(name, recorded):
    """In two lanes, so that a client begins where another one has ended."""
    server, client = OPTIMIZERS[name]
    options = {"clipping": 0.65, "client": client(), "local_epochs": 2, "microbatch_size": 2}
    model, before = one_round(server(), **options)
    expected = expected_after(before, recorded[0], server(), client(), 0.65)
    assert_close(oracle.arrays(model.trainable_variables), expected)


def test_a_proximal_term_pulls_clients_back_to_the_servers_weights(recorded):
    server = keras.optimizers.SGD(1.0)
    model, before = one_round(server, clipping=0.6, proximal_strength=0.7, local_epochs=3)
    found = [
        expected_after(before, recorded[0], server, clip_norm=0.6, proximal_strength=strength)
        for strength in (0.7, 0.0)
    ]
    assert_close(oracle.arrays(model.trainable_variables), found[0])
    assert np.max(np.abs(found[1][0] - found[0][0])) > 1e-3


def test_quantile_clipping_counts_clients(recorded):
    clipping = ka.clipping.QuantileClipping(0.3, initial_clip_norm=0.45, learning_rate=0.2)
    model, before = one_round(keras.optimizers.SGD(1.0), clipping=clipping)
    found = oracle.contributions(plain(mlp), keras.optimizers.SGD(0.3), before, recorded[0])
    unclipped = sum(oracle.norm(contribution) <= 0.45 for contribution in found)
    fraction = (unclipped - 0.5 * len(found)) / COHORT + 0.5
    expected = 0.45 * np.exp(-0.2 * (fraction - 0.3))
    assert model.optimizer.clip_norm == pytest.approx(expected, rel=1e-5)


def test_clients_weighted_by_their_examples(recorded):
    server, weighting = keras.optimizers.SGD(1.0), ka.federated.ByExamples(limit=6, mean=4.0)
    model, before = one_round(server, client_weighting=weighting)
    batch = recorded[0]
    found = oracle.contributions(plain(mlp), keras.optimizers.SGD(0.3), before, batch)
    sizes = [np.sum(order >= 0) for _, _, order, _ in oracle.trained_in(batch)]
    assert min(sizes) < 6 < max(sizes)
    total = [np.zeros_like(part) for part in found[0]]
    for contribution, size in zip(found, sizes, strict=True):
        factor = min(size, 6) * min(1.0, 0.45 / max(oracle.norm(contribution), 1e-30))
        total = [part + factor * own for part, own in zip(total, contribution, strict=True)]
    # Over the expected number of examples that count: cohorts of 4, 4 examples a client.
    expected = oracle.applied(server, before, [part / (COHORT * 4.0) for part in total])
    assert_close(oracle.arrays(model.trainable_variables), expected)


def test_rounds_go_on_from_each_other(recorded):
    server = keras.optimizers.SGD(1.0)
    model, weights = one_round(server, num_rounds=4)
    assert len(recorded) == 4
    for batch in recorded:
        if batch["num_events"].any():
            found = oracle.contributions(plain(mlp), keras.optimizers.SGD(0.3), weights, batch)
            mean = oracle.clipped_mean(found, 0.45, COHORT)
            weights = oracle.applied(server, weights, mean)
    assert_close(oracle.arrays(model.trainable_variables), weights)


def test_loss_and_metrics_are_those_of_the_local_steps():
    metrics = {"metrics": ["accuracy"], "weighted_metrics": ["accuracy"]}
    model = compiled(mlp(), client=0.0, **metrics)
    clients = clients_of((4, 4, 2), (6,))
    history = model.fit(clients, cohort_size=3, epochs=1, verbose=0).history
    # With a rate of zero every step is at the server's weights, and all clients are drawn.
    expected = model.evaluate(clients, return_dict=True, verbose=0)
    for name, value in expected.items():
        assert history[name][0] == pytest.approx(value, rel=1e-5), name


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="trains over one process")
@pytest.mark.parametrize("microbatch_size", [1, 2])
def test_a_client_trains_on_while_one_of_another_process_ends(microbatch_size, monkeypatch):
    """The batch of this process has an event for each client of any process that ends."""
    changes = []
    for elsewhere in ([], [RoundClient(num_rows=4, num_steps=3, process=1)]):

        def beside_another(rounds, clients, num_lanes, others=elsewhere):
            names = ("first", "settings", "has_seeds", "num_shards", "share")
            known = {name: getattr(rounds, name) for name in names}
            beside = types.SimpleNamespace(**known, num_processes=1 + len(others))
            return round_batch(beside, [*clients, *others], num_lanes)

        monkeypatch.setattr(cohorts, "round_batch", beside_another)
        model = compiled(microbatch_size=microbatch_size)
        before = weights(model)
        model.fit(clients_of((24,)), 1, epochs=1, sampling="fixed", verbose=0)
        changes.append(weights(model) - before)
    alone, beside = changes
    assert np.linalg.norm(alone) > 0.1
    np.testing.assert_allclose(beside, alone, atol=1e-6)


@keras.saving.register_keras_serializable("tests")
class SignDescent(keras.optimizers.Optimizer):
    """Divides a gradient by its size: NaN where a batch is empty."""

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, learning_rate * gradient / ops.abs(gradient))


def error_where_it_is_finite(y_true, y_pred):
    error = ops.square(y_true - y_pred)
    return ops.mean(ops.where(ops.isfinite(error), error, 0.0), axis=-1)


def test_metrics_do_not_see_lanes_without_a_client():
    """With two lanes for three clients, one waits while the other trains the third client."""
    stack = [keras.Input((4,)), layers.Dense(1)]
    options = {"loss": error_where_it_is_finite, "metrics": ["mse"], "microbatch_size": 2}
    model = compiled(stack, client=SignDescent(0.01), **options)
    clients = clients_of((12, 12, 12)).map(lambda x, y: (x, x[:, :1].copy()))
    history = model.fit(clients, 3, epochs=2, sampling="fixed", verbose=0).history
    assert np.all(np.isfinite(history["mse"]))


def test_class_weights_are_those_of_keras(recorded):
    """Each client's loss is weighted as by Keras's `fit` with `class_weight`."""
    class_weight = {0: 0.2, 2: 3.0}
    model = compiled(mlp(), clipping=1e3, seed=3, weighted_metrics=["accuracy"])
    before = oracle.arrays(model.trainable_variables)
    arguments = {"cohort_size": COHORT, "steps_per_epoch": 1, "class_weight": class_weight}
    model.fit(clients_of(SIZES, (6,)), verbose=0, **arguments)
    sgd, options = keras.optimizers.SGD(0.3), {"class_weight": class_weight}
    found = oracle.contributions(plain(mlp), sgd, before, recorded[0], **options)
    mean = oracle.clipped_mean(found, 1e3, COHORT)
    expected = [old - part for old, part in zip(before, mean, strict=True)]
    assert_close(oracle.arrays(model.trainable_variables), expected)


def test_clients_held_out_for_validation():
    model, clients = compiled(mlp()), clients_of((3,) * 20, (6,))
    train, held_out = clients.split(0.25, seed=0)
    for _ in range(2):
        history = model.fit(clients, 4, epochs=1, validation_split=0.25, verbose=0).history
        (row,) = [row for row in model.privacy_ledger if row.steps]
        assert row.num_examples == len(train)
    assert model.evaluate(held_out, verbose=0) == pytest.approx(history["val_loss"][0], rel=1e-5)
    with pytest.raises(ValueError, match="`validation_split` must"):
        model.fit(clients, 4, validation_split=1.5, verbose=0)
