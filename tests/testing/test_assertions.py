"""What is sound passes, and each assertion finds faults that are put in."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_adaclip as ka
from keras_adaclip.clipping import Clipper
from keras_adaclip.gradients import Batch
from keras_adaclip.optimizers.state import Account, NoiseState
from tests.soundness.setups import without_xla

X = np.random.default_rng(0).normal(size=(4, 3)).astype("float32") * [[1], [30], [0.01], [1]]
QUANTILE = ka.clipping.QuantileClipping(initial_clip_norm=0.5, count_noise_stddev=4.0)


def compiled(clipping=0.5, *layers, inner=None):
    dense = keras.layers.Dense(2)
    model = ka.PrivateSequential([keras.Input((3,)), *layers, dense])
    inner = inner or keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer = ka.optimizers.DPOptimizer(inner, clipping=clipping, noise_multiplier=1.1)
    model.compile(optimizer, loss="mse", **without_xla({}))
    return model


def isolated(clipping=0.5, *layers):
    ka.testing.assert_isolated(compiled(clipping, *layers), X, X[:, :2])


def noise(clipping=0.5):
    ka.testing.assert_noise(compiled(clipping).optimizer)


@pytest.mark.parametrize(
    "clipping",
    [0.5, QUANTILE, ka.clipping.FixedClipping([0.3], groups="per_layer"), ka.clipping.AdaClip()],
    ids=["fixed", "quantile", "groups", "AdaClip"],
)
def test_a_sound_model_passes(clipping):
    model = compiled(clipping)
    weights, steps = model.get_weights(), model.privacy_ledger.steps
    ka.testing.assert_isolated(model, X, X[:, :2])
    ka.testing.assert_bounded(model.optimizer.clipping)
    ka.testing.assert_noise(model.optimizer)
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    assert model.privacy_ledger.steps == steps
    ka.testing.assert_ledger(model)


def test_layers_that_draw_pass():
    isolated(0.5, keras.layers.Dropout(0.5))


def test_layers_that_compute_with_16_bits_pass():
    dense = keras.layers.Dense(8, activation="tanh", dtype="mixed_bfloat16")
    isolated(0.5, dense, keras.layers.Dense(2, dtype="mixed_bfloat16"))


def test_variables_of_an_optimizer_with_one_path_pass():
    ka.testing.assert_ledger(compiled(inner=keras.optimizers.Adafactor(0.1)))


class Mixing(keras.layers.Layer):
    def call(self, inputs):
        return inputs + 0.1 * ops.mean(inputs, axis=0)


def test_a_layer_that_mixes_rows_is_found():
    with pytest.raises(AssertionError, match=r"(?s)refuses the model.*mixing"):
        isolated(0.5, Mixing())


def pooled(self, norms, finite):
    return ops.ones_like(norms) * self.state["clip_norm"] / ops.max(norms)


FAULTS = {
    "contributions are not clipped": (
        Clipper, "factors", lambda self, norms, finite: ops.ones_like(norms), isolated
    ),
    "one norm clips all rows": (Clipper, "factors", pooled, isolated),
    "the mask is ignored": (
        Batch, "present", property(lambda self: ops.ones((self.num_rows,), "bool")), isolated
    ),
    "more noise is stated than drawn": (
        NoiseState, "noised_means",
        lambda self, sums, *_: [each / self.expected_units for each in sums], noise,
    ),
    "draws repeat": (NoiseState, "begin_draw", lambda self: None, noise),
    "statistics have no noise": (
        NoiseState, "noised_statistics", lambda self, sums, lost=None: sums,
        lambda: noise(QUANTILE),
    ),
    "steps are not counted": (
        Account, "count_step", lambda self: None, lambda: ka.testing.assert_ledger(compiled())
    ),
    "loading forgets the ledger": (
        Account, "include", lambda self, other: None, lambda: ka.testing.assert_ledger(compiled())
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_step_is_found(fault, monkeypatch):
    owner, name, value, assertion = FAULTS[fault]
    monkeypatch.setattr(owner, name, value)
    with pytest.raises(AssertionError):
        assertion()


class Loud(ka.clipping.FixedClipping):
    def clip_factors(self, state, norms):
        return 1.5 * super().clip_factors(state, norms)


class Unpaid(ka.clipping.QuantileClipping):
    def noise_split(self, noise_multiplier, expected_units, num_groups=1):
        return noise_multiplier, 4.0


class Diverging(ka.clipping.QuantileClipping):
    def update(self, state, release):
        return {**super().update(state, release), "clip_norm": release.statistics * 1e30}


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (Loud(1.0), "`Loud` lets 1.5 clipping norms pass"),
        (Unpaid(), "`Unpaid` moves by 1.0"),
        (Diverging(), "`Diverging` sets 'clip_norm'"),
    ],
)
def test_a_fault_of_a_strategy_is_found(strategy, message):
    with pytest.raises(AssertionError, match=message):
        ka.testing.assert_bounded(strategy)
