"""Quadratic forms of triangular factors, whose products leave out groups of zeros."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpzoo.linalg import factorise, operators
from gpzoo.posteriors import forms


@pytest.mark.parametrize("columns", [100, 3, 1])
@pytest.mark.parametrize("outputs", [1, 2])
def test_groups_of_columns_change_neither_values_nor_derivatives(monkeypatch, columns, outputs):
    monkeypatch.setattr(operators, "GROUP", columns)
    rng = np.random.default_rng(0)
    scale, B = rng.normal(size=(outputs, 10, 10)), rng.normal(size=(10, 4))
    slopes = rng.normal(size=(outputs, 4))

    def terms(scale, B):
        form = forms.Full(scale).by_output(10, outputs)
        return jnp.sum(slopes * form.squares(B)) + 3.0 * form.trace() + 0.5 * form.log_det()

    value, (by_scale, by_B) = jax.jit(jax.value_and_grad(terms, (0, 1)))(scale, B)
    L = np.tril(scale)
    S, diagonal = L @ np.swapaxes(L, 1, 2), np.diagonal(L, axis1=1, axis2=2)
    expected = np.einsum("dn,mn,dmk,kn", slopes, B, S, B) + 3 * np.trace(S, axis1=1, axis2=2).sum()
    np.testing.assert_allclose(value, expected + np.log(np.abs(diagonal)).sum(), rtol=1e-12)
    weighted = np.einsum("dn,mn,kn->dmk", slopes, B, B) + 3 * np.eye(10)
    slope = np.tril(2 * weighted @ L) + np.eye(10) / diagonal[:, None]
    np.testing.assert_allclose(by_scale, slope, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(by_B, 2 * np.einsum("dn,dmk,kn->mn", slopes, S, B), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("group", [1, 2, 5, 100])
@pytest.mark.parametrize(("batch", "size"), [((), 11), ((2,), 7), ((3, 2), 4), ((), 1)])
def test_groups_of_rows_change_no_product(monkeypatch, batch, size, group):
    monkeypatch.setattr(operators, "GROUP", group)
    rng = np.random.default_rng(size)
    A, B, K = rng.normal(size=(3, *batch, size, size))
    A, B, C = np.tril(A), np.tril(B), rng.normal(size=(*batch, size, 3))
    found = jax.jit(
        lambda A, B, C, K: (
            operators.lower_product(A, C),
            operators.lower_product(A, B, lower=True),
            operators.lower_gram(A, B),
            jnp.tril(operators.lower_congruence(A, K)),
        )
    )(A, B, C, K)
    transposed = np.swapaxes(A, -1, -2)
    for one, expected in zip(found, (A @ C, A @ B, np.tril(transposed @ B), np.tril(A @ K @ transposed)), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.slow_but(size=[11])
@pytest.mark.parametrize("size", [11, 37])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_inverse_by_halves(monkeypatch, batch, size):
    monkeypatch.setattr(factorise, "SOLVED_WHOLE", 4)
    L = np.tril(np.random.default_rng(0).normal(size=(*batch, size, size))) + 2 * size**0.5 * np.eye(size)
    found = factorise.inverse_of_lower(jnp.asarray(L))
    np.testing.assert_allclose(found, np.linalg.inv(L), atol=1e-13)
    np.testing.assert_array_equal(found, np.tril(found))
    np.testing.assert_allclose(factorise.transposed_square(jnp.asarray(L)), np.swapaxes(L, -1, -2) @ L, atol=1e-12)
