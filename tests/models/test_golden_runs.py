"""Twenty steps without noise from fixed weights on fixed data, recorded for `tests/golden`."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_adaclip as ka
from tests.models import helpers

NUM_EPOCHS, STEPS_PER_EPOCH, BATCH_SIZE = 10, 2, 8

CLIPPING = {
    "fixed": lambda: ka.clipping.FixedClipping(0.5),
    "quantile": lambda: ka.clipping.QuantileClipping(target_quantile=0.4, initial_clip_norm=0.5),
    "quantile_linear": lambda: ka.clipping.QuantileClipping(
        target_quantile=0.7, initial_clip_norm=0.5, learning_rate=0.05, update="linear"
    ),
    "quantile_by_layer": lambda: ka.clipping.QuantileClipping(
        target_quantile=0.4, initial_clip_norm=0.5, groups="per_layer"
    ),
    "power": lambda: ka.clipping.ScheduledClipping(ka.schedules.PowerDecay(0.5)),
    "mean": lambda: ka.clipping.MeanNormClipping(0.5),
    "automatic": lambda: ka.clipping.AutomaticClipping(0.5, groups="per_layer"),
    "psac": lambda: ka.clipping.PSAC(0.5),
    "expected_error": lambda: ka.clipping.ExpectedErrorClipping(0.5, groups="per_layer"),
    "slack": lambda: ka.clipping.SlaClip(0.5),
    "adaclip": lambda: ka.clipping.AdaClip(min_variance=1e-6, max_variance=1e-2),
}
NETS = {
    "mlp": lambda: [
        keras.Input((5,)),
        layers.Dense(8, activation="tanh", kernel_regularizer=keras.regularizers.L2(1e-3)),
        layers.LayerNormalization(),
        layers.Dense(3, activation="softmax"),
    ],
    "conv": lambda: [
        keras.Input((6, 6, 2)),
        layers.Conv2D(4, 3, strides=2, padding="same", activation="gelu"),
        *(layers.GroupNormalization(2), layers.Flatten()),
        layers.Dense(3, activation="softmax"),
    ],
    "text": lambda: [
        keras.Input((4,), dtype="int32"),
        *(layers.Embedding(9, 4, mask_zero=True), layers.GlobalAveragePooling1D()),
        layers.Dense(3, activation="softmax"),
    ],
}


# Every strategy on one net, one of them on every net.
CASES = [*(("mlp", name) for name in CLIPPING), ("conv", "quantile"), ("text", "quantile")]


@pytest.mark.parametrize(("net", "clipping"), CASES)
def test_twenty_steps(net, clipping, record_golden):
    rng = np.random.default_rng(11)
    model = ka.PrivateSequential(NETS[net]())
    weights = [rng.normal(scale=0.4, size=w.shape).astype("float32") for w in model.get_weights()]
    model.set_weights(weights)
    num_examples = STEPS_PER_EPOCH * BATCH_SIZE
    if net == "text":
        x = rng.integers(0, 9, (num_examples, 4)).astype("int32")
    else:
        x = rng.normal(size=(num_examples, *model.input_shape[1:])).astype("float32")
    y = rng.integers(0, 3, num_examples).astype("int32")
    sgd, loss = keras.optimizers.SGD(0.2, momentum=0.5), "sparse_categorical_crossentropy"
    helpers.compiled(model, 0.0, CLIPPING[clipping](), sgd, loss=loss)
    clip_norms = []
    record = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: clip_norms.append(np.atleast_1d(model.optimizer.clip_norm))
    )
    options = {"batch_size": BATCH_SIZE, "epochs": NUM_EPOCHS, "callbacks": [record]}
    losses = helpers.quiet_fit(model, x, y, sampling="shuffle", shuffle=False, **options)["loss"]
    assert int(model.optimizer.iterations) == NUM_EPOCHS * STEPS_PER_EPOCH == 20
    moves = clipping not in ("fixed", "automatic", "psac", "adaclip")
    assert (len(np.unique(clip_norms)) > 5) == moves
    assert all(
        np.abs(new - old).max() > 1e-3
        for new, old in zip(model.get_weights(), weights, strict=True)
    )
    found = {f"weights/{number}": value for number, value in enumerate(model.get_weights())}
    found |= {"clip_norms": np.array(clip_norms), "losses": np.array(losses)}
    record_golden(f"{net}-{clipping}", found, rtol=1e-4, atol=1e-5)
