"""Epsilon over delta and over the epochs of a ledger."""

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip.accounting import Ledger, LedgerRow, Sampling, ledger_epsilon

pytest.importorskip("matplotlib")


def row(steps, noise_multiplier=1.0, sampling=Sampling.POISSON, batch_size=100):
    return LedgerRow.open(sampling, batch_size, 1_000, noise_multiplier).advance(steps)


def curve(axes):
    (line,) = axes.lines
    return line.get_xdata(), line.get_ydata()


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_both_curves_are_bounds_and_close_ones(accountant):
    figure = ka.plots.privacy_curve(Ledger((row(95),)), delta=1e-5, accountant=accountant)
    over_delta, over_epochs = figure.axes
    deltas, epsilons = curve(over_delta)
    for number in (0, 20, -1):
        tight = ledger_epsilon([row(95)], float(deltas[number]), accountant)
        assert tight <= epsilons[number] <= 1.01 * tight
    epochs, epsilons = curve(over_epochs)
    assert (epochs[0], epsilons[0], epochs[-1]) == (0.0, 0.0, 9.5)
    assert over_epochs.get_xlabel() == "epochs of 10 steps"
    for number in (1, 10, -1):
        tight = ledger_epsilon([row(round(10 * epochs[number]))], 1e-5, accountant)
        assert tight <= epsilons[number] <= 1.01 * tight
    # The dots are not rounded.
    spent = ledger_epsilon([row(95)], 1e-5, accountant)
    dots = [axes.collections[0].get_offsets()[0].tolist() for axes in figure.axes]
    assert dots == [[1e-5, spent], [9.5, spent]]


def test_passes_count_in_proportion_and_under_the_relation_of_the_whole():
    rows = [row(20, sampling=Sampling.SHUFFLE, noise_multiplier=2.0), row(30)]
    figure = ka.plots.privacy_curve(rows, delta=1e-5)
    epochs, epsilons = curve(figure.axes[1])
    shuffled = ledger_epsilon([row(10, sampling=Sampling.SHUFFLE, noise_multiplier=2.0)], 1e-5)
    within = epsilons[(epochs > 0.0) & (epochs <= 1.0)]
    assert within == pytest.approx(np.full(len(within), shuffled), rel=0.01)
    assert epsilons[-1] == pytest.approx(ledger_epsilon(rows, 1e-5), rel=0.01)


def test_a_model_and_the_delta_of_its_number_of_examples():
    x, y = np.zeros((40, 2), "float32"), np.zeros((40, 1), "float32")
    model = ka.privatize(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    model.compile(ka.optimizers.DPOptimizer("sgd", noise_multiplier=2.0), "mean_squared_error")
    with pytest.raises(ValueError, match="No step has run yet"):
        ka.plots.privacy_curve(model)
    model.fit(x, y, batch_size=20, epochs=3, verbose=0)
    figure = ka.plots.privacy_curve(model, accountant="rdp")
    delta, spent = figure.axes[1].get_title(), figure.axes[0].collections[0].get_offsets()[0][1]
    assert delta == f"at delta = {40**-1.1:.2g}"
    assert spent == model.privacy_spent(40**-1.1, "rdp").epsilon


@pytest.mark.parametrize(
    ("ledger", "words"),
    [
        ([], "No step has run yet"),
        ([row(5, noise_multiplier=0.0)], "ran without noise"),
        ([LedgerRow.open(Sampling.STREAM, 10, 0, 1.0).advance(5)], "`num_examples`"),
    ],
)
def test_what_has_no_curve(ledger, words):
    with pytest.raises(ValueError, match=words):
        ka.plots.privacy_curve(ledger)
