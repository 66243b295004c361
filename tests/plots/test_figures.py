"""Figures of runs and of the clipping norms of several methods."""

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


LOGS = {"clip_norm": [0.5, 0.6], "unclipped_fraction": [0.2, 0.6]}
# Each function, its arguments, its number of panels, and its title.
FIGURES = {
    "history": ((HISTORY,), 3, "Training of 2 epochs: epsilon 1.5"),
    "thresholds": (({"a": LOGS},), 1, "Clipping norms"),
}


@pytest.mark.parametrize("name", ka.plots.__all__)
def test_axes_title_and_resolution_of_every_figure(name, tmp_path):
    from matplotlib.figure import Figure

    (first, *rest), num_panels, words = FIGURES[name]
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
