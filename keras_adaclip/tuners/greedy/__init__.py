"""The best clipping norm of each epoch by greedy search (Lin et al. 2022, algorithm 1)."""

from keras_adaclip.tuners.greedy.greedy_clip_tuner import GreedyClipTuner, initial_norm_from

__all__ = ["GreedyClipTuner", "initial_norm_from"]
