"""Kronecker products and Toeplitz matrices against the dense matrices that they stand for."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import toeplitz

from gpzoo.kernels import RBF
from gpzoo.linalg.operators import KroneckerProduct
from gpzoo.linalg.toeplitz import ToeplitzInverse, toeplitz_matmul, toeplitz_root


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def smooth(M, lengthscale, jitter=1e-3, xp=np):
    z = xp.linspace(0.0, 1.0, M)
    return xp.exp(-xp.square(z / lengthscale) / 2) + jitter * (np.arange(M) == 0)


@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_kronecker_product_is_its_dense_matrix(batch):
    def evaluated(factors, B):
        K = KroneckerProduct(*factors)
        whole = K.dense()
        assert whole.shape == K.shape and K.ndim == whole.ndim and K.dtype == whole.dtype
        return whole, K @ B, K.mT @ B

    cases = [
        ([numbers(*batch, size, size, seed=i) for i, size in enumerate(sizes)], numbers(*batch, rows, columns, seed=9))
        for sizes, rows, columns in (((3,), 3, 1), ((1, 4), 4, 3), ((3, 2, 4), 24, 2))
    ]
    found = jax.jit(lambda cases: [evaluated(*case) for case in cases])(cases)
    for (factors, B), (whole, product, transposed) in zip(cases, found, strict=True):
        wanted = [np.eye(1)] * 2
        for F in factors:
            wanted = [np.kron(w, f) for w, f in zip(wanted, np.broadcast_to(F, (2, *F.shape[-2:])), strict=True)]
        wanted = np.stack(wanted) if batch else wanted[0]
        np.testing.assert_allclose(whole, wanted, atol=1e-12)
        np.testing.assert_allclose(product, wanted @ B, atol=1e-12)
        np.testing.assert_allclose(transposed, np.swapaxes(wanted, -1, -2) @ B, atol=1e-12)


def test_factors_with_and_without_outputs_go_together():
    K = KroneckerProduct(numbers(2, 3, 3), numbers(4, 4, seed=1))
    B = numbers(12, 2, seed=2)
    product = jax.jit(lambda K: K @ B)(K)
    assert K.shape == (2, 12, 12) and product.shape == (2, 12, 2)
    np.testing.assert_allclose(product[1], np.kron(K.factors[0][1], K.factors[1]) @ B, atol=1e-12)


def test_what_is_no_factor_is_refused():
    with pytest.raises(ValueError, match=r"square matrices, at least one; got \[\(2, 3\)\]"):
        KroneckerProduct(numbers(2, 3))
    with pytest.raises(ValueError, match="at least one"):
        KroneckerProduct()


@pytest.mark.parametrize("M", [2, 17, 200])
def test_toeplitz_inverse_is_that_of_the_dense_matrix(M):
    @jax.jit
    def evaluated(column, B):
        inverse = ToeplitzInverse(column)
        return toeplitz_matmul(column, B), inverse.log_det, inverse.solve(B), inverse.diagonal()

    column, B = smooth(M, 0.2), numbers(M, 3)
    T = toeplitz(column)
    product, log_det, solved, diagonal = evaluated(column, B)
    np.testing.assert_allclose(product, T @ B, atol=1e-10)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(T)[1], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(solved, np.linalg.solve(T, B), rtol=1e-8, atol=1e-8 * np.abs(B).max() / 1e-3)
    np.testing.assert_allclose(diagonal, np.diag(np.linalg.inv(T)), rtol=1e-9)


@pytest.mark.parametrize("M", [2, 61])
def test_derivatives_are_those_of_the_dense_matrix(M):
    B, s = numbers(M, 2), np.abs(numbers(M, seed=1))

    def structured(column):
        inverse = ToeplitzInverse(column)
        return inverse.log_det + jnp.vdot(B, inverse.solve(B)) + jnp.vdot(s, inverse.diagonal())

    def by_hand(column):
        """Each entry of the column stands on two diagonals of the matrix."""
        inverse = np.linalg.inv(toeplitz(column))
        G = inverse - inverse @ (B @ B.T + np.diag(s)) @ inverse
        return np.array([np.trace(G)] + [2 * np.trace(G, k) for k in range(1, M)])

    column = smooth(M, 0.3, 0.05)
    # For one matrix, and for several at once.
    gradient = jax.grad(structured)
    one, both = jax.jit(lambda c: (gradient(c), jax.vmap(gradient)(jnp.stack([c, 2 * c]))))(column)
    wanted = by_hand(column)
    np.testing.assert_allclose(one, wanted, rtol=1e-8, atol=1e-8 * np.abs(wanted).max())
    np.testing.assert_allclose(both[0], one, rtol=1e-9, atol=1e-9 * np.abs(wanted).max())
    wanted = by_hand(2 * column)
    np.testing.assert_allclose(both[1], wanted, rtol=1e-8, atol=1e-8 * np.abs(wanted).max())


def test_a_matrix_that_is_not_positive_definite_gives_nan():
    assert np.isnan(jax.jit(ToeplitzInverse)(np.array([1.0, 1.2, 0.9])).log_det)


def test_the_root_whitens_smooth_processes():
    M = 400
    column = smooth(M, 0.05, 0.01)
    R, T = toeplitz(jax.jit(toeplitz_root)(column)), toeplitz(column)
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
        inverse = ToeplitzInverse(smooth(M, lengthscale, 0.01, jnp))
        return inverse.log_det + jnp.sum(inverse.solve(jnp.ones((M, 1)))) + jnp.sum(inverse.diagonal())

    compiled = jax.jit(jax.value_and_grad(both)).lower(0.1).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < M * M * 8 / 4
    assert f"{M},{M}" not in compiled.as_text()


def test_float32_keeps_four_digits_on_a_thousand_points():
    @partial(jax.jit, static_argnums=0)
    def value(dtype):
        column = RBF(1.0, 0.3)(jnp.linspace(-1, 1, 1024, dtype=dtype)[:, None])[0].at[0].add(1e-2)
        inverse = ToeplitzInverse(column)
        B = jnp.sin(jnp.arange(1024, dtype=dtype) / 50)[:, None]
        return jnp.stack([inverse.log_det, jnp.vdot(B, inverse.solve(B)), inverse.diagonal().sum()])

    np.testing.assert_allclose(value(jnp.float32), value(jnp.float64), rtol=1e-3)
