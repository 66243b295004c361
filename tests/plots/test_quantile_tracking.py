"""Clipping norm and unclipped share beside the target."""

from types import SimpleNamespace

import pytest

import keras_adaclip as ka

pytest.importorskip("matplotlib")

LOGS = {"clip_norm": [0.5, 0.6, 0.7], "unclipped_fraction": [0.2, 0.6, 1.1]}
RAW = {"gradient_norm": [0.8, 0.8, 0.8], "clipped_fraction": [0.9, 0.6, 0.4]}


def lines(axes):
    return {line.get_label(): list(line.get_ydata()) for line in axes.lines}


def test_the_noised_share_and_its_target():
    norms, shares = ka.plots.quantile_tracking(SimpleNamespace(history=LOGS), 0.7).axes
    assert lines(norms) == {"clipping norm": LOGS["clip_norm"]}
    assert lines(shares) == {
        "noised, last step": LOGS["unclipped_fraction"],
        "target: 0.7": [0.7, 0.7],
    }
    # Noise may take the share beyond one, and the axis follows.
    assert shares.get_ylim() == pytest.approx((0.0, 1.15))


def test_raw_figures_are_said_not_to_be_private():
    norms, shares = ka.plots.quantile_tracking({**LOGS, **RAW}, 0.5).axes
    assert lines(norms)["mean norm (not private)"] == RAW["gradient_norm"]
    assert lines(shares)["true mean (not private)"] == pytest.approx([0.1, 0.4, 0.6])


@pytest.mark.parametrize("missing", list(LOGS))
def test_a_history_without_a_monitor_or_without_a_quantile(missing):
    logs = {name: values for name, values in LOGS.items() if name != missing}
    with pytest.raises(ValueError, match=f"no '{missing}'.*`QuantileClipping`"):
        ka.plots.quantile_tracking(logs, 0.5)
