"""Tensors, lists and frames as data of `fit`, `evaluate` and `predict`: the same as arrays."""

import keras
import numpy as np
import pytest

from tests.models import helpers

X, Y = helpers.features(), helpers.labels()


def as_pandas(values):
    pandas = pytest.importorskip("pandas")
    # Rows count, whatever the index says. Booleans beside floats make columns of objects.
    index = np.arange(len(values))[::-1] + 5
    if values.ndim == 1:
        return pandas.Series(values, index)
    return pandas.DataFrame(values, index).assign(last=values[:, -1] > 0).drop(columns=3)


@pytest.mark.parametrize("convert", [keras.ops.convert_to_tensor, np.ndarray.tolist, as_pandas])
@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
def test_tensors_lists_and_frames_are_arrays_whose_last_rows_may_validate(convert, sampling):
    arrays, found = (np.where(np.arange(4) == 3, X > 0, X).astype("float32"), Y), []
    for x, y in (arrays, map(convert, arrays)):
        keras.utils.set_random_seed(0)
        model = helpers.compiled(noise_multiplier=0.0, seed=3)
        options = {"batch_size": 6, "validation_split": 0.25, "sampling": sampling}
        history = helpers.quiet_fit(model, x, y, epochs=2, shuffle=False, **options)
        row = next(row for row in model.privacy_ledger if row.steps)
        assert (row.num_examples, row.expected_batch_size, row.steps) == (18, 6, 6)
        evaluated = model.evaluate(x, y, verbose=0), model.predict(x, verbose=0).sum()
        found.append(np.concatenate([history["val_loss"], np.ravel(evaluated)]))
        last = model.evaluate(*(part[18:] for part in arrays), verbose=0)
        assert history["val_loss"][-1] == pytest.approx(last, rel=1e-5)
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_columns_that_hold_no_numbers_are_named():
    pandas = pytest.importorskip("pandas")
    kinds = {"site": list("abcdef" * 4), "day": pandas.date_range("2026-01-01", periods=24)}
    frame = pandas.DataFrame(X).assign(**kinds)
    with pytest.raises(TypeError, match=r"2 of 6 columns without numbers.* 'site', 'day'"):
        helpers.compiled().fit(frame, Y)
