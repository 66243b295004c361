"""One round against a plain Keras loop over the clients."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_adaclip as ka
from keras_adaclip.federated import ClientData, FederatedSequential
from tests.federated import oracle

COHORT = 4
# Sizes that differ, none and one among them; the last local batch is often smaller.
SIZES = (7, 0, 5, 12, 1, 6)


def population(shape=(6,), num_classes=3, sizes=SIZES, seed=0):
    generator = np.random.default_rng(seed)
    ids = np.repeat(np.arange(len(sizes)), sizes)
    x = generator.normal(size=(len(ids), *shape)).astype("float32")
    y = generator.integers(0, num_classes, len(ids))
    return ClientData.from_arrays(x, y, ids, population=range(len(sizes)))


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


# Norms below which some contributions lie, and above which others do.
CLIP = {"mlp": 0.45, "cnn": 2.0}
STACKS = {"mlp": (mlp, (6,)), "cnn": (cnn, (6, 6, 1))}
LOSS = {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}


@pytest.fixture
def recorded(monkeypatch):
    """The batches that `fit` drew, as arrays."""
    from keras_adaclip.federated.cohorts import CohortBatches

    batches, take = [], CohortBatches.__getitem__

    def recording(cohorts, index):
        batches.append(take(cohorts, index))
        return batches[-1]

    monkeypatch.setattr(CohortBatches, "__getitem__", recording)
    return batches


def one_round(stack, clients, server, *, clipping=1e3, chunk=None, **options):
    """A federated model after one round without noise, and the weights before it."""
    model = FederatedSequential(stack())
    generator = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign(generator.normal(0.0, 0.5, variable.shape))
    before = oracle.arrays(model.trainable_variables)
    model.compile(
        optimizer=ka.optimizers.DPOptimizer(
            server, clipping=clipping, noise_multiplier=0.0, microbatch_size=chunk, seed=3
        ),
        client_optimizer=options.pop("client_optimizer", keras.optimizers.SGD(0.3)),
        client_batch_size=options.pop("client_batch_size", 4),
        **LOSS,
        **options,
    )
    model.fit(clients, cohort_size=COHORT, epochs=1, steps_per_epoch=1, verbose=0)
    return model, before


def plain(stack):
    model = keras.Sequential(stack())
    model.compile(**LOSS)
    return model


def assert_close(found, expected, tolerance=1e-5):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def expected_after(stack, before, batch, server, client, clip_norm, **options):
    """The weights after the round by a plain loop; some contributions are clipped, some not."""
    found = oracle.contributions(plain(stack), client, before, batch, **options)
    norms = [oracle.norm(contribution) for contribution in found]
    assert min(norms) < clip_norm < max(norms)
    return oracle.applied(server, before, oracle.clipped_mean(found, clip_norm, COHORT))


@pytest.mark.parametrize(("name", "chunk"), [("mlp", None), ("mlp", 2), ("cnn", None), ("cnn", 1)])
def test_a_round_is_that_of_a_loop_over_the_clients(name, chunk, recorded):
    stack, shape = STACKS[name]
    server, client = keras.optimizers.SGD(0.7), keras.optimizers.SGD(0.3)
    model, before = one_round(stack, population(shape), server, chunk=chunk, clipping=CLIP[name])
    expected = expected_after(stack, before, recorded[0], server, client, CLIP[name])
    assert_close(oracle.arrays(model.trainable_variables), expected)


SERVERS = {
    "FedAvgM": keras.optimizers.SGD(0.5, momentum=0.9),
    "FedAdam": keras.optimizers.Adam(0.1, epsilon=1e-3),
}


@pytest.mark.parametrize("name", list(SERVERS))
def test_the_servers_optimizer_takes_the_mean_contribution_for_a_gradient(name, recorded):
    server, client = SERVERS[name], keras.optimizers.SGD(0.3)
    server = type(server).from_config(server.get_config())
    model, before = one_round(mlp, population(), server, clipping=CLIP["mlp"])
    expected = expected_after(mlp, before, recorded[0], SERVERS[name], client, CLIP["mlp"])
    assert_close(oracle.arrays(model.trainable_variables), expected)


CLIENTS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "AdamW": lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1, epsilon=1e-3),
    "schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.5, decay_steps=1, decay_rate=0.5)
    ),
}


@pytest.mark.parametrize("name", list(CLIENTS))
def test_each_client_has_a_fresh_optimizer_of_its_own(name, recorded):
    server, client = keras.optimizers.SGD(1.0), CLIENTS[name]()
    model, before = one_round(
        mlp, population(), server, clipping=0.65, client_optimizer=client, local_epochs=2
    )
    expected = expected_after(mlp, before, recorded[0], server, CLIENTS[name](), 0.65)
    assert_close(oracle.arrays(model.trainable_variables), expected)


def test_fedprox(recorded):
    server, client = keras.optimizers.SGD(1.0), keras.optimizers.SGD(0.3)
    model, before = one_round(
        mlp, population(), server, clipping=0.6, proximal_strength=0.7, local_epochs=3
    )
    expected = expected_after(mlp, before, recorded[0], server, client, 0.6, proximal_strength=0.7)
    assert_close(oracle.arrays(model.trainable_variables), expected)
    without = expected_after(mlp, before, recorded[0], server, client, 0.6)
    assert np.max(np.abs(without[0] - expected[0])) > 1e-3


def test_fedsgd_takes_one_step_with_all_examples(recorded):
    server, client = keras.optimizers.SGD(1.0), keras.optimizers.SGD(1.0)
    model, before = one_round(
        mlp,
        population(),
        server,
        clipping=0.7,
        client_optimizer=client,
        client_batch_size=None,
    )
    batch = recorded[0]
    assert set(batch["num_steps"].tolist()) <= {0, 1}
    expected = expected_after(mlp, before, batch, server, client, 0.7)
    assert_close(oracle.arrays(model.trainable_variables), expected)


def test_quantile_clipping_counts_clients(recorded):
    clipping = ka.clipping.QuantileClipping(
        target_quantile=0.3, initial_clip_norm=CLIP["mlp"], learning_rate=0.2
    )
    server, client = keras.optimizers.SGD(1.0), keras.optimizers.SGD(0.3)
    model, before = one_round(mlp, population(), server, clipping=clipping)
    found = oracle.contributions(plain(mlp), client, before, recorded[0])
    unclipped = sum(oracle.norm(contribution) <= CLIP["mlp"] for contribution in found)
    fraction = (unclipped - 0.5 * len(found)) / COHORT + 0.5
    expected = CLIP["mlp"] * np.exp(-0.2 * (fraction - 0.3))
    assert model.optimizer.clip_norm == pytest.approx(expected, rel=1e-5)


def test_clients_weighted_by_their_examples(recorded):
    weighting = ka.federated.ByExamples(limit=6, mean=4.0)
    server, client = keras.optimizers.SGD(1.0), keras.optimizers.SGD(0.3)
    model, before = one_round(
        mlp, population(), server, clipping=CLIP["mlp"], client_weighting=weighting
    )
    batch = recorded[0]
    found = oracle.contributions(plain(mlp), client, before, batch)
    sizes = [np.sum(order[:4] >= 0) for order in batch["order"][batch["mask"]]]
    assert min(sizes) < 6 < max(sizes)
    total = [np.zeros_like(part) for part in found[0]]
    for contribution, size in zip(found, sizes, strict=True):
        factor = min(size, 6) * min(1.0, CLIP["mlp"] / max(oracle.norm(contribution), 1e-30))
        total = [part + factor * own for part, own in zip(total, contribution, strict=True)]
    # Over the expected number of examples that count: cohorts of 4, 4 examples a client.
    gradients = [part / (COHORT * 4.0) for part in total]
    expected = oracle.applied(server, before, gradients)
    assert_close(oracle.arrays(model.trainable_variables), expected)


def test_rounds_go_on_from_each_other(recorded):
    keras.utils.set_random_seed(0)
    model = FederatedSequential(mlp())
    weights = oracle.arrays(model.trainable_variables)
    client = keras.optimizers.SGD(0.3)
    model.compile(
        optimizer=ka.optimizers.DPOptimizer(
            keras.optimizers.SGD(1.0), clipping=0.4, noise_multiplier=0.0, seed=1
        ),
        client_optimizer=client,
        client_batch_size=4,
        **LOSS,
    )
    model.fit(population(), cohort_size=COHORT, epochs=2, steps_per_epoch=2, verbose=0)
    twin = plain(mlp)
    assert len(recorded) == 4
    for batch in recorded:
        if batch["mask"].any():
            found = oracle.contributions(twin, client, weights, batch)
            mean = oracle.clipped_mean(found, 0.4, COHORT)
            weights = oracle.applied(keras.optimizers.SGD(1.0), weights, mean)
    assert_close(oracle.arrays(model.trainable_variables), weights)


def test_loss_and_metrics_are_those_of_the_local_steps():
    clients = population(sizes=(4, 4, 2))
    model = FederatedSequential(mlp())
    model.compile(
        optimizer=ka.optimizers.DPOptimizer("sgd", noise_multiplier=0.0, seed=1),
        client_optimizer=keras.optimizers.SGD(0.0),
        client_batch_size=4,
        metrics=["accuracy"],
        weighted_metrics=["accuracy"],
        **LOSS,
    )
    history = model.fit(clients, cohort_size=3, epochs=1, verbose=0).history
    # With a rate of zero every step is at the server's weights, and all clients are drawn.
    expected = model.evaluate(clients, return_dict=True, verbose=0)
    for name, value in expected.items():
        assert history[name][0] == pytest.approx(value, rel=1e-5), name
