"""Kronecker products and Toeplitz matrices against the dense matrices that they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpzoo.kernels import RBF
from gpzoo.linalg.operators import Kronecker
from gpzoo.linalg.toeplitz import ToeplitzInverse, toeplitz_matmul, toeplitz_root


def numbers(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


def dense(column):
    index = jnp.arange(column.shape[0])
    return column[jnp.abs(index[:, None] - index[None, :])]


def smooth(M, lengthscale, jitter=1e-3):
    z = jnp.linspace(0.0, 1.0, M)
    return jnp.exp(-jnp.square(z / lengthscale) / 2).at[0].add(jitter)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 3), st.sampled_from([(), (2,)]))
def test_a_kronecker_product_is_its_dense_matrix(sizes, columns, batch):
    factors = [numbers(*batch, size, size, seed=i) for i, size in enumerate(sizes)]
    K, B = Kronecker(*factors), numbers(*batch, int(np.prod(sizes)), columns, seed=9)
    whole = K.dense()
    assert whole.shape == K.shape and K.ndim == whole.ndim and K.dtype == whole.dtype
    wanted = [np.eye(1)] * 2
    for F in factors:
        wanted = [np.kron(w, f) for w, f in zip(wanted, np.broadcast_to(F, (2, *F.shape[-2:])), strict=True)]
    np.testing.assert_allclose(np.broadcast_to(whole, (2, *whole.shape[-2:])), wanted, atol=1e-12)
    np.testing.assert_allclose(K @ B, whole @ B, atol=1e-12)
    np.testing.assert_allclose(K.mT @ B, jnp.swapaxes(whole, -1, -2) @ B, atol=1e-12)


def test_factors_with_and_without_outputs_go_together():
    K = Kronecker(numbers(2, 3, 3), numbers(4, 4, seed=1))
    B = numbers(12, 2, seed=2)
    assert K.shape == (2, 12, 12) and (K @ B).shape == (2, 12, 2)
    np.testing.assert_allclose((K @ B)[1], np.kron(K.factors[0][1], K.factors[1]) @ B, atol=1e-12)


def test_what_is_no_factor_is_refused():
    with pytest.raises(ValueError, match=r"square matrices, at least one; got \[\(2, 3\)\]"):
        Kronecker(numbers(2, 3))
    with pytest.raises(ValueError, match="at least one"):
        Kronecker()


@pytest.mark.parametrize("M", [2, 3, 17, 200])
def test_toeplitz_inverse_is_that_of_the_dense_matrix(M):
    column, B = smooth(M, 0.2), numbers(M, 3)
    T = dense(column)
    inverse = ToeplitzInverse(column)
    np.testing.assert_allclose(toeplitz_matmul(column, B), T @ B, atol=1e-10)
    np.testing.assert_allclose(inverse.log_det, np.linalg.slogdet(T)[1], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(inverse.solve(B), np.linalg.solve(T, B), rtol=1e-8, atol=1e-8 * np.abs(B).max() / 1e-3)
    np.testing.assert_allclose(inverse.diagonal(), np.diag(np.linalg.inv(T)), rtol=1e-9)


@pytest.mark.parametrize("M", [2, 5, 60])
def test_derivatives_are_those_of_the_dense_matrix(M):
    B, s = numbers(M, 2), jnp.abs(numbers(M, seed=1))

    def structured(column):
        inverse = ToeplitzInverse(column)
        return inverse.log_det + jnp.vdot(B, inverse.solve(B)) + jnp.vdot(s, inverse.diagonal())

    def plain(column):
        T = dense(column)
        inverse = jnp.linalg.inv(T)
        return jnp.linalg.slogdet(T)[1] + jnp.vdot(B, inverse @ B) + jnp.vdot(s, jnp.diagonal(inverse))

    column = smooth(M, 0.3, 0.05)
    ours, theirs = jax.grad(structured)(column), jax.grad(plain)(column)
    np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8 * float(jnp.abs(theirs).max()))
    # And over several matrices at once.
    both = jax.vmap(jax.grad(structured))(jnp.stack([column, 2 * column]))
    np.testing.assert_allclose(both[0], ours, rtol=1e-9, atol=1e-9 * float(jnp.abs(theirs).max()))


def test_a_matrix_that_is_not_positive_definite_gives_nan():
    assert np.isnan(ToeplitzInverse(jnp.asarray([1.0, 1.2, 0.9])).log_det)


def test_the_root_whitens_smooth_processes():
    M = 400
    column = smooth(M, 0.05, 0.01)
    R, T = dense(toeplitz_root(column)), dense(column)
    inner = slice(100, 300)
    np.testing.assert_allclose((R @ R)[inner, inner], T[inner, inner], atol=2e-3)
    whitened = np.linalg.solve(R, np.linalg.solve(R, T).T)
    spectrum = np.linalg.eigvalsh(whitened)
    # The covariance itself spans several orders of magnitude.
    assert 0.2 < spectrum.min() and spectrum.max() < 5
    assert np.linalg.cond(T) > 4e3


def test_no_matrix_is_formed():
    M = 512

    def both(lengthscale):
        inverse = ToeplitzInverse(smooth(M, lengthscale, 0.01))
        return inverse.log_det + jnp.sum(inverse.solve(jnp.ones((M, 1)))) + jnp.sum(inverse.diagonal())

    compiled = jax.jit(jax.value_and_grad(both)).lower(0.1).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < M * M * 8 / 4
    assert f"{M},{M}" not in compiled.as_text()


def test_float32_keeps_four_digits_on_a_thousand_points():
    def value(dtype):
        column = RBF(1.0, 0.3)(jnp.linspace(-1, 1, 1024, dtype=dtype)[:, None])[0].at[0].add(1e-2)
        inverse = ToeplitzInverse(column)
        B = jnp.sin(jnp.arange(1024, dtype=dtype) / 50)[:, None]
        return np.array([inverse.log_det, jnp.vdot(B, inverse.solve(B)), inverse.diagonal().sum()], np.float64)

    np.testing.assert_allclose(value(jnp.float32), value(jnp.float64), rtol=1e-3)
