"""Gradient canaries in the steps of a real run, and the two lower bounds that they give."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops
from scipy import stats

import keras_adaclip as ka
from keras_adaclip import noise
from keras_adaclip.accounting import LedgerRow, PrivacySpent, Sampling
from keras_adaclip.audit import GradientAudit, family_lower_bound
from keras_adaclip.audit.gradient_canaries import _OwnCoordinates
from keras_adaclip.clipping import Clipper

DELTA = 1e-5
X = np.random.default_rng(0).normal(size=(600, 8)).astype("float32")
Y = (X[:, 0] > 0).astype("int32")
SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def audited(noise_multiplier=1.0, clipping=1.0, num_canaries=300, epochs=4, more=(), **options):
    """A trained model and the audit of its run."""
    layers = [keras.Input((8,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(2)]
    model = ka.PrivateSequential(layers)
    optimizer = ka.optimizers.DPOptimizer("sgd", clipping, noise_multiplier=noise_multiplier)
    model.compile(optimizer, SPARSE)
    audit = ka.callbacks.AuditCallback(
        kind="gradient", num_canaries=num_canaries, delta=DELTA, frequency=epochs
    )
    fit = {"batch_size": 30, "epochs": epochs, "verbose": 0, **options}
    history = model.fit(X, Y, callbacks=[audit, *more], **fit)
    return model, audit.result, history


def test_canaries_are_orthogonal_and_of_one_norm():
    shapes, number = [(5, 3), (3,), (4, 2, 2)], 6
    sizes = [int(np.prod(shape)) for shape in shapes]
    counts = np.bincount(np.arange(sum(sizes)) % number, minlength=number)
    height = ops.convert_to_tensor((10.0 / np.sqrt(counts)).astype("float32"))
    starts = np.cumsum([0, *sizes])
    parts = [_OwnCoordinates(*each, height) for each in zip(shapes, starts, strict=False)]
    written = [ops.convert_to_numpy(part.materialize()) for part in parts]
    rows = np.concatenate([each.reshape(number, -1) for each in written], axis=1)
    np.testing.assert_allclose(rows @ rows.T, 100.0 * np.eye(number), atol=1e-4)
    factors = np.random.default_rng(0).normal(size=number).astype("float32")
    finite = np.array([True] * 5 + [False])
    for part, each in zip(parts, written, strict=True):
        squares = np.square(each.reshape(number, -1)).sum(axis=1)
        np.testing.assert_allclose(ops.convert_to_numpy(part.squared_norms()), squares, rtol=1e-5)
        found = part.weighted_sum(*map(ops.convert_to_tensor, (factors, finite)))
        expected = np.tensordot(np.where(finite, factors, 0.0), each, axes=1)
        np.testing.assert_allclose(ops.convert_to_numpy(found), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("clipping", [1.0, "quantile", "automatic"])
def test_an_attacker_of_a_sound_run_guesses_no_better_than_the_best(clipping):
    model, audit, history = audited(clipping=clipping)
    best = model.privacy_spent(DELTA).tradeoff().best_guess()
    # Quantiles leave less of the noise multiplier to the sum.
    most = stats.binom.ppf(1.0 - 1e-6, 300, best)
    least = stats.binom.ppf(1e-6, 300, best if clipping != "quantile" else 0.5)
    assert least <= audit.num_correct_of_all <= most
    assert audit.claimed_epsilon == model.privacy_spent(DELTA).epsilon
    assert history.history["audit_epsilon"][-1] == audit.family_lower_bound
    assert not set(history.history) - {"loss", "epsilon", "audit_epsilon", "clip_norm"}
    assert model.privacy_ledger.steps == 80


def test_runs_do_not_keep_their_canaries():
    model, _, _ = audited(epochs=1)
    assert model._private_state.canaries is None
    assert [metric.name for metric in model.metrics] == ["loss"]
    model.fit(X, Y, batch_size=30, verbose=0)
    assert model.privacy_ledger.steps == 40


def half(add_noise):
    def noised(tensors, stddevs, *args, **kwargs):
        return add_noise(tensors, [0.5 * each for each in stddevs], *args, **kwargs)

    return noised


def factors_of_one(self, norms, finite):
    return ops.where(finite[:, None], ops.ones_like(norms), 0.0)


FAULTS = {
    "no noise": lambda patch: patch.setattr(
        noise, "add_noise", lambda tensors, *_, **__: [1.0 * each for each in tensors]
    ),
    "half the noise": lambda patch: patch.setattr(noise, "add_noise", half(noise.add_noise)),
    "no clipping": lambda patch: patch.setattr(Clipper, "factors", factors_of_one),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_lift_the_bound_above_the_claim(fault, monkeypatch):
    FAULTS[fault](monkeypatch)
    _, audit, _ = audited(noise_multiplier=3.0, num_canaries=350, epochs=15, batch_size=60)
    assert audit.family_lower_bound > audit.claimed_epsilon
    assert audit.contradicts_accountant
    assert "they contradict each other" in str(audit)


def test_a_run_without_noise_is_certain():
    _, audit, _ = audited(noise_multiplier=0.0, epochs=10)
    assert audit.num_correct_of_all > 265
    assert audit.family_lower_bound > 20.0
    assert "claims nothing" in str(audit)


ROW = LedgerRow.open(Sampling.STREAM, 100, 100, noise_multiplier=2.0).advance(1)


def test_the_bound_within_the_family_is_that_of_the_least_advantage():
    """As many right guesses as lead to the binomial bound of this very mechanism."""
    advantage = 2.0 * stats.norm.cdf(0.25) - 1.0
    numbers = np.arange(1001)
    least = 2.0 * stats.beta.ppf(0.05, np.maximum(numbers, 1), 1001 - numbers) - 1.0
    number = int(np.argmax(least >= advantage))
    epsilon = PrivacySpent.from_ledger([ROW], DELTA).epsilon
    below, above = (family_lower_bound([ROW], 1000, n, DELTA) for n in (number - 1, number))
    assert 0.97 * epsilon < below < above < 1.03 * epsilon
    assert family_lower_bound([ROW], 1000, 500, DELTA) == 0.0
    assert family_lower_bound([ROW], 1000, 0, DELTA) == 0.0
    assert family_lower_bound([], 1000, 900, DELTA) == 0.0
    assert family_lower_bound([ROW], 1000, number, DELTA, confidence=0.99) < below


def test_the_bound_of_sound_runs_is_rarely_above_epsilon():
    """Simulated attackers of one Gaussian release, who know everything but the coins."""
    generator, epsilon = np.random.default_rng(0), PrivacySpent.from_ledger([ROW], DELTA).epsilon
    coins = generator.random((400, 1000)) < 0.5
    scores = (coins + 2.0 * generator.normal(size=coins.shape) - 0.5) / 4.0
    is_upper = scores >= np.median(scores, axis=1, keepdims=True)
    numbers = np.sum(is_upper == coins, axis=1)
    bounds = {n: family_lower_bound([ROW], 1000, int(n), DELTA) for n in {*numbers.tolist()}}
    above = np.mean([bounds[n] > epsilon for n in numbers.tolist()])
    assert above <= stats.binom.ppf(1.0 - 1e-6, 400, 0.05) / 400


def test_both_bounds_are_told_with_what_they_rest_on():
    is_member = np.arange(400) % 2 == 1
    scores = np.where(np.arange(400) % 10 < 8, 1.0, -1.0) * np.where(is_member, 1.0, -1.0)
    audit = GradientAudit.of_run(scores, is_member, [ROW], delta=DELTA)
    assert audit.num_correct_of_all == 320
    assert audit.family_lower_bound > audit.epsilon_lower_bound > 0.0
    assert "if the run is the mechanism of the ledger" in str(audit)
    assert "whatever ran" in str(audit)
    assert dataclasses.replace(audit, claimed_epsilon=100.0).contradicts_accountant is False


REFUSED = {
    "shuffled": (lambda: audited(sampling="shuffle"), "Poisson"),
    "groups": (
        lambda: audited(clipping=ka.clipping.FixedClipping(1.0, groups="per_layer")),
        "one clipping norm",
    ),
    "coordinates": (lambda: audited(clipping=ka.clipping.AdaClip()), "one clipping norm"),
    "audited twice": (
        lambda: audited(more=[ka.callbacks.AuditCallback(kind="gradient", num_canaries=10)]),
        "Another callback",
    ),
    "few weights": (lambda: audited(num_canaries=1000), "354 trainable weights"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_runs_that_cannot_be_audited_are_refused_before_the_first_step(name):
    run, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        run()


def test_losses_need_canaries_and_gradients_make_their_own():
    with pytest.raises(TypeError, match="must be of type `Canaries`"):
        ka.callbacks.AuditCallback()
    canaries = ka.audit.Canaries.draw(X, Y, num_canaries=20)
    with pytest.raises(TypeError, match="makes its own"):
        ka.callbacks.AuditCallback(canaries, kind="gradient")
