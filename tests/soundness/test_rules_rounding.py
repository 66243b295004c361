"""Rule 28: rounding of a sum over many units moves at most a thousandth of the clipping norm.

Neighbours are coupled: the last row takes the place of the removed one, since places are secret.
"""

import numpy as np
import pytest
from keras import ops

from keras_adaclip import backend, noise
from keras_adaclip.gradients import Batch, Totals, looped_plan
from keras_adaclip.models import step
from keras_adaclip.training.training_data import DrawsOfFit
from tests.soundness.setups import COMPILED, dp_sgd, line_model

# The rows of a batch, and those at a time. With "one by one", each is differentiated alone.
CASES = [(2048, 1), (1 << 14, 128), (1 << 14, None), (1 << 14, 1 << 14), (2048, "one by one")]


def sums(mode, size, num_rows, of_rows, sampling="poisson"):
    """The exact sum of each of the arrays of rows, as steps of one kind make them."""
    microbatch_size = size if isinstance(size, int) else None
    model = line_model(dp_sgd(1.0, 0.0, microbatch_size=microbatch_size), **COMPILED[mode])
    draws = DrawsOfFit(sampling=sampling, steps_per_epoch=1, batch_size=num_rows, shuffle=False)
    data = draws.from_arrays(of_rows[0], of_rows[0], None, model.optimizer)
    model._prepare(data)
    model.optimizer.configure(data.settings)
    if size == "one by one":
        model._private_state.plan = looped_plan("of a test")

    def summed(rows, mask):
        total, _ = step._accumulate(model, Batch(rows[0], rows[0], None, mask))
        return total.totals.flat

    run, found = backend.Evaluator(summed, model), []
    for x in of_rows:
        padded = np.concatenate([x, np.zeros((num_rows - len(x), 1), "float32")])
        total = Totals.of_flat(run([padded], np.arange(num_rows) < len(x)))
        found.append(sum(float(each[1].item()) for each in (total.sums, total.remainders)))
    return np.array(found)


@pytest.mark.parametrize(("num_rows", "size"), CASES)
@pytest.mark.parametrize("mode", COMPILED)
def test_a_row_moves_the_sum_by_its_own_length(mode, num_rows, size):
    """All in one direction and of about the clipping norm, which rounds the most."""
    x = np.random.default_rng(1).uniform(0.9, 1.0, (num_rows, 1)).astype("float32")
    removed = [700] if num_rows < 4096 else [0, 700, num_rows // 2]
    neighbours = []
    for row in removed:
        other = x.copy()
        other[row] = other[-1]
        neighbours.append(other[:-1])
    whole, *others = sums(mode, size, num_rows, [x, *neighbours])
    np.testing.assert_allclose(np.abs(whole - others), x[removed, 0], rtol=0, atol=5e-4)
    np.testing.assert_allclose(abs(whole), x.astype(np.float64).sum(), rtol=1e-6)


@pytest.mark.parametrize("mode", COMPILED)
def test_a_row_moves_the_sum_by_its_own_length_in_an_order_that_is_made_for_it(mode):
    """Small contributions behind large ones; an emptied row keeps its place."""
    x = np.full((2048, 1), 1.001 * 2.0**-15, "float32")
    x.reshape(-1, 256)[:, :128] = 1.0
    other = x.copy()
    other[0] = 0.0
    whole, rest = sums(mode, None, 2048, [x, other], "shuffle")
    assert abs(whole - rest) == pytest.approx(1.0, abs=1e-3)


def test_the_noise_is_added_to_what_float32_has_lost():
    key = ops.convert_to_tensor(np.array([1, 2], "int32"))
    total, lost, zero = (ops.convert_to_tensor(np.full(9, v, "float32")) for v in (1e6, 0.01, 0.0))
    with_lost, alone = (
        ops.convert_to_numpy(noise.add_noise([zero], [1.0], key, np.int32(0), 0, each)[0])
        for each in ([lost], None)
    )
    np.testing.assert_allclose(with_lost - alone, 0.01, rtol=1e-4)
    (noised,) = noise.add_noise([total], [1.0], key, np.int32(0), 0, [lost])
    np.testing.assert_allclose(ops.convert_to_numpy(noised), 1e6 + with_lost, rtol=0, atol=0.04)
