"""Rule 17: what a compiled step gives away of one example never passes the accountant's epsilon.

Hundreds of steps are watched on each of two neighbouring data sets, with and without one example
with a huge gradient: all that a step releases, the mean gradients that reach the inner optimizer
and the threshold's next value. From half of the steps an attacker learns the best linear score to
tell the two data sets apart. On the other half scores are Gaussian, and their distance, in standard
deviations, is the mu of Gaussian differential privacy, and so an epsilon. This finds faults of a
third of the noise and more; `test_rules_noise_scale.py` measures it to percents.
"""

import math

import keras
import numpy as np
import pytest
from scipy import optimize, stats

import keras_adaclip as ka
from keras_adaclip.optimizers.state import NoiseState
from tests.soundness.setups import minus_output, without_xla

NUM_STEPS = 250
NUM_EXAMPLES, DELTA, NOISE_MULTIPLIER = 6, 1e-3, 1.0
FALSE_ALARM, LARGEST_MU = 1e-6, 10.0


class Recorder(keras.optimizers.Optimizer):
    """Keeps the gradients of a run, and the clip norms at that time; changes no weight."""

    def __init__(self, num_groups):
        super().__init__(learning_rate=0.0, name="recorder")
        self.num_groups, self.owner = num_groups, None

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.histories = [
            self.add_variable((NUM_STEPS, *variable.shape), "zeros", name=f"history_{number}")
            for number, variable in enumerate(variables)
        ]
        self.clip_norms = self.add_variable(
            (NUM_STEPS, self.num_groups), "zeros", name="clip_norms"
        )

    def update_step(self, gradient, variable, learning_rate):
        ops, number = keras.ops, self._get_variable_index(variable)
        step = ops.cast(self.iterations, "int32") % NUM_STEPS
        for history, value in (
            (self.histories[number], gradient),
            (self.clip_norms, self.owner.current_clipping.state["clip_norm"]),
        ):
            start = [step, *[0] * (len(history.shape) - 1)]
            value = ops.expand_dims(ops.cast(value, "float32"), 0)
            history.assign(ops.slice_update(history.value, start, value))


def quantile(**options):
    # So slow that thousands of steps on gradients of zero leave the threshold a number.
    options = {"learning_rate": 1e-3, "count_noise_stddev": 1.0, **options}
    return ka.clipping.QuantileClipping(initial_clip_norm=1.0, **options)


def by_name(variable):
    return "first" in variable.path


fixed = ka.clipping.FixedClipping
CASES = {
    "fixed": lambda: fixed(1.0),
    "quantile, linear": lambda: quantile(update="linear", learning_rate=1e-4),
    "automatic": lambda: ka.clipping.AutomaticClipping(1.0, groups="per_layer"),
    "mean norm": lambda: ka.clipping.MeanNormClipping(1.0, mean_noise_stddev=1.0),
    "expected error": lambda: ka.clipping.ExpectedErrorClipping(
        1.0, learning_rate=1e-3, excess_noise_stddev=1.0
    ),
    "SlaClip": lambda: ka.clipping.SlaClip(1.0, learning_rate=1e-3),
    # Centre and scale stay where they are, so that one linear score serves all steps.
    "adaclip": lambda: ka.clipping.AdaClip(beta1=1 - 1e-7, beta2=1 - 1e-7),
    "per layer, unequal": lambda: fixed([0.3, 2.0], groups="per_layer"),
    "per layer, optimal": lambda: fixed([0.3, 2.0], groups="per_layer", noise_allocation="optimal"),
    "a function's groups, quantile": lambda: quantile(groups=by_name, count_noise_stddev=2.0),
}


def private_model(clipping, noise_multiplier=NOISE_MULTIPLIER, **options):
    recorder = Recorder(1 if getattr(clipping, "groups", "flat") == "flat" else 2)
    optimizer = ka.optimizers.DPOptimizer(
        recorder, clipping=clipping, noise_multiplier=noise_multiplier, seed=0, **options
    )
    recorder.owner = optimizer
    inputs = [keras.Input((1,)), keras.Input((1,))]
    outputs = [
        keras.layers.Dense(1, use_bias=False, name=name)(part)
        for name, part in zip(("first", "second"), inputs, strict=True)
    ]
    model = ka.PrivateModel(inputs, keras.layers.Add()(outputs))
    model.compile(optimizer=optimizer, loss=minus_output, **without_xla({}))
    return model


def releases(model, with_example, batch_size=NUM_EXAMPLES):
    """What each step of another run releases, of shape `(num_steps - 1, features)`."""
    x = np.zeros((NUM_EXAMPLES, 1), np.float32)
    x[0] = 1e4
    dataset = ka.sampling.PoissonDataset(
        (x, x),
        np.zeros(NUM_EXAMPLES),
        expected_batch_size=batch_size,
        seed=7,
        present=np.arange(NUM_EXAMPLES) >= (not with_example),
    )
    before = model.privacy_ledger.steps
    model.fit(dataset, epochs=1, steps_per_epoch=NUM_STEPS, verbose=0)
    assert model.privacy_ledger.steps == before + NUM_STEPS
    numbers, recorder = keras.ops.convert_to_numpy, model.optimizer.inner_optimizer
    gradients = [numbers(history.value).reshape(NUM_STEPS) for history in recorder.histories]
    clip_norms = numbers(recorder.clip_norms.value).astype(np.float64)
    joint = np.linalg.norm(clip_norms, axis=1)
    features = [gradient / joint for gradient in gradients]
    if model.optimizer.current_clipping.num_statistics:
        features += list((clip_norms[1:] / clip_norms[:-1]).T)
    return np.stack([feature[: NUM_STEPS - 1] for feature in features], axis=1)


def best_linear_scores(without, with_example):
    """Each half of the steps scored by what was learned from the other (Fisher's discriminant)."""
    halves = [[part[half::2] for part in (without, with_example)] for half in (0, 1)]
    scores = []
    for learned, scored in (halves, halves[::-1]):
        spread = sum(np.atleast_2d(np.cov(part, rowvar=False)) for part in learned) / 2
        direction = np.linalg.pinv(spread) @ (learned[1].mean(axis=0) - learned[0].mean(axis=0))
        direction /= math.sqrt(direction @ spread @ direction)
        centre = sum(part.mean(axis=0) for part in learned) / 2
        scores.append([(part - centre) @ direction for part in scored])
    return [np.concatenate(parts) for parts in zip(*scores, strict=True)]


def implied_mu(without, with_example):
    """The least distance of Gaussian scores; one false alarm in a million."""
    for scores in (without, with_example):
        standardized = (scores - scores.mean()) / scores.std(ddof=1)
        assert stats.kstest(standardized, "norm").pvalue > FALSE_ALARM
    size = len(without)
    spread = math.sqrt((np.var(without, ddof=1) + np.var(with_example, ddof=1)) / 2)
    found = (with_example.mean() - without.mean()) / (spread * math.sqrt(2 / size))

    def excess(mu):
        return stats.nct.sf(found, 2 * size - 2, mu * math.sqrt(size / 2)) - FALSE_ALARM

    return LARGEST_MU if excess(LARGEST_MU) < 0 else optimize.brentq(excess, -10.0, LARGEST_MU)


def epsilon_of_mu(mu):
    """Epsilon of a Gaussian mechanism at `DELTA` (Balle & Wang 2018)."""

    def excess(epsilon):
        below, above = (stats.norm.cdf(-epsilon / mu + side * mu / 2) for side in (1, -1))
        return below - math.exp(epsilon) * above - DELTA

    return 0.0 if mu <= 0 or excess(0.0) < 0 else optimize.brentq(excess, 0.0, 100.0)


ACCOUNTED = ka.accounting.compute_epsilon(
    NOISE_MULTIPLIER, NUM_EXAMPLES, NUM_EXAMPLES, steps=1, delta=DELTA
)


def found_epsilon(clipping, **options):
    model = private_model(clipping, **options)
    return epsilon_of_mu(implied_mu(*best_linear_scores(*(releases(model, i) for i in (0, 1)))))


@pytest.mark.parametrize(
    ("name", "microbatch_size"),
    [*((name, None) for name in CASES), ("a function's groups, quantile", 2)],
)
def test_a_step_gives_away_no_more_than_is_accounted(name, microbatch_size):
    found = found_epsilon(CASES[name](), microbatch_size=microbatch_size)
    # Finding less than a tenth would be no attack.
    assert 0.1 * ACCOUNTED < found <= ACCOUNTED


@pytest.mark.parametrize(
    ("of_sums", "of_statistics"), [(0.5, 1.0), (1.0, 0.01)], ids=["half", "no noise on statistics"]
)
def test_the_attack_finds_a_fault(of_sums, of_statistics, monkeypatch):
    configure = NoiseState.configure

    def faulty(variables, sums, statistics, *arguments):
        configure(variables, of_sums * sums, of_statistics * statistics, *arguments)

    monkeypatch.setattr(NoiseState, "configure", faulty)
    assert found_epsilon(quantile()) > ACCOUNTED


def test_an_example_takes_part_as_often_as_is_accounted_and_never_more():
    """Without noise a step shows whether the example was drawn: an exact test of q, 1e-6."""
    model = private_model(CASES["fixed"](), noise_multiplier=0.0)
    for batch_size in (1, 3, 5):
        moved = releases(model, True, batch_size)
        lengths = np.linalg.norm(moved, axis=1) * batch_size
        drawn = lengths > 0
        np.testing.assert_allclose(lengths[drawn], 1.0, rtol=1e-4)
        chance = batch_size / NUM_EXAMPLES
        assert stats.binomtest(int(drawn.sum()), len(drawn), chance).pvalue > FALSE_ALARM
