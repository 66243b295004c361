"""Figures of runs."""

import functools
import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import keras_adaclip as ka

pytest.importorskip("matplotlib")

HISTORY = {"loss": [1.0, 0.5], "accuracy": [0.5, 0.7], "val_accuracy": [0.4, 0.6]}
HISTORY |= {"epsilon": [1.0, 1.5], "clip_norm": [0.1, 0.2]}


def labels(figure):
    return [axes.get_ylabel() for axes in figure.axes]


def drawn(axes):
    return {line.get_label(): list(line.get_ydata()) for line in axes.lines}


@pytest.mark.parametrize("wrap", [dict, lambda history: SimpleNamespace(history=history)])
def test_a_panel_for_each_of_accuracy_epsilon_and_clipping_norm(tmp_path, wrap):
    path = tmp_path / "run.png"
    history = wrap({**HISTORY, "audit_epsilon": [0.0, 0.3]})
    figure = ka.plots.history(history, path, title="A run", target_epsilon=2.0)
    assert labels(figure) == ["accuracy", "epsilon", "clipping norm (L2)"]
    accuracy, epsilon, clip_norm = figure.axes
    assert drawn(accuracy) == {"training (not private)": [0.5, 0.7], "validation": [0.4, 0.6]}
    assert drawn(epsilon) == {
        "at most, by the accountant": [1.0, 1.5],
        "at least, by the audit": [0.0, 0.3],
        "target: 2": [2.0, 2.0],
    }
    legends = [axes.get_legend() for axes in figure.axes]
    assert [legend and len(legend.get_texts()) for legend in legends] == [2, 3, None]
    assert clip_norm.lines[0].get_ydata() == pytest.approx([0.1, 0.2])
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_loss_that_was_validated_every_other_epoch():
    history = {"loss": [1.0, 0.9, 0.8, 0.7], "val_loss": [1.0, 0.8]}
    (axes,) = ka.plots.history(history).axes
    assert [line.get_xdata().tolist() for line in axes.lines] == [[1, 2, 3, 4], [2, 4]]
    with pytest.raises(ValueError, match="no epoch"):
        ka.plots.history({"loss": []})


def test_delta_and_target_of_the_callback_or_of_the_caller():
    model = ka.PrivateSequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(ka.optimizers.DPOptimizer("sgd", noise_multiplier=2.0), "mean_squared_error")
    callback = ka.callbacks.PrivacyCallback(delta=1e-3, target_epsilon=9.0)
    x, y = np.zeros((40, 2), "float32"), np.zeros((40, 1), "float32")
    history = model.fit(x, y, batch_size=20, callbacks=[callback], verbose=0)
    for options, delta, target in (
        ({}, 0.001, 9.0),
        ({"delta": 0.1, "target_epsilon": 7.0}, 0.1, 7.0),
    ):
        figure = ka.plots.history(history, **options)
        epsilon = figure.axes[1]
        assert epsilon.get_ylabel() == f"epsilon at delta {delta}"
        assert drawn(epsilon)[f"target: {target:g}"] == [target, target]
        # Rounded up.
        shown = float(figure.get_suptitle().split()[5])
        assert 0.0 <= shown - history.history["epsilon"][-1] <= 0.01 * shown
    with pytest.raises(ValueError, match=r"PrivacyCallback.*delta=0\.1"):
        ka.plots.history({"loss": [1.0]}, delta=0.1)


def test_axes_title_and_resolution(tmp_path):
    from matplotlib.figure import Figure

    draw = functools.partial(ka.plots.history, HISTORY)
    own = draw()
    assert own.get_suptitle().startswith("Training of 2 epochs: epsilon 1.5")
    assert draw(title="").get_suptitle() == ""
    assert draw(dpi=50).dpi == 50
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in own.axes)
    # Axes of a caller, here in a part of a figure: nothing is added but what they show.
    figure = Figure(dpi=80)
    part, _ = figure.subfigures(1, 2)
    axes = part.subplots(1, 3)
    assert draw(tmp_path / "run.png", ax=axes, dpi=40) is figure
    assert (tmp_path / "run.png").stat().st_size > 0
    assert (figure.dpi, figure.get_suptitle(), len(figure.axes)) == (80, "", 3)
    assert labels(figure) == labels(own)
    draw(title="A run", ax=axes)
    assert figure.axes[0].get_title() == "A run"
    for ax in (Figure().subplots(2, 2), "left"):
        with pytest.raises(ValueError, match=r"`ax` must be 3 matplotlib axes.*Received: [41] of"):
            draw(ax=ax)
    with pytest.raises(ValueError, match="`dpi`"):
        draw(dpi=0)


def test_norms_that_differ_much_are_on_a_logarithmic_axis():
    for norms, scale in (([0.1, 2.0], "log"), ([1.0, 2.0], "linear"), ([0.0, 2.0], "linear")):
        (*_, axes) = ka.plots.history({**HISTORY, "clip_norm": norms}).axes
        assert axes.get_yscale() == scale


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install keras-adaclip\[plots\]"):
        ka.plots.history(HISTORY)


def test_the_trade_off_curve_is_drawn_above_a_blind_guess(tmp_path):
    curve = ka.accounting.TradeoffCurve((1.0,), (1e-5,))
    figure = ka.plots.tradeoff({"the bound": curve}, tmp_path / "curve.png")
    (axes,) = figure.axes
    shown = drawn(axes)
    assert list(shown) == ["the bound", "a blind guess"]
    assert np.all(np.array(shown["the bound"]) >= shown["a blind guess"])
    assert shown["the bound"] == list(curve.true_positive_rate(axes.lines[0].get_xdata()))
    assert (tmp_path / "curve.png").stat().st_size > 0
    scores, members = np.arange(40.0), np.arange(40) >= 20
    audit = ka.audit.OneRunAudit.from_scores(scores, members, delta=1e-5)
    (with_attack,) = ka.plots.tradeoff({"the bound": curve}, audit=audit).axes
    attack = with_attack.lines[1]
    assert f"at least {audit.epsilon_lower_bound:.3g}" in attack.get_label()
    assert (attack.get_xdata()[19], attack.get_ydata()[19]) == (0.0, 1.0)
    several = ka.plots.tradeoff({"one": curve, "two": curve}, title="", ax=axes)
    assert [line.get_label() for line in axes.lines][-3:] == ["one", "two", "a blind guess"]
    assert several is figure
