"""What a private search releases carries the search's cost, wherever it goes."""

from pathlib import Path

import dp_accounting
import keras
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant

import keras_adaclip as ka
from keras_adaclip.__main__ import main
from keras_adaclip.accounting import PrivacySpent, read_ledger, rounded_up
from tests.tuners.hypermodels import (
    BATCH_SIZE,
    NOISE,
    NUM_EXAMPLES,
    Regression,
    data,
    draw_numbers,
    planned,
    run,
    search_of,
)
from tests.tuners.hypermodels import private_model as built_model

DELTA = 1e-3
STEPS = planned().steps


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    """A search that has ended after two runs."""
    with pytest.MonkeyPatch.context() as patch:
        draw_numbers(patch, 2)
        return searched(tmp_path_factory.mktemp("search"), mean_trials=10)


def searched(folder, hypermodel=None, **arguments):
    return run(search_of(hypermodel or Regression(), folder, **arguments))


def cost_with(num_steps, mean_trials=10):
    """Epsilon of the search and so many steps after it, by `dp_accounting` alone."""
    step = dp_accounting.PoissonSampledDpEvent(
        BATCH_SIZE / NUM_EXAMPLES, dp_accounting.GaussianDpEvent(NOISE)
    )
    one_run = dp_accounting.SelfComposedDpEvent(step, STEPS)
    events = [RepeatAndSelectDpEvent(one_run, mean_trials, 1)]
    if num_steps:
        events.append(dp_accounting.SelfComposedDpEvent(step, num_steps))
    return RdpAccountant().compose(dp_accounting.ComposedDpEvent(events)).get_epsilon(DELTA)


def test_the_model_says_what_the_search_costs(search):
    model, expected = search.best_model(), search.privacy_spent(DELTA)
    for accountant in ("pld", "rdp"):
        spent = model.privacy_spent(DELTA, accountant)
        assert spent.epsilon == expected.epsilon == pytest.approx(cost_with(0))
        assert (spent.accountant, spent.steps, spent.sampling) == ("rdp", STEPS, "poisson")
        assert spent.neighboring_relation == "add_or_remove_one"
        assert "drawn from the geometric law with mean 10" in str(spent)
    report = model.privacy_report(DELTA, group_sizes=(2,))
    assert report.epsilon_pld == report.epsilon_rdp == expected.epsilon
    assert report.group_epsilons[2] > 2 * expected.epsilon


def saved_and_loaded(model, folder):
    model.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras")


def weights_loaded(model, folder):
    model.save_weights(folder / "model.weights.h5")
    other = built_model()
    other.optimizer.build(other.trainable_variables)
    other.load_weights(folder / "model.weights.h5")
    return other


def test_further_training_comes_on_top(search, tmp_path):
    model = search.best_model()
    for steps in (4, 8):
        model.fit(*data(), batch_size=BATCH_SIZE, verbose=0)
        model = saved_and_loaded(model, tmp_path)
        spent = model.privacy_spent(DELTA)
        assert spent.epsilon == pytest.approx(cost_with(steps))
        assert spent.steps == STEPS + steps


def test_a_budget_counts_the_search(search):
    model = search.best_model()
    callback = ka.callbacks.PrivacyCallback(DELTA, target_epsilon=cost_with(6) + 1e-6)
    history = model.fit(*data(), batch_size=BATCH_SIZE, epochs=9, verbose=0, callbacks=[callback])
    assert model.privacy_ledger.steps == STEPS + 6
    assert history.history["epsilon"][-1] == pytest.approx(cost_with(6))


def test_the_file_of_the_best_weights_carries_it(search, capsys):
    epsilon = search.privacy_spent(DELTA).epsilon
    (file,) = Path(search.project_dir).rglob("*.weights.h5")
    assert PrivacySpent.from_ledger(read_ledger(file), DELTA).epsilon == epsilon
    assert main(["report", str(file), "--delta", str(DELTA)]) == 0
    assert rounded_up(epsilon) in capsys.readouterr().out


def test_a_model_that_the_hypermodel_keeps_carries_it_when_its_run_has_ended(tmp_path, monkeypatch):
    draw_numbers(monkeypatch, 2)
    kept = []

    class Keeps(Regression):
        def build(self, hp):
            kept.append(super().build(hp))
            return kept[-1]

    search = searched(tmp_path, Keeps())
    trained = [model for model in kept if model.optimizer.iterations > 0]
    assert len(trained) == 2
    for model in trained:
        assert model.privacy_spent(DELTA).epsilon == search.privacy_spent(DELTA).epsilon


def test_a_search_among_released_models_counts_both(search, tmp_path, monkeypatch):
    model = search.best_model()
    model.save_weights(tmp_path / "first.weights.h5")
    first = read_ledger(tmp_path / "first.weights.h5")

    class GoesOn(Regression):
        def build(self, hp):
            return weights_loaded(model, tmp_path)

        def privacy_plan(self, hp):
            return first.append(planned().rows[0])

    second = searched(tmp_path / "second", GoesOn())
    released = saved_and_loaded(second.best_model(), tmp_path)
    # `build` loads the first search's cost, and the file that comes on top holds it as well.
    assert released.privacy_spent(DELTA).epsilon >= second.privacy_spent(DELTA).epsilon
    assert second.privacy_spent(DELTA).epsilon > cost_with(STEPS)
