"""Gaussian marginals: what is exact on them, what they refuse, and what their draws are."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from gpzoo.kernels import RBF
from gpzoo.processes.marginals import DrawLog, GaussianMarginals, draws, standard_deviation
from gpzoo.processes.process import GaussianProcess
from tests.statistics import assert_gaussian_moments

N, J = 6, 3
KEY = jax.random.key(0)


def rng_array(seed, *shape, dtype=jnp.float64):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(dtype))


REFUSING = DrawLog(refuse=True)  # one object, so that programs of marginals which carry it are shared


def make(seed=0, columns=J, site="f", log=None, key=True, dtype=jnp.float64):
    shape = (N,) if columns is None else (N, columns)
    mean, variance = rng_array(seed, *shape, dtype=dtype), np.exp(rng_array(seed + 100, *shape, dtype=dtype))
    key = jax.random.key(seed) if key else None
    return GaussianMarginals(mean, variance, key, sites=frozenset({site}), log=log)


def row_covariance(f):
    """``[N, K, K]``, densely, from the definition."""
    if f.ndim == 1:
        return np.asarray(f.variance)[:, None, None]
    A = np.eye(f.shape[1]) if f.loading is None else np.asarray(f.loading)
    return np.einsum("jk,nj,jl->nkl", A, np.asarray(f.source_variance), A)


@jax.jit
def account(f):
    """Moments, noise and draws, by the marginals' own account."""
    return f.mean, f.variance, f.noise(2), f.draws(2)


def assert_law(f, mean, covariance):
    """The moments of ``f`` are these, and its draws map white noise to exactly this law."""
    assert isinstance(f, GaussianMarginals)
    assert f.shape == mean.shape
    found, variance, noise, drawn = (np.asarray(x) for x in account(f))
    np.testing.assert_allclose(found, mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(row_covariance(f), covariance, rtol=1e-12, atol=1e-12)
    diagonal = np.diagonal(covariance, axis1=-2, axis2=-1)
    np.testing.assert_allclose(variance, diagonal.reshape(f.shape), rtol=1e-12, atol=1e-12)
    assert noise.shape == (2, *f.source_variance.shape) and len(np.unique(noise)) == noise.size
    deviation = np.sqrt(np.asarray(f.source_variance)) * noise
    if f.loading is not None:
        deviation = deviation @ np.asarray(f.loading)
    np.testing.assert_allclose(drawn, mean + deviation, rtol=1e-12, atol=1e-12)


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
    "jax row * f": (lambda f: ROW * f, np.diag(ROW), 0.0),
    "jax array + f": (lambda f: FULL + f, np.eye(J), FULL),
    "jax row - f": (lambda f: ROW - f, -np.eye(J), ROW),
    "jax number * f": (lambda f: jnp.float64(-3.0) * f, -3.0 * np.eye(J), 0.0),
    "numpy number - f": (lambda f: np.float64(2.0) - f, -np.eye(J), 2.0),
    "numpy.multiply": (lambda f: np.multiply(np.asarray(ROW), f), np.diag(ROW), 0.0),
    "f / whole number": (lambda f: f / 4, np.eye(J) / 4, 0.0),
    "+f": (lambda f: +f, np.eye(J), 0.0),
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


@pytest.fixture(scope="module")
def mapped():
    """All affine maps of the same marginals, by one program."""
    f = make(log=REFUSING)
    return f, jax.jit(lambda f: {case: operation(f) for case, (operation, _, _) in AFFINE.items()})(f)


@pytest.mark.parametrize("case", AFFINE)
def test_affine_maps_of_a_row_are_exact(case, mapped):
    f, found = mapped
    _, A, b = AFFINE[case]
    A = np.asarray(A)
    mean = np.asarray(f.mean) @ A + np.asarray(b)
    covariance = np.einsum("jk,nj,jl->nkl", A, f.variance, A)
    assert_law(found[case], mean, covariance)


@pytest.mark.parametrize("rows", [False, True])
def test_noise_is_white_and_draws_have_the_moments(rows):
    S = 20_000
    f = make()
    f.rows = jnp.arange(N) if rows else None
    f = f @ A_SQUARE
    noise, drawn = (np.asarray(x) for x in jax.jit(lambda f: (f.noise(S), f.draws(S)))(f))
    for values, mean, covariance in (
        (noise, np.zeros((N, J)), np.broadcast_to(np.eye(J), (N, J, J))),
        (drawn, np.asarray(f.mean), row_covariance(f)),
    ):
        for n in range(N):
            assert_gaussian_moments(values[:, n], mean[n], covariance[n], sigmas=6)
        deviations = (values - mean).transpose(1, 2, 0)
        one, two = deviations[:-1].reshape(-1, S), deviations[1:].reshape(-1, S)  # of different rows
        scale = np.sqrt(np.sum(one**2, axis=1) * np.sum(two**2, axis=1))
        assert np.abs(np.sum(one * two, axis=1) / scale).max() < 6 / np.sqrt(S)


def test_vectors_from_one_output_are_exact():
    f = make(log=REFUSING)

    @jax.jit
    def vectors(f):
        return f[:, 1], f[..., jnp.asarray(2)], (f @ A_WIDE)[:, 4], f @ ROW

    rows = (np.eye(J)[1], np.eye(J)[2], np.asarray(A_WIDE)[:, 4], np.asarray(ROW))
    for vector, a in zip(vectors(f), rows, strict=True):
        variance = np.asarray(f.variance) @ np.square(a)
        assert_law(vector, np.asarray(f.mean) @ a, variance[:, None, None])
        assert vector.independent


def test_scaling_each_row_is_exact():
    f = make(log=REFUSING)
    A, column, full = (np.asarray(x) for x in (A_SQUARE, COLUMN, FULL))
    rows, entries = jax.jit(lambda f: (f @ A_SQUARE * COLUMN, f * FULL))(f)
    covariance = np.einsum("jk,nj,jl->nkl", A, f.variance, A)
    assert_law(rows, np.asarray(f.mean) @ A * column, covariance * np.square(column)[..., None])
    independent = np.asarray(f.variance) * np.square(full)
    assert_law(entries, np.asarray(f.mean) * full, np.einsum("nk,kl->nkl", independent, np.eye(J)))


@pytest.mark.parametrize("rows", [slice(1, 4), jnp.array([3, 0, 2]), np.array([True, False, True, True, False, False])])
def test_rows_are_exact(rows):
    f = make(log=REFUSING) @ A_SQUARE
    part = f[rows]
    assert part.loading is f.loading
    assert_law(part, np.asarray(f.mean)[rows], row_covariance(f)[rows])
    assert make(columns=None)[rows].shape == part.shape[:1]


def test_sums_of_different_sites_are_exact():
    f, g = make(0, site="f", log=REFUSING), make(1, site="g", log=REFUSING)

    @jax.jit
    def sums(f, g):
        pairs = [(f, g), (f @ A_SQUARE, g), (f, g @ A_SQUARE), (f @ A_SQUARE, g @ A_WIDE[:, :J]), (f[:, 0], g[:, 1])]
        return [(left, right, left + right, left - right) for left, right in pairs]

    found = sums(f, g)
    total = found[0][2]
    assert total.sites == {"f", "g"} and total.log is REFUSING and total.independent
    for left, right, plus, minus in found:
        covariance = row_covariance(left) + row_covariance(right)
        assert_law(plus, np.asarray(left.mean) + np.asarray(right.mean), covariance)
        assert_law(minus, np.asarray(left.mean) - np.asarray(right.mean), covariance)


def test_sum_keeps_the_log_and_rows_of_either_side():
    log = DrawLog()
    f, g = make(0, site="f"), make(1, site="g", log=log)
    g.rows = jnp.arange(N)
    total = f + g
    assert total.log is log and total.rows is g.rows


def test_sums_that_marginals_cannot_say_are_refused():
    f, g = make(), make(1, site="g")
    with pytest.raises(TypeError, match="Two pieces of one site depend on each other: draw the site first, f = draws"):
        f[:, 0] + f[:, 1]
    with pytest.raises(TypeError, match=r"of shapes \(6, 3\) and \(6, 2\)"):
        f - g[:, :2]
    f.sites = g.sites = frozenset()
    with pytest.raises(TypeError, match="of GP site without a name and GP site without a name"):
        f + g


def test_one_function_for_all_outputs_adds_to_each():
    f, shared = make(log=REFUSING), make(1, columns=1, site="g", log=REFUSING)
    ones = np.ones((1, J))
    covariance = row_covariance(f) + row_covariance(shared) * np.ones((J, J))
    found = jax.jit(lambda f, g: (f + g, g + f, f - g, g * ROW, ROW + g, g[:, 0][:, None] + f))(f, shared)
    mean, other = np.asarray(f.mean), np.asarray(shared.mean)
    for total in (found[0], found[1], found[5]):
        assert_law(total, mean + other, covariance)
    assert_law(found[2], mean - other, covariance)
    assert_law(found[3], other * np.asarray(ROW), row_covariance(shared) * np.outer(ROW, ROW))
    assert_law(found[4], other @ ones + np.asarray(ROW), row_covariance(shared) * np.ones((J, J)))


def test_sums_and_dots_over_outputs_are_maps():
    f = make(log=REFUSING)
    found, expected = jax.jit(
        lambda f: (
            (f.sum(-1), f.sum(axis=1, keepdims=True), f.dot(A_WIDE)),
            (f @ jnp.ones(J), f @ jnp.ones((J, 1)), f @ A_WIDE),
        )
    )(f)
    for one, two in zip(found, expected, strict=True):
        assert_law(one, np.asarray(two.mean), row_covariance(two))
    total = np.zeros((N, J))
    total += f
    assert_law(total, np.asarray(f.mean), row_covariance(f))


#: What has no exact result, by words of the error.
REFUSED = {
    "A function of JAX": [
        lambda f: jnp.exp(f),
        lambda f: jnp.asarray(f),
        lambda f: jnp.array([f, f]),
        lambda f: jnp.where(f.mean > 0, f, 0.0),
        lambda f: jnp.stack([f, f]),
        lambda f: jnp.concatenate([f, f.mean]),
        lambda f: jnp.sum(f),
        lambda f: jnp.einsum("nj,nj", f.mean, f),
        lambda f: jnp.matmul(f, A_SQUARE),
        lambda f: jnp.multiply(2.0, f),
        lambda f: jax.nn.softmax(f),
        lambda f: jax.nn.relu(f),
        lambda f: jax.scipy.special.gammaln(f),
        lambda f: jax.nn.logsumexp(f, axis=-1),
        lambda f: f.mean.at[:].set(f),
        lambda f: jax.jit(lambda g: jnp.exp(g))(f),
    ],
    "A NumPy function": [lambda f: np.asarray(f), lambda f: np.dot(np.ones((2, N)), f), lambda f: np.stack([f, f])],
    "numpy.exp": [lambda f: np.exp(f)],
    "numpy.greater": [lambda f: np.ones((N, J)) > f],
    "numpy.add": [lambda f: np.add(f, 1.0, out=np.zeros((N, J))), lambda f: np.add.reduce(f)],
    "A @ f": [lambda f: jnp.ones((2, N)) @ f, lambda f: np.ones((2, N)) @ f],
    "f @ A": [lambda f: f @ f, lambda f: f[:, 0] @ jnp.ones(N), lambda f: f @ jnp.ones((2, J, J))],
    r"f \+ c, where f has shape \(6, 3\) and c \(2, 6, 3\)": [lambda f: f + jnp.ones((2, N, J))],
    r"f \* c, where f has shape \(6,\) and c \(6, 1\)": [lambda f: f[:, 0] * COLUMN],
    r"f - c, where f has shape \(6, 3\) and c \(5,\)": [lambda f: np.ones(5) - f],
    r"f [-+*/] c, where c is a masked array": [
        lambda f: f + np.ma.array(np.ones((N, J))),
        lambda f: f * np.ma.array(np.ones((N, J))),
    ],
    r"f [-+*/] c, where c is of type complex128": [lambda f: np.complex128(1j) * f, lambda f: f - jnp.array(1j)],
    r"f [-+*/] c, where c is of type object": [lambda f: f / np.array(2, object), lambda f: np.array(2, object) + f],
    r"f.sum\(axis=None\)": [lambda f: f.sum(), lambda f: np.sum(f)],
    r"f.sum\(axis=0\)": [lambda f: f.sum(axis=0)],
    "f.T": [lambda f: f.T],
    "f.reshape": [lambda f: f.reshape(-1), lambda f: jnp.reshape(f, -1)],
    r"f \*\* c": [lambda f: f**2],
    r"c \*\* f": [lambda f: 2.0**f, lambda f: ROW**f],
    "c / f": [lambda f: 1.0 / f, lambda f: ROW / f, lambda f: np.asarray(ROW) / f],
    "f > c": [lambda f: f > 0.0, lambda f: ROW < f],
    "f == c": [lambda f: f == f, lambda f: ROW == f],
    r"abs\(f\)": [lambda f: abs(f)],
    "f % c": [lambda f: f % 1.0],
    "c // f": [lambda f: 1.0 // f],
    r"divmod\(f, c\)": [lambda f: divmod(f, 1.0)],
    r"float\(f\)": [lambda f: float(f)],
    r"f \* g": [lambda f: f * f],
    "f / g": [lambda f: f / f],
    r"f\[index\]": [lambda f: f[0], lambda f: f[0, 1], lambda f: f[None], lambda f: f[np.ones((N, J), bool)]],
    r"\(f @ A\) \* c": [lambda f: (f @ A_SQUARE) * FULL],
    "A loop over f": [lambda f: list(f)],
    "c in f": [lambda f: 1.0 in f],
    "A condition on f": [lambda f: 1 if f else 0],
}


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.int32, bool])
@pytest.mark.parametrize("shape", [(N, J), (N, 1), (J,), ()])
@pytest.mark.parametrize("mixed", [False, True])
def test_constants_of_any_type_are_numbers(dtype, shape, mixed):
    """Squares of small integers would wrap around."""
    f = make() @ A_SQUARE if mixed and shape != (N, J) else make()
    c = np.random.default_rng(1).integers(0, 2 if dtype is bool else min(np.iinfo(dtype).max, 60_000), shape)
    for one in (c.astype(dtype), jnp.asarray(c.astype(dtype)), c.astype(dtype)[()]):
        found, expected = f * one, f * c.astype(float)
        np.testing.assert_array_equal(found.mean, expected.mean)
        np.testing.assert_array_equal(found.variance, expected.variance)
        assert found.dtype == f.dtype
    if shape == (J,):
        found, expected = f @ c.astype(dtype), f @ c.astype(float)
        np.testing.assert_allclose(found.variance, expected.variance, rtol=1e-12)
        found, expected = f @ np.diag(c).astype(dtype), f @ np.diag(c).astype(float)
        np.testing.assert_allclose(found.variance, expected.variance, rtol=1e-12)


@pytest.mark.parametrize("missing", [N, N + 3, -N - 1])
@pytest.mark.parametrize("columns", [None, J])
@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray, lambda rows: np.asarray(rows, np.int8)])
def test_rows_that_are_not_there_are_refused_or_have_no_mean(missing, columns, kind):
    f = make(columns=columns)
    with pytest.raises(IndexError, match=rf"f\[{missing}\]: the marginals of GP site 'f' have {N} rows here"):
        f[kind([0, missing, 1])]
    found = jax.jit(lambda f, rows: f[rows].mean)(f, kind([0, missing, -1]))
    np.testing.assert_array_equal(np.isnan(found).reshape(3, -1).all(1), [False, True, False])
    np.testing.assert_array_equal(found[jnp.array([0, 2])], f.mean[jnp.array([0, N - 1])])
    np.testing.assert_array_equal(f[np.arange(N) < 2].mean, f.mean[:2])


@pytest.mark.parametrize("kind", [int, np.int64, np.asarray, jnp.asarray, lambda k: np.array([0, k])])
def test_columns_that_are_not_there_are_refused_as_numpy_refuses_them(kind):
    f = make()
    for k in (J, 7, -J - 1):
        with pytest.raises(IndexError, match=rf"f\[:, {k}\]: .* GP site 'f' have 3 columns"):
            f[:, kind(k)]
        with pytest.raises(IndexError, match=rf"f\[:, {k}\]"):
            jax.jit(lambda f, k=k: f[..., kind(k) if kind is not jnp.asarray else k].mean)(f)
        with pytest.raises(IndexError):
            np.asarray(f.mean)[:, kind(k)]
    for k in (-J, J - 1):
        np.testing.assert_array_equal(f[:, kind(k)].mean, np.asarray(f.mean)[:, kind(k)])
    at = jax.jit(lambda f, k: f[:, k].mean)  # an index that is not known has no error, and no mean where there is none
    for k in (J, 7, -J - 1):
        assert np.isnan(at(f, jnp.asarray(k))).all()
        np.testing.assert_array_equal(at(f, jnp.array([0, k]))[:, 0], f.mean[:, 0])
        assert np.isnan(at(f, jnp.array([0, k]))[:, 1]).all()
    for k in (-J, J - 1):
        np.testing.assert_array_equal(at(f, jnp.asarray(k)), f.mean[:, k])
    with pytest.raises(IndexError, match="have 4 columns"):
        (f @ A_WIDE[:, :4])[:, kind(4)]


def test_slices_and_masks_of_columns_keep_their_meaning():
    f = make()
    for columns in (slice(1, 9), slice(-9, None), slice(5, 9), slice(None, None, -1), np.array([True, False, True])):
        np.testing.assert_array_equal(f[:, columns].mean, np.asarray(f.mean)[:, columns])


@pytest.mark.parametrize("words", REFUSED)
def test_everything_else_names_the_site_and_the_way_out(words):
    for operation in REFUSED[words]:
        log = DrawLog()
        with pytest.raises(TypeError, match=rf"{words}.* .* GP site 'f'.* draws\(f\)"):
            operation(make(log=log))
        assert not log.sites


def test_what_is_no_number_is_pythons_to_refuse():
    for other in ({}, None, 1j):
        with pytest.raises(TypeError, match="unsupported operand"):
            make() * other


def test_a_draw_is_noted():
    log = DrawLog()
    f, g = make(log=log), make(1, site="g", log=log)
    one = draws(f)
    np.testing.assert_array_equal(one, f.draws(1)[0])
    for _ in range(2):
        draws(2.0 * f + g)
    assert log.sites == {"f", "g"}
    # An array is the draw that it is.
    x = np.ones(2)
    assert draws(x) is x and draws(one) is one


def test_a_gp_draws_its_inputs_and_its_mean():
    log = DrawLog()
    h, f = make(log=log), make(1, columns=None, site="f0", log=log)
    process = GaussianProcess(RBF(1.0, 1.0), h, f)
    np.testing.assert_array_equal(process.X, h.draws(1)[0])
    np.testing.assert_array_equal(process.loc, f.draws(1)[0])
    assert log.sites == {"f", "f0"}


def test_a_log_that_refuses_names_the_site():
    with pytest.raises(RuntimeError, match=r"draws GP site 'f', which it did not do when"):
        draws(make(log=DrawLog(refuse=True)))


def test_unknown_attributes_raise():
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        _ = make().missing
    f = copy.copy(make())
    assert f.shape == (N, J) and len(f) == N and f.ndim == 2 and f.size == N * J
    assert repr(f) == "GaussianMarginals(shape=(6, 3), dtype=float64, sites={f})"


def test_draws_are_reproducible_and_follow_the_dtype():
    @jax.jit
    def some(f, A):
        return f.draws(4), (f @ A).draws(2), draws(f), draws(f)

    for dtype in (jnp.float32, jnp.float64):
        A = A_WIDE.astype(dtype)
        four, wide, one, two = some(make(dtype=dtype), A)
        assert four.shape == (4, N, J) and four.dtype == dtype
        np.testing.assert_array_equal(four, some(make(dtype=dtype), A)[0])
        np.testing.assert_array_equal(one, two)
        assert wide.shape == (2, N, 5)
    assert not np.allclose(four[0], four[1])


def test_draws_of_named_rows_do_not_depend_on_the_batch():
    f = make()
    f.rows = np.arange(N) + 10
    order = np.array([4, 1, 3])
    part, of_part, of_all = jax.jit(lambda f: (f[order], f[order].draws(3), f.draws(3)))(f)
    np.testing.assert_allclose(of_part, np.asarray(of_all)[:, order], rtol=1e-12)
    np.testing.assert_array_equal(part.rows, f.rows[order])


def test_marginals_without_a_key_are_not_drawn():
    f = make(key=False)
    with pytest.raises(ValueError, match="no random key"):
        f.draws(1)
    np.testing.assert_allclose((f * 2.0).variance, 4 * f.variance)
    assert (f + make(1, site="g", key=False)).key is None


def test_gradients_through_draws_are_reparameterised():
    key = jax.random.key(0)

    @jax.jit
    def loss(mean, variance, A):
        g = GaussianMarginals(mean, variance, key) @ A
        return jnp.sum(jnp.sin(draws(g)))

    f = make()
    check_grads(loss, (f.mean, f.source_variance, A_SQUARE), order=1, modes=["rev"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_zero_and_rounded_variances_have_finite_draws_and_gradients(dtype):
    @jax.jit
    def all_at_once(mean, variance):
        value, gradient = jax.vmap(jax.value_and_grad(standard_deviation))(variance)
        return value, gradient, GaussianMarginals(mean, variance, KEY).draws(1)[0]

    value, gradient, draw = all_at_once(np.ones(4, dtype), np.asarray([0.0, -1e-7, 1e-30, 1.0], dtype))
    assert np.isfinite(value).all() and np.isfinite(gradient).all()
    np.testing.assert_allclose(value[-1], 1.0)
    np.testing.assert_allclose(gradient[-1], 0.5)
    np.testing.assert_allclose(draw[:3], 1.0, atol=1e-5)


@pytest.mark.parametrize("loading", [False, True])
def test_jit_and_vmap_round_trips(loading):
    f = make(log=REFUSING)
    f.rows = np.arange(N)
    f = f @ A_SQUARE if loading else f

    @jax.jit
    def doubled(f):
        g = f * 2.0
        stacked = jax.vmap(lambda c: f * c)(jnp.arange(1.0, 4.0))
        totals = jax.vmap(lambda m: m.variance.sum())(stacked)
        return g, g.draws(3), stacked, totals, f.variance.sum(), f.draws(2)

    g, inside, stacked, totals, total, two = doubled(f)
    assert g.sites == f.sites and g.log is f.log
    np.testing.assert_allclose(g.mean, np.asarray(f.mean) * 2)
    np.testing.assert_allclose(inside, (f * 2.0).draws(3))
    assert stacked.mean.shape == (3, N, J)
    np.testing.assert_allclose(totals, np.asarray(total) * np.arange(1, 4) ** 2)
    leaves, structure = jax.tree.flatten(f)
    again = jax.tree.unflatten(structure, leaves)
    np.testing.assert_array_equal(jax.jit(lambda f: f.draws(2))(again), two)
    assert (again.loading is None) == (not loading)


def test_one_output_of_a_map_counts_as_independent():
    f = make()
    assert f.independent and not (f @ A_WIDE).independent
    assert (f @ A_WIDE[:, :1]).independent
