"""Draws that are cut to a largest batch: their law, their shapes, and the run that counts them."""

import math

import keras
import numpy as np
import pytest
from scipy import stats

import keras_adaclip as ka
from keras_adaclip.accounting import Sampling, ledger_epsilon, smallest_max_batch_size
from keras_adaclip.models.layout import batch_layout
from keras_adaclip.models.private_training import PrivateTraining
from keras_adaclip.sampling import FixedShapeBatches, PoissonDataset, ProcessShare
from tests.soundness.setups import dp_sgd, line_model, recorded_fit

# Every statistical test below has a fixed seed; the stated false alarm is for another seed.
FALSE_ALARM = 1e-6
NUM, SIZE, MOST = 20, 6, 8
LAW = stats.binom(NUM, SIZE / NUM)


def numbered(num_examples):
    return np.arange(num_examples, dtype=np.float32)[:, None]


def dataset(**arguments):
    options = {"expected_batch_size": SIZE, "seed": 0, "max_batch_size": MOST}
    return PoissonDataset(numbered(NUM), **options | arguments)


def from_source(workers):
    rows = list(numbered(NUM))
    options = {"expected_batch_size": SIZE, "seed": 0, "max_batch_size": MOST}
    return PoissonDataset.from_source(rows, workers=workers, **options)


def shares(rows=(11, 6, 3)):
    starts = np.cumsum([0, *rows])
    first = {"x": np.zeros(1), "mask": np.ones(1, bool)}
    options = {"expected_batch_size": SIZE, "seed": 5, "max_batch_size": MOST}
    return [
        PoissonDataset(
            numbered(NUM)[start : start + count],
            share=ProcessShare(rows, number, (1, 2, 3, 4), first),
            **options,
        )
        for number, (start, count) in enumerate(zip(starts, rows, strict=False))
    ]


def drawn_alone(num_draws):
    found, data = np.zeros((num_draws, NUM), bool), dataset()
    for number in range(num_draws):
        found[number, data.draw()] = True
    return found


def drawn_by_fit(workers):
    """Return draws through the batches of `fit`."""

    def draws(num_draws):
        batches = FixedShapeBatches(from_source(workers), num_draws, sizes=(MOST,))
        found = np.zeros((num_draws, NUM), bool)
        for number in range(num_draws):
            batch = batches[number]
            assert len(batch["mask"]) == MOST
            found[number, batch["x"][batch["mask"], 0].astype(int)] = True
        return found

    return draws


def drawn_by_processes(num_draws):
    found, parts = np.zeros((num_draws, NUM), bool), shares()
    for number in range(num_draws):
        for part in parts:
            rows = part.draw()
            found[number, part.take(rows)["x"][: len(rows), 0].astype(int)] = True
    return found


WAYS = {
    "arrays": drawn_alone,
    "source": drawn_by_fit(0),
    "two workers": drawn_by_fit(2),
    "processes": drawn_by_processes,
}


@pytest.mark.parametrize("way", WAYS)
def test_the_law_of_the_draws(way):
    """Sizes, rows, and pairs of rows, the first and the last among them.

    A draw of k rows has size min(k, m) for k from the binomial law, and each set of that size is as
    likely. False alarms: 1e-6 for the sizes, 20 and 190 times 2e-9 for rows and pairs.
    """
    num_draws = 12_000
    drawn = WAYS[way](num_draws).astype(np.int64)
    sizes = np.bincount(drawn.sum(axis=1), minlength=MOST + 1)
    expected = np.append(LAW.pmf(np.arange(MOST)), LAW.sf(MOST - 1))
    observed, expected = [np.append(a[:2].sum(), a[2:]) for a in (sizes, num_draws * expected)]
    assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM
    cut = np.minimum(np.arange(NUM + 1), MOST)
    weights = LAW.pmf(np.arange(NUM + 1))
    one = np.sum(weights * cut / NUM)
    two = np.sum(weights * cut * (cut - 1) / (NUM * (NUM - 1)))
    together = drawn.T @ drawn
    for counts, probability in ((np.diag(together), one), (together[np.triu_indices(NUM, 1)], two)):
        deviation = math.sqrt(num_draws * probability * (1 - probability))
        assert np.abs(counts - num_draws * probability).max() < 6 * deviation


def test_what_is_cut_is_a_part_of_the_draw_with_the_same_seed():
    whole, cut = dataset(max_batch_size=None), dataset()
    found = [(set(whole.draw()), set(cut.draw())) for _ in range(300)]
    assert all(part <= draw for draw, part in found)
    assert all(len(part) == min(len(draw), MOST) for draw, part in found)
    assert any(len(draw) > MOST for draw, _ in found)


def test_the_largest_batch_is_printed():
    assert repr(dataset()).endswith("sampling_probability=0.3, max_batch_size=8)")
    assert repr(dataset(max_batch_size=None)).endswith("sampling_probability=0.3)")


def test_the_share_of_a_process_chooses_for_the_data_set():
    data = dataset(max_batch_size="auto")
    first = {"x": np.zeros(1), "mask": np.ones(1, bool)}
    share = data.shared(ProcessShare((NUM, 11), 0, (1, 2), first))
    share.choose_max_batch_size(9)
    assert (data.max_batch_size, share.max_batch_size) == (9, 9)


def test_batches_have_one_shape():
    for data, size in ((dataset(), MOST), (dataset(max_batch_size=50), NUM)):
        assert {len(data[index]["mask"]) for index in range(50)} == {size}
        assert {data[index]["x"].shape for index in range(5)} == {(size, 1)}


def test_steps_use_the_rows_that_were_kept_and_no_others(monkeypatch):
    """Row i has the gradient -2^i, so the update of a step spells the rows that it used."""
    arguments = {"expected_batch_size": 4, "seed": 2, "max_batch_size": 5}
    data = PoissonDataset(2.0 ** numbered(12), numbered(12) * 0, **arguments)
    drawn, draw = [], data.draw

    def recording():
        drawn.append(draw())
        return drawn[-1]

    monkeypatch.setattr(data, "draw", recording)
    model = line_model(dp_sgd(1e6, 0.0))
    sums = recorded_fit(model, data, None, None, 12).updates[:, 0] * 4
    expected = [np.sum(2.0**rows) for rows in drawn]
    starts = range(len(expected) - len(sums) + 1)
    assert any(np.allclose(expected[start : start + len(sums)], sums) for start in starts)
    assert max(map(len, drawn)) == 5
    (row,) = [row for row in model.privacy_ledger if row.steps]
    assert (row.sampling, row.max_batch_size) == (Sampling.TRUNCATED_POISSON, 5)
    assert row.steps == 12


def fit(data, epochs=2, noise=1.0, callbacks=None, model=None):
    if model is None:
        model = line_model(dp_sgd(1.0, noise))
    model.fit(data, epochs=epochs, verbose=0, callbacks=callbacks)
    return model


def many(**arguments):
    options = {"expected_batch_size": 50, "max_batch_size": "auto"}
    return PoissonDataset(numbered(1000), numbered(1000), **options | arguments)


def test_fit_chooses_the_smallest_largest_batch_once():
    data = many()
    model = fit(data, callbacks=[ka.callbacks.PrivacyCallback(delta=1e-5)])
    (row,) = [row for row in model.privacy_ledger if row.steps]
    assert row.max_batch_size == data.max_batch_size > 60
    planned = ka.accounting.LedgerRow.open(Sampling.POISSON, 50, 1000, 1.0).advance(40)
    assert data.max_batch_size == smallest_max_batch_size([planned], 1e-5)
    assert ledger_epsilon([row], 1e-5) <= 1.001 * ledger_epsilon([planned], 1e-5)
    fit(data, epochs=1, model=model)
    (row,) = [row for row in model.privacy_ledger if row.steps]
    assert (row.steps, row.max_batch_size) == (60, data.max_batch_size)
    with pytest.raises(ValueError, match="cannot change"):
        data.choose_max_batch_size(999)


def test_a_fit_without_epochs_chooses_nothing():
    data = many()
    assert fit(data, epochs=0).privacy_ledger.steps == 0
    assert data.max_batch_size == "auto"


class ChoosesWhileItIsRead:
    """A source that sets the largest batch of its data set when `fit` reads its first examples."""

    data = None

    def __len__(self):
        return 200

    def __getitem__(self, index):
        if self.data is not None and self.data.max_batch_size == "auto":
            self.data.choose_max_batch_size(20)
        return np.ones(1, "float32"), 1.0


def test_a_largest_batch_that_is_set_while_fit_begins_is_accounted():
    source = ChoosesWhileItIsRead()
    options = {"expected_batch_size": 20, "max_batch_size": "auto"}
    source.data = PoissonDataset.from_source(source, **options)
    model = fit(source.data)
    (row,) = [row for row in model.privacy_ledger if row.steps]
    assert (row.sampling, row.max_batch_size) == (Sampling.TRUNCATED_POISSON, 20)


def test_a_run_that_would_draw_in_another_way_than_is_counted_is_refused(monkeypatch):
    def another_fit_chooses(self, data, callbacks, num_epochs, is_pass):
        data.poisson.choose_max_batch_size(60)
        return data, callbacks

    monkeypatch.setattr(PrivateTraining, "_planned", another_fit_chooses)
    model = line_model(dp_sgd(1.0, 1.0))
    with pytest.raises(RuntimeError, match="has changed since `fit` began"):
        model.fit(many(), verbose=0)
    assert model.privacy_ledger.steps == 0


def test_an_older_dp_accounting_is_named_before_training(monkeypatch):
    from keras_adaclip.accounting import events

    monkeypatch.setattr(events, "knows_truncation", lambda: False)
    model = line_model(dp_sgd(1.0, 1.0))
    with pytest.raises(ImportError, match="pip install --upgrade dp-accounting"):
        model.fit(many(max_batch_size=70), verbose=0)
    assert model.privacy_ledger.steps == 0


def test_other_delta_other_largest_batch():
    strict, lax = many(), many()
    fit(strict, epochs=1, callbacks=[ka.callbacks.PrivacyCallback(delta=1e-7)])
    fit(lax, epochs=1, callbacks=[ka.callbacks.PrivacyCallback(delta=9e-4)])
    assert lax.max_batch_size < strict.max_batch_size


def test_no_draw_is_larger_than_the_data():
    model = fit(many(max_batch_size=1000))
    (row,) = [row for row in model.privacy_ledger if row.steps]
    assert (row.sampling, row.max_batch_size) == (Sampling.POISSON, 0)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="others take any shape")
@pytest.mark.parametrize("most", [70, 400])
def test_fit_pads_to_the_largest_batch(most):
    data = many(max_batch_size=most)
    model = fit(data, epochs=1)
    from keras_adaclip.training.training_data import DrawsOfFit

    found = DrawsOfFit().from_data_set(data)
    (size,) = batch_layout(model, found).sizes
    assert most <= size < most + 8


def test_the_notice_says_how_large_batches_are(capsys):
    model = line_model(dp_sgd(1.0, 1.0))
    model.fit(many(max_batch_size=75), epochs=1, verbose=2)
    assert "20 steps on truncated Poisson batches of 50 (at most 75)" in capsys.readouterr().out


def test_a_saved_model_keeps_the_largest_batch(tmp_path):
    model = fit(many(max_batch_size=64))
    model.save(tmp_path / "model.keras")
    ledger = ka.accounting.read_ledger(tmp_path / "model.keras")
    assert [row.max_batch_size for row in ledger] == [64]
    assert ledger_epsilon(ledger, 1e-5) == model.privacy_spent(1e-5).epsilon


def test_a_budget_ends_training_as_early_as_truncation_asks():
    target = ka.accounting.compute_epsilon(1.0, 1000, 50, steps=30, delta=1e-5)
    steps = []
    for most in (None, 72):
        callback = ka.callbacks.PrivacyCallback(delta=1e-5, target_epsilon=target)
        model = fit(many(max_batch_size=most), callbacks=[callback])
        assert model.privacy_spent(1e-5).epsilon <= target
        steps.append(model.privacy_spent(1e-5).steps)
    assert steps[0] == 30
    assert steps[1] < 30


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"max_batch_size": 5}, ValueError, "`max_batch_size` must be at least 6"),
        ({"max_batch_size": 8.0}, TypeError, "`max_batch_size` must be an integer"),
        ({"max_batch_size": "all"}, ValueError, "`max_batch_size` must be one of 'auto'"),
        ({"num_present": 15}, ValueError, "cannot be combined with `present`"),
        ({"present": np.ones(NUM, bool)}, ValueError, "cannot be combined with `present`"),
        (
            {"max_batch_size": None, "share": ProcessShare((NUM,), 0, (1,), {}), "num_present": 9},
            ValueError,
            "one process",
        ),
    ],
)
def test_arguments_out_of_range(arguments, error, message):
    with pytest.raises(error, match=message):
        dataset(**arguments)
