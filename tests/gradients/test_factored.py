"""The forms of per-example gradients: norms and sums without writing them out."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_adaclip import gradients
from keras_adaclip.gradients.outer_products import TiedTable, combined
from tests.gradients.support import numpy


def array(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def forms(second=1.0):
    """One of each kind; the second example's gradient is multiplied by powers of `second`."""

    def rows(*shape, seed=0):
        factors = np.array([1.0, second, 1.0], "float32").reshape(3, *(1 for _ in shape))
        return array(3, *shape, seed=seed) * factors

    ids = ops.convert_to_tensor(np.array([[1, 1, 4, 0], [2, 3, 2, 2], [0, -1, 4, 4]]))
    return {
        "written out": gradients.Materialized(rows(2, 5)),
        "single numbers": gradients.Materialized(ops.convert_to_tensor(rows())),
        "one position": gradients.OuterProduct(rows(1, 4), rows(1, 2, seed=1), (4, 2)),
        "few positions": gradients.OuterProduct(rows(2, 8), rows(2, 9, seed=1), (8, 9)),
        "many positions": gradients.OuterProduct(rows(7, 2), rows(7, 3, seed=1), (2, 3)),
        "lookups": gradients.Lookup(ids, rows(4, 2), (5, 2)),
        **{
            f"tied table of {size} columns": TiedTable(
                gradients.Lookup(ids, rows(4, size), (5, size)),
                gradients.OuterProduct(rows(3, 5, seed=1), rows(3, size, seed=2), (5, size)),
            )
            for size in (2, 40)
        },
        "groups": gradients.OuterProduct(rows(4, 7, 2), rows(4, 7, 3, seed=1), (4, 2, 3)),
        "groups of few positions": gradients.OuterProduct(
            rows(2, 2, 8), rows(2, 2, 9, seed=1), (4, 3, 6, 2), (2, 4, 2, 3, 3), (1, 3, 4, 2, 0)
        ),
    }


def written_out(form):
    return numpy(form.materialize()).astype(np.float64)


def squared(values):
    return np.sum(values.reshape(len(values), -1) ** 2, axis=1)


def weighted_sum(form, factors, finite=None):
    finite = np.ones(len(factors), bool) if finite is None else np.array(finite)
    factors = ops.convert_to_tensor(np.array(factors, np.float32))
    return numpy(form.weighted_sum(factors, ops.convert_to_tensor(finite)))


@pytest.mark.parametrize("name", forms())
def test_norms_and_sums_are_those_of_the_gradients_themselves(name):
    form, values = forms()[name], written_out(forms()[name])
    np.testing.assert_allclose(numpy(form.squared_norms()), squared(values), rtol=1e-5)
    expected = np.tensordot([0.5, 0.0, 2.0], values, axes=1)
    # After the norm and without it: a form may keep what the norm needed.
    for each in (form, forms()[name]):
        found = weighted_sum(each, [0.5, 0.0, 2.0])
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    # What is not finite stays out of the sum.
    form = forms(second=np.inf)[name]
    assert not np.isfinite(numpy(form.squared_norms())[1])
    found = weighted_sum(form, [1.0, 0.0, 1.0], [True, False, True])
    np.testing.assert_allclose(found, values[0] + values[2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        *((name, name) for name in forms() if name not in ("written out", "single numbers")),
        ("lookups", "a product with their table"),
        ("one position", "many positions of its shape"),
        ("many positions", "written out in its shape"),
    ],
)
def test_several_uses_add_up_before_the_norm(name, other):
    others = {
        "many positions of its shape": gradients.OuterProduct(
            array(3, 7, 4), array(3, 7, 2), (4, 2)
        ),
        "a product with their table": gradients.OuterProduct(
            array(3, 6, 5), array(3, 6, 2), (5, 2)
        ),
        "written out in its shape": gradients.Materialized(array(3, 2, 3)),
    }
    parts = [forms()[name], {**forms(second=3.0), **others}[other]]
    values = sum(map(written_out, parts))
    both = combined(parts)
    np.testing.assert_allclose(written_out(both), values, atol=1e-5)
    np.testing.assert_allclose(numpy(both.squared_norms()), squared(values), rtol=1e-3)


@pytest.mark.parametrize("positions", [1, 2])
@pytest.mark.parametrize("sizes", [(1e-23, 1e18), (1e18, 1e-23)])
def test_underflow_never_makes_a_norm_too_small(positions, sizes):
    """The square of 1e-23 is zero in float32, its product with 1e18 is not."""
    factors = [np.full((1, positions, 16), size, np.float32) for size in sizes]
    form = gradients.OuterProduct(*factors, (16, 16))
    norm = np.sqrt(numpy(form.squared_norms())[0])
    assert 0 < np.linalg.norm(weighted_sum(form, [1.0])) <= norm


@pytest.mark.parametrize("wrong", [5, -6])
@pytest.mark.parametrize("is_tied", [False, True])
def test_an_example_with_an_id_outside_the_table_contributes_nothing(is_tied, wrong):
    """Backends clamp such an id, drop it or fail. Norm and sum must not do different things."""
    ids = ops.convert_to_tensor(np.array([[0, wrong], [1, 1]], np.int32))
    form = gradients.Lookup(ids, array(2, 2, 300), (5, 300))
    if is_tied:
        form = TiedTable(form, gradients.OuterProduct(array(2, 3, 5), array(2, 3, 300), (5, 300)))
        assert form.form == "Gram matrices"
    np.testing.assert_array_equal(np.isnan(numpy(form.squared_norms())), [True, False])
    found = weighted_sum(form, [0.0, 1.0], [False, True])
    np.testing.assert_allclose(found, written_out(form)[1], rtol=1e-5, atol=1e-6)


# Gradients in the coordinates of AdaClip.


def in_coordinates(part, centre, scale, num_rows=3):
    variable = SimpleNamespace(shape=centre.shape)
    pairs = [(ops.convert_to_tensor(centre), ops.convert_to_tensor(scale))]
    return gradients.BatchGradients([variable], [part], num_rows).in_coordinates(pairs).parts[0]


@pytest.mark.parametrize("name", [*forms(), "unused"])
def test_gradients_of_any_form_are_centred_and_scaled(name):
    part = forms().get(name)
    values = np.zeros((3, 4, 2)) if part is None else written_out(part)
    centre = array(*values.shape[1:], seed=8)
    scale = np.exp(array(*values.shape[1:], seed=9)).astype("float32")
    found = in_coordinates(part, np.asarray(centre), np.asarray(scale))
    np.testing.assert_allclose(written_out(found), (values - centre) / scale, rtol=1e-4, atol=1e-4)


@given(
    seed=st.integers(0, 10**6),
    distance=st.sampled_from([0.0, 1e-7, 1e-5, 1e-4, 1e-3, 1e-2, 1.0]),
    size=st.sampled_from([1e-6, 1.0, 1e4]),
    scale=st.sampled_from([1e-6, 1e-2, 1.0]),
)
def test_no_contribution_beside_the_centre_exceeds_its_bound(seed, distance, size, scale):
    """The norm of a gradient next to the centre is the difference of large numbers."""
    rng = np.random.default_rng(seed)
    inputs = (size * rng.normal(size=(1, 1, 40))).astype("float32")
    cotangents = rng.normal(size=(1, 1, 30)).astype("float32")
    gradient = inputs[0, 0, :, None].astype(np.float64) * cotangents[0, 0]
    centre = (gradient * (1.0 + distance * rng.normal(size=gradient.shape))).astype("float32")
    scales = (scale * np.exp(rng.normal(size=gradient.shape))).astype("float32")
    form = in_coordinates(gradients.OuterProduct(inputs, cotangents, (40, 30)), centre, scales, 1)
    norm = np.sqrt(numpy(form.squared_norms()))
    found = weighted_sum(form, 1.0 / np.maximum(1.0, norm))
    assert np.linalg.norm(found.astype(np.float64)) <= 1.0 + 1e-4


@pytest.mark.parametrize("size", [1e2, 1e6])
def test_one_more_unit_beside_a_far_centre_adds_its_bound_at_most(size):
    """A sum of gradients, less the centre as often, would lose each of a thousand in rounding."""
    inputs, cotangents = array(1, 1, 4), array(1, 1, 2, seed=1)
    gradient = inputs[0].T.astype(np.float64) @ cotangents[0]
    scale = np.full(gradient.shape, np.linalg.norm(gradient) / size, np.float32)
    offset = array(*gradient.shape, seed=5).astype(np.float64)
    centre = (gradient - scale * 0.8 * offset / np.linalg.norm(offset)).astype("float32")

    def total(count):
        repeated = (np.repeat(value, count, axis=0) for value in (inputs, cotangents))
        part = in_coordinates(gradients.OuterProduct(*repeated, (4, 2)), centre, scale, count)
        norms = np.sqrt(numpy(part.squared_norms()))
        return weighted_sum(part, 1.0 / np.maximum(1.0, norms)).astype(np.float64)

    for count in (63, 1000):
        assert np.linalg.norm(total(count + 1) - total(count)) <= 1.0 + 1e-3
