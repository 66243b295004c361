"""The forms of per-example gradients: norms and sums without writing them out."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_adaclip.gradients import (
    BatchGradients,
    GroupedOuterProduct,
    Lookup,
    Materialized,
    OuterProduct,
)
from keras_adaclip.gradients.layerwise import combined


def array(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def forms(second=1.0):
    """One of each kind; the factors of the second example's gradient are multiplied by `second`."""

    def array_of_rows(*shape, seed=0):
        rows = np.array([1.0, second, 1.0], "float32").reshape(3, *(1 for _ in shape))
        return array(3, *shape, seed=seed) * rows

    ids = ops.convert_to_tensor(np.array([[1, 1, 4, 0], [2, 3, 2, 2], [0, -1, 4, 4]]))
    return {
        "written out": Materialized(array_of_rows(2, 5)),
        "written out in another order": Materialized(array_of_rows(2, 5, 3), (2, 0, 1)),
        "one position": OuterProduct(array_of_rows(1, 4), array_of_rows(1, 2, seed=1), (4, 2)),
        "few positions": OuterProduct(array_of_rows(2, 8), array_of_rows(2, 9, seed=1), (8, 9)),
        "many positions": OuterProduct(array_of_rows(7, 2), array_of_rows(7, 3, seed=1), (2, 3)),
        "lookups": Lookup(ids, array_of_rows(4, 2), (5, 2)),
        "groups": GroupedOuterProduct(
            array_of_rows(4, 7, 2), array_of_rows(4, 7, 3, seed=1), (4, 2, 3)
        ),
        "groups of few positions": GroupedOuterProduct(
            array_of_rows(2, 2, 8),
            array_of_rows(2, 2, 9, seed=1),
            (4, 3, 6, 2),
            sizes=(2, 4, 2, 3, 3),
            order=(1, 3, 4, 2, 0),
        ),
    }


@pytest.mark.parametrize("name", forms())
def test_norms_and_sums_are_those_of_the_gradients_themselves(name):
    form = forms()[name]
    values = ops.convert_to_numpy(forms()[name].materialize()).astype(np.float64)
    norms = ops.convert_to_numpy(form.squared_norms())
    np.testing.assert_allclose(norms, np.sum(values.reshape(3, -1) ** 2, axis=1), rtol=1e-5)
    factors = np.array([0.5, 0.0, 2.0], np.float32)
    expected = np.tensordot(factors, values, axes=1)
    # Once as it was used for the norm, once fresh: a form may keep what the norm needed.
    for used in (form, forms()[name]):
        found = used.weighted_sum(ops.convert_to_tensor(factors), ops.ones((3,), "bool"))
        np.testing.assert_allclose(ops.convert_to_numpy(found), expected, rtol=1e-5, atol=1e-6)


def test_few_positions_take_the_gram_form_and_many_do_not():
    assert forms()["few positions"].uses_gram
    assert not forms()["many positions"].uses_gram


@pytest.mark.parametrize("name", forms())
def test_what_is_not_finite_stays_out_of_the_sum(name):
    form = forms(second=np.inf)[name]
    norms = ops.convert_to_numpy(form.squared_norms())
    assert not np.isfinite(norms[1])
    clean = forms()[name].materialize()
    found = form.weighted_sum(
        ops.convert_to_tensor([1.0, 0.0, 1.0]), ops.convert_to_tensor([True, False, True])
    )
    np.testing.assert_allclose(
        ops.convert_to_numpy(found), ops.convert_to_numpy(clean[0] + clean[2]), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", ["one position", "few positions", "many positions", "lookups"])
def test_several_uses_add_up_before_the_norm(name):
    one, other = forms()[name], forms()[name]
    other.cotangents = other.cotangents[::1] * ops.convert_to_tensor(
        np.array([-1.0, 0.5, 3.0], np.float32).reshape(3, 1, 1)
    )
    both = combined([one, other])
    assert type(both) is type(one)
    values = ops.convert_to_numpy(forms()[name].materialize()).astype(np.float64)
    values *= np.array([0.0, 1.5, 4.0]).reshape(3, 1, 1)
    expected = np.sum(values.reshape(3, -1) ** 2, axis=1)
    np.testing.assert_allclose(
        ops.convert_to_numpy(both.squared_norms())[1:], expected[1:], rtol=1e-5
    )
    np.testing.assert_allclose(ops.convert_to_numpy(both.materialize()), values, atol=1e-5)


def test_unlike_uses_are_written_out():
    """Another shape of factors, and a table that is looked up and multiplied with."""
    product = OuterProduct(array(3, 2, 5), array(3, 2, 2), (5, 2))
    for other in (Materialized(array(3, 5, 2)), forms()["lookups"]):
        both = combined([product, other])
        expected = ops.convert_to_numpy(product.materialize() + other.materialize())
        assert isinstance(both, Materialized)
        np.testing.assert_allclose(ops.convert_to_numpy(both.values), expected, atol=1e-6)


@pytest.mark.parametrize("name", forms())
def test_copies_stand_behind_each_other(name):
    one = forms()[name]
    values = ops.convert_to_numpy(one.materialize())
    merged = one.merged(3)
    expected = values.sum(axis=0, keepdims=True)
    np.testing.assert_allclose(ops.convert_to_numpy(merged.materialize()), expected, atol=1e-5)
    norms = np.sqrt(ops.convert_to_numpy(merged.squared_norms()))
    np.testing.assert_allclose(norms, [np.linalg.norm(expected)], rtol=1e-5)


@given(
    seed=st.integers(0, 10**6),
    cancellation=st.sampled_from([0.0, 1e-7, 1e-4, 1e-3, 1e-2, 3e-2]),
    size=st.sampled_from([1e-3, 1.0, 1e4]),
)
def test_rounding_never_makes_a_norm_too_small(seed, cancellation, size):
    # Positions with nearly equal inputs and nearly opposite cotangents: the Gram form subtracts
    # large numbers, and a norm of zero would let the example through unclipped.
    rng = np.random.default_rng(seed)
    inputs = np.repeat(rng.normal(size=(1, 1, 64)) * size, 4, axis=1)
    inputs = (inputs * (1.0 + cancellation * rng.normal(size=inputs.shape))).astype("float32")
    cotangents = rng.normal(size=(1, 1, 64)) * np.array([1.0, -1.0, 2.0, -2.0]).reshape(1, 4, 1)
    cotangents = cotangents.astype("float32")
    form = OuterProduct(inputs, cotangents, (64, 64))
    assert form.uses_gram
    found = np.sqrt(ops.convert_to_numpy(form.squared_norms())[0])
    factors, finite = ops.ones((1,)), ops.ones((1,), "bool")
    summed = ops.convert_to_numpy(form.weighted_sum(factors, finite)).astype(np.float64)
    assert np.linalg.norm(summed) <= (1.0 + 1e-4) * found

    table = Lookup(np.zeros((1, 4), "int32"), cotangents * (1.0 + inputs / 1e4), (3, 64))
    found = np.sqrt(ops.convert_to_numpy(table.squared_norms())[0])
    summed = ops.convert_to_numpy(table.weighted_sum(factors, finite)).astype(np.float64)
    assert np.linalg.norm(summed) <= (1.0 + 1e-4) * found


@pytest.mark.parametrize("positions", [1, 2])
@pytest.mark.parametrize(("of_inputs", "of_cotangents"), [(1e-23, 1e18), (1e18, 1e-23)])
def test_underflow_never_makes_a_norm_too_small(positions, of_inputs, of_cotangents):
    # The square of 1e-23 is zero in float32, its product with 1e18 is not.
    inputs = np.full((1, positions, 16), of_inputs, np.float32)
    cotangents = np.full((1, positions, 16), of_cotangents, np.float32)
    form = OuterProduct(inputs, cotangents, (16, 16))
    found = np.sqrt(ops.convert_to_numpy(form.squared_norms())[0])
    summed = form.weighted_sum(ops.ones((1,)), ops.ones((1,), "bool"))
    assert 0 < np.linalg.norm(ops.convert_to_numpy(summed)) <= found


def test_the_norms_of_a_single_number_are_one_an_example():
    form = Materialized(ops.convert_to_tensor(np.array([1.0, -2.0, 3.0], np.float32)))
    np.testing.assert_allclose(ops.convert_to_numpy(form.squared_norms()), [1.0, 4.0, 9.0])


@pytest.mark.parametrize("wrong", [5, -6])
def test_an_example_that_looks_up_no_row_contributes_nothing(wrong):
    """Backends clamp such an id, drop it or fail. Norm and sum must not do different things."""
    ids = ops.convert_to_tensor(np.array([[0, wrong], [1, 1]], np.int32))
    form = Lookup(ids, array(2, 2, 3), (5, 3))
    norms = ops.convert_to_numpy(form.squared_norms())
    assert np.isnan(norms[0])
    assert np.isfinite(norms[1])
    finite = ops.convert_to_tensor([False, True])
    summed = form.weighted_sum(ops.convert_to_tensor([0.0, 1.0]), finite)
    only = ops.convert_to_numpy(form.materialize())[1]
    np.testing.assert_allclose(ops.convert_to_numpy(summed), only, rtol=1e-5)


# In coordinates of their own


def in_coordinates(part, centre, scale, num_rows=3):
    variable = SimpleNamespace(shape=centre.shape)
    tensors = ops.convert_to_tensor(centre), ops.convert_to_tensor(scale)
    (found,) = BatchGradients([variable], [part], num_rows).in_coordinates([tensors]).parts
    return found


def rescaled(part, shape):
    scale = np.exp(array(*shape, seed=9)).astype("float32")
    centre = array(*shape, seed=8)
    return in_coordinates(part, centre, scale), centre, scale


@pytest.mark.parametrize("name", forms())
def test_coordinates_of_any_form(name):
    values = ops.convert_to_numpy(forms()[name].materialize()).astype(np.float64)
    found, centre, scale = rescaled(forms()[name], values.shape[1:])
    expected = (values - centre) / scale
    norms = ops.convert_to_numpy(found.squared_norms())
    np.testing.assert_allclose(norms, np.sum(expected.reshape(3, -1) ** 2, axis=1), rtol=2e-4)
    assert np.all(norms >= (1.0 - 1e-6) * np.sum(expected.reshape(3, -1) ** 2, axis=1))
    np.testing.assert_allclose(ops.convert_to_numpy(found.materialize()), expected, atol=1e-4)
    factors = np.array([0.5, 0.0, 2.0], np.float32)
    total = found.weighted_sum(ops.convert_to_tensor(factors), ops.ones((3,), "bool"))
    expected_sum = np.tensordot(factors, expected, axes=1)
    np.testing.assert_allclose(ops.convert_to_numpy(total), expected_sum, rtol=1e-4, atol=1e-5)


def test_an_unused_variable_has_its_centre_taken_off():
    found, centre, scale = rescaled(None, (4, 2))
    expected = np.broadcast_to(-centre / scale, (3, 4, 2))
    np.testing.assert_allclose(ops.convert_to_numpy(found.materialize()), expected, rtol=1e-6)


@given(
    seed=st.integers(0, 10**6),
    distance=st.sampled_from([0.0, 1e-7, 1e-5, 1e-4, 1e-3, 1e-2, 1.0]),
    size=st.sampled_from([1e-6, 1.0, 1e4]),
    scale=st.sampled_from([1e-6, 1e-2, 1.0]),
)
def test_no_contribution_beside_the_centre_exceeds_its_bound(seed, distance, size, scale):
    # A gradient next to the centre: the norm is the difference of large numbers.
    rng = np.random.default_rng(seed)
    inputs = (size * rng.normal(size=(1, 1, 40))).astype("float32")
    cotangents = rng.normal(size=(1, 1, 30)).astype("float32")
    gradient = inputs[0, 0, :, None].astype(np.float64) * cotangents[0, 0]
    centre = (gradient * (1.0 + distance * rng.normal(size=gradient.shape))).astype("float32")
    scales = (scale * np.exp(rng.normal(size=gradient.shape))).astype("float32")
    form = in_coordinates(OuterProduct(inputs, cotangents, (40, 30)), centre, scales, 1)
    norm = np.sqrt(ops.convert_to_numpy(form.squared_norms()))
    factor = ops.convert_to_tensor((1.0 / np.maximum(1.0, norm)).astype("float32"))
    found = form.weighted_sum(factor, ops.ones((1,), "bool"))
    assert np.linalg.norm(ops.convert_to_numpy(found).astype(np.float64)) <= 1.0 + 1e-4


@pytest.mark.parametrize("size", [1e2, 1e6])
def test_one_more_unit_beside_a_far_centre_adds_its_bound_at_most(size):
    """A sum of gradients, less the centre as often, would lose each of a thousand in rounding."""
    inputs, cotangents = array(1, 1, 4), array(1, 1, 2, seed=1)
    one = (inputs[0].T.astype(np.float64) @ cotangents[0])[None]
    scale = np.full(one.shape[1:], np.linalg.norm(one) / size, np.float32)
    offset = array(*one.shape[1:], seed=5).astype(np.float64)
    centre = (one[0] - scale * 0.8 * offset / np.linalg.norm(offset)).astype("float32")

    def total(count):
        repeated = (np.repeat(value, count, axis=0) for value in (inputs, cotangents))
        part = in_coordinates(OuterProduct(*repeated, (4, 2)), centre, scale, count)
        norms = np.sqrt(ops.convert_to_numpy(part.squared_norms()))
        factors = ops.convert_to_tensor((1.0 / np.maximum(1.0, norms)).astype("float32"))
        found = part.weighted_sum(factors, ops.ones((count,), "bool"))
        return ops.convert_to_numpy(found).astype(np.float64)

    for count in (63, 1000):
        assert np.linalg.norm(total(count + 1) - total(count)) <= 1.0 + 1e-3
