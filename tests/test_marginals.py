"""Gaussian marginals: what is exact on them, what takes a draw, and what the draws are."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from gpzoo.processes.marginals import DrawLog, GaussianMarginals, standard_deviation

N, J = 6, 3
KEY = jax.random.key(0)


def rng_array(seed, *shape, dtype=jnp.float64):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def make(seed=0, columns=J, site="f", log=None, key=True, dtype=jnp.float64):
    shape = (N,) if columns is None else (N, columns)
    mean, variance = rng_array(seed, *shape, dtype=dtype), jnp.exp(rng_array(seed + 100, *shape, dtype=dtype))
    key = jax.random.key(seed) if key else None
    return GaussianMarginals(mean, variance, key, sites=frozenset({site}), log=log)


def row_covariance(f):
    """``[N, K, K]``, densely, from the definition."""
    if f.ndim == 1:
        return np.asarray(f.variance)[:, None, None]
    A = np.eye(f.shape[1]) if f.loading is None else np.asarray(f.loading)
    return np.einsum("jk,nj,jl->nkl", A, np.asarray(f.source_variance), A)


def assert_law(f, mean, covariance):
    """The moments of ``f`` are these, by its own account and by its draws."""
    assert isinstance(f, GaussianMarginals)
    assert f.shape == mean.shape
    np.testing.assert_allclose(f.mean, mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(row_covariance(f), covariance, rtol=1e-12, atol=1e-12)
    diagonal = np.diagonal(covariance, axis1=-2, axis2=-1)
    np.testing.assert_allclose(f.variance, diagonal.reshape(f.shape), rtol=1e-12, atol=1e-12)
    S = 20_000
    draws = np.asarray(f.draws(S)).reshape(S, N if f.shape[0] == N else f.shape[0], -1) - np.asarray(mean).reshape(
        f.shape[0], -1
    )
    estimate = np.einsum("snk,snl->nkl", draws, draws) / S
    scale = np.sqrt(diagonal[:, :, None] * diagonal[:, None, :])
    assert np.abs((estimate - covariance) / (scale + 1e-30)).max() < 6 * np.sqrt(2 / S)
    assert np.abs(draws.mean(0) / (np.sqrt(diagonal) + 1e-30)).max() < 6 / np.sqrt(S)


A_SQUARE, A_WIDE = rng_array(7, J, J), rng_array(8, J, 5)
ROW, COLUMN, FULL = rng_array(9, J), rng_array(10, N, 1), rng_array(11, N, J)

AFFINE = {
    "f + number": (lambda f: f + 2.0, np.eye(J), 2.0),
    "number + f": (lambda f: 2.0 + f, np.eye(J), 2.0),
    "f + array": (lambda f: f + FULL, np.eye(J), FULL),
    "f - row": (lambda f: f - ROW, np.eye(J), -ROW),
    "numpy - f": (lambda f: np.asarray(FULL) - f, -np.eye(J), FULL),
    "numpy + f": (lambda f: np.asarray(FULL) + f, np.eye(J), FULL),
    "-f": (lambda f: -f, -np.eye(J), 0.0),
    "f * number": (lambda f: f * -3.0, -3.0 * np.eye(J), 0.0),
    "numpy * f": (lambda f: np.asarray(ROW) * f, np.diag(ROW), 0.0),
    "f * row": (lambda f: f * ROW, np.diag(ROW), 0.0),
    "f / row": (lambda f: f / ROW, np.diag(1 / ROW), 0.0),
    "f / number": (lambda f: f / 4.0, np.eye(J) / 4, 0.0),
    "f @ A": (lambda f: f @ A_WIDE, A_WIDE, 0.0),
    "f @ A + row": (lambda f: f @ A_SQUARE + ROW, A_SQUARE, ROW),
    "f @ A @ B": (lambda f: f @ A_SQUARE @ A_WIDE, A_SQUARE @ A_WIDE, 0.0),
    "f @ A * row": (lambda f: f @ A_SQUARE * ROW, A_SQUARE * ROW, 0.0),
    "f @ A / number": (lambda f: f @ A_SQUARE / 2.0, A_SQUARE / 2, 0.0),
    "f @ A columns": (lambda f: (f @ A_WIDE)[:, 1:4], A_WIDE[:, 1:4], 0.0),
    "f columns": (lambda f: f[:, 1:], np.eye(J)[:, 1:], 0.0),
    "f ellipsis columns": (lambda f: f[..., jnp.array([2, 0])], np.eye(J)[:, [2, 0]], 0.0),
}


@pytest.mark.parametrize("case", AFFINE)
def test_affine_maps_of_a_row_are_exact(case):
    operation, A, b = AFFINE[case]
    f = make(log=DrawLog(refuse=True))
    mean = np.asarray(f.mean @ A + b)
    covariance = np.einsum("jk,nj,jl->nkl", A, f.variance, A)
    assert_law(operation(f), mean, covariance)


def test_vectors_from_one_output_are_exact():
    f = make(log=DrawLog(refuse=True))
    g = f @ A_WIDE
    weights = ROW
    for vector, a in (
        (f[:, 1], np.eye(J)[1]),
        (f[..., jnp.asarray(2)], np.eye(J)[2]),
        (g[:, 4], A_WIDE[:, 4]),
        (f @ weights, weights),
    ):
        variance = np.asarray(f.variance) @ np.square(a)
        assert_law(vector, np.asarray(f.mean @ jnp.asarray(a)), variance[:, None, None])
        assert vector.independent


def test_scaling_each_row_is_exact():
    f = make(log=DrawLog(refuse=True))
    covariance = np.einsum("jk,nj,jl->nkl", A_SQUARE, f.variance, A_SQUARE)
    assert_law(f @ A_SQUARE * COLUMN, np.asarray(f.mean @ A_SQUARE * COLUMN), covariance * np.square(COLUMN)[..., None])
    independent = np.asarray(f.variance * jnp.square(FULL))
    assert_law(f * FULL, np.asarray(f.mean * FULL), np.einsum("nk,kl->nkl", independent, np.eye(J)))


@pytest.mark.parametrize("rows", [slice(1, 4), jnp.array([3, 0]), np.array([True, False, True, True, False, False])])
def test_rows_are_exact(rows):
    f = make(log=DrawLog(refuse=True)) @ A_SQUARE
    part = f[rows]
    assert part.loading is f.loading
    assert_law(part, np.asarray(f.mean)[rows], row_covariance(f)[rows])
    assert make(columns=None)[rows].shape == part.shape[:1]


def test_sums_of_different_sites_are_exact():
    log = DrawLog(refuse=True)
    f, g = make(0, site="f", log=log), make(1, site="g", log=log)
    total = f + g
    assert total.sites == {"f", "g"} and total.log is log and total.independent
    assert_law(total, f.mean + g.mean, row_covariance(f) + row_covariance(g))
    assert_law(f - g, f.mean - g.mean, row_covariance(f) + row_covariance(g))
    for left, right in ((f @ A_SQUARE, g), (f, g @ A_SQUARE), (f @ A_SQUARE, g @ A_WIDE[:, :J])):
        assert_law(left + right, left.mean + right.mean, row_covariance(left) + row_covariance(right))
        assert_law(left - right, left.mean - right.mean, row_covariance(left) + row_covariance(right))
    assert_law(f[:, 0] + g[:, 1], f.mean[:, 0] + g.mean[:, 1], (f.variance[:, 0] + g.variance[:, 1])[:, None, None])


def test_sum_keeps_the_log_and_rows_of_either_side():
    log = DrawLog()
    f, g = make(0, site="f"), make(1, site="g", log=log)
    g.rows = jnp.arange(N)
    total = f + g
    assert total.log is log and total.rows is g.rows


def test_sums_within_a_site_take_a_draw():
    log = DrawLog()
    f = make(log=log)
    total = f + f
    assert not isinstance(total, GaussianMarginals) and log.sites == {"f"}
    np.testing.assert_allclose(total, 2 * f.draws(1)[0])


def test_sums_of_unnamed_marginals_take_a_draw():
    f = GaussianMarginals(jnp.zeros(N), jnp.ones(N), KEY)
    np.testing.assert_allclose(f + f, 2 * f.draws(1)[0])
    np.testing.assert_allclose(f - f, 0.0)


DRAWN = {
    "jnp function": lambda f: jnp.exp(f),
    "jax array on the left": lambda f: FULL * f,
    "jax array @ f": lambda f: jnp.ones((2, N)) @ f,
    "constant that changes the shape": lambda f: f + jnp.ones((2, N, J)),
    "method": lambda f: f.sum(),
    "attribute": lambda f: f.T,
    "power": lambda f: f**2,
    "number / f": lambda f: 1.0 / f,
    "number ** f": lambda f: 2.0**f,
    "comparison": lambda f: f > 0.0,
    "equality": lambda f: f == f,
    "absolute value": lambda f: abs(f),
    "modulo": lambda f: f % 1.0,
    "product": lambda f: f * f,
    "integer row": lambda f: f[0],
    "entry": lambda f: f[0, 1],
    "new axis": lambda f: f[None],
    "mask of entries": lambda f: f[np.ones((N, J), bool)],
    "numpy": lambda f: np.asarray(f),
    "numpy function": lambda f: np.exp(np.asarray(f)),
    "rows and columns": lambda f: (f @ A_SQUARE) * FULL,
    "iteration": lambda f: jnp.stack(list(f)),
    "jit": lambda f: jax.jit(lambda g: jnp.exp(g))(f),
}


@pytest.mark.parametrize("case", DRAWN)
def test_everything_else_takes_a_draw_and_notes_it(case):
    log = DrawLog()
    f = make(log=log)
    value = DRAWN[case](f)
    assert log.sites == {"f"}
    assert not isinstance(value, GaussianMarginals)
    draw = f.draws(1)[0]
    if case == "rows and columns":
        expected = (f @ A_SQUARE).draws(1)[0] * FULL
    elif case == "equality":
        expected = np.ones((N, J), bool)
    else:
        expected = DRAWN[case](draw)
    np.testing.assert_allclose(value, expected, rtol=1e-12)


@pytest.mark.parametrize("case", DRAWN)
def test_refusing_log_raises_naming_the_site(case):
    with pytest.raises(RuntimeError, match=r"took an array of GP site\(s\) f,"):
        DRAWN[case](make(log=DrawLog(refuse=True)))


def test_jax_array_on_the_left_draws_and_on_the_right_does_not():
    log = DrawLog()
    f = make(log=log)
    assert isinstance(f * FULL, GaussianMarginals) and not log.sites
    assert isinstance(FULL * f, jax.Array) and log.sites == {"f"}


def test_truth_value_of_several_entries_is_refused():
    with pytest.raises(ValueError, match="ambiguous"):
        bool(make())


def test_unknown_attributes_raise():
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        _ = make().missing
    f = copy.copy(make())
    assert f.shape == (N, J) and len(f) == N and f.ndim == 2 and f.size == N * J
    assert repr(f) == "GaussianMarginals(shape=(6, 3), dtype=float64, sites={f})"


def test_draws_are_reproducible_and_follow_the_dtype():
    for dtype in (jnp.float32, jnp.float64):
        f = make(dtype=dtype)
        draws = f.draws(4)
        assert draws.shape == (4, N, J) and draws.dtype == dtype
        np.testing.assert_array_equal(draws, make(dtype=dtype).draws(4))
        np.testing.assert_array_equal(jnp.asarray(f), jnp.asarray(f))
        assert (f @ A_WIDE.astype(dtype)).draws(2).shape == (2, N, 5)
    assert not np.allclose(draws[0], draws[1])


def test_draws_of_named_rows_do_not_depend_on_the_batch():
    f = make()
    f.rows = jnp.arange(N) + 10
    order = jnp.array([4, 1, 3])
    np.testing.assert_allclose(f[order].draws(3), f.draws(3)[:, order], rtol=1e-12)
    np.testing.assert_array_equal(f[order].rows, f.rows[order])


def test_marginals_without_a_key_are_not_drawn():
    f = make(key=False)
    with pytest.raises(ValueError, match="no random key"):
        f.draws(1)
    np.testing.assert_allclose((f * 2.0).variance, 4 * f.variance)
    assert (f + make(1, site="g", key=False)).key is None


def test_gradients_through_draws_are_reparameterised():
    f = make() @ A_SQUARE

    def loss(mean, variance, A):
        g = GaussianMarginals(mean, variance, f.key) @ A
        return jnp.sum(jnp.sin(jnp.asarray(g)))

    arguments = (f.mean @ jnp.linalg.inv(A_SQUARE), f.source_variance, A_SQUARE)
    check_grads(jax.jit(loss), arguments, order=1, modes=["rev"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_zero_and_rounded_variances_have_finite_draws_and_gradients(dtype):
    variance = jnp.asarray([0.0, -1e-7, 1e-30, 1.0], dtype)
    value, gradient = jax.vmap(jax.value_and_grad(standard_deviation))(variance)
    assert np.isfinite(value).all() and np.isfinite(gradient).all()
    np.testing.assert_allclose(value[-1], 1.0)
    np.testing.assert_allclose(gradient[-1], 0.5)
    f = GaussianMarginals(jnp.ones(4, dtype), variance, KEY)
    np.testing.assert_allclose(f.draws(1)[0][:3], 1.0, atol=1e-5)


@pytest.mark.parametrize("loading", [False, True])
def test_jit_and_vmap_round_trips(loading):
    f = make(log=DrawLog(refuse=True))
    f.rows = jnp.arange(N)
    f = f @ A_SQUARE if loading else f
    g = jax.jit(lambda m: m * 2.0)(f)
    assert g.sites == f.sites and g.log is f.log
    np.testing.assert_allclose(g.mean, f.mean * 2)
    np.testing.assert_allclose(g.draws(3), (f * 2.0).draws(3))
    stacked = jax.vmap(lambda c: f * c)(jnp.arange(1.0, 4.0))
    assert stacked.mean.shape == (3, N, J)
    totals = jax.vmap(lambda m: m.variance.sum())(stacked)
    np.testing.assert_allclose(totals, np.asarray(f.variance.sum()) * np.arange(1, 4) ** 2)
    leaves, structure = jax.tree.flatten(f)
    again = jax.tree.unflatten(structure, leaves)
    np.testing.assert_array_equal(again.draws(2), f.draws(2))
    assert (again.loading is None) == (not loading)


def test_one_output_of_a_map_counts_as_independent():
    f = make()
    assert f.independent and not (f @ A_WIDE).independent
    assert (f @ A_WIDE[:, :1]).independent
