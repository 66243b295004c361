"""What `fit` does with each kind of data, and how the ledger counts it."""

import os

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.models import helpers
from tests.models.helpers import DELTA, planned

X, Y = helpers.features(), helpers.labels()


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


def only_row(model):
    (row,) = [row for row in model.privacy_ledger if row.steps]
    return row


@pytest.mark.parametrize(
    ("kind", "sampling", "releases"),
    [
        *((kind, "stream", 8) for kind in FOREIGN),
        ("arrays", "poisson", 8),
        ("arrays", "shuffle", 2),
    ],
)
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_the_ledger_says_how_examples_were_sampled(kind, sampling, releases):
    if kind == "arrays":
        data, options = (X, Y), {"batch_size": 6, "sampling": sampling}
    else:
        make, options = FOREIGN[kind]
        data = (make(),)
    model = helpers.compiled(metrics=["accuracy"])
    callback = ka.callbacks.PrivacyCallback(DELTA)
    history = helpers.quiet_fit(model, *data, epochs=2, callbacks=[callback], **options)
    row, spent = only_row(model), model.privacy_spent(DELTA)
    assert row.sampling is ka.accounting.Sampling[sampling.upper()]
    assert (row.steps, row.releases) == (8, releases)
    assert (row.num_examples, row.expected_batch_size) == (24, 6)
    relation = "add_or_remove_one" if sampling == "poisson" else "zero_out"
    assert (spent.sampling, spent.neighboring_relation) == (sampling, relation)
    assert history["epsilon"][-1] == pytest.approx(planned(8, sampling=sampling), rel=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in FOREIGN if kind != "generator"])
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_the_word_of_a_user_makes_a_pass_one_release(kind):
    make, options = FOREIGN[kind]
    model = helpers.compiled()
    helpers.quiet_fit(model, make(), epochs=2, once_per_pass=True, **options)
    assert (only_row(model).steps, only_row(model).releases) == (8, 2)
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


@pytest.mark.skipif(BACKEND == "jax", reason="imports another framework")
@pytest.mark.parametrize("y", [Y, np.eye(3)[Y]])
def test_single_examples_in_the_place_of_batches_are_told_the_remedy(y):
    if BACKEND == "tensorflow":
        import tensorflow

        data = tensorflow.data.Dataset.from_tensor_slices((X, y))
    else:
        torch = pytest.importorskip("torch")
        data = torch.utils.data.DataLoader([*zip(X, y, strict=True)], batch_size=None)
    model = helpers.compiled()
    with pytest.raises(ValueError, match=r"(?s)`\.batch\(n\)`.*write_source.*shapes \(4,\), \("):
        model.fit(data, num_examples=24, verbose=0)
    assert not model.privacy_ledger.steps


def test_train_on_batch_is_one_release():
    model = helpers.compiled(metrics=["accuracy"])
    loss, accuracy = model.train_on_batch(X[:6], Y[:6])
    logs = model.train_on_batch(X[6:18], Y[6:18], class_weight={0: 2.0}, return_dict=True)
    assert np.isfinite([loss, accuracy]).all()
    assert set(logs) == {"loss", "accuracy"}
    counted = [(row.steps, row.releases, row.expected_batch_size) for row in model.privacy_ledger]
    assert counted == [(1, 1, 6), (1, 1, 12)]
    assert model.privacy_spent(DELTA).epsilon == pytest.approx(
        planned(2, sampling="stream"), rel=1e-6
    )
    # And `fit` goes on from there.
    helpers.quiet_fit(model, X, Y, batch_size=6)
    assert model.privacy_spent(DELTA).sampling == "poisson + stream"


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


def test_a_process_that_was_forked_off_draws_other_examples(monkeypatch):
    datasets = [ka.sampling.PoissonDataset(X, Y, expected_batch_size=5, seed=1) for _ in range(2)]
    ours = [tuple(datasets[0].draw()) for _ in range(6)]
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert [tuple(datasets[1].draw()) for _ in range(6)] != ours
    datasets[1].begin_run(0)
    assert len(datasets[1].draw()) <= len(X)


# Tensors, lists and frames, which are the same as arrays


def as_pandas(values):
    pandas = pytest.importorskip("pandas")
    # Rows count, whatever the index says. Booleans beside floats make columns of objects.
    index = np.arange(len(values))[::-1] + 5
    if values.ndim == 1:
        return pandas.Series(values, index)
    return pandas.DataFrame(values, index).assign(last=values[:, -1] > 0).drop(columns=3)


@pytest.mark.parametrize("convert", [keras.ops.convert_to_tensor, np.ndarray.tolist, as_pandas])
@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
def test_tensors_lists_and_frames_are_arrays_whose_last_rows_may_validate(convert, sampling):
    arrays, found = (np.where(np.arange(4) == 3, X > 0, X).astype("float32"), Y), []
    for x, y in (arrays, map(convert, arrays)):
        keras.utils.set_random_seed(0)
        model = helpers.compiled(noise_multiplier=0.0, seed=3)
        options = {"batch_size": 6, "validation_split": 0.25, "sampling": sampling}
        history = helpers.quiet_fit(model, x, y, epochs=2, shuffle=False, **options)
        row = next(row for row in model.privacy_ledger if row.steps)
        assert (row.num_examples, row.expected_batch_size, row.steps) == (18, 6, 6)
        evaluated = model.evaluate(x, y, verbose=0), model.predict(x, verbose=0).sum()
        found.append(np.concatenate([history["val_loss"], np.ravel(evaluated)]))
        last = model.evaluate(*(part[18:] for part in arrays), verbose=0)
        assert history["val_loss"][-1] == pytest.approx(last, rel=1e-5)
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_columns_that_hold_no_numbers_are_named():
    pandas = pytest.importorskip("pandas")
    kinds = {"site": list("abcdef" * 4), "day": pandas.date_range("2026-01-01", periods=24)}
    frame = pandas.DataFrame(X).assign(**kinds)
    with pytest.raises(TypeError, match=r"2 of 6 columns without numbers.* 'site', 'day'"):
        helpers.compiled().fit(frame, Y)
