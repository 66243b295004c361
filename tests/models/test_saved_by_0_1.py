"""Models that version 0.1 saved load with their ledger, and go on training.

The files in `saved_by_0_1` were written on PyTorch at version 0.1: 10 steps with a noise multiplier
of 1.1 and 12 of 60 examples expected, 4 rounds with 1.3 and 5 of 20 clients expected.
"""

from pathlib import Path

import keras
import numpy as np
import pytest

import keras_adaclip as ka

# A small batch, so that the count of unclipped examples takes much of the noise.
pytestmark = pytest.mark.filterwarnings("ignore:The statistics of `QuantileClipping`:UserWarning")

FILES = Path(__file__).parent / "saved_by_0_1"


@pytest.mark.parametrize(
    ("name", "steps", "delta", "epsilon"),
    [("examples", 10, 1e-5, 4.215611541931675), ("clients", 4, 1e-3, 1.5801007186080387)],
)
def test_the_ledger_of_version_0_1_loads(name, steps, delta, epsilon):
    file = FILES / f"{name}.keras"
    for compiled in (True, False):
        model = keras.models.load_model(file, compile=compiled)
        spent = model.privacy_spent(delta)
        assert spent.steps == steps
        assert spent.epsilon == pytest.approx(epsilon, rel=1e-6)
        assert spent.weights_unchanged is not False
    assert ka.accounting.read_ledger(file) == model.privacy_ledger


def test_what_version_0_1_saved_goes_on_with_its_state():
    model = keras.models.load_model(FILES / "examples.keras")
    assert float(model.optimizer.clip_norm) == pytest.approx(0.23006536066532135)
    np.testing.assert_allclose(
        model.get_weights()[1], [-0.0520607233, 0.0142970597, 0.0272478536], rtol=1e-6
    )
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)).astype("float32"), rng.integers(0, 3, 60)
    model.fit(x, y, batch_size=12, epochs=1, verbose=0)
    both = ka.accounting.compute_epsilon(1.1, 60, 12, steps=15, delta=1e-5)
    assert model.privacy_spent(1e-5).epsilon == pytest.approx(both, rel=1e-6)
