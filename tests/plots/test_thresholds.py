"""Clipping norms of several methods in one figure."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest

import keras_adaclip as ka

pytest.importorskip("matplotlib")


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
    methods = {
        "run": run(0.5, 0.4, 0.3),
        "dict": {"clip_norm": [0.9, 0.8]},
        "schedule": ka.schedules.PowerDecay(1.0, power=1.0),
        "numbers": [1.0, 0.5],
    }
    figure = ka.plots.thresholds(methods, title="Norms")
    found = curves(figure)
    assert found["run"] == [[1, 0.5], [2, 0.4], [3, 0.3]]
    assert found["dict"] == [[1, 0.9], [2, 0.8]]
    third = pytest.approx(1 / 3)
    assert found["schedule"] == [[0, 1], [1, 1], [1, 0.5], [2, 0.5], [2, third], [3, third]]
    assert found["numbers"] == [[0, 1], [1, 1], [1, 0.5], [2, 0.5], [2, 0.5], [3, 0.5]]
    assert figure.get_suptitle() == "Norms"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(methods)


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
        (
            {"a": run(1.0), "b": ka.schedules.LinearDecay(1.0, 5)},
            ValueError,
            "schedule of 'b' counts in steps",
        ),
    ],
)
def test_what_cannot_be_drawn(methods, error, words):
    with pytest.raises(error, match=words):
        ka.plots.thresholds(methods)
