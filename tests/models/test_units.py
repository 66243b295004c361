"""Rows of one person: epsilon of a person, the rows that stay, and what is said and saved of it."""

import functools
import math
import warnings
import zipfile

import keras
import numpy as np
import pytest
from scipy import stats

import keras_adaclip as ka
from keras_adaclip.accounting import group_epsilon, ledger_epsilon, read_ledger
from keras_adaclip.sampling import PoissonDataset
from tests.models import helpers
from tests.models.helpers import DELTA

NUM_ROWS = 120
X, Y = helpers.features(NUM_ROWS), helpers.labels(NUM_ROWS)
IDS = np.random.default_rng(0).integers(0, 30, NUM_ROWS)


compiled = functools.partial(helpers.compiled, noise_multiplier=4.0)


def fit(model, most=None, ids=IDS, verbose=0, **options):
    units = {} if most is None else {"unit_ids": ids, "max_rows_per_unit": most}
    return model.fit(X, Y, verbose=verbose, **{"batch_size": 12, **units, **options})


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
@pytest.mark.parametrize("most", [1, 2, 5, 20])
def test_epsilon_is_that_of_a_group(most, sampling):
    model = compiled(noise_multiplier=2.0 * most)
    fit(model, most, sampling=sampling)
    spent, report = model.privacy_spent(DELTA), model.privacy_report(DELTA)
    expected = group_epsilon(model.privacy_ledger, DELTA, most)
    assert spent.epsilon == report.epsilon == pytest.approx(expected, rel=1e-9)
    assert (spent.unit, spent.rows_per_unit, report.unit) == ("person", most, "person")
    assert f"one person with up to {most} row" in str(spent)
    # The ledger has the number of rows. Their persons lie between these.
    number = facts(model)["num_examples"]
    least = "" if most == 1 else f"{math.ceil(number / most)} to "
    size = f"{number}, of {least}{number} persons; public, not protected"
    assert dict(report.rows())["number of rows"] == size
    # That of a row is another, but for one row of a person.
    by_row = [ka.accounting.LedgerRow.open(**facts(model)).advance(model.privacy_ledger.steps)]
    is_same = ledger_epsilon(by_row, DELTA) == pytest.approx(spent.epsilon, rel=1e-3)
    assert is_same == (most == 1)


def facts(model):
    (row,) = model.privacy_ledger
    names = ("sampling", "expected_batch_size", "num_examples", "noise_multiplier")
    return {name: getattr(row, name) for name in names}


def test_one_row_a_person_is_one_row_a_client():
    model = compiled()
    fit(model, 1, ids=np.arange(NUM_ROWS))
    layers = [keras.Input((X.shape[1],)), keras.layers.Dense(3)]
    federated = ka.federate(keras.Sequential(layers))
    federated.compile(
        ka.optimizers.DPOptimizer("sgd", 1.0, noise_multiplier=4.0),
        client_optimizer="sgd",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    clients = ka.federated.ClientData.from_arrays(X, Y, np.arange(NUM_ROWS))
    federated.fit(clients, cohort_size=12, verbose=0)
    epsilons = [each.privacy_spent(DELTA).epsilon for each in (model, federated)]
    assert epsilons[0] == epsilons[1]


def test_a_plan_ends_at_its_target_for_a_person():
    model = helpers.dense_model()
    model.compile(ka.optimizers.AutoDPOptimizer(3.0, DELTA), helpers.sparse_crossentropy())
    budget = ka.callbacks.PrivacyCallback()
    history = fit(model, 5, batch_size=None, epochs=2, callbacks=[budget])
    spent = group_epsilon(model.privacy_ledger, DELTA, 5)
    assert 2.9 < spent <= 3.0
    assert history.history["epsilon"][-1] == pytest.approx(spent)
    row = model.privacy_ledger.current
    # The plan is for the rows that stay.
    assert row.num_examples == np.minimum(np.bincount(IDS), 5).sum() < NUM_ROWS
    with pytest.raises(ValueError, match="The budget is spent"):
        fit(model, 5)


def test_a_budget_ends_training_before_a_person_has_spent_it():
    model = compiled()
    target = group_epsilon([planned_row(5, 7)], DELTA, 5) * 1.001
    fit(model, 5, epochs=3, callbacks=[ka.callbacks.PrivacyCallback(DELTA, target)])
    assert model.privacy_ledger.steps == 7


def planned_row(most, steps):
    num_rows = int(np.minimum(np.bincount(IDS), most).sum())
    return ka.accounting.LedgerRow(
        ka.accounting.Sampling.POISSON, 12, num_rows, 4.0, rows_per_unit=most
    ).advance(steps)


def test_of_a_person_with_a_thousand_rows_so_many_are_used():
    """Rows hold their numbers, and one step draws all that stay."""
    ids = np.array([7] * 1_000 + [8, 9] * 3)
    x = np.arange(len(ids), dtype="float32")[:, None]
    data = PoissonDataset(x, expected_batch_size=11, unit_ids=ids, max_rows_per_unit=5)
    assert (data.num_examples, data.sampling_probability, data.rows_per_unit) == (11, 1.0, 5)
    batches = [data[0] for _ in range(20)]
    rows = {int(number) for each in batches for number in each["x"][each["mask"], 0]}
    assert len([row for row in rows if row < 1_000]) == 5
    assert rows >= set(range(1_000, 1_006))


def chosen(ids, most, **options):
    size = int(np.minimum(np.unique(ids, return_counts=True)[1], most).sum())
    units = {"unit_ids": ids, "max_rows_per_unit": most}
    x = np.zeros((len(ids), 1))
    return PoissonDataset(x, expected_batch_size=size, **units, **options).present


def test_the_rows_that_stay_are_chosen_at_random_and_for_each_person_alone():
    ids = np.array([1, 2, 1, 2, 1, 2])
    draws = np.array([chosen(ids, 1) for _ in range(2_000)])
    assert np.all(draws[:, ids == 1].sum(axis=1) == 1)
    assert np.all(draws[:, ids == 2].sum(axis=1) == 1)
    # Each row of a person as often, whichever the other person keeps.
    counts = draws[:, ids == 1].T.astype(int) @ draws[:, ids == 2].astype(int)
    assert stats.chisquare(counts.ravel()).pvalue > 1e-6
    # The same rows stay for the others if a person is audited away, and with the same seed.
    present = ids != 1
    both = [chosen(ids, 1, seed=3, present=each) for each in (None, present)]
    np.testing.assert_array_equal(both[0][present], both[1][present])
    assert not both[1][~present].any()


@pytest.mark.parametrize("most", [1, 3])
def test_removing_a_person_moves_a_step_by_so_many_clip_norms_at_most(most):
    """An attack that sees the update, with the largest rows of one person among small ones.

    With the same seed and one person less, noise and draws are the same, and the updates differ by
    what the person contributed. With the ledger's noise that is a draw of Binomial(k, q).
    """
    x, y = np.zeros((40, 2), "float32"), np.ones((40, 1), "float32")
    x[:20, 0] = 100.0  # All rows of the person pull the same way.
    ids = np.r_[np.zeros(20, int), np.arange(1, 21)]
    runs = []
    for present in (None, ids > 0):
        model = ka.PrivateSequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
        optimizer = ka.optimizers.DPOptimizer(
            keras.optimizers.SGD(1.0), 1.0, noise_multiplier=1.0, seed=0
        )
        model.compile(optimizer, loss=lambda y, outputs: y * outputs)
        model.set_weights([np.zeros((2, 1))])
        units = {"unit_ids": ids, "max_rows_per_unit": most, "present": present}
        data = PoissonDataset(x, y, expected_batch_size=10, seed=0, **units)
        weights = [model.get_weights()[0]]
        record = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda *_, kept=weights, of=model: kept.append(of.get_weights()[0])
        )
        model.fit(data, steps_per_epoch=1, epochs=80, verbose=0, callbacks=[record])
        runs.append(np.diff(np.array(weights), axis=0))
    (row,) = model.privacy_ledger
    moved = np.linalg.norm(runs[0] - runs[1], axis=(1, 2)) * row.expected_batch_size
    counts = np.round(moved)
    np.testing.assert_allclose(moved, counts, atol=1e-3)
    assert counts.max() <= row.rows_per_unit == most
    q = row.sampling_probability
    assert q == 10 / (20 + most)
    assert abs(counts.mean() - most * q) < 5 * math.sqrt(most * q * (1 - q) / len(counts))
    # The noise that hides it.
    noise = runs[1][:, 1] * row.expected_batch_size
    assert abs(noise.std() - row.noise_multiplier) < 0.5


def test_the_first_line_ends_with_whom_it_protects(capsys):
    model = compiled()
    lines = []
    for most in (1, 5, None):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            fit(model, most, verbose=2)
        assert any("no person is protected" in str(each.message) for each in told) == (not most)
        lines.append(capsys.readouterr().out.splitlines()[0])
    assert lines[0].endswith("This protects one person with up to 1 row.")
    assert lines[1].endswith("This protects one person with up to 5 rows.")
    assert "one row, and no person with several" in lines[2]
    assert "spent before" in lines[1]
    assert "spent before" not in lines[2]
    fit(compiled(), verbose=2)
    assert capsys.readouterr().out.splitlines()[0].endswith("This protects one row.")


def test_the_largest_number_counts_and_steps_without_ids_protect_rows():
    model = compiled()
    fit(model, 2)
    fit(model, 5)
    spent, report = model.privacy_spent(DELTA), model.privacy_report(DELTA)
    assert spent.rows_per_unit == 5
    assert spent.epsilon == group_epsilon(model.privacy_ledger, DELTA, 5)
    assert report.group_epsilons == {}
    assert "of which each run used at most 5" in report.protection[0]
    assert any("has stated this; it was not checked" in each for each in report.assumptions)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fit(model)
    assert any("no person is protected" in str(each.message) for each in told)
    fit(model)  # Told once.
    report = model.privacy_report(DELTA, group_sizes=[5])
    assert report.unit == "example"
    # If one row is removed, another of the person may take its place: a hole keeps the place.
    assert report.neighboring_relation == "zero_out"
    assert report.epsilon < report.group_epsilons[5]
    assert any("no person with several rows is protected" in each for each in report.assumptions)
    assert report.to_dict()["mechanisms"][0]["rows_per_unit"] == 2


def test_the_number_is_saved_and_ids_are_not(tmp_path):
    model, path = compiled(), tmp_path / "model.keras"
    names = np.char.add("patient-number-", IDS.astype(str))
    fit(model, 5, ids=names)
    spent = model.privacy_spent(DELTA)
    model.save(path)
    assert [row.rows_per_unit for row in read_ledger(path)] == [5]
    assert ka.accounting.PrivacyReport.from_file(path, DELTA).unit == "person"
    loaded = keras.models.load_model(path)
    assert loaded.privacy_spent(DELTA) == spent
    fit(loaded, 2)
    assert loaded.privacy_spent(DELTA).rows_per_unit == 5
    with zipfile.ZipFile(path) as archive:
        contents = b"".join(map(archive.read, archive.namelist()))
    assert b"max_batch_size" in contents
    assert b"patient-number" not in contents


source = functools.partial(PoissonDataset.from_source, list(zip(X, Y, strict=True)))


@pytest.mark.parametrize("make", [functools.partial(PoissonDataset, X, Y), source])
def test_a_data_set_brings_its_ids(make):
    model = compiled()
    model.fit(make(expected_batch_size=12, unit_ids=IDS, max_rows_per_unit=2), verbose=0)
    assert model.privacy_spent(DELTA).rows_per_unit == 2


WRONG_IDS = {
    "missing name": ["a", None] * 60,
    "missing name of pandas": np.array(["a", "nan"] * 60),
    "missing number": [1, math.nan] * 60,
    "floats": IDS.astype(float),
    "two kinds": [1, "1"] * 60,
    "two columns": np.zeros((NUM_ROWS, 2), int),
    "too few": IDS[1:],
    "none": None,
}


@pytest.mark.parametrize("ids", WRONG_IDS.values(), ids=WRONG_IDS)
def test_wrong_ids_are_refused_before_anything_is_spent(ids):
    model = compiled()
    with pytest.raises(ValueError, match=r"`unit_ids` must hold|come together"):
        fit(model, 2, ids=ids)
    assert model.privacy_ledger.steps == 0


REFUSED = {
    "no number": ({"unit_ids": IDS}, ValueError, "a public number such as 3"),
    "no row": ({"unit_ids": IDS, "max_rows_per_unit": 0}, ValueError, "between 1 and"),
    "split": (
        {"unit_ids": IDS, "max_rows_per_unit": 2, "validation_split": 0.5},
        ValueError,
        "both sides",
    ),
}


@pytest.mark.parametrize(("options", "error", "words"), REFUSED.values(), ids=REFUSED)
def test_what_would_not_protect_a_person_is_refused(options, error, words):
    with pytest.raises(error, match=words):
        compiled().fit(X, Y, batch_size=12, verbose=0, **options)


def test_ids_go_with_arrays_and_exact_draws_alone():
    units = {"unit_ids": IDS, "max_rows_per_unit": 2}
    batches = ((X[:6], Y[:6]) for _ in range(4))
    with pytest.raises(ValueError, match="Give them with arrays or `PoissonDataset`"):
        compiled().fit(batches, num_examples=NUM_ROWS, steps_per_epoch=4, **units)
    with pytest.raises(ValueError, match=r"cannot be combined with .*`unit_ids`"):
        PoissonDataset(X, expected_batch_size=12, max_batch_size=30, **units)
    with pytest.raises(ValueError, match="`rows_per_unit` must be 0 for clients"):
        ka.accounting.LedgerRow(1, 12, 120, 1.0, ka.accounting.Unit.CLIENT, rows_per_unit=2)


@pytest.mark.parametrize("ids_first", [True, False])
def test_a_target_of_persons_is_not_renewed_by_rows(ids_first):
    """Epsilon of a row is smaller than what the steps with ids have spent of a person's."""
    model, with_ids = compiled(noise_multiplier=4.0), {"unit_ids": IDS, "max_rows_per_unit": 5}
    fits = [with_ids, {}] if ids_first else [{}, with_ids]
    helpers.quiet_fit(model, X, Y, batch_size=12, **fits[0])
    steps = model.privacy_ledger.steps
    budget = ka.callbacks.PrivacyCallback(1e-3, target_epsilon=50.0)
    with pytest.raises(ValueError, match="cannot go on in another unit"):
        helpers.quiet_fit(model, X, Y, batch_size=12, callbacks=[budget], **fits[1])
    assert model.privacy_ledger.steps == steps
    helpers.quiet_fit(model, X, Y, batch_size=12, callbacks=[budget], **fits[0])
