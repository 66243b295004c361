"""The shapes of a run's batches, and how many rows are processed at a time.

That every layout trains the same model is tested in `tests/soundness`, mode by mode.
"""

from dataclasses import replace

import keras
import numpy as np
import pytest
from keras import layers

import keras_adaclip as ka
from keras_adaclip.models import private_training
from keras_adaclip.models.layout import batch_layout
from keras_adaclip.training.training_data import DrawsOfFit
from tests.models import helpers
from tests.models.test_kinds_of_models import OwnMetrics

XLA = keras.backend.backend() != "torch"


def convolutional():
    return [keras.Input((6, 1)), layers.Conv1D(2, 3), layers.Flatten(), layers.Dense(1)]


def dense():
    return [keras.Input((6, 1)), layers.Flatten(), layers.Dense(1)]


def private(stack, cls=ka.PrivateSequential, **options):
    keras.utils.set_random_seed(1)
    options = {"loss": "mse", "jit_compile": XLA, "seed": 3, **options}
    return helpers.compiled(cls(stack()), 0.0, 0.5, keras.optimizers.SGD(0.1), **options)


def arrays(rows=1000):
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, 6, 1)).astype("float32"), rng.normal(size=(rows, 1))


def layout(model, sampling="poisson", batch_size=100):
    draws = DrawsOfFit(batch_size=batch_size, sampling=sampling)
    data = draws.from_arrays(*arrays(), None, model.optimizer)
    return batch_layout(model, data)


@pytest.mark.skipif(not XLA, reason="PyTorch takes any shape")
def test_compilers_get_few_shapes_that_hold_nearly_every_draw():
    """Six standard deviations of Binomial(1000, 0.1) above 100 are 157."""
    for model in (private(convolutional), private(dense), private(dense, microbatch_size=25)):
        found = layout(model)
        assert 157 <= found.sizes[-1] <= 180
        assert found.chunk_size is None or found.sizes[-1] % found.chunk_size == 0
    assert found.chunk_size == 25
    # Never more than there are.
    assert layout(private(convolutional), batch_size=1000).sizes == (1000,)


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
def test_large_examples_are_processed_in_chunks(sampling):
    x, y = arrays()
    model = private(dense)
    model.fit(x, y, batch_size=100, sampling=sampling, steps_per_epoch=1, verbose=0)
    sizes = []
    for numbers in (1 << (16 if XLA else 18), 1 << 20, 1 << 27):
        model._private_state.plan = replace(model.gradient_plan, numbers_per_example=numbers)
        sizes.append(layout(model, sampling).chunk_size)
    assert 100 > sizes[0] > sizes[1] >= sizes[2] >= 1


def test_a_model_that_computes_metrics_itself_is_not_chunked_unasked():
    x, y = arrays()
    model = private(dense, OwnMetrics)
    model.fit(x, y, batch_size=100, steps_per_epoch=1, verbose=0)
    model._private_state.plan = replace(model.gradient_plan, numbers_per_example=1 << 27)
    assert layout(model, "shuffle").chunk_size is None


@pytest.mark.skipif(not XLA, reason="PyTorch traces nothing")
def test_no_batch_size_makes_the_step_trace_again(monkeypatch):
    calls, traced = [], []
    private_step = private_training.private_step

    def counted(model, batch):
        calls.append(None)
        return private_step(model, batch)

    dataset = ka.sampling.PoissonDataset(*arrays(200), expected_batch_size=20, seed=1)
    sizes = {len(dataset.draw()) for _ in range(20)}
    monkeypatch.setattr(private_training, "private_step", counted)
    model = private(dense)
    callback = keras.callbacks.LambdaCallback
    record = callback(on_epoch_end=lambda epoch, logs: traced.append(len(calls)))
    model.fit(dataset, epochs=4, verbose=0, callbacks=[record])
    assert len(sizes) > 5
    assert traced[0] >= 1
    assert len(set(traced)) == 1, traced


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="compiles each eager operation")
def test_eager_steps_on_jax_have_few_shapes_too(monkeypatch):
    sizes, private_step = [], private_training.private_step

    def noted(model, batch):
        sizes.append(len(batch["x"]))
        return private_step(model, batch)

    monkeypatch.setattr(private_training, "private_step", noted)
    model = private(dense, run_eagerly=True, jit_compile=False)
    model.fit(*arrays(200), batch_size=20, steps_per_epoch=3, verbose=0)
    assert len(sizes) == 3
    assert len(set(sizes)) == 1


# `microbatch_size="auto"`


def trained_by(model, sampling="shuffle"):
    x, y = arrays(128)
    model.fit(x, y, batch_size=64, sampling=sampling, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize(("num_fitting", "chunk_size"), [(1000, None), (2, 2), (None, None)])
def test_as_many_examples_are_processed_at_a_time_as_fit(num_fitting, chunk_size):
    """By default, as many as fit the free memory."""
    known = private(dense)
    weights = trained_by(known)
    plan = known._private_state.plan
    per_example = 4 * (plan.numbers_per_example + 3 * plan.outputs_per_example)
    limit = num_fitting and num_fitting * per_example
    model = private(dense, microbatch_size="auto", memory_limit=limit)
    for found, expected in zip(trained_by(model), weights, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert model._private_state.chunk_size == chunk_size


def test_too_small_a_limit_is_refused_before_training():
    model = private(dense, microbatch_size="auto", memory_limit=10)
    with pytest.raises(ValueError, match="Not even one example"):
        trained_by(model)
    assert model.privacy_ledger.steps == 0
