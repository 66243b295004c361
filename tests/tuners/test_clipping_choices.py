"""`clipping_choices`: which hyperparameters a strategy has, and the strategy they make."""

import keras_tuner
import pytest

from keras_adaclip.clipping import ClippingStrategy
from keras_adaclip.tuners import clipping_choices
from keras_adaclip.tuners.choices import STRATEGIES


def hyperparameters(**values):
    hp = keras_tuner.HyperParameters()
    hp.values.update(values)
    return hp


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_strategy_can_be_chosen(strategy):
    hp = hyperparameters(clipping=strategy)
    assert isinstance(clipping_choices(hp, STRATEGIES, total_steps=100), ClippingStrategy)
    assert "decay_rate" in hp.values or strategy != "exponential"
    assert "target_quantile" in hp.values or strategy != "quantile"


def test_the_values_reach_the_strategy():
    hp = hyperparameters(
        clipping="quantile", clip_norm=0.7, target_quantile=0.3, clip_norm_learning_rate=0.4
    )
    config = clipping_choices(hp, statistics_noise_stddev=5.0).get_config()
    assert config["initial_clip_norm"] == 0.7
    assert config["target_quantile"] == 0.3
    assert config["learning_rate"] == 0.4
    assert config["count_noise_stddev"] == 5.0
    hp = hyperparameters(clipping="power", clip_norm=0.7, decay_power=0.45)
    schedule = clipping_choices(hp).schedule
    assert (schedule.initial_value, schedule.power) == (0.7, 0.45)


def test_ranges_take_the_place_of_the_usual_ones():
    hp = hyperparameters(clipping="quantile")
    ranges = {"clip_norm": (0.2, 0.4), "clip_norm_learning_rate": (0.25, 0.25)}
    clipping = clipping_choices(hp, ranges=ranges)
    space = {part.name: part for part in hp.space}
    norm = space["clip_norm"]
    assert (norm.min_value, norm.max_value, norm.sampling) == (0.2, 0.4, "log")
    assert space["target_quantile"].sampling == "linear"
    assert clipping.learning_rate == 0.25
    assert isinstance(space["clip_norm_learning_rate"], keras_tuner.engine.hyperparameters.Fixed)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"strategies": ["fixed", "median"]}, ValueError, "`strategies` must be one of"),
        ({"strategies": ["linear"]}, TypeError, "`total_steps` must be an integer"),
        ({"ranges": {"norm": (1.0, 2.0)}}, ValueError, "`ranges` must be one of 'clip_norm', "),
        ({"ranges": {"clip_norm": (0.0, 1.0)}}, ValueError, "must be positive"),
    ],
)
def test_arguments_are_checked(arguments, error, words):
    with pytest.raises(error, match=words):
        clipping_choices(hyperparameters(), **arguments)
