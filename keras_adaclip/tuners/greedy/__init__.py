"""The best clipping norm of each epoch by greedy search (Lin et al. 2022, algorithm 1)."""

from keras_adaclip.tuners.greedy.greedy_clip_tuner import GreedyClipTuner
from keras_adaclip.tuners.greedy.initial_norm import initial_norm_from
from keras_adaclip.tuners.greedy.power_trend import PowerTrend

__all__ = ["GreedyClipTuner", "PowerTrend", "initial_norm_from"]
