"""Rows that a search for short norms finds: large numbers that cancel, and small ones they hide.

Where a norm reads shorter than it is, an example adds more than its bound to the clipped sum. All
norms here are compared with the same gradients in float64.
"""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_adaclip.gradients import Lookup, Materialized, OuterProduct
from keras_adaclip.gradients.outer_products import TiedTable
from tests.gradients.support import compiled

BOUND = 1.0001
# What is a little less than half of the last bit of a large number's square is lost beside it.
HIDDEN = [2.0**-12 * 0.9999, 2.0**-12.5 * 0.9999]
# Where large numbers stand, so that every partial sum of a product meets one.
PLACES = {
    "first": lambda size: [0],
    "last": lambda size: [size - 1],
    "the first eight": lambda size: range(min(8, size)),
    "the first of each 128": lambda size: range(0, size, 128),
    "the first of each 512": lambda size: range(0, size, 512),
    "the first of each of 32 parts": lambda size: range(0, size, max(1, size // 32)),
}
# What the rows are multiplied with: the sums of the large numbers are zero.
WEIGHTS = {
    2: [[1, -1]],
    3: [[1, 1, -2]],
    8: [[1, 1, 1, 1, -1, -1, -1, -1], [1, -1, 1, -1, 1, -1, 1, -1]],
    64: [[1] * 32 + [-1] * 32],
}


def nearly_cancelling(positions, size):
    """Rows of shape `(cases, positions, size)` and their weights `(cases, positions)`."""
    rows, weights = [], []
    for places in PLACES.values():
        for hidden in HIDDEN:
            for signs in WEIGHTS[positions]:
                row = np.zeros((positions, size))
                row[positions // 2 :] = 512.0 * hidden
                row[:, list(places(size))] = 512.0
                rows.append(row)
                weights.append(signs)
    return np.array(rows, np.float32), np.array(weights, np.float32)


def enclosed(positions, size):
    """As before, but of equal rows: what is small stands between large numbers that cancel."""
    rows = np.ones((len(HIDDEN), positions, size), np.float32)
    weights = np.array([[1, *[hidden**2] * (positions - 2), -1] for hidden in HIDDEN])
    return rows, weights.astype("float32")


def directions(weights, size):
    """The same direction for all positions, times their weights."""
    direction = np.random.default_rng(0).normal(size=size).astype("float32")
    return weights[:, :, None] * direction


def true_outer(inputs, cotangents):
    return np.einsum("bti,btj->bij", inputs.astype(np.float64), cotangents.astype(np.float64))


def largest_contribution(make, arrays, true, functions=None):
    """The largest norm of what one example adds to a sum that is clipped to 1.

    Of the clipped sum of that example alone, and, where sums are not taken from the gradients that
    the norm was taken from, of the true gradient with the same factor.
    """
    norms_of, clipped = functions or functions_of(make)
    arrays = [ops.convert_to_tensor(array) for array in arrays]
    found = []
    if true is not None:
        norms = np.sqrt(ops.convert_to_numpy(norms_of(*arrays)).astype(np.float64))
        found.extend(np.linalg.norm(true.reshape(len(true), -1), axis=1) / norms)
    for index in range(len(arrays[0])):
        summed = ops.convert_to_numpy(clipped(*(array[index : index + 1] for array in arrays)))
        found.append(np.linalg.norm(summed.astype(np.float64)))
    return max(found)


def functions_of(make):
    def squared_norms(*arrays):
        return make(*arrays).squared_norms()

    def clipped(*arrays):
        form = make(*arrays)
        factors = 1.0 / ops.sqrt(form.squared_norms())
        return form.weighted_sum(factors, ops.ones((1,), "bool"))

    return compiled(squared_norms, True), compiled(clipped, True)


def products(inputs, outputs):
    return lambda a, g: OuterProduct(a, g, (inputs, outputs))


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize(
    ("made", "positions", "size", "other"),
    [
        (nearly_cancelling, 2, 16384, 4),
        (nearly_cancelling, 3, 4608, 16),
        (nearly_cancelling, 64, 1152, 128),
        (enclosed, 8, 512, 512),
    ],
)
def test_gram_matrices_of_inputs_that_nearly_cancel(made, positions, size, other, is_turned):
    rows, weights = made(positions, size)
    arrays, sizes = (rows, directions(weights, other)), (size, other)
    if is_turned:
        arrays, sizes = arrays[::-1], sizes[::-1]
    make = products(*sizes)
    assert make(*arrays).form == "Gram matrices"
    assert largest_contribution(make, arrays, true_outer(*arrays)) <= BOUND


@pytest.mark.parametrize(("positions", "size"), [(2, 16384), (8, 1024)])
def test_lookups_of_one_row_that_nearly_cancel(positions, size):
    for rows, weights in (nearly_cancelling(positions, size), enclosed(positions, size)):
        cotangents = weights[:, :, None] * rows
        ids = np.zeros(weights.shape, "int32")
        true = np.sum(cotangents.astype(np.float64), axis=1)
        found = largest_contribution(
            lambda i, c, size=size: Lookup(i, c, (3, size)), (ids, cotangents), true
        )
        assert found <= BOUND


def test_lookups_and_products_with_one_table_that_nearly_cancel():
    rows, _ = nearly_cancelling(2, 16384)
    ids, inputs = np.zeros((len(rows), 1), "int32"), np.zeros((len(rows), 1, 3), "float32")
    inputs[:, :, 0] = -1.0

    def make(ids, inputs, looked_up, multiplied):
        product = OuterProduct(inputs, multiplied, (3, 16384))
        return TiedTable(Lookup(ids, looked_up, (3, 16384)), product)

    arrays = ids, inputs, rows[:, :1], rows[:, 1:]
    assert make(*map(ops.convert_to_tensor, arrays)).form == "Gram matrices"
    true = rows[:, 0].astype(np.float64) - rows[:, 1]
    assert largest_contribution(make, arrays, true) <= BOUND


def test_lookups_that_cancel_in_one_example_take_nothing_from_the_others():
    """Others of 3e-5 times the bound, whose last digits a large number in their sum would hide."""
    num_rows, large = 4096, np.float32(512.0)
    ids = np.zeros((num_rows, 2), "int32")
    cotangents = np.zeros((num_rows, 2, 1), np.float32)
    cotangents[0] = [[large], [-large]]

    def total(other):
        cotangents[1:, 0] = other
        form = Lookup(ids, ops.convert_to_tensor(cotangents), (3, 1))
        norms = np.sqrt(ops.convert_to_numpy(form.squared_norms()))
        factors = 1.0 / np.maximum(norms, 1.0)
        finite = ops.ones((num_rows,), "bool")
        summed = form.weighted_sum(ops.convert_to_tensor(factors), finite)
        return float(ops.convert_to_numpy(summed)[0, 0]), factors[0]

    _, factor = total(0.0)
    other = np.float32(0.99) * np.spacing(large * factor) / 2
    assert total(other)[0] == pytest.approx((num_rows - 1) * float(other), abs=1e-3)


@pytest.mark.parametrize("shape", [(16384,), (2048, 2048)])
def test_one_large_number_among_millions_of_small_ones(shape):
    values = np.full((2, *shape), 2.0**-12.5 * 0.9999, np.float32)
    values.reshape(2, -1)[0, 0] = 1.0
    values.reshape(2, -1)[1, values[0].size // 2] = 1.0
    assert largest_contribution(Materialized, (values,), values.astype(np.float64)) <= BOUND


@functools.cache
def cached_functions(kind, size):
    make = products(size, 4)
    if kind == "lookup":
        make = lambda a, g: Lookup(ops.zeros(ops.shape(a)[:2], "int32"), a * g[:, :, :1], (3, size))  # noqa: E731
    return functions_of(make)


@given(
    kind=st.sampled_from(["product", "lookup"]),
    size=st.sampled_from([256, 6000]),
    seed=st.integers(0, 10**6),
    hidden=st.floats(10.0, 14.0),
    num_large=st.integers(1, 64),
    distance=st.sampled_from([0.0, 0.0, 2.0**-23, 2.0**-20, 2.0**-16]),
    scale=st.sampled_from([1e-6, 1.0, 1e5]),
)
def test_no_row_that_a_search_finds(kind, size, seed, hidden, num_large, distance, scale):
    rng = np.random.default_rng(seed)
    inputs = np.zeros((1, 4, size))
    inputs[:, rng.integers(0, 4, 2)] = 2.0**-hidden
    large = rng.integers(0, size, num_large)
    inputs[:, :, large] = 1.0 + distance * rng.normal(size=(4, num_large))
    inputs = (scale * inputs).astype("float32")
    signs = rng.permutation([[1.0, -1.0, 1.0, -1.0], [3.0, -1.0, -1.0, -1.0]][seed % 2])
    others = np.full((1, 4, 4), signs[None, :, None], np.float32)
    true = true_outer(inputs, others)
    if kind == "lookup":
        true = np.sum(inputs.astype(np.float64) * others[:, :, :1], axis=1)
    if np.linalg.norm(true) == 0.0:
        return
    functions = cached_functions(kind, size)
    assert largest_contribution(None, (inputs, others), true, functions) <= BOUND


@pytest.mark.parametrize(("positions", "inputs", "outputs"), [(8, 512, 512), (64, 1152, 128)])
def test_norms_of_ordinary_rows_are_at_most_a_thousandth_longer(positions, inputs, outputs):
    rng = np.random.default_rng(0)
    sizes = (inputs, outputs)
    factors = [rng.normal(size=(2, positions, size)).astype("float32") for size in sizes]
    form = products(*sizes)(*factors)
    assert form.form == "Gram matrices"
    true = np.linalg.norm(true_outer(*factors).reshape(2, -1), axis=1)
    found = np.sqrt(ops.convert_to_numpy(form.squared_norms()))
    assert np.all((found >= (1.0 - 1e-6) * true) & (found <= (1.0 + 1e-3) * true))
