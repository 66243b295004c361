"""Figures of runs, audits and searches."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import keras_adaclip as ka

pytest.importorskip("matplotlib")

HISTORY = {
    "loss": [1.0, 0.5],
    "accuracy": [0.5, 0.7],
    "val_accuracy": [0.4, 0.6],
    "epsilon": [1.0, 1.5],
    "clip_norm": [0.1, 0.2],
}


def labels(figure):
    return [axes.get_ylabel() for axes in figure.axes]


def drawn(axes):
    return {line.get_label(): list(line.get_ydata()) for line in axes.lines}


@pytest.mark.parametrize("wrap", [dict, lambda history: SimpleNamespace(history=history)])
def test_a_panel_for_each_of_accuracy_epsilon_and_clipping_norm(tmp_path, wrap):
    path = tmp_path / "run.png"
    history = wrap({**HISTORY, "audit_epsilon": [0.0, 0.3]})
    figure = ka.plots.history(history, path, title="A run")
    assert labels(figure) == ["accuracy", "epsilon spent", "clipping norm"]
    accuracy, epsilon, clip_norm = figure.axes
    assert drawn(accuracy) == {"training (not private)": [0.5, 0.7], "validation": [0.4, 0.6]}
    assert drawn(epsilon) == {
        "at most, by the accountant": [1.0, 1.5],
        "at least, by the audit": [0.0, 0.3],
    }
    assert clip_norm.lines[0].get_ydata() == pytest.approx([0.1, 0.2])
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_loss_that_was_validated_every_other_epoch():
    history = {"loss": [1.0, 0.9, 0.8, 0.7], "val_loss": [1.0, 0.8]}
    (axes,) = ka.plots.history(history).axes
    assert [line.get_xdata().tolist() for line in axes.lines] == [[1, 2, 3, 4], [2, 4]]
    with pytest.raises(ValueError, match="no epoch"):
        ka.plots.history({"loss": []})


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install keras-adaclip\[plots\]"):
        ka.plots.history(HISTORY)


def test_scores_and_bounds_of_an_audit(tmp_path):
    is_member = np.arange(100) % 2 == 0
    scores = np.where(is_member, 1.0, 0.0) + 0.01 * np.arange(100)
    scores[3] = np.nan
    found = ka.audit.OneRunAudit.from_scores(scores, is_member, delta=1e-5, claimed_epsilon=2.0)
    histogram, bounds = ka.plots.audit(found, tmp_path / "audit.png").axes
    heights = [sum(patch.get_height() for patch in container) for container in histogram.containers]
    assert heights == [50, 49]
    curve, claimed = bounds.lines
    assert claimed.get_ydata() == pytest.approx([2.0, 2.0])
    numbers, lower = curve.get_data()
    for number, bound in zip(numbers[::20], lower[::20], strict=True):
        alone = ka.audit.OneRunAudit.from_scores(
            scores, is_member, delta=1e-5, num_guesses=int(number)
        )
        assert bound == pytest.approx(alone.epsilon_lower_bound)


def test_the_curve_of_a_membership_inference():
    metrics = pytest.importorskip("sklearn.metrics")
    generator = np.random.default_rng(0)
    members, others = generator.normal(1, 1, (200, 1)), generator.normal(0, 1, (200, 1))
    found = ka.audit.membership_inference(None, members, others, score=lambda model, x, y: x[:, 0])
    curve = ka.plots.membership_inference(found).axes[0].lines[0]
    scores = np.concatenate([members, others])[:, 0]
    expected = metrics.roc_curve(np.repeat([1, 0], 200), scores, drop_intermediate=False)
    points = set(zip(expected[0].round(9), expected[1].round(9), strict=True))
    shown = zip(*(np.asarray(values).round(9) for values in curve.get_data()), strict=True)
    assert set(shown) == points - {(0.0, 0.0)}


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
    assert labels(figure) == ["clipping norm (grey: tried)", "val accuracy"]
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
        ({"rate": 0.1, "kind": "b", "same": 1, "tuner/epochs": 4}, 2.0),
    )
    by_trial, by_rate, by_kind = ka.plots.search(tuner).axes
    assert by_trial.get_ylabel() == "val loss"
    assert by_trial.lines[0].get_ydata() == pytest.approx([3.0, 1.0, 1.0])
    assert by_rate.get_xlabel() == "rate"
    assert by_rate.get_xscale() == "log"
    assert by_rate.collections[0].get_offsets().tolist() == [[0.01, 3.0], [1.0, 1.0], [0.1, 2.0]]
    assert by_kind.get_xlabel() == "kind"
    assert [text.get_text() for text in by_kind.get_xticklabels()] == ["a", "b"]


def test_a_search_without_anything_to_show():
    with pytest.raises(ValueError, match="no finished trial"):
        ka.plots.search(searched("max", ({}, None)))
    with pytest.raises(ValueError, match="keeps all but its best run secret"):
        ka.plots.search(SimpleNamespace(privacy_spent=None))


# Quantile tracking


LOGS = {"clip_norm": [0.5, 0.6, 0.7], "unclipped_fraction": [0.2, 0.6, 1.1]}


def test_the_noised_share_and_its_target():
    norms, shares = ka.plots.quantile_tracking(SimpleNamespace(history=LOGS), 0.7).axes
    assert drawn(norms) == {"clipping norm": LOGS["clip_norm"]}
    assert drawn(shares) == {
        "noised, last step": LOGS["unclipped_fraction"],
        "target: 0.7": [0.7, 0.7],
    }
    # Noise may take the share beyond one, and the axis follows.
    assert shares.get_ylim() == pytest.approx((0.0, 1.15))
