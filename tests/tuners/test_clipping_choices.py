"""`clipping_choices`: which hyperparameters a strategy has, and the strategy they make."""

import keras
import keras_tuner
import pytest

from keras_adaclip.clipping import ClippingStrategy
from keras_adaclip.tuners import clipping_choices
from keras_adaclip.tuners.choices import STRATEGIES

ALL = tuple(STRATEGIES)


def hyperparameters(**values):
    hp = keras_tuner.HyperParameters()
    hp.values.update(values)
    return hp


@pytest.mark.parametrize("strategy", ALL)
def test_a_strategy_has_its_own_hyperparameters_only(strategy):
    hp = hyperparameters(clipping=strategy)
    clipping = clipping_choices(hp, ALL, total_steps=100)
    assert isinstance(clipping, ClippingStrategy)
    config = keras.saving.serialize_keras_object(clipping)
    assert keras.saving.deserialize_keras_object(config).get_config() == clipping.get_config()
    assert set(hp.values) == {"clipping", *STRATEGIES[strategy]}
    everything = {name for names in STRATEGIES.values() for name in names}
    assert {part.name for part in hp.space} == {"clipping", *everything}
    assert {part.name for part in hp.space if hp.is_active(part)} == set(hp.values)


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
    hp = hyperparameters(clipping="exponential", clip_norm=0.7, decay_rate=3.0)
    schedule = clipping_choices(hp, ALL, total_steps=40).schedule
    assert (schedule.value_at(0), schedule.decay_rate, schedule.total_steps) == (0.7, 3.0, 40)
    hp = hyperparameters(clipping="mean_norm", clip_norm=0.7, mean_norm_factor=0.5)
    config = clipping_choices(hp, ALL, total_steps=40, statistics_noise_stddev=6.0).get_config()
    assert config["initial_clip_norm"] == 0.7
    assert (config["factor"], config["mean_noise_stddev"]) == (0.5, 6.0)


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
        ({"strategies": ["fixed", "median"]}, ValueError, "`strategies` must hold one or more"),
        ({"strategies": []}, ValueError, "`strategies` must hold one or more"),
        ({"strategies": ["fixed", "fixed"]}, ValueError, "each once"),
        ({"strategies": "fixed"}, TypeError, "`strategies` must be a sequence"),
        ({"strategies": ["linear"]}, ValueError, "`total_steps` must be given"),
        ({"strategies": ["linear"], "total_steps": 0}, ValueError, "`total_steps` must be"),
        ({"ranges": {"norm": (1.0, 2.0)}}, ValueError, "`ranges` must name some of"),
        ({"ranges": {"clip_norm": (2.0, 1.0)}}, ValueError, "the smallest value first"),
        ({"ranges": {"clip_norm": (0.0, 1.0)}}, ValueError, "must be positive"),
        ({"ranges": {"clip_norm": 1.0}}, TypeError, "cannot unpack"),
    ],
)
def test_arguments_are_checked(arguments, error, words):
    with pytest.raises(error, match=words):
        clipping_choices(hyperparameters(), **arguments)
