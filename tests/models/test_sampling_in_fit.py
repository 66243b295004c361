"""What `fit` does with each kind of data, and how the ledger counts it."""

import os

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.models import helpers

X, Y = helpers.features(), helpers.labels()
DELTA = 1e-3


class Batches(keras.utils.PyDataset):
    """24 rows in batches of 6, in order."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        rows = slice(6 * index, 6 * index + 6)
        return X[rows], Y[rows]


def generator():
    while True:
        yield from (Batches()[index] for index in range(4))


def tf_dataset():
    tensorflow = pytest.importorskip("tensorflow")
    return tensorflow.data.Dataset.from_tensor_slices((X, Y)).batch(6)


def data_loader():
    torch = pytest.importorskip("torch")
    rows = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    return torch.utils.data.DataLoader(rows, batch_size=6)


# TensorFlow's data sets and PyTorch's loaders work on every backend, but importing a second
# framework takes longer than the test.
BACKEND = keras.backend.backend()
FOREIGN = {
    "PyDataset": (Batches, {}),
    "generator": (generator, {"steps_per_epoch": 4, "num_examples": 24}),
    **({"tf.data": (tf_dataset, {})} if BACKEND == "tensorflow" else {}),
    **({"DataLoader": (data_loader, {})} if BACKEND == "torch" else {}),
}


def in_stream(steps):
    """Epsilon after so many batches that nobody drew."""
    return ka.accounting.compute_epsilon(1.0, 24, 6, steps=steps, delta=DELTA, sampling="stream")


def only_row(model):
    (row,) = [row for row in model.privacy_ledger if row.steps]
    return row


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_foreign_data_are_one_release_a_step_or_a_pass(kind):
    make, options = FOREIGN[kind]
    model = helpers.compiled(metrics=["accuracy"])
    callback = ka.callbacks.PrivacyCallback(DELTA)
    history = helpers.quiet_fit(model, make(), epochs=2, callbacks=[callback], **options)
    row, spent = only_row(model), model.privacy_spent(DELTA)
    assert (row.steps, row.releases, row.num_examples, row.expected_batch_size) == (8, 8, 24, 6)
    assert (spent.sampling, spent.neighboring_relation) == ("stream", "zero_out")
    assert history["epsilon"] == pytest.approx([in_stream(4), in_stream(8)], rel=1e-6)
    if kind != "generator":
        model = helpers.compiled()
        helpers.quiet_fit(model, make(), epochs=2, once_per_pass=True, **options)
        assert (only_row(model).steps, only_row(model).releases) == (8, 2)
        # The user's word is in the statement.
        assert "the user says" in str(model.privacy_spent(DELTA))


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (Batches, {"y": Y}, "`y` cannot be combined with"),
        (Batches, {"validation_split": 0.5}, "`validation_split` cannot be combined with"),
        (lambda: iter(()), {}, "hold no batch"),
        (generator, {"steps_per_epoch": 4}, r"`fit\(..., num_examples=...\)`"),
        (
            generator,
            {"steps_per_epoch": 2, "num_examples": 24, "once_per_pass": True},
            "whole pass",
        ),
    ],
)
def test_data_sets_that_cannot_be_accounted_for_are_refused(data, options, message):
    model = helpers.compiled()
    with pytest.raises(ValueError, match=message):
        model.fit(data(), verbose=0, **options)
    assert model.privacy_spent(DELTA).steps == 0


def test_train_on_batch_is_one_release():
    model = helpers.compiled(metrics=["accuracy"])
    loss, accuracy = model.train_on_batch(X[:6], Y[:6])
    logs = model.train_on_batch(X[6:18], Y[6:18], class_weight={0: 2.0}, return_dict=True)
    assert np.isfinite([loss, accuracy]).all()
    assert set(logs) == {"loss", "accuracy"}
    counted = [(row.steps, row.releases, row.expected_batch_size) for row in model.privacy_ledger]
    assert counted == [(1, 1, 6), (1, 1, 12)]
    assert model.privacy_spent(DELTA).epsilon == pytest.approx(in_stream(2), rel=1e-6)
    # And `fit` goes on from there.
    helpers.quiet_fit(model, X, Y, batch_size=6)
    assert model.privacy_spent(DELTA).sampling == "poisson + stream"


@pytest.mark.parametrize("steps_per_execution", [1, 3, 7])
def test_every_step_has_a_draw_of_its_own(steps_per_execution, monkeypatch):
    if BACKEND == "torch" and steps_per_execution > 1:
        pytest.skip("Keras for PyTorch has no such executions")
    dataset = ka.sampling.PoissonDataset(X, Y, expected_batch_size=5, seed=1)
    drawn, draw = [], dataset.draw
    monkeypatch.setattr(dataset, "draw", lambda: drawn.append(None) or draw())
    model = helpers.compiled(steps_per_execution=steps_per_execution)
    for epochs in (2, 3):
        helpers.quiet_fit(model, dataset, epochs=epochs, initial_epoch=epochs - 2)
    steps = int(model.optimizer.iterations)
    assert steps == only_row(model).steps == 20
    if BACKEND == "tensorflow":
        # So that a run with a seed can be repeated there, however fast batches are prepared.
        assert len(drawn) == steps
    else:
        assert len(drawn) >= steps


@pytest.mark.parametrize(("sampling", "steps_per_release"), [("poisson", 1), ("shuffle", 4)])
def test_the_ledger_says_how_examples_were_sampled(sampling, steps_per_release):
    model = helpers.compiled()
    helpers.quiet_fit(model, X, Y, batch_size=6, epochs=1, sampling=sampling)
    row = only_row(model)
    assert row.sampling is ka.accounting.Sampling[sampling.upper()]
    assert (row.steps, row.steps_per_release) == (4, steps_per_release)


def test_seeds_of_noise_and_draws_are_remembered():
    data = {"expected_batch_size": 6}
    model = helpers.compiled()
    helpers.quiet_fit(model, X, Y, batch_size=6)
    helpers.quiet_fit(model, ka.sampling.PoissonDataset(X, Y, **data))
    assert model.used_seeds == frozenset()
    helpers.quiet_fit(model, ka.sampling.PoissonDataset(X, Y, seed=7, **data))
    assert model.used_seeds == {7}
    helpers.compiled(model, seed=3)
    helpers.quiet_fit(model, X, Y, batch_size=6)
    # Another optimizer, and other model objects with the same weights, do not forget.
    helpers.compiled(model)
    assert model.used_seeds == {3, 7}
    twin = helpers.compiled(ka.PrivateModel(model.inputs, model.outputs))
    helpers.quiet_fit(twin, X, Y, batch_size=6)
    assert twin.used_seeds == {3, 7}


def test_a_seeded_data_set_made_anew_is_drawn_from_anew():
    """The ledger counts draws that are independent of each other."""
    drawn = []

    def fit(model):
        dataset = ka.sampling.PoissonDataset(X, Y, expected_batch_size=5, seed=1)
        draw, of_run = dataset.draw, []
        dataset.draw = lambda: of_run.append(draw()) or of_run[-1]
        helpers.quiet_fit(model, dataset)
        drawn.append([tuple(rows) for rows in of_run[:5]])

    model = helpers.compiled()
    fit(model)
    fit(model)
    fit(helpers.compiled())
    assert drawn[1] != drawn[0] == drawn[2]


def test_a_process_that_was_forked_off_draws_other_examples(monkeypatch):
    datasets = [ka.sampling.PoissonDataset(X, Y, expected_batch_size=5, seed=1) for _ in range(2)]
    ours = [tuple(datasets[0].draw()) for _ in range(6)]
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert [tuple(datasets[1].draw()) for _ in range(6)] != ours
    datasets[1].begin_run(0)
    assert len(datasets[1].draw()) <= len(X)
