"""Jitter, Cholesky factors, triangular solves and the message of a factorisation that fails."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpzoo.kernels import RBF
from gpzoo.linalg import RELATIVE_JITTER, FactorisationError, add_jitter, cholesky, explain, solve_lower


def covariance(size=4, batch=(), seed=0):
    A = np.random.default_rng(seed).normal(size=(*batch, size, size))
    return A @ np.swapaxes(A, -1, -2) + np.eye(size)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_default_jitter_is_relative_to_the_mean_diagonal(dtype):
    K = jnp.asarray(np.stack([np.diag([1.0, 3.0]), np.diag([100.0, 300.0])]), dtype)
    added = np.asarray(add_jitter(K) - K, "float64")
    assert add_jitter(K).dtype == dtype
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
    base, direction = jnp.asarray(covariance()), jnp.asarray(covariance(seed=1))
    weights = jnp.asarray(np.random.default_rng(2).normal(size=(4, 4)))

    def value(t):
        return jnp.sum(weights * cholesky(base + t * direction, jitter=1e-6))

    step = 1e-5
    np.testing.assert_allclose(jax.grad(value)(0.0), (value(step) - value(-step)) / (2 * step), rtol=1e-8)
    batched = jax.grad(lambda t: jnp.sum(jax.vmap(value)(jnp.stack([t, 2 * t]))))(0.0)
    np.testing.assert_allclose(batched, 3 * jax.grad(value)(0.0), rtol=1e-10)


def test_default_jitter_factorises_coincident_inputs():
    X = np.repeat(np.linspace(0, 1, 20), 3)[:, None]
    for dtype in ("float64", "float32"):
        assert np.isfinite(cholesky(RBF(5.0, 0.5)(X.astype(dtype)))).all()


def test_failure_names_the_matrix_the_jitter_and_the_way_out():
    K = np.array([[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(FactorisationError) as caught:
        cholesky(jnp.asarray(K), "Kuu of site 'f'")
    message = str(caught.value)
    for part in (
        "Kuu of site 'f'",
        "2 x 2",
        "float64",
        "jitter 1e-06 of the mean diagonal",
        "diagonal from 1 to 1",
        "difference of two of its variables -2",
        "fewer or distinct inducing inputs",
        "larger jitter",
        "lower learning rate",
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
        FactorisationError, match=r"Kuu failed .* itself holds NaN or infinity.* lower the learning rate"
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
