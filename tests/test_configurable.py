"""What objects print about themselves."""

import inspect

import keras
import numpy as np
import pytest

import keras_adaclip as ka

clipping, schedules = ka.clipping, ka.schedules


def build_model(hp=None):
    model = ka.PrivateSequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(ka.optimizers.DPOptimizer("sgd", noise_multiplier=2.0), "mse")
    return model


@keras.saving.register_keras_serializable(package="tests")
class Unprintable(keras.optimizers.SGD):
    def get_config(self):
        raise NotImplementedError


DECAY = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
LEDGER_ROW = ka.accounting.LedgerRow.open(ka.accounting.Sampling.POISSON, 10, 100, 2.0).advance(20)
ROWS = np.zeros((20, 2), "float32")
PRINTED = [
    (
        clipping.QuantileClipping(0.7, update="linear", groups="per_layer"),
        "QuantileClipping(target_quantile=0.7, update='linear', groups='per_layer')",
    ),
    (
        clipping.FixedClipping([1.0, 0.1 + 0.2], groups=build_model),
        "FixedClipping(clip_norm=[1.0, 0.3], groups=build_model)",
    ),
    (
        schedules.PiecewiseConstant([1.0] * 100),
        "PiecewiseConstant(values=[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, ...])",
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
    (
        ka.federated.ClientData.from_arrays(ROWS, None, np.arange(20) // 2),
        "<ClientData with 10 clients>",
    ),
    # Neither rows nor coins.
    (
        ka.callbacks.AuditCallback(ka.audit.Canaries.draw(ROWS, num_canaries=6), 1e-5),
        "AuditCallback(canaries=Canaries(num_canaries=6, num_examples=20), delta=1e-05)",
    ),
    (
        ka.sampling.PoissonDataset(ROWS, expected_batch_size=5, seed=1),
        "PoissonDataset(num_examples=20, expected_batch_size=5, sampling_probability=0.25)",
    ),
]


@pytest.mark.parametrize(("thing", "text"), PRINTED, ids=lambda each: type(each).__name__)
def test_objects_print_the_arguments_that_differ_from_the_defaults(thing, text):
    assert repr(thing) == text


def test_searches_print_what_they_search(tmp_path):
    pytest.importorskip("keras_tuner")
    search = ka.tuners.PrivateSearch(
        build_model, objective="val_loss", directory=tmp_path, base=LEDGER_ROW, mean_trials=3
    )
    assert repr(search) == (
        "PrivateSearch(hypermodel=<DefaultHyperModel>, objective='val_loss', mean_trials=3.0)"
    )


def test_every_exported_class_prints_itself():
    modules = [getattr(ka, name) for name in ka.__all__ if inspect.ismodule(getattr(ka, name))]
    exported = {getattr(module, name) for module in (ka, *modules) for name in module.__all__}
    classes = [each for each in exported if inspect.isclass(each) and not inspect.isabstract(each)]
    # The gradients of a step have nothing to print but tensors.
    classes = [each for each in classes if each not in vars(ka.gradients).values()]
    assert [each.__name__ for each in classes if each.__repr__ is object.__repr__] == []
