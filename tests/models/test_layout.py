"""The shapes of a run's batches, and that every layout trains the same model."""

from dataclasses import replace

import keras
import numpy as np
import pytest
from keras import layers

import keras_adaclip as ka
from keras_adaclip.models.layout import batch_layout
from keras_adaclip.training.training_data import from_arrays

XLA = keras.backend.backend() != "torch"


def convolutional():
    return [
        keras.Input((6, 1)),
        layers.Conv1D(2, 3, activation="tanh"),
        layers.Flatten(),
        layers.Dense(1),
    ]


def recurrent():
    return [keras.Input((6, 1)), layers.SimpleRNN(2), layers.Dense(1)]


def dense():
    return [keras.Input((6, 1)), layers.Flatten(), layers.Dense(1)]


def private(stack, **arguments):
    keras.utils.set_random_seed(1)
    model = ka.PrivateSequential(stack())
    optimizer = ka.optimizers.DPOptimizer(
        keras.optimizers.SGD(0.1),
        clipping=0.5,
        noise_multiplier=0.0,
        seed=3,
        microbatch_size=arguments.pop("microbatch_size", None),
    )
    arguments = {"jit_compile": XLA, **arguments}
    model.compile(optimizer=optimizer, loss="mse", **arguments)
    return model


def arrays(rows=1000):
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, 6, 1)).astype("float32"), rng.normal(size=(rows, 1))


def layout(model, sampling="poisson", batch_size=100):
    x, y = arrays()
    return batch_layout(
        model,
        from_arrays(
            x,
            y,
            None,
            None,
            batch_size=batch_size,
            sampling=sampling,
            steps_per_epoch=None,
            shuffle=True,
            seed=1,
        ),
    )


@pytest.mark.skipif(not XLA, reason="PyTorch takes any shape")
def test_layouts_for_compilers_that_want_few_shapes():
    # Six and one and a half standard deviations of Binomial(1000, 0.1) above 100: 157 and 115.
    found = layout(private(convolutional))
    assert (found.sizes, found.chunk_size) == ((120, 160), None)
    found = layout(private(dense))
    assert (found.sizes, found.chunk_size) == ((160,), 16)
    found = layout(private(convolutional, microbatch_size=25))
    assert (found.sizes, found.chunk_size) == ((175,), 25)
    found = layout(private(convolutional, steps_per_execution=2))
    assert (found.sizes, found.chunk_size) == ((160,), 16)
    # Never more than there are.
    assert layout(private(convolutional), batch_size=1000).sizes == (1000,)


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
def test_large_examples_are_processed_in_chunks(sampling):
    """8 MiB of float32 numbers at a time, for what norms and sums write; 64 on PyTorch."""
    x, y = arrays()
    model = private(dense)
    model.fit(x, y, batch_size=100, sampling=sampling, steps_per_epoch=1, verbose=0)
    plan = model.gradient_plan
    # Six inputs and one cotangent, and the bias of one.
    assert plan.numbers_per_example == 8
    limit = 1 << (21 if XLA else 24)
    for share, chunk_size in ((128, None), (64, 50), (32, 25), (0.25, 8)):
        model.private_state.plan = replace(plan, numbers_per_example=int(limit / share))
        found = layout(model, sampling)
        if chunk_size is None and XLA and sampling == "poisson":
            chunk_size = 16
        assert found.chunk_size == chunk_size
    # XLA's convolutions are slow in a loop.
    model = private(convolutional)
    model.private_state.plan = replace(plan, numbers_per_example=1 << 27)
    assert layout(model, "shuffle").chunk_size == (None if XLA else 8)


@pytest.mark.skipif(not XLA, reason="PyTorch interprets its steps")
def test_what_the_layers_return_counts_with_xla():
    """It asks for memory anew in each step."""
    x, y = arrays()
    model = private(dense)
    model.fit(x, y, batch_size=100, sampling="shuffle", steps_per_epoch=1, verbose=0)
    plan = model.gradient_plan
    assert (plan.outputs_per_example, plan.numbers_per_example) == (7, 8)
    model.private_state.plan = replace(plan, outputs_per_example=1 << 16)
    assert layout(model, "shuffle").chunk_size == 25


@pytest.mark.skipif(not XLA, reason="PyTorch interprets its steps")
@pytest.mark.parametrize(("num_weights", "chunk_size"), [(1, 15), (1 << 22, 25), (1 << 26, 50)])
def test_chunks_are_not_smaller_than_the_weights(num_weights, chunk_size, monkeypatch):
    """Each chunk adds to as many sums; but none takes more than 32 MiB."""
    x, y = arrays()
    model = private(dense)
    model.fit(x, y, batch_size=100, sampling="shuffle", steps_per_epoch=1, verbose=0)
    model.private_state.plan = replace(model.gradient_plan, numbers_per_example=1 << 17)
    monkeypatch.setattr("keras_adaclip.models.layout._num_weights", lambda _: num_weights)
    assert layout(model, "shuffle").chunk_size == chunk_size


@pytest.mark.skipif(not XLA, reason="PyTorch takes any shape")
def test_draws_of_a_model_of_many_weights_run_in_one_piece(monkeypatch):
    x, y = arrays()
    model = private(dense)
    model.fit(x, y, batch_size=100, steps_per_epoch=1, verbose=0)
    # Four times what a chunk of 16 examples, of 8 numbers each, writes.
    for num_weights, expected in ((512, ((160,), 16)), (513, ((120, 160), None))):
        monkeypatch.setattr("keras_adaclip.models.layout._num_weights", lambda _, n=num_weights: n)
        found = layout(model)
        assert (found.sizes, found.chunk_size) == expected


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="XLA compiles its steps")
def test_chunks_where_each_operation_runs_on_its_own(monkeypatch):
    x, y = arrays()
    least = 23 if XLA else 24

    def chunk_size(stack, numbers, outputs):
        model = private(stack, jit_compile=False)
        model.fit(x[:20], y[:20], batch_size=10, sampling="shuffle", steps_per_epoch=1, verbose=0)
        model.private_state.plan = replace(
            model.gradient_plan, numbers_per_example=numbers, outputs_per_example=outputs
        )
        return layout(model, "shuffle").chunk_size

    eighth = 1 << least - 3
    assert chunk_size(dense, eighth, 1) == 8
    # Half as much as the layers return for the whole batch, and 128 MiB at most.
    assert chunk_size(dense, eighth, (4 << least) // 100) == 15
    assert chunk_size(dense, 1 << 21, 1 << 25) == 15
    # A recurrence is run again for each chunk.
    assert chunk_size(recurrent, 1 << 21, 1) == 15
    # An accelerator has no cache to stay near to, and 1 GiB to spare.
    monkeypatch.setattr("keras_adaclip.backend.computes_on_cpu", lambda: False)
    assert chunk_size(dense, 1 << 24, 1) == 15
    assert chunk_size(dense, 1 << 21, 1) is None


class WithOwnMetric(ka.PrivateSequential):
    """Returns a number besides its metrics, which would not leave a loop over chunks."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return {**super().compute_metrics(x, y, y_pred, sample_weight), "extra": 1.0}


def test_a_model_that_computes_metrics_itself_is_not_chunked_unasked():
    x, y = arrays()
    model = WithOwnMetric(dense())
    model.compile(optimizer=private(dense).optimizer, loss="mse")
    history = model.fit(x, y, batch_size=100, sampling="shuffle", verbose=0)
    assert history.history["extra"] == [1.0]
    model.private_state.plan = replace(model.gradient_plan, numbers_per_example=1 << 27)
    assert layout(model, "shuffle").chunk_size is None


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="about tf.data")
@pytest.mark.parametrize("microbatch_size", [None, 3])
def test_sequences_of_many_lengths_in_chunks(microbatch_size, monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr("keras_adaclip.models.layout._MOST_NUMBERS", 1 << 10)
    model = private(
        lambda: [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(50, 8, mask_zero=True),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ],
        jit_compile=False,
        microbatch_size=microbatch_size,
    )

    def batches():
        for length in (5, 7):
            yield np.ones((20, length), "int32"), np.zeros((20, 1), "float32")

    signature = (tf.TensorSpec((None, None), "int32"), tf.TensorSpec((None, 1), "float32"))
    data = tf.data.Dataset.from_generator(batches, output_signature=signature)
    data = data.apply(tf.data.experimental.assert_cardinality(2))
    model.fit(data, num_examples=40, verbose=0)
    assert model.private_state.chunk_size == (microbatch_size or 7)


def test_layouts_where_any_shape_will_do():
    eager = private(convolutional, run_eagerly=True, jit_compile=False)
    for model in (eager, private(convolutional)):
        found = layout(model, sampling="shuffle")
        assert (found.sizes, found.chunk_size) == ((), None)
    found = layout(eager)
    assert (found.sizes, found.chunk_size) == ((), None)
    eager = private(convolutional, microbatch_size=7, run_eagerly=True, jit_compile=False)
    assert (layout(eager).sizes, layout(eager).chunk_size) == ((), 7)


def test_every_layout_trains_the_same_model():
    """Without noise: two shapes, one shape in chunks, and the draws as they are."""
    x, y = arrays(60)

    def trained(**arguments):
        model = private(convolutional, **arguments)
        model.fit(x, y, batch_size=12, epochs=4, verbose=0)
        return np.concatenate([np.ravel(value) for value in model.get_weights()])

    one = trained()
    np.testing.assert_allclose(one, trained(microbatch_size=5), rtol=1e-4, atol=1e-6)
    eager = trained(run_eagerly=True, jit_compile=False)
    np.testing.assert_allclose(one, eager, rtol=1e-4, atol=1e-6)
