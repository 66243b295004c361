"""Greedy searches whose scores come from a table, and algorithm 1 written out plainly."""

import math
from pathlib import Path

import keras
import numpy as np

import keras_adaclip as ka
from keras_adaclip import tuners

# As in the paper, "A > best" is strict, and the loop ends once best - A > S.


def algorithm_1(score_of, start, step, max_drop, most, largest=math.inf, higher=True):
    """Norms tried in one epoch, and the best one; `score_of` takes the number of a norm."""
    visited, best, best_score = [], None, None
    number = 0
    while number < most and start + number * step <= largest:
        visited.append(start + number * step)
        score = score_of(number)
        score = score if higher else -score
        if not math.isfinite(score):
            score = -math.inf
        if best is None and score > -math.inf:
            best, best_score = visited[-1], score
        elif best is not None:
            if score > best_score:
                best, best_score = visited[-1], score
            elif best_score - score > max_drop:
                break
        number += 1
    return visited, best


def untrained_model():
    model = ka.PrivateSequential([keras.Input((1,)), keras.layers.Dense(1)])
    optimizer = ka.optimizers.DPOptimizer("sgd", clipping=1.0, noise_multiplier=1.0)
    model.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
    return model


class ScriptedTuner(tuners.GreedyClipTuner):
    """Takes the scores from `script(epoch, number of the norm)`, and notes its trials."""

    def __init__(self, script, directory, **options):
        self.script, self.ran = script, []
        options = {"project_name": "scripted", "objective": "val_mae", **options}
        super().__init__(lambda hp: untrained_model(), directory=directory, **options)

    def run_trial(self, trial, *arguments, **keywords):
        values = trial.hyperparameters.values
        epoch = values["greedy/epoch"]
        number = len(self.oracle.epoch(epoch).scores)
        self.ran.append((epoch, values["clip_norm"]))
        weights = Path(self.get_trial_dir(trial.trial_id)) / "checkpoint.weights.h5"
        weights.write_text(trial.trial_id)
        return {"val_mae": self.script(epoch, number)}

    @property
    def visited(self):
        """The norms of each epoch, in order."""
        epochs = sorted({epoch for epoch, _ in self.ran})
        return [[norm for epoch, norm in self.ran if epoch == number] for number in epochs]


def table(seed, ties=True):
    """A script of random scores; with ties, some of them are equal and some not finite."""

    def script(epoch, number):
        generator = np.random.default_rng([seed, epoch, number])
        if ties and generator.random() < 0.05:
            return [math.nan, math.inf, -math.inf][generator.integers(3)]
        score = generator.uniform()
        return round(score, 1) if ties else score

    return script
