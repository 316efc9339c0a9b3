"""Jitter, Cholesky factors, triangular solves and the message of a factorisation that fails."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpzoo import linalg
from gpzoo.errors import FactorisationError
from gpzoo.kernels import RBF
from gpzoo.linalg import operators
from gpzoo.linalg.factorise import RELATIVE_JITTER, add_jitter, cholesky, cholesky_and_inverse, explain, solve_lower
from gpzoo.linalg.operators import BlockDiagonalMatrix


def covariance(size=4, batch=(), seed=0):
    A = np.random.default_rng(seed).normal(size=(*batch, size, size))
    return A @ np.swapaxes(A, -1, -2) + np.eye(size)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_default_jitter_is_relative_to_the_mean_diagonal(dtype):
    K = np.stack([np.diag([1.0, 3.0]), np.diag([100.0, 300.0])])
    jittered, added = jax.jit(lambda K: (K := K.astype(dtype), add_jitter(K), add_jitter(K) - K)[1:])(K)
    added = np.asarray(added).astype("float64")
    assert jittered.dtype == dtype
    off = added[:, [0, 1], [1, 0]]
    np.testing.assert_array_equal(off, 0)
    tolerance = float(jnp.finfo(dtype).eps) / RELATIVE_JITTER[dtype]
    mean = np.array([[2.0], [200.0]])
    np.testing.assert_allclose(added[:, [0, 1], [0, 1]] / mean, RELATIVE_JITTER[dtype], rtol=2 * tolerance)


@pytest.mark.parametrize(("jitter", "expected"), [(0.5, [0.5] * 3), (np.array([0.1, 0.2, 0.3]), [0.1, 0.2, 0.3])])
def test_given_jitter_is_absolute_one_or_one_per_matrix(jitter, expected):
    # As many matrices as rows: one value per matrix must not be taken for one per row.
    K = jnp.asarray(covariance(3, (3,)))
    np.testing.assert_allclose(
        add_jitter(K, jitter) - K, np.asarray(expected)[:, None, None] * np.eye(3), atol=1e-14, rtol=1e-12
    )


def test_zero_jitter_changes_nothing():
    K = jnp.asarray(covariance())
    np.testing.assert_array_equal(add_jitter(K, 0.0), K)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_cholesky_matches_numpy(batch):
    K = covariance(batch=batch)
    L = cholesky(jnp.asarray(K), jitter=1e-3)
    np.testing.assert_allclose(L, np.linalg.cholesky(K + 1e-3 * np.eye(4)), rtol=1e-12, atol=1e-14)


def test_gradient_of_cholesky_matches_finite_differences():
    base, direction = covariance(), covariance(seed=1)
    weights, step = np.random.default_rng(2).normal(size=(4, 4)), 1e-5

    def value(t):
        return jnp.sum(weights * cholesky(base + t * direction, jitter=1e-6))

    @jax.jit
    def everything(zero):
        several = lambda t: jnp.sum(jax.vmap(value)(jnp.stack([t, 2 * t])))  # noqa: E731
        return jax.grad(value)(zero), value(zero + step), value(zero - step), jax.grad(several)(zero)

    gradient, up, down, batched = everything(0.0)
    np.testing.assert_allclose(gradient, (up - down) / (2 * step), rtol=1e-8)
    np.testing.assert_allclose(batched, 3 * gradient, rtol=1e-10)


def test_default_jitter_factorises_coincident_inputs():
    X = np.repeat(np.linspace(0, 1, 20), 3)[:, None]
    factor = jax.jit(lambda kernel, X: cholesky(kernel(X)))
    for dtype in ("float64", "float32"):
        assert np.isfinite(factor(RBF(5.0, 0.5), X.astype(dtype))).all()


def test_failure_names_the_matrix_the_jitter_and_the_way_out():
    K = np.array([[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(FactorisationError) as caught:
        cholesky(jnp.asarray(K), "Kuu of site 'f'")
    message = str(caught.value)
    for part in (
        "Kuu of site 'f'",
        "2 x 2",
        "float64",
        "jitter 1e-09 of the mean diagonal",
        "diagonal from 1 to 1",
        "difference of two of its variables -2",
        "fewer or distinct inducing inputs",
        "larger jitter",
    ):
        assert part in message
    with pytest.raises(FactorisationError, match=r"jitter 0\.25,"):
        cholesky(jnp.asarray(K), jitter=0.25)
    with pytest.raises(FactorisationError, match="float32, jitter 1e-05 of the mean"):
        cholesky(jnp.asarray(K, "float32"))


def test_failure_of_one_matrix_of_a_batch():
    K = jnp.asarray(np.stack([np.eye(2), [[1.0, 2.0], [2.0, 1.0]]]))
    with pytest.raises(FactorisationError, match="variables -2"):
        cholesky(K, jitter=np.array([0.1, 0.2]))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_failure_of_a_matrix_with_bad_entries_says_so(bad):
    K = covariance()
    K[1, 0] = bad
    with pytest.raises(
        FactorisationError, match=r"Kuu failed .* itself holds NaN or infinity.* the data are too large"
    ):
        cholesky(jnp.asarray(K), "Kuu")
    assert "NaN or infinity" in explain(K, "Kuu")


def test_failure_under_jit_is_nan_for_the_caller_to_find():
    L = jax.jit(cholesky)(jnp.array([[1.0, 2.0], [2.0, 1.0]]))
    assert np.isnan(L).any()


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(
    ("matrices", "columns"), [((), ()), ((3,), ()), ((), (3,)), ((3,), (3,)), ((2, 1), (3,))], ids=str
)
def test_solve_lower_matches_numpy_and_broadcasts(matrices, columns, transpose):
    L = np.linalg.cholesky(covariance(batch=matrices))
    B = np.random.default_rng(1).normal(size=(*columns, 4, 5))
    solution = solve_lower(jnp.asarray(L), jnp.asarray(B), transpose=transpose)
    batch = np.broadcast_shapes(matrices, columns)
    assert solution.shape == (*batch, 4, 5)
    A = np.swapaxes(L, -1, -2) if transpose else L
    expected = np.linalg.solve(np.broadcast_to(A, (*batch, 4, 4)), np.broadcast_to(B, (*batch, 4, 5)))
    np.testing.assert_allclose(solution, expected, rtol=1e-10, atol=1e-12)


def test_solve_lower_ignores_the_upper_triangle():
    L = np.linalg.cholesky(covariance())
    B = np.eye(4)
    np.testing.assert_array_equal(
        solve_lower(jnp.asarray(L + np.triu(np.ones((4, 4)), 1)), jnp.asarray(B)),
        solve_lower(jnp.asarray(L), jnp.asarray(B)),
    )


# -- the factor and its inverse ----------------------------------------------------------------------------------------


def by_solving(K, jitter=1e-3):
    """What :func:`cholesky_and_inverse` computes, with JAX's own derivatives of factorisation and solve."""
    L = jnp.linalg.cholesky(add_jitter(K, jitter), symmetrize_input=False)
    eye = jnp.broadcast_to(jnp.eye(K.shape[-1], dtype=K.dtype), K.shape)
    return L, jax.scipy.linalg.solve_triangular(L, eye, lower=True)


def ours(K):
    return cholesky_and_inverse(K, jitter=1e-3)


def assert_close(ours, theirs, rtol=1e-10):
    def compare(a, b):
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * np.abs(b).max())

    jax.tree.map(compare, ours, theirs)


def symmetric(cotangents):
    """Cotangents of symmetric matrices, of which only the sum over both triangles means something."""
    return jax.tree.map(lambda x: x + x.mT, cotangents)


@pytest.mark.slow_but(size=[4], batch=[(2, 3)])
@pytest.mark.parametrize(
    ("batch", "size", "group"),
    [((), 4, None), ((3,), 4, None), ((2, 3), 4, None), ((), 7, 1), ((2,), 7, 3), ((3,), 5, 2), ((), 307, None)],
    ids=str,
)
def test_factor_and_inverse_and_their_derivatives(monkeypatch, batch, size, group):
    if group:
        monkeypatch.setattr(operators, "GROUP", group)
    K, direction = (jnp.asarray(covariance(size, batch, seed)) / size for seed in (0, 1))
    rng = np.random.default_rng(2)
    weights = tuple(jnp.asarray(rng.normal(size=K.shape)) for _ in range(2))

    def everything(function):
        def score(t):
            return sum(jnp.sum(w * jnp.square(x)) for w, x in zip(weights, function(K + t * direction), strict=True))

        values, tangents = jax.jvp(function, (K,), (direction,))
        cotangents = symmetric(jax.vjp(function, K)[1](weights))
        second = (jax.grad(jax.grad(score))(0.0), jax.jvp(jax.grad(score), (0.0,), (1.0,))[1])
        return values, tangents, cotangents, second

    (L, inverse), *found = jax.jit(lambda: everything(ours))()
    expected = np.linalg.cholesky(np.asarray(K) + 1e-3 * np.eye(size))
    assert_close(L, expected, 1e-13)
    assert_close(inverse, np.linalg.inv(expected), 1e-11)
    for matrix in (L, inverse):
        np.testing.assert_array_equal(np.triu(matrix, 1), 0)
    _, *wanted = jax.jit(lambda: everything(by_solving))()
    assert_close(found, wanted)
    assert all(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(wanted))


def test_factor_and_inverse_under_vmap_and_in_single_precision():
    K = jnp.asarray(covariance(batch=(3,)))
    assert_close(jax.jit(jax.vmap(ours))(K), jax.jit(ours)(K), 1e-14)
    single = jax.jit(cholesky_and_inverse)(K.astype("float32"))
    assert [matrix.dtype for matrix in single] == ["float32"] * 2
    assert_close(single, jax.jit(cholesky_and_inverse)(K), 1e-4)
    np.testing.assert_allclose(*jax.jit(lambda K: (cholesky_and_inverse(K)[0], cholesky(K)))(K), rtol=1e-14)


def test_factor_and_inverse_of_blocks():
    first, second = covariance(3), covariance(2, (5,), seed=1)
    K = BlockDiagonalMatrix(first, second, first)
    weights = np.random.default_rng(3).normal(size=(2, 5, 8, 8))

    def score(function, a, b):
        def of(a, b):
            return jnp.sum(weights * jnp.stack(function(a, b)))

        return symmetric(jax.grad(of, argnums=(0, 1))(a, b))

    def in_blocks(a, b):
        return [matrix.dense() for matrix in ours(BlockDiagonalMatrix(a, b, a))]

    def as_one(a, b):
        return by_solving(BlockDiagonalMatrix(*(jnp.broadcast_to(x, (5, *x.shape[-2:])) for x in (a, b, a))).dense())

    @jax.jit
    def everything(K):
        L, inverse = ours(K)
        # Blocks that are one object are factorised once.
        shared = BlockDiagonalMatrix(first := K.blocks[0], second := K.blocks[1], first)
        assert all(matrix.blocks[0] is matrix.blocks[2] for matrix in ours(shared))
        values = (L.dense(), inverse.dense()), as_one(first, second)
        return (L, inverse), values, (score(in_blocks, first, second), score(as_one, first, second))

    (L, inverse), values, gradients = everything(K)
    assert L.sizes == inverse.sizes == (3, 2, 3)
    assert_close(*values)
    assert_close(*gradients)


def test_failure_of_factor_and_inverse():
    bad = jnp.array([[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(FactorisationError, match=r"of Kuu of site 'f' failed \(2 x 2.*variables -2"):
        cholesky_and_inverse(bad, "Kuu of site 'f'")
    with pytest.raises(FactorisationError, match=r"block 1 of Kuu failed .* jitter 0\.25,"):
        cholesky_and_inverse(BlockDiagonalMatrix(jnp.eye(3), bad), "Kuu", 0.25)
    L, inverse = jax.jit(cholesky_and_inverse)(bad)
    assert np.isnan(L).any() and np.isnan(inverse).any()


@pytest.mark.slow
@pytest.mark.slow_but(rows=[7], batch=[()])
@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("rows, columns", [(1, 1), (7, 1), (12, 3)])
def test_products_with_a_factor_follow_its_matrix(batch, rows, columns):
    """Programs whose functions NUTS draws have no other derivative."""
    rng = np.random.default_rng(rows)
    A, B = rng.standard_normal((2, *batch, rows, rows))
    v, w = rng.standard_normal((2, *batch, rows, columns))

    def product(s, by_factor):
        K = A @ A.swapaxes(-1, -2) + s * (B @ B.swapaxes(-1, -2)) + jnp.eye(rows)
        if by_factor:
            return jnp.linalg.cholesky(K) @ (v * s)
        return linalg.times_factor(jax.lax.stop_gradient(jnp.linalg.cholesky(K)), K, v * s)

    forward = [jax.jacfwd(lambda s, x=x: product(s, x))(0.7) for x in (True, False)]
    backward = [jax.grad(lambda s, x=x: jnp.sum(w * product(s, x)))(0.7) for x in (True, False)]
    for expected, found in (forward, backward):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)
