"""Figures of a run."""

import builtins

import pytest

import keras_adaclip as ka

HISTORY = {
    "loss": [1.0, 0.5],
    "accuracy": [0.5, 0.7],
    "val_accuracy": [0.4, 0.6],
    "epsilon": [1.0, 1.5],
    "clip_norm": [0.1, 0.2],
}


def labels(figure):
    return [axes.get_ylabel() for axes in figure.axes]


@pytest.fixture(autouse=True)
def _matplotlib():
    pytest.importorskip("matplotlib")


def test_a_panel_for_each_of_accuracy_epsilon_and_clipping_norm(tmp_path):
    path = tmp_path / "run.png"
    figure = ka.plots.history(HISTORY, path, title="A run")
    assert labels(figure) == ["accuracy", "epsilon spent", "clipping norm"]
    assert figure.get_suptitle() == "A run"
    accuracy, epsilon, clip_norm = figure.axes
    assert [line.get_ydata().tolist() for line in accuracy.lines] == [[0.5, 0.7], [0.4, 0.6]]
    assert [text.get_text() for text in accuracy.get_legend().get_texts()] == [
        "training (not private)",
        "validation",
    ]
    (line,) = epsilon.lines
    assert line.get_xdata() == pytest.approx([1, 2])
    assert line.get_ydata() == pytest.approx([1.0, 1.5])
    assert epsilon.get_legend() is None
    assert clip_norm.lines[0].get_ydata() == pytest.approx([0.1, 0.2])
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_loss_where_there_is_no_accuracy():
    figure = ka.plots.history({"loss": [1.0], "val_loss": [2.0]})
    assert labels(figure) == ["loss"]
    assert len(figure.axes[0].lines) == 2


def test_what_fit_returns():
    class History:
        history = HISTORY

    assert labels(ka.plots.history(History())) == ["accuracy", "epsilon spent", "clipping norm"]


def test_a_history_validated_every_other_epoch():
    history = {"loss": [1.0, 0.9, 0.8, 0.7], "val_loss": [1.0, 0.8]}
    (axes,) = ka.plots.history(history).axes
    assert [line.get_xdata().tolist() for line in axes.lines] == [[1, 2, 3, 4], [2, 4]]


def test_an_empty_history():
    with pytest.raises(ValueError, match="no epoch"):
        ka.plots.history({})
    with pytest.raises(ValueError, match="no epoch"):
        ka.plots.history({"loss": [], "epsilon": []})


def test_without_matplotlib(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install keras-adaclip\[plots\]"):
        ka.plots.history(HISTORY)
