"""Models that each release since 0.3.0 has saved load with their ledger, and go on training.

`KERAS_BACKEND=torch python -m tests.models.test_stored` writes those of this version: ten steps
with a noise multiplier of 1.1 and 12 of 60 examples expected; four rounds with 1.3 and 5 of 20
clients.
"""

import json
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_adaclip as ka

STORED = Path(__file__).parent / "stored"
X = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
Y = (X[:, 0] > 0).astype("int32") + (X[:, 1] > 0)
DELTA = 1e-3


def model_of(cls, noise_multiplier, **options):
    model = cls([keras.Input((4,)), keras.layers.Dense(3)])
    quantile = ka.clipping.QuantileClipping(count_noise_stddev=5.0)
    sgd = keras.optimizers.SGD(0.1, momentum=0.9)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = ka.optimizers.DPOptimizer(sgd, quantile, noise_multiplier=noise_multiplier)
    model.compile(optimizer, loss=loss, **options)
    return model


def facts(model):
    return {
        "steps": model.privacy_ledger.steps,
        "epsilon": model.privacy_spent(DELTA).epsilon,
        "clip_norm": float(model.optimizer.clip_norm),
        "predictions": keras.ops.convert_to_numpy(model(X[:2])).tolist(),
    }


@pytest.mark.filterwarnings("ignore:The statistics of `QuantileClipping`:UserWarning")
@pytest.mark.parametrize("path", sorted(STORED.glob("*.keras")), ids=lambda path: path.stem)
def test_a_model_of_an_earlier_release_loads_and_goes_on(path):
    model = keras.models.load_model(path)
    expected = json.loads(path.with_suffix(".json").read_text())
    for name, value in facts(model).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5)
    assert model.privacy_spent(DELTA).weights_unchanged
    assert ka.accounting.read_ledger(path) == model.privacy_ledger
    if "examples" in path.stem:
        model.fit(X, Y, batch_size=12, verbose=0)
        both = ka.accounting.compute_epsilon(1.1, 60, 12, steps=15, delta=DELTA)
        assert model.privacy_spent(DELTA).epsilon == pytest.approx(both, rel=1e-6)


if __name__ == "__main__":
    keras.utils.set_random_seed(0)
    examples = model_of(ka.PrivateSequential, 1.1)
    examples.fit(X, Y, batch_size=12, epochs=2, verbose=0)
    clients = model_of(ka.federated.FederatedSequential, 1.3, client_optimizer="sgd")
    users = ka.federated.ClientData.from_arrays(X, Y, np.arange(60) % 20)
    clients.fit(users, cohort_size=5, steps_per_epoch=4, verbose=0)
    for name, trained in (("examples", examples), ("clients", clients)):
        file = STORED / f"{ka.__version__}-{name}.keras"
        trained.save(file)
        file.with_suffix(".json").write_text(json.dumps(facts(trained), indent=1) + "\n")
