"""What objects print about themselves."""

import dataclasses
import enum
import inspect
import tempfile

import keras
import numpy as np
import pytest

import keras_adaclip as ka

clipping, schedules = ka.clipping, ka.schedules


def build_model(hp=None):
    model = ka.PrivateSequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(ka.optimizers.DPOptimizer("sgd", noise_multiplier=2.0), "mse")
    return model


def a_search(tuner, folder, **options):
    return tuner(build_model, objective="val_loss", directory=folder, **options)


@keras.saving.register_keras_serializable(package="tests")
class Unprintable(keras.optimizers.SGD):
    def get_config(self):
        raise NotImplementedError


DECAY = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
LEDGER_ROW = ka.accounting.LedgerRow.open(ka.accounting.Sampling.POISSON, 10, 100, 2.0).advance(20)
ROWS = np.zeros((20, 2), "float32")
CANARIES = ka.audit.Canaries.draw(ROWS, num_canaries=6)
PRINTED = [
    (
        ka.federated.ClientScores(["a"], np.array([3]), {"loss": np.array([0.5])}),
        "<ClientScores of 1 client: loss>",
    ),
    (clipping.QuantileClipping(), "QuantileClipping(target_quantile=0.5)"),
    (
        clipping.QuantileClipping(0.7, update="linear", groups="per_layer"),
        "QuantileClipping(target_quantile=0.7, update='linear', groups='per_layer')",
    ),
    (
        clipping.FixedClipping([1.0, 0.1 + 0.2], groups=build_model),
        "FixedClipping(clip_norm=[1.0, 0.3], groups=build_model)",
    ),
    (
        clipping.ScheduledClipping(schedules.PowerDecay(0.5)),
        "ScheduledClipping(schedule=PowerDecay(initial_value=0.5))",
    ),
    (clipping.AutomaticClipping(2.0), "AutomaticClipping(clip_norm=2.0)"),
    (clipping.PSAC(2.0), "PSAC(clip_norm=2.0)"),
    (clipping.SlaClip(2.0), "SlaClip(initial_clip_norm=2.0)"),
    (clipping.ExpectedErrorClipping(2.0), "ExpectedErrorClipping(initial_clip_norm=2.0)"),
    (clipping.MeanNormClipping(factor=2.0), "MeanNormClipping(initial_clip_norm=1.0, factor=2.0)"),
    (clipping.AdaClip(), "AdaClip(beta1=0.9)"),
    (schedules.PowerDecay(2.0, 0.3), "PowerDecay(initial_value=2.0, power=0.3)"),
    (schedules.LinearDecay(1.0, 9), "LinearDecay(initial_value=1.0, total_steps=9)"),
    (
        schedules.ExponentialDecay(1.0, 2.0, 9),
        "ExponentialDecay(initial_value=1.0, decay_rate=2.0, total_steps=9)",
    ),
    (
        schedules.PiecewiseConstant([1.0] * 100),
        "PiecewiseConstant(values=[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, ...])",
    ),
    (
        schedules.get(keras.optimizers.schedules.CosineDecay(1.0, 8)),
        "KerasSchedule(schedule=CosineDecay(initial_learning_rate=1.0, decay_steps=8))",
    ),
    (
        ka.optimizers.DPOptimizer(keras.optimizers.Adam(1e-3), "quantile", noise_multiplier=1.1),
        "DPOptimizer(optimizer=Adam(learning_rate=0.001), "
        "clipping=QuantileClipping(target_quantile=0.5), noise_multiplier=1.1)",
    ),
    (
        ka.optimizers.DPOptimizer(keras.optimizers.SGD(DECAY), noise_multiplier=1.0, seed=3),
        "DPOptimizer(optimizer=SGD(learning_rate=ExponentialDecay(initial_learning_rate=0.1, "
        "decay_steps=10, decay_rate=0.9, staircase=False)), "
        "clipping=FixedClipping(clip_norm=1.0), noise_multiplier=1.0, seed=<given>)",
    ),
    (
        ka.optimizers.DPOptimizer(Unprintable(), noise_multiplier=1.0),
        "DPOptimizer(optimizer=<Unprintable>, clipping=FixedClipping(clip_norm=1.0), "
        "noise_multiplier=1.0)",
    ),
    (
        ka.optimizers.AutoDPOptimizer(3.0, plan={"batch_size": 64}),
        "AutoDPOptimizer(target_epsilon=3.0, plan={'batch_size': 64})",
    ),
    (ka.optimizers.PlannedMomentum(2.0), "PlannedMomentum(noise_walk=2.0)"),
    (ka.activations.TemperedSigmoid(), "TemperedSigmoid(scale=2.0)"),
    (ka.callbacks.PrivacyCallback(), "PrivacyCallback()"),
    (
        ka.callbacks.PrivacyCallback(1e-5, target_epsilon=3),
        "PrivacyCallback(delta=1e-05, target_epsilon=3.0)",
    ),
    (ka.callbacks.ClippingMonitor(), "ClippingMonitor(private_diagnostics=False)"),
    # Neither rows nor coins.
    (CANARIES, "Canaries(num_canaries=6, num_examples=20)"),
    (
        ka.callbacks.AuditCallback(CANARIES, 1e-5),
        "AuditCallback(canaries=Canaries(num_canaries=6, num_examples=20), delta=1e-05)",
    ),
    (
        ka.sampling.PoissonDataset(ROWS, expected_batch_size=5, seed=1),
        "PoissonDataset(num_examples=20, expected_batch_size=5, sampling_probability=0.25)",
    ),
    (ka.sampling.write_source([1.0, 2.0], tempfile.mkdtemp()), "WrittenSource(num_examples=2)"),
    (
        ka.federated.ClientData.from_arrays(ROWS, None, np.arange(20) // 2),
        "<ClientData with 10 clients>",
    ),
    (ka.federated.ByExamples(9, 4.0), "ByExamples(limit=9, mean=4.0)"),
]


@pytest.mark.parametrize(("thing", "text"), PRINTED, ids=lambda each: type(each).__name__)
def test_arguments_that_differ_from_the_defaults(thing, text):
    assert repr(thing) == text


def test_searches(tmp_path):
    pytest.importorskip("keras_tuner")
    hypermodel = ka.tuners.ClippingHyperModel(
        build_model, num_examples=5_000, epochs=3, noise_multiplier=2.0
    )
    assert repr(hypermodel) == (
        "ClippingHyperModel(build_model=build_model, num_examples=5000, epochs=3, "
        "noise_multiplier=2.0, batch_sizes=[256, 512, 1024], optimizer=SGD(learning_rate=0.01))"
    )
    assert repr(a_search(ka.tuners.GreedyClipTuner, tmp_path, start=0.1, epochs=4)) == (
        "GreedyClipTuner(hypermodel=<DefaultHyperModel>, start=0.1, epochs=4, objective='val_loss')"
    )
    search = a_search(ka.tuners.PrivateSearch, tmp_path, base=LEDGER_ROW, mean_trials=3)
    assert repr(search) == (
        "PrivateSearch(hypermodel=<DefaultHyperModel>, objective='val_loss', mean_trials=3.0)"
    )


def test_every_exported_class_is_here():
    modules = [getattr(ka, name) for name in ka.__all__ if inspect.ismodule(getattr(ka, name))]
    exported = {getattr(module, name) for module in (ka, *modules) for name in module.__all__}
    here = {type(thing) for thing, _ in PRINTED}
    here |= {ka.tuners.ClippingHyperModel, ka.tuners.GreedyClipTuner, ka.tuners.PrivateSearch}
    # These print themselves; the gradients of a step have nothing to print but tensors.
    others = (keras.Model, enum.Enum, list)
    missing = [
        each.__name__
        for each in exported - here
        if inspect.isclass(each) and not inspect.isabstract(each) and not issubclass(each, others)
        if not dataclasses.is_dataclass(each) and each not in vars(ka.gradients).values()
    ]
    assert missing == []
