"""Poisson samples, whole or cut to a largest batch: their law, and the rows that a step sees."""

import math

import keras
import numpy as np
import pytest
from scipy import stats

import keras_adaclip as ka
from keras_adaclip import training
from keras_adaclip.accounting import Sampling, ledger_epsilon, smallest_max_batch_size
from keras_adaclip.models.layout import batch_layout
from keras_adaclip.sampling import FixedShapeBatches, PoissonDataset, ProcessShare
from keras_adaclip.training.training_data import DrawsOfFit
from tests.soundness.setups import dp_sgd, line_model, recorded_fit

# Every statistical test below has a fixed seed; the stated false alarm is for another seed.
FALSE_ALARM = 1e-6
NUM, SIZE, MOST = 20, 6, 8


def numbered(num_examples):
    """Rows that hold their own number."""
    return np.arange(num_examples, dtype=np.float32)[:, None]


def dataset(num_examples=NUM, **arguments):
    return PoissonDataset(
        numbered(num_examples), **{"expected_batch_size": SIZE, "seed": 0, **arguments}
    )


FIRST = {"x": np.zeros(1), "mask": np.ones(1, bool)}


def shares(rows=(11, 6, 3), bits=(1, 2, 3, 4), **arguments):
    """The data set of each process, with other rows of `numbered`."""
    starts = np.cumsum([0, *rows])
    options = {"expected_batch_size": SIZE, "seed": 5, **arguments}
    return [
        PoissonDataset(
            numbered(sum(rows))[start : start + count],
            share=ProcessShare(rows, number, bits, FIRST),
            **options,
        )
        for number, (start, count) in enumerate(zip(starts, rows, strict=False))
    ]


def drawn_alone(num_examples, **arguments):
    data = dataset(num_examples, **arguments)
    return lambda number: data.draw()


def drawn_by_workers(num_examples, **arguments):
    source = list(numbered(num_examples))
    data = PoissonDataset.from_source(source, workers=2, seed=0, **arguments)
    batches = FixedShapeBatches(data, 1 << 20, sizes=(MOST,))

    def draw(number):
        batch = batches[number]
        assert len(batch["mask"]) == MOST
        return batch["x"][batch["mask"], 0].astype(int)

    return draw


def drawn_by_processes(num_examples, **arguments):
    """With a seed, all together draw what one process draws."""
    parts = shares(**arguments)
    assert (parts[0].num_examples, parts[0].sampling_probability) == (NUM, SIZE / NUM)
    alone = None if "seed" in arguments else dataset(num_examples, seed=5, **arguments)

    def draw(number):
        drawn = [(part, part.draw()) for part in parts]
        rows = np.concatenate([part.take(rows)["x"][: len(rows), 0] for part, rows in drawn])
        assert alone is None or set(rows) == set(alone.draw())
        return rows

    return draw


@pytest.mark.parametrize(
    ("way", "num_examples", "size", "options"),
    [
        (drawn_alone, NUM, SIZE, {}),
        (drawn_alone, 10, 9, {}),
        (drawn_alone, NUM, SIZE, {"max_batch_size": MOST}),
        (drawn_by_workers, NUM, SIZE, {"max_batch_size": MOST}),
        (drawn_by_processes, NUM, SIZE, {}),
        (drawn_by_processes, NUM, SIZE, {"seed": None}),
        (drawn_by_processes, NUM, SIZE, {"max_batch_size": MOST}),
    ],
)
def test_the_law_of_the_draws(way, num_examples, size, options):
    """Sizes, rows, and pairs of rows, the first and the last among them.

    A draw of k rows has size min(k, m) for k from the binomial law, and each set of that size is as
    likely. False alarms: 1e-6 for the sizes, 20 and 190 times 2e-9 for rows and pairs.
    """
    num_draws, law = 12_000, stats.binom(num_examples, size / num_examples)
    draw = way(num_examples, expected_batch_size=size, **options)
    drawn = np.zeros((num_draws, num_examples), np.int64)
    for number in range(num_draws):
        drawn[number, draw(number).astype(int)] = 1
    most = options.get("max_batch_size", num_examples)
    weights, cut = law.pmf(np.arange(num_examples + 1)), np.minimum(range(num_examples + 1), most)
    expected = num_draws * np.bincount(cut, weights)
    # Rare sizes are put together.
    low, high = np.flatnonzero(expected > 20)[[0, -1]]
    sizes = np.clip(drawn.sum(axis=1), low, high)
    kept = np.bincount(np.clip(np.arange(most + 1), low, high), expected)[low:]
    assert drawn.sum(axis=1).max() <= most
    assert stats.chisquare(np.bincount(sizes, minlength=high + 1)[low:], kept).pvalue > FALSE_ALARM
    one = np.sum(weights * cut / num_examples)
    two = np.sum(weights * cut * (cut - 1) / (num_examples * (num_examples - 1)))
    together = drawn.T @ drawn
    pairs = together[np.triu_indices(num_examples, 1)]
    for counts, probability in ((np.diag(together), one), (pairs, two)):
        deviation = math.sqrt(num_draws * probability * (1 - probability))
        assert np.abs(counts - num_draws * probability).max() < 6 * deviation


@pytest.mark.parametrize("max_batch_size", [None, 40])
def test_drawn_rows_stand_in_random_order(max_batch_size):
    """The first of them is any of the rows: its mean is off by less than six standard errors."""
    data = dataset(100, expected_batch_size=30, seed=1, max_batch_size=max_batch_size)
    first, last = np.array([data.draw()[[0, -1]] for _ in range(2000)]).T
    assert abs(first.mean() - 49.5) < 6.0 * 28.9 / 2000**0.5
    assert abs(last.mean() - 49.5) < 6.0 * 28.9 / 2000**0.5


def draws(seed, steps_before=0, num_draws=20):
    data = dataset(200, expected_batch_size=50, seed=seed)
    data.begin_run(steps_before)
    return [tuple(data.draw()) for _ in range(num_draws)]


def test_a_seed_repeats_the_draws_and_never_within_or_across_runs():
    assert draws(3) == draws(3)
    found = [draws(3), draws(4), draws(3 + 2**32), draws(2**70), draws(3, 1), draws(3, 2**20)]
    # Without a seed they come from the operating system, not from Keras's.
    for _ in range(2):
        keras.utils.set_random_seed(0)
        found.append(draws(None))
    assert len(set().union(*found)) == 160


# Rows that are not present


def test_rows_that_are_not_present_are_never_drawn_and_all_else_stays():
    """Chi-square over the present rows; false alarm 1e-6. The others are drawn as without them."""
    present = np.arange(NUM) % 3 != 0
    data, whole = (dataset(present=each, expected_batch_size=5) for each in (present, None))
    assert (len(data), data.sampling_probability) == (4, 0.25)
    assert np.array_equal(data.present, present)
    num_draws, counts = 10_000, np.zeros(NUM)
    for _ in range(num_draws):
        rows, of_all = data.draw(), whole.draw()
        assert np.array_equal(rows, of_all[present[of_all]])
        counts[rows] += 1
    assert np.all(counts[~present] == 0)
    statistic = np.sum((counts[present] - num_draws / 4) ** 2) / (num_draws * 3 / 16)
    assert statistic < stats.chi2.isf(FALSE_ALARM, present.sum())


def test_a_public_number_of_present_rows_sets_the_probability():
    data = dataset(expected_batch_size=5, present=np.arange(NUM) < 12, num_present=10)
    assert (data.num_examples, len(data), data.sampling_probability) == (10, 2, 0.5)
    sizes = [len(data.draw()) for _ in range(2000)]
    assert abs(np.mean(sizes) - 6) < 5 * math.sqrt(3 / 2000)


# Batches


def test_a_batch_holds_the_drawn_rows_of_every_part():
    x = {"a": numbered(9), "b": (numbered(9)[:, 0] * 2).astype("int64")}
    y = (numbered(9) * 3, numbered(9) * 4)
    rows = np.array([1, 4])
    batch = PoissonDataset(x, y, np.arange(9.0) * 5, expected_batch_size=3).take(rows)
    assert set(batch) == {"x", "y", "sample_weight", "mask"}
    for name in x:
        np.testing.assert_array_equal(batch["x"][name], x[name][rows])
        assert batch["x"][name].dtype == x[name].dtype
    np.testing.assert_array_equal(batch["y"], [part[rows] for part in y])
    np.testing.assert_array_equal(batch["sample_weight"], np.float32([5, 20]), strict=True)
    np.testing.assert_array_equal(batch["mask"], [True, True])


def test_padding_is_zeros_and_masked_out():
    data = PoissonDataset(numbered(9) + 1, expected_batch_size=3)
    batch = data.take(np.array([2, 3]), padded_size=4)
    np.testing.assert_array_equal(batch["x"], [[3], [4], [0], [0]])
    np.testing.assert_array_equal(batch["mask"], [True, True, False, False])
    empty = data.take(np.array([], np.int64))
    np.testing.assert_array_equal(empty["mask"], [False])
    np.testing.assert_array_equal(empty["x"], [[0]])


@pytest.mark.parametrize(("num_examples", "length"), [(100, 10), (101, 11), (14, 2)])
def test_an_epoch_is_the_number_of_examples_over_the_batch_size(num_examples, length):
    data = dataset(num_examples, expected_batch_size=10)
    assert len(data) == data.num_batches == length


@pytest.mark.parametrize(("drawn", "padded"), [(0, 24), (24, 24), (25, 40), (41, 80), (512, 520)])
def test_a_draw_of_any_size_loses_nothing(drawn, padded, monkeypatch):
    data = dataset(512, expected_batch_size=16)
    batches = FixedShapeBatches(data, 3, sizes=(24, 40))
    assert len(batches) == batches.num_batches == 3
    monkeypatch.setattr(data, "draw", lambda: np.arange(drawn))
    batch = batches[0]
    assert len(batch["mask"]) == len(batch["x"]) == padded
    np.testing.assert_array_equal(batch["x"][batch["mask"], 0], np.arange(drawn))


def test_batches_of_cut_draws_have_one_shape():
    for most, size in ((MOST, MOST), (50, NUM)):
        data = dataset(max_batch_size=most)
        assert {len(data[index]["mask"]) for index in range(50)} == {size}


@pytest.mark.parametrize("most", [None, 5])
def test_a_fit_uses_the_rows_of_each_draw_and_no_others(most, monkeypatch):
    """Row i has the gradient -2^i, so the update of a step spells the rows that it used."""
    arguments = {"expected_batch_size": 4, "seed": 2, "max_batch_size": most}
    data = PoissonDataset(2.0 ** numbered(12), numbered(12) * 0, **arguments)
    drawn, draw = [], data.draw

    def recording():
        drawn.append(draw())
        return drawn[-1]

    monkeypatch.setattr(data, "draw", recording)
    model = line_model(dp_sgd(1e6, 0.0))
    sums = recorded_fit(model, data, None, None, 12).updates[:, 0] * 4
    expected = [np.sum(2.0**rows) for rows in drawn]
    # Keras may look at draws before the first step and after the last one.
    starts = range(len(expected) - len(sums) + 1)
    assert any(np.allclose(expected[start : start + len(sums)], sums) for start in starts)
    assert len(set(expected)) > 6
    (row,) = [row for row in model.privacy_ledger if row.steps]
    sampling = Sampling.TRUNCATED_POISSON if most else Sampling.POISSON
    assert (row.sampling, row.max_batch_size, row.steps) == (sampling, most or 0, 12)
    assert most is None or max(map(len, drawn)) == most


def test_all_processes_agree_on_a_size_and_lose_nothing():
    rows = (50, 30, 20)
    parts = shares(rows, expected_batch_size=25, seed=None)
    batches = [FixedShapeBatches(part, 4, sizes=(24, 60), num_shards=6) for part in parts]
    for index in range(100):
        sizes = {len(each[index]["mask"]) for each in batches}
        assert len(sizes) == 1
        assert sizes <= {8, 20, 40}
    # Two devices in each process: padding stands at the end of the half of each.
    mask = batches[0][0]["mask"].reshape(2, -1)
    assert np.all(mask[:, :-1] >= mask[:, 1:])
    assert abs(int(mask[0].sum()) - int(mask[1].sum())) <= 1
    batch = FixedShapeBatches(shares(rows, expected_batch_size=100)[0], 1, sizes=(24,))[0]
    assert (batch["mask"].sum(), len(batch["mask"])) == (50, 56)


# Errors

ALL, TWO = np.ones(NUM, bool), ProcessShare((NUM, 1), 0, (1,), {})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"expected_batch_size": 0}, ValueError, "between 1 and 20"),
        ({"expected_batch_size": 2.0}, TypeError, "must be an integer"),
        ({"y": np.zeros(5)}, ValueError, r"same number of rows .*x: \[20\], y: \[5\]"),
        ({"sample_weight": np.ones(7)}, ValueError, r"sample_weight: \[7\]"),
        ({"x": numbered(0)}, ValueError, "at least one example"),
        ({"x": np.float32(1.0)}, TypeError, "first axis counts the examples"),
        ({"x": np.array([None] * 6)}, TypeError, "first axis counts the examples"),
        ({"seed": -1}, ValueError, "`seed` must be at least 0"),
        ({"present": np.ones(5, bool)}, ValueError, "`present` must be a bool array"),
        ({"present": np.ones(NUM)}, ValueError, "`present` must be a bool array"),
        ({"present": ALL, "num_present": 21}, ValueError, "num_present"),
        ({"max_batch_size": 5}, ValueError, "`max_batch_size` must be at least 6"),
        ({"max_batch_size": 8.0}, TypeError, "`max_batch_size` must be an integer"),
        ({"max_batch_size": "all"}, ValueError, "`max_batch_size` must be one of 'auto'"),
        ({"max_batch_size": 8, "num_present": 15}, ValueError, "cannot be combined with `present`"),
        ({"max_batch_size": 8, "present": ALL}, ValueError, "cannot be combined with `present`"),
        ({"share": TWO, "num_present": 9}, ValueError, "one process"),
    ],
)
def test_arguments_out_of_range(arguments, error, message):
    with pytest.raises(error, match=message):
        PoissonDataset(**{"x": numbered(NUM), "expected_batch_size": SIZE, **arguments})


def test_the_law_of_the_draws_cannot_be_changed():
    """`fit` accounts for the law above."""
    with pytest.raises(TypeError, match="cannot be subclassed"):

        class All(PoissonDataset):
            def draw(self):
                return np.arange(6)

    for name in ("expected_batch_size", "num_examples", "sampling_probability"):
        with pytest.raises(AttributeError):
            setattr(dataset(), name, 1)


# The largest batch, in `fit`


def fit(data, epochs=2, callbacks=None, model=None):
    model = line_model(dp_sgd(1.0, 1.0)) if model is None else model
    model.fit(data, epochs=epochs, verbose=0, callbacks=callbacks)
    return model


def row_of(model):
    (row,) = [row for row in model.privacy_ledger if row.steps]
    return row


def many(**arguments):
    options = {"expected_batch_size": 50, "max_batch_size": "auto"}
    return PoissonDataset(numbered(1000), numbered(1000), **options | arguments)


def test_fit_chooses_the_smallest_largest_batch_once():
    data = many()
    model = fit(data, callbacks=[ka.callbacks.PrivacyCallback(delta=1e-5)])
    row = row_of(model)
    assert row.max_batch_size == data.max_batch_size > 60
    planned = ka.accounting.LedgerRow.open(Sampling.POISSON, 50, 1000, 1.0).advance(40)
    assert data.max_batch_size == smallest_max_batch_size([planned], 1e-5)
    fit(data, epochs=1, model=model)
    assert (row_of(model).steps, row_of(model).max_batch_size) == (60, data.max_batch_size)
    with pytest.raises(ValueError, match="cannot change"):
        data.choose_max_batch_size(999)
    # Without an epoch none is chosen.
    unused = many()
    assert fit(unused, epochs=0).privacy_ledger.steps == 0
    assert unused.max_batch_size == "auto"
    # No draw is larger than the data.
    row = row_of(fit(many(max_batch_size=1000), epochs=1))
    assert (row.sampling, row.max_batch_size) == (Sampling.POISSON, 0)


def test_the_share_of_a_process_chooses_for_the_data_set():
    data = dataset(max_batch_size="auto")
    share = data.shared(ProcessShare((NUM, 11), 0, (1, 2), FIRST))
    share.choose_max_batch_size(9)
    assert (data.max_batch_size, share.max_batch_size) == (9, 9)


def test_a_run_that_would_draw_in_another_way_than_is_counted_is_refused(monkeypatch):
    def another_fit_chooses(model, data, callbacks, *_, **__):
        data.poisson.choose_max_batch_size(60)
        return data, callbacks

    monkeypatch.setattr(training, "planned_run", another_fit_chooses)
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


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="others take any shape")
@pytest.mark.parametrize("most", [70, 400])
def test_fit_pads_to_the_largest_batch(most):
    data = many(max_batch_size=most)
    model = fit(data, epochs=1)
    (size,) = batch_layout(model, DrawsOfFit().from_data_set(data)).sizes
    assert most <= size < most + 8


def test_a_largest_batch_is_printed_and_saved(tmp_path, capsys):
    assert repr(dataset(max_batch_size=8)).endswith("sampling_probability=0.3, max_batch_size=8)")
    model = line_model(dp_sgd(1.0, 1.0))
    model.fit(many(max_batch_size=75), epochs=1, verbose=2)
    assert "20 steps on truncated Poisson batches of 50 (at most 75)" in capsys.readouterr().out
    model.save(tmp_path / "model.keras")
    ledger = ka.accounting.read_ledger(tmp_path / "model.keras")
    assert [row.max_batch_size for row in ledger] == [75]
    assert ledger_epsilon(ledger, 1e-5) == model.privacy_spent(1e-5).epsilon


def test_a_budget_ends_training_as_early_as_truncation_asks():
    target, steps = ka.accounting.compute_epsilon(1.0, 1000, 50, steps=30, delta=1e-5), []
    for most in (None, 72):
        callback = ka.callbacks.PrivacyCallback(1e-5, target_epsilon=target)
        model = fit(many(max_batch_size=most), callbacks=[callback])
        assert model.privacy_spent(1e-5).epsilon <= target
        steps.append(model.privacy_ledger.steps)
    assert steps[0] == 30
    assert steps[1] < 30
