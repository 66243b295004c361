"""The delta of a budget, over one `fit` and several: none that is larger renews it."""

import keras
import pytest

import keras_adaclip as ka
from tests.optimizers.planning import (
    DELTA,
    AutoDPOptimizer,
    Dies,
    PrivacyCallback,
    Stops,
    assert_spent,
    compile_with,
    compiled,
    fit,
    spent,
)

pytestmark = pytest.mark.filterwarnings("ignore:Argument `delta` should be")


def planned(delta):
    return AutoDPOptimizer(3.0, delta), []


def guarded(delta):
    optimizer = ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.5)
    return optimizer, [PrivacyCallback(delta, target_epsilon=3.0)]


def trained(kind, delta, *callbacks, model=None, epochs=12, **options):
    """A model that was trained for epsilon 3 at a delta."""
    optimizer, own = kind(delta)
    model = compile_with(model, optimizer) if model else compiled(optimizer)
    fit(model, batch_size=20, epochs=epochs, callbacks=[*own, *callbacks], **options)
    return model


# Data sets of several sizes, whose default deltas differ


@pytest.mark.parametrize("kind", [planned, guarded])
def test_a_smaller_data_set_does_not_renew_the_budget_and_a_larger_one_has_a_smaller_delta(
    kind, tmp_path
):
    model = trained(kind, None, epochs=40)
    model.save(tmp_path / "model.keras")
    model = keras.models.load_model(tmp_path / "model.keras")
    optimizer, callbacks = kind(None)
    compile_with(model, optimizer)
    steps = model.privacy_ledger.steps
    with pytest.raises(ValueError, match=r"budget is spent|past the target of 3"):
        fit(model, callbacks=callbacks, batch_size=20, num_examples=50)
    assert model.privacy_ledger.steps == steps
    if kind is planned:
        model.optimizer.target_epsilon = 9.0
        fit(model, 800)
        assert_spent(model, 9.0, 800**-1.1)


def test_a_default_delta_is_that_of_the_largest_data_set():
    """Also if nothing was promised for it."""
    model = compiled(ka.optimizers.DPOptimizer("sgd", noise_multiplier=5.0))
    fit(model, batch_size=20)
    fit(compile_with(model, AutoDPOptimizer(3.0)), 50)
    assert spent(model) <= 3.0


# Callbacks and the optimizer


def test_the_smallest_delta_of_callbacks_is_that_of_the_plan():
    model = compiled(AutoDPOptimizer(3.0))
    history = fit(model, callbacks=[PrivacyCallback(1e-6), PrivacyCallback(1e-3)])
    assert_spent(model, 3.0, 1e-6)
    # The last callback still reports for its own.
    assert history.params["delta"] == 1e-3
    assert history.history["epsilon"][-1] == spent(model, 1e-3)
    model.optimizer.target_epsilon = 6.0
    fit(model, callbacks=[PrivacyCallback(1e-3)])
    assert_spent(model, 6.0, 1e-6)


@pytest.mark.parametrize("delta", [4e-3, 1e-9])
def test_a_callback_without_delta_reports_for_that_of_the_optimizer(delta):
    model, callback = compiled(AutoDPOptimizer(3.0, delta=delta)), PrivacyCallback()
    fit(model, epochs=0, callbacks=[callback])
    assert callback.effective_delta == delta
    history = fit(model, callbacks=[callback])
    assert history.params["delta"] == callback.effective_delta == delta
    assert history.history["epsilon"][-1] == pytest.approx(spent(model, delta))
    assert_spent(model, 3.0, delta)


@pytest.mark.parametrize("deltas", [(1e-6,), (1e-3, 1e-6)])
def test_another_delta_than_that_of_the_plan_is_refused(deltas):
    model = compiled(AutoDPOptimizer(3.0, delta=1e-3))
    with pytest.raises(ValueError, match="plans for one delta"):
        fit(model, callbacks=map(PrivacyCallback, deltas))
    assert model.privacy_ledger.steps == 0


def test_the_notice_says_where_delta_comes_from(capsys):
    def said(model, **options):
        fit(model, verbose=2, **options)
        return " ".join(capsys.readouterr().out.split())

    model = compiled(AutoDPOptimizer(3.0))
    assert f"delta {DELTA:.3g} (200 ** -1.1)" in said(model)
    model.optimizer.target_epsilon = 6.0
    assert f"delta {DELTA:.3g} (200 ** -1.1)" in said(model, num_examples=50)
    assert "delta 0.001." in said(compiled(AutoDPOptimizer(3.0, delta=1e-3)))
    model = trained(planned, 1e-8, Stops())
    for kind in (planned, guarded):
        optimizer, own = kind(1e-3)
        compile_with(model, optimizer)
        words = said(model, batch_size=20, epochs=30, callbacks=[*own, Stops()])
        assert "at delta 1e-08 (promised before, so that it stays)" in words


# A promise stays with the ledger


@pytest.mark.parametrize("is_loaded", [False, True])
def test_the_promised_delta_stays_with_the_ledger(is_loaded, tmp_path):
    """Also where a file from before knows a larger one."""
    model, held = trained(guarded, 1e-8, Stops()), 1e-8
    if is_loaded:
        model.save_weights(tmp_path / "model.weights.h5")
        trained(guarded, held := 1e-9, Stops(), model=model)
        model.load_weights(tmp_path / "model.weights.h5")
    assert model.privacy_ledger.promised_delta == held
    trained(guarded, 1e-3, model=model)
    assert 2.5 < spent(model, held) <= 3.0


@pytest.mark.parametrize(("first", "later"), [(planned, guarded), (guarded, planned)])
def test_a_larger_delta_does_not_renew_the_budget(first, later):
    model = trained(first, 1e-8, Stops())
    trained(later, 1e-5, model=model)
    if later is planned:  # All of its steps fit the budget.
        assert model.privacy_ledger.steps == 10 + 120 + 1  # A temperature.
    assert 2.5 < spent(model, 1e-8) <= 3.0
    with pytest.raises(ValueError, match=r"budget is spent|past the target of 3"):
        trained(later, 0.5, model=model)


@pytest.mark.parametrize("kind", [planned, guarded])
def test_a_resumed_run_on_fewer_examples_holds_the_delta_that_was_promised_before(kind, tmp_path):
    backup = keras.callbacks.BackupAndRestore
    with pytest.raises(KeyboardInterrupt):
        trained(kind, 1e-8, backup(tmp_path / "backup"), Dies())
    resumed = trained(kind, 1e-3, backup(tmp_path / "backup"), num_examples=150)
    assert resumed.privacy_ledger.promised_delta == 1e-8
    assert 2.0 < spent(resumed, 1e-8) <= 3.0


def test_what_only_reports_or_is_refused_promises_nothing_and_a_smaller_delta_is_promised_later():
    model = compiled(ka.optimizers.DPOptimizer("sgd", noise_multiplier=10.0))
    fit(model, callbacks=[PrivacyCallback(1e-3), PrivacyCallback(1e-9)], batch_size=100)
    with pytest.raises(ValueError, match="past the target"):
        fit(model, callbacks=[PrivacyCallback(1e-9, target_epsilon=0.1)], batch_size=100)
    assert model.privacy_ledger.promised_delta == 1.0
    trained(guarded, 1e-3, Stops(), model=model)
    trained(guarded, 1e-5, Stops(), model=model)
    assert model.privacy_ledger.promised_delta == 1e-5
    trained(guarded, 1e-3, model=model)
    assert spent(model, 1e-5) <= 3.0 < spent(model, 1e-9)
