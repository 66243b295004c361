"""Figures of runs, audits, searches, clipping norms, and of epsilon over delta and epochs."""

import functools
import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip.accounting import Ledger, LedgerRow, Sampling, ledger_epsilon

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


LOGS = {"clip_norm": [0.5, 0.6], "unclipped_fraction": [0.2, 0.6]}
# Each function, its arguments, its number of panels, and its title.
FIGURES = {
    "history": ((HISTORY,), 3, "Training of 2 epochs: epsilon 1.5"),
    "privacy_curve": (
        ([LedgerRow.open(Sampling.FIXED, 9, 99, 2.0).advance(3)],),
        2,
        "Privacy spent",
    ),
    "search": ((None,), 2, "Greedy search of clipping norms"),
    "thresholds": (({"a": LOGS},), 1, "Clipping norms"),
}


@pytest.mark.parametrize("name", ka.plots.__all__)
def test_axes_title_and_resolution_of_every_figure(name, tmp_path):
    from matplotlib.figure import Figure

    (first, *rest), num_panels, words = FIGURES[name]
    first = GreedySearch() if name == "search" else first
    draw = functools.partial(getattr(ka.plots, name), first, *rest)
    own = draw()
    assert own.get_suptitle().startswith(words)
    assert draw(title="").get_suptitle() == ""
    assert draw(dpi=50).dpi == 50
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in own.axes)
    # Axes of a caller, here in a part of a figure: nothing is added but what they show.
    figure = Figure(dpi=80)
    part, _ = figure.subfigures(1, 2)
    axes = part.subplots(1, num_panels)
    assert draw(tmp_path / "run.png", ax=axes, dpi=40) is figure
    assert (tmp_path / "run.png").stat().st_size > 0
    assert (figure.dpi, figure.get_suptitle(), len(figure.axes)) == (80, "", num_panels)
    assert labels(figure) == labels(own)
    draw(title="A run", ax=axes)
    assert figure.axes[0].get_title() == "A run"
    with pytest.raises(ValueError, match=rf"`ax` must have {num_panels} axes.*with 4 axes"):
        draw(ax=Figure().subplots(2, 2))
    with pytest.raises(TypeError, match=r"`ax` must be matplotlib axes.*ax='left'"):
        draw(ax="left")
    with pytest.raises(ValueError, match="`dpi`"):
        draw(dpi=0)


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install keras-adaclip\[plots\]"):
        ka.plots.history(HISTORY)


class GreedySearch:
    """A finished greedy search of two epochs."""

    oracle = SimpleNamespace(objective=SimpleNamespace(name="val_accuracy"))

    def searched_epochs(self):
        return [
            SimpleNamespace(threshold=0.4, score=0.6, thresholds=(0.2, 0.4), scores=(0.5, 0.6)),
            SimpleNamespace(threshold=0.2, score=0.7, thresholds=(0.2, 0.4), scores=(0.7, 0.1)),
        ]

    def trend(self):
        return SimpleNamespace(power=1.0, initial_value=0.4)

    def best_schedule(self):
        raise AssertionError


def test_a_greedy_search():
    figure = ka.plots.search(GreedySearch())
    assert labels(figure) == ["clipping norm (L2)", "val accuracy"]
    norms, scores = figure.axes
    assert drawn(norms) == {"best": [0.4, 0.2], "0.4 / epoch^1": [0.4, 0.2]}
    tried = np.concatenate([points.get_offsets() for points in scores.collections])
    assert tried.tolist() == [[1, 0.5], [1, 0.6], [2, 0.7], [2, 0.1]]
    assert scores.lines[0].get_ydata() == pytest.approx([0.6, 0.7])


def searched(direction, *trials):
    """A tuner with trials: each has its values and its score."""
    trials = {
        str(number): SimpleNamespace(hyperparameters=SimpleNamespace(values=values), score=score)
        for number, (values, score) in enumerate(trials)
    }
    objective = SimpleNamespace(name="val_loss", direction=direction)
    return SimpleNamespace(
        oracle=SimpleNamespace(objective=objective, trials=trials, start_order=list(trials))
    )


def test_a_search_by_trial_and_by_what_was_varied():
    tuner = searched(
        "min",
        ({"rate": 0.01, "kind": "a", "same": 1, "tuner/epochs": 2}, 3.0),
        ({"rate": 1.0, "kind": "b", "same": 1, "tuner/epochs": 4}, None),
        ({"rate": 1.0, "kind": "b", "same": 1, "tuner/epochs": 4}, 1.0),
    )
    by_trial, by_rate, by_kind = ka.plots.search(tuner).axes
    assert {axes.get_ylabel() for axes in (by_trial, by_rate, by_kind)} == {"val loss"}
    stars = [axes.collections[-1].get_offsets().tolist() for axes in (by_trial, by_rate, by_kind)]
    assert stars == [[[2, 1.0]], [[1.0, 1.0]], [[1, 1.0]]]
    assert [text.get_text() for text in by_rate.get_legend().get_texts()] == ["trial", "best: 1"]
    assert by_trial.lines[0].get_ydata() == pytest.approx([3.0, 1.0])
    assert by_rate.get_xlabel() == "rate"
    assert by_rate.get_xscale() == "log"
    assert by_rate.collections[0].get_offsets().tolist() == [[0.01, 3.0], [1.0, 1.0]]
    assert by_kind.get_xlabel() == "kind"
    assert [text.get_text() for text in by_kind.get_xticklabels()] == ["a", "b"]


def test_a_search_without_anything_to_show():
    with pytest.raises(ValueError, match="no finished trial"):
        ka.plots.search(searched("max", ({}, None)))
    with pytest.raises(ValueError, match="keeps all but its best run secret"):
        ka.plots.search(SimpleNamespace(privacy_spent=None))


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
    delta, spent = figure.axes[1].get_ylabel(), figure.axes[0].collections[0].get_offsets()[0][1]
    assert delta == f"epsilon at delta {40**-1.1:.3g}"
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


def run(*norms, steps=None):
    """What `fit` returns, as far as it is drawn."""
    params = {} if steps is None else {"steps": steps}
    return SimpleNamespace(history={"clip_norm": list(norms)}, params=params)


def curves(figure):
    (axes,) = figure.axes
    return {
        line.get_label(): np.stack([line.get_xdata(), line.get_ydata()], axis=1).tolist()
        for line in axes.lines
    }


def test_a_run_a_schedule_and_numbers():
    methods = {"run": run(0.5, 0.4, 0.3), "dict": {"clip_norm": [0.9, 0.8]}}
    methods |= {"schedule": ka.schedules.PowerDecay(1.0, power=1.0), "numbers": [1.0, 0.5]}
    figure = ka.plots.thresholds(methods, title="Norms")
    found = curves(figure)
    assert found["run"] == [[1, 0.5], [2, 0.4], [3, 0.3]]
    assert found["dict"] == [[1, 0.9], [2, 0.8]]
    third = pytest.approx(1 / 3)
    assert found["schedule"] == [[0, 1], [1, 1], [1, 0.5], [2, 0.5], [2, third], [3, third]]
    assert found["numbers"] == [[0, 1], [1, 1], [1, 0.5], [2, 0.5], [2, 0.5], [3, 0.5]]
    assert figure.get_suptitle() == "Norms"
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == list(methods)


def test_runs_of_one_method_are_a_mean_and_a_band():
    figure = ka.plots.thresholds({"seeds": [run(1.0, 2.0), run(3.0, 2.0, 9.0)]})
    assert curves(figure) == {"seeds": [[1, 2.0], [2, 2.0]]}
    (band,) = figure.axes[0].collections
    corners = band.get_paths()[0].vertices
    assert (corners[:, 1].min(), corners[:, 1].max()) == (1.0, 3.0)


def test_a_schedule_of_steps_is_drawn_by_the_first_and_last_step_of_each_epoch():
    cosine = keras.optimizers.schedules.CosineDecay(1.0, decay_steps=8)
    drawn = curves(ka.plots.thresholds({"a": cosine}, epochs=2, steps_per_epoch=4))["a"]
    assert [at for at, _ in drawn] == [0, 1, 1, 2]
    assert [norm for _, norm in drawn] == pytest.approx([float(cosine(t)) for t in (0, 3, 4, 7)])


@pytest.mark.parametrize(
    ("methods", "error", "words"),
    [
        ({}, ValueError, "`methods` is empty"),
        ({"a": {"loss": [1.0]}}, ValueError, "history of 'a' has no 'clip_norm'"),
        ({"a": ka.schedules.PowerDecay(1.0)}, ValueError, "Give `epochs`"),
        ({"a": "quantile"}, TypeError, "quantile"),
        ({"a": run(1.0), "b": ka.schedules.LinearDecay(1.0, 5)}, ValueError, "of 'b' counts in s"),
    ],
)
def test_what_cannot_be_drawn(methods, error, words):
    with pytest.raises(error, match=words):
        ka.plots.thresholds(methods)
