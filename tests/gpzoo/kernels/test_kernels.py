"""Kernels against textbook formulas in plain NumPy loops, and what they share: pytrees, outputs, dtypes, errors."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpzoo import kernels, linalg
from gpzoo._pytree import static
from gpzoo.kernels import (
    RBF,
    SHO,
    ArcCosine,
    BrownianMotion,
    ChangePoint,
    Constant,
    Cosine,
    Elementary,
    Gate,
    Gibbs,
    HilbertSpace,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Pointwise,
    Polynomial,
    Product,
    RationalQuadratic,
    Scaled,
    SpectralMixture,
    Sum,
    White,
)
from gpzoo.kernels.stationary import squared_distance
from tests.reference import distance, matern32, matern52, rbf

ARD = np.array([0.7, 1.3, 2.1])


def arc_cosine(x, z, order, variance, weight, bias):
    # Extended precision: the arc cosine of a rounded cosine is only good to the square root of the rounding error.
    x, z = x.astype(np.longdouble), z.astype(np.longdouble)
    norm = np.sqrt((np.sum(weight * x * x) + bias) * (np.sum(weight * z * z) + bias))
    cosine = np.clip((np.sum(weight * x * z) + bias) / norm, -1, 1)
    angle, pi = np.arccos(cosine), np.arccos(np.longdouble(-1))
    angular = (
        pi - angle,
        np.sin(angle) + (pi - angle) * np.cos(angle),
        3 * np.sin(angle) * np.cos(angle) + (pi - angle) * (1 + 2 * np.cos(angle) ** 2),
    )[order]
    return float(variance / pi * norm**order * angular)


def oscillator(t, variance, w, quality):
    b = np.sqrt(4 * quality**2 - 1)
    angle = b * w * t / (2 * quality)
    return variance * np.exp(-w * t / (2 * quality)) * (np.cos(angle) + np.sin(angle) / b)


@dataclass(frozen=True)
class Case:
    """A kernel and the textbook's covariance of two inputs; ``noise`` is what the Gram matrix has on top of it."""

    name: str
    kernel: Kernel
    covariance: Callable[[np.ndarray, np.ndarray], float]
    noise: float | Callable[[np.ndarray], float] = 0.0
    columns: int = 3

    def cross(self, X, Z):
        return np.array([[self.covariance(x, z) for z in Z] for x in X])

    def gram(self, X):
        noise = [self.noise(x) if callable(self.noise) else self.noise for x in X]
        return self.cross(X, X) + np.diag(noise)


def rbf_of_points(x, z, variance, lengthscale):
    return variance * jnp.exp(-jnp.sum(((x - z) / lengthscale) ** 2) / 2)


class Ridge(Elementary):
    """The smallest kernel of a user's own."""

    variance: jax.Array
    weight: jax.Array
    active_dims: tuple[int, ...] | None = static(default=None)
    per_column = ("weight",)

    def evaluate(self, x, z):
        return self.variance * jnp.sum(x * z * self.weight)


def widening(x, low, more):
    return low + more * jnp.square(x)


def gibbs(x, z, variance, low, more):
    a, b = low + more * x**2, low + more * z**2
    return variance * np.prod(np.sqrt(2 * a * b / (a**2 + b**2))) * np.exp(-np.sum((x - z) ** 2 / (a**2 + b**2)))


def opened(x):
    return 1 / (1 + np.exp(-(x[1] - 0.2) / 0.5))


PERIOD = np.array([1.5, 2.5, 4.0])
TURNS = np.array([0.3, 0.0, -1.2])
WIDE = np.linspace(1.0, 3.0, 11)

CASES = [
    Case("rbf", RBF(1.7, 0.8), lambda x, z: rbf(x, z, 1.7, 0.8)),
    Case("rbf-ard", RBF(1.7, ARD), lambda x, z: rbf(x, z, 1.7, ARD)),
    Case("rbf-active", RBF(1.7, ARD[:2], active_dims=(2, 0)), lambda x, z: rbf(x[[2, 0]], z[[2, 0]], 1.7, ARD[:2])),
    Case("matern12-ard", Matern12(0.6, ARD), lambda x, z: 0.6 * np.exp(-distance(x, z, ARD))),
    Case("matern32-ard", Matern32(0.6, ARD), lambda x, z: matern32(x, z, 0.6, ARD)),
    Case("matern52", Matern52(0.6, 1.4), lambda x, z: matern52(x, z, 0.6, 1.4)),
    Case(
        "rational-quadratic",
        RationalQuadratic(1.2, ARD, alpha=0.4),
        lambda x, z: 1.2 * (1 + distance(x, z, ARD) ** 2 / (2 * 0.4)) ** -0.4,
    ),
    Case(
        "periodic",
        Periodic(1.2, ARD, period=PERIOD),
        lambda x, z: 1.2 * np.exp(-0.5 * np.sum((np.sin(np.pi * (x - z) / PERIOD) / ARD) ** 2)),
    ),
    Case("linear-ard", Linear(0.9, ARD, active_dims=[0, 1, 2]), lambda x, z: 0.9 * np.sum(x * z / ARD**2)),
    Case("polynomial", Polynomial(3, 0.5, 1.3), lambda x, z: (0.5 * (x @ z) + 1.3) ** 3),
    Case("polynomial-active", Polynomial(2, active_dims=(1,)), lambda x, z: (x[1] * z[1] + 1) ** 2),
    *(
        Case(
            f"arc-cosine-{order}",
            ArcCosine(order, 0.8, weight_variance=ARD, bias_variance=0.5),
            lambda x, z, order=order: arc_cosine(x, z, order, 0.8, ARD, 0.5),
        )
        for order in (0, 1, 2)
    ),
    Case("rbf-wide", RBF(1.7, WIDE), lambda x, z: rbf(x, z, 1.7, WIDE), columns=11),
    Case(
        "arc-cosine-wide",
        ArcCosine(1, 0.8, 0.7, 0.5),
        lambda x, z: arc_cosine(x, z, 1, 0.8, 0.7, 0.5),
        columns=11,
    ),
    Case("cosine", Cosine(1.2, TURNS), lambda x, z: 1.2 * np.cos(2 * np.pi * TURNS @ (x - z))),
    Case(
        "spectral-mixture",
        SpectralMixture([0.7, 0.4], [TURNS[:2], TURNS[1:]], [ARD[:2] / 9, ARD[1:] / 9], active_dims=(2, 0)),
        lambda x, z: sum(
            weight
            * np.exp(-2 * np.pi**2 * np.sum(((x - z)[[2, 0]] * scale) ** 2))
            * np.cos(2 * np.pi * mean @ (x - z)[[2, 0]])
            for weight, mean, scale in ((0.7, TURNS[:2], ARD[:2] / 9), (0.4, TURNS[1:], ARD[1:] / 9))
        ),
    ),
    Case("sho", SHO(1.2, 0.3, 0.7, 1), lambda x, z: oscillator(abs(x[1] - z[1]), 1.2, 2 * np.pi * 0.3, 0.7)),
    Case(
        "brownian",
        BrownianMotion(0.8, -0.5, 2),
        lambda x, z: 0.8 * min(max(x[2] + 0.5, 0), max(z[2] + 0.5, 0)),
    ),
    Case("gate", Gate(0.2, 0.5, 1, closing=True), lambda x, z: (1 - opened(x)) * (1 - opened(z))),
    Case(
        "change-point",
        ChangePoint(RBF(1.7, 0.8), Matern32(0.6, 1.4) + White(0.3), 0.2, 0.5, 1),
        lambda x, z: (
            (1 - opened(x)) * (1 - opened(z)) * rbf(x, z, 1.7, 0.8) + opened(x) * opened(z) * matern32(x, z, 0.6, 1.4)
        ),
        lambda x: 0.3 * opened(x) ** 2,
    ),
    Case("gibbs", Gibbs(widening, 1.3, low=0.4, more=0.2), lambda x, z: gibbs(x, z, 1.3, 0.4, 0.2)),
    Case("constant", Constant(0.4), lambda x, z: 0.4),
    Case("white", White(0.3), lambda x, z: 0.0, 0.3),
    Case("scaled", 2.5 * Matern32(0.6, 1.4), lambda x, z: 2.5 * matern32(x, z, 0.6, 1.4)),
    Case(
        "sum",
        RBF(1.7, 0.8) + Linear(0.9, active_dims=(1,)) + White(0.3) + Constant(0.4),
        lambda x, z: rbf(x, z, 1.7, 0.8) + 0.9 * x[1] * z[1] + 0.4,
        0.3,
    ),
    Case(
        "product",
        RBF(1.7, 0.8, active_dims=(0,)) * Matern52(0.6, ARD[1:], active_dims=(1, 2)),
        lambda x, z: rbf(x[:1], z[:1], 1.7, 0.8) * matern52(x[1:], z[1:], 0.6, ARD[1:]),
    ),
    Case("white-in-product", Linear(0.9) * White(0.3), lambda x, z: 0.0, lambda x: 0.3 * 0.9 * (x @ x)),
    Case(
        "nested",
        2.0 * (RBF(1.7, 0.8) * Linear() + White(0.3)) * Constant(0.5),
        lambda x, z: rbf(x, z, 1.7, 0.8) * (x @ z),
        0.3,
    ),
]
CASES += [
    Case(
        "pointwise",
        Pointwise(rbf_of_points, variance=1.7, lengthscale=ARD[:2], axes={"lengthscale": 1}, active_dims=(2, 0)),
        lambda x, z: rbf(x[[2, 0]], z[[2, 0]], 1.7, ARD[:2]),
    ),
    Case("evaluated", Ridge(0.6, ARD[:2], active_dims=(2, 0)), lambda x, z: 0.6 * np.sum((x * z)[[2, 0]] * ARD[:2])),
]
over_cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
SOME = ("rbf-active", "rbf-wide", "matern12-ard", "rational-quadratic", "periodic", "polynomial", "arc-cosine-2")
SOME += ("white", "nested", "pointwise", "evaluated")
over_some = pytest.mark.parametrize("case", [c for c in CASES if c.name in SOME], ids=lambda case: case.name)
COVERED = {type(case.kernel) for case in CASES}


def inputs(columns=3, rows=9, seed=0):
    """Inputs ``X`` and ``Z``; the last row of ``X`` repeats its first, the first row of ``Z`` is one of ``X``."""
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(rows, columns)), rng.normal(size=(rows - 1, columns))
    X[-1], Z[0] = X[0], X[1]
    return X, Z


def three_of(kernel):
    return [jax.tree.map(lambda leaf, factor=factor: factor * np.asarray(leaf), kernel) for factor in (0.8, 1.0, 1.3)]


@jax.jit
def evaluate(kernel, X, Z):
    return kernel(X), kernel(X, Z), kernel.diag(X)


def derive(kernel, X, Z):
    """A number of everything, its gradient by kernel and inputs, and what :func:`evaluate` gives, in one program."""
    # Numbers of Python have a type of their own in JAX, and would have programs of their own.
    return derive_arrays(jax.tree.map(np.asarray, kernel), X, Z)


@jax.jit
def derive_arrays(kernel, X, Z):
    def score(kernel, X, Z):
        rng = np.random.default_rng(1)
        values = kernel(X), kernel(X, Z), kernel.diag(X)
        weights = [jnp.asarray(rng.normal(size=shape), X.dtype) for shape in ((9, 9), (9, 8), (9,))]
        return sum(jnp.sum(w * value) for w, value in zip(weights, values, strict=True)), values

    (value, values), gradient = jax.value_and_grad(score, argnums=(0, 1, 2), has_aux=True)(kernel, X, Z)
    return value, gradient, values


def values_of(kernel, X, Z):
    """Those of :func:`evaluate`, from the program that other tests of the same kernel need."""
    return derive(kernel, X, Z)[2]


def stack(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def test_every_exported_kernel_has_a_textbook_case():
    # Flattened takes inputs of another rank, HilbertSpace those of a box, WithSlopes a column that says what a row is:
    # they have tests of their own.
    apart = {kernels.Kernel, kernels.Elementary, kernels.Stationary, kernels.Flattened, kernels.HilbertSpace}
    apart |= {kernels.WithSlopes}
    exported = {v for n in kernels.__all__ if isinstance(v := getattr(kernels, n), type) and issubclass(v, Kernel)}
    here = {v for v in exported if not v.__module__.endswith("double_sum")}
    assert here - apart <= COVERED


# -- values ------------------------------------------------------------------------------------------------------------


@over_cases
def test_values_match_the_textbook(case):
    X, Z = inputs(case.columns)
    close = {"rtol": 1e-12, "atol": 1e-9 if case.name.startswith("arc") else 1e-13}
    if case.columns > 3:
        close["atol"] = 1e-7
    gram, cross, variances = values_of(case.kernel, X, Z)
    np.testing.assert_allclose(gram, case.gram(X), **close)
    np.testing.assert_allclose(cross, case.cross(X, Z), **close)
    np.testing.assert_allclose(variances, np.diagonal(case.gram(X)), **close)


@over_cases
def test_gram_is_exactly_symmetric_and_has_the_variances_on_its_diagonal(case):
    # Under jit: only there may the compiler contract an operation on one of two inputs with what follows.
    X, Z = inputs(case.columns)
    for dtype, of in (("float64", values_of), ("float32", evaluate)):
        K, _, variances = (np.asarray(a) for a in of(case.kernel, X.astype(dtype), Z.astype(dtype)))
        np.testing.assert_array_equal(K, K.T)
        if isinstance(case.kernel, kernels.Stationary):
            np.testing.assert_array_equal(np.diagonal(K), variances)
        np.testing.assert_allclose(np.diagonal(K), variances, rtol=10 * np.finfo(dtype).eps)


@pytest.mark.parametrize("case", [c for c in CASES if c.columns == 3], ids=lambda case: case.name)
@given(seed=st.integers(0, 2**32 - 1), spread=st.floats(1e-3, 1e3), offset=st.floats(-1e3, 1e3), rows=st.integers(1, 9))
def test_gram_is_positive_semidefinite(case, seed, spread, offset, rows):
    X = offset + spread * np.random.default_rng(seed).normal(size=(9, 3))
    X[: rows // 2] = X[rows // 2 : 2 * (rows // 2)]
    K = np.asarray(values_of(case.kernel, X, X[:-1])[0])
    eigenvalues = np.linalg.eigvalsh(K)
    assert eigenvalues[0] >= -1e-13 * len(X) * eigenvalues[-1]


@pytest.mark.parametrize("columns", [1, 8, 9, 40])
def test_squared_distance(columns):
    X, Z = inputs(columns, rows=7)
    naive = np.sum((X[:, None] - Z[None]) ** 2, -1)
    cross, gram = jax.jit(lambda X, Z: (squared_distance(X, Z), squared_distance(X)))(X, Z)
    np.testing.assert_allclose(cross, naive, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(gram, np.sum((X[:, None] - X[None]) ** 2, -1), rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(np.diagonal(gram), 0)


def test_distances_of_inputs_far_from_the_origin_and_from_each_other():
    time = np.linspace(5e4, 5.01e4, 200).astype("float32")[:, None]
    far = 1e4 + np.random.default_rng(0).normal(size=(30, 20)).astype("float32")
    gram = jax.jit(lambda kernel, X: kernel(X))
    for kernel, X in ((RBF(1.0, 0.5), time), (Periodic(1.0, 1.0, 7.0), time), (RBF(1.0, 4.0), far)):
        K = np.asarray(gram(kernel, X))
        np.testing.assert_array_equal(K, K.T)
        np.testing.assert_allclose(K, gram(kernel, X.astype("float64")), atol=2e-5)


def test_rational_quadratic_tends_to_an_rbf():
    X, Z = inputs()
    exact = [[rbf(x, z) for z in Z] for x in X]
    np.testing.assert_allclose(evaluate(RationalQuadratic(alpha=1e9), X, Z)[1], exact, rtol=1e-7)


def test_periodic_repeats_and_its_lengthscale_is_half_of_the_unit_circle_convention():
    X, Z = inputs(1)
    kernel = Periodic(1.3, 0.6, period=2.5)
    here, there = (evaluate(kernel, inputs, Z)[1] for inputs in (X, X + 5.0))
    np.testing.assert_allclose(there, here, rtol=1e-12)
    other = 1.3 * np.exp(-2 * np.sin(np.pi * (X - Z.T) / 2.5) ** 2 / 1.2**2)
    np.testing.assert_allclose(here, other, rtol=1e-12)


# -- golden numbers ----------------------------------------------------------------------------------------------------


def test_golden_rbf_and_white(golden):
    arrays, _ = golden("convgp_10_sum_meanfield")
    Z, X = arrays["in_Z_rbf"], arrays["in_X"]
    kernel = RBF(arrays["in_rbf_variance"], arrays["in_rbf_lengthscales"]) + White(arrays["in_white_variance"])
    found = jax.jit(lambda kernel, Z, X: (kernel(Z), kernel(Z, X), kernel.diag(X)))(kernel, Z, X)
    for ours, name in zip(found, ("Kzz", "Kzx", "Kdiag"), strict=True):
        np.testing.assert_allclose(ours, arrays[f"out_{name}_rbf"], rtol=1e-8)


@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-8), ("float32", 1e-4)])
def test_golden_ard_in_a_predictive_covariance(golden, dtype, rtol):
    arrays, _ = golden("svgp_01_ard_whitened_gaussian")

    @jax.jit
    def moments(a):
        kernel = RBF(a["in_variance"], a["in_lengthscales"])
        L = linalg.cholesky(kernel(a["in_Z"]), jitter=a["in_jitter"])
        A = linalg.solve_lower(L, kernel(a["in_Z"], a["in_X_test"]))
        root = jnp.tril(a["in_q_sqrt"]).mT @ A
        return A.T @ a["in_q_mu"], kernel(a["in_X_test"]) - A.T @ A + root.mT @ root

    mean, covariance = moments({name: np.asarray(value, dtype) for name, value in arrays.items() if name[:2] == "in"})
    np.testing.assert_allclose(mean, arrays["out_fmean_test"], rtol=rtol, atol=rtol)
    np.testing.assert_allclose(covariance, arrays["out_fcov_test"], rtol=rtol, atol=rtol)


# -- derivatives -------------------------------------------------------------------------------------------------------


@over_cases
def test_gradients_match_finite_differences_also_at_coincident_inputs(case):
    X, Z = inputs(case.columns)
    leaves, structure = jax.tree.flatten((case.kernel, X, Z))
    leaves, step = [np.array(leaf) for leaf in leaves], 1e-5

    def difference(leaf, i):
        ends = []
        for shift in (step, -step):
            moved = [np.copy(other) for other in leaves]
            moved[leaf].flat[i] += shift
            ends.append(float(derive(*jax.tree.unflatten(structure, moved))[0]))
        return (ends[0] - ends[1]) / (2 * step)

    gradients = jax.tree.leaves(derive(case.kernel, X, Z)[1])
    for k, gradient in enumerate(gradients):
        differences = [difference(k, i) for i in range(leaves[k].size)]
        # At the kink of order 0 the error of a central difference is of second order in the step, not in its square.
        np.testing.assert_allclose(np.ravel(gradient), differences, rtol=1e-6, atol=5e-6)


@pytest.mark.parametrize("columns", [2, 10])
@pytest.mark.parametrize(("kernel", "curvature"), [(RBF, 1.0), (Matern32, 3.0), (Matern52, 5 / 3)])
def test_curvature_at_coincident_inputs(kernel, curvature, columns):
    # d^2 k / dx dx' at x = x': the prior variance of the derivative of f.
    x = jnp.linspace(-1.0, 1.0, columns)
    mixed = jax.jit(jax.jacfwd(jax.grad(lambda x, z: kernel(1.5, 0.7)(x[None], z[None])[0, 0]), 1))(x, x)
    np.testing.assert_allclose(mixed, 1.5 * curvature / 0.7**2 * np.eye(columns), atol=1e-12)


@over_some
def test_float32_gradients_are_finite_and_close_to_float64(case):
    X, Z = inputs(case.columns)

    X, Z = X.astype("float32"), Z.astype("float32")
    single = derive(case.kernel, X, Z)[1]
    double = derive(case.kernel, X.astype("float64"), Z.astype("float64"))[1]
    for a, b in zip(jax.tree.leaves(single), jax.tree.leaves(double), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4 * (1 + np.max(np.abs(b))))


# -- dtypes ------------------------------------------------------------------------------------------------------------


@over_cases
def test_float32_inputs_give_float32_results(case):
    X, Z = (a.astype("float32") for a in inputs(case.columns))
    references = values_of(case.kernel, X.astype("float64"), Z.astype("float64"))
    for result, reference in zip(evaluate(case.kernel, X, Z), references, strict=True):
        assert result.dtype == "float32"
        np.testing.assert_allclose(result, reference, rtol=1e-5, atol=1e-5 * float(np.max(np.abs(reference))))


@pytest.mark.parametrize("parameters", ["float32", "float64"])
@over_some
def test_results_follow_the_dtype_of_the_inputs_not_of_the_hyperparameters(case, parameters):
    kernel = jax.tree.map(lambda leaf: np.asarray(leaf, parameters), case.kernel)
    for dtype in ("float32", "float64"):
        X, Z = (a.astype(dtype) for a in inputs(case.columns))
        shapes = jax.eval_shape(evaluate, kernel, X, Z)
        assert {shape.dtype.name for shape in shapes} == {dtype}


def test_integer_inputs_are_taken_as_numbers():
    X = np.arange(6).reshape(3, 2)
    gram = jax.jit(lambda kernel, X: kernel(X))
    np.testing.assert_array_equal(gram(RBF(), X), gram(RBF(), X.astype(float)))


# -- pytrees and outputs -----------------------------------------------------------------------------------------------


@over_cases
def test_pytree_round_trips_keep_values(case):
    X, Z = inputs(case.columns)
    leaves, structure = jax.tree.flatten(case.kernel)
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    expected = values_of(case.kernel, X, Z)
    copies = jax.tree.unflatten(structure, leaves), jax.tree.map(np.array, case.kernel)
    for copy in copies:
        assert jax.tree.structure(copy) == structure
        jax.tree.map(np.testing.assert_array_equal, values_of(copy, X, Z), expected)


#: One of few columns and one of many, one with several parts, one whose function is the user's.
EAGER = ("periodic", "rbf-wide", "nested", "pointwise")


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in CASES if c.name in EAGER], ids=lambda case: case.name)
def test_values_are_the_same_without_jit(case):
    X, Z = inputs(case.columns)
    jitted = values_of(case.kernel, X, Z)
    for a, b in zip((case.kernel(X), case.kernel(X, Z), case.kernel.diag(X)), jitted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


@over_some
def test_one_kernel_per_output(case):
    """A stack of kernels is a kernel per output, under vmap and when called, on shared and on separate inputs."""
    each = three_of(case.kernel)
    stacked = stack(each)
    assert stacked.batched and not case.kernel.batched
    sets = [inputs(case.columns, seed=seed) for seed in range(3)]
    X, Z = sets[0]
    close = {"rtol": 1e-12, "atol": 1e-13}

    Xs, Zs = (np.stack(arrays) for arrays in zip(*sets, strict=True))
    vector_inputs = case.kernel.input_ndim is not None

    @jax.jit
    def everything(stacked, kernel):
        of_one = jax.vmap(lambda k, X, Z: (k(X), k(X, Z), k.diag(X)), in_axes=(0, None, None))(stacked, X, Z)
        found = {"under vmap": of_one, "when called": evaluate(stacked, X, Z)}
        if vector_inputs:
            found["separate inputs"] = evaluate(stacked, Xs, Zs)
            found["one kernel"] = evaluate(kernel, Xs, Zs)
            found["shared Z"] = stacked(Xs, Z)
        return found

    found = everything(stacked, case.kernel)
    expected = {name: stack([values_of(k, X, Z) for k in each]) for name in ("under vmap", "when called")}
    if vector_inputs:
        expected["separate inputs"] = stack([values_of(k, *pair) for k, pair in zip(each, sets, strict=True)])
        expected["one kernel"] = stack([values_of(case.kernel, *pair) for pair in sets])
        expected["shared Z"] = np.stack([values_of(k, x, Z)[1] for k, (x, _) in zip(each, sets, strict=True)])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **close), found, expected)


def test_shared_and_separate_hyperparameters_mix():
    X, Z = inputs()
    variances, scales = np.array([0.5, 2.0]), np.array([3.0, 4.0])
    kernel = scales * (RBF(variances, 0.8) + Matern32(0.6, ARD) * White(variances)) + Linear(1.0, [[1.0], [2.0]])
    each = [
        s * (RBF(v, 0.8) + Matern32(0.6, ARD) * White(v)) + Linear(1.0, l)
        for s, v, l in zip(scales, variances, (1.0, 2.0), strict=True)
    ]
    expected = stack([evaluate(k, X, Z) for k in each])
    assert expected[0].shape == (2, 9, 9)
    for a, b in zip(evaluate(kernel, X, Z), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_static_fields_are_compiled_in_and_the_rest_is_not():
    traces = []

    @jax.jit
    def gram(kernel, X):
        traces.append(kernel)
        return kernel(X)

    X, _ = inputs()
    for kernel in (Polynomial(2), Polynomial(2, 3.0, 4.0), Polynomial(3), Polynomial(3, active_dims=[0])):
        np.testing.assert_allclose(gram(kernel, X), kernel(X), rtol=1e-12)
    assert len(traces) == 3


# -- algebra -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scale",
    [
        2,
        2.0,
        np.float64(2.0),
        np.float32(2.0),
        np.array(2.0),
        np.array([2.0, 3.0]),
        jnp.array(2.0),
        jnp.array([2.0, 3.0]),
    ],
    ids=lambda scale: f"{type(scale).__name__}{np.shape(scale)}",
)
def test_a_number_times_a_kernel(scale):
    X, Z = inputs()
    for kernel in (scale * RBF(), RBF() * scale):
        assert isinstance(kernel, Scaled)
        factor = np.asarray(scale, "float64")[..., None, None]
        exact = np.array([[rbf(x, z) for z in Z] for x in X])
        np.testing.assert_allclose(evaluate(kernel, X, Z)[1], factor * exact, rtol=1e-12)


@pytest.mark.parametrize("number", [3, 0.5, np.float64(2.0), jnp.array(0.1), np.array([1.0, 2.0])])
def test_a_number_is_added_to_a_kernel(number):
    wanted = np.asarray(RBF(2.0)(X3)) + np.asarray(number)[..., None, None]
    for kernel in (RBF(2.0) + number, number + RBF(2.0)):
        np.testing.assert_allclose(kernel(X3), wanted.reshape(kernel(X3).shape), rtol=1e-12)


def test_powers_and_pythons_sum():
    kernel = RBF(1.5) + Linear(0.3)
    for power in (1, 2, 5):
        np.testing.assert_allclose((kernel**power)(X3), np.asarray(kernel(X3)) ** power, rtol=1e-12)
    np.testing.assert_allclose(sum([kernel, RBF(), White(0.1)])(X3), (kernel + RBF() + White(0.1))(X3), rtol=1e-12)


def test_a_traced_number_times_a_kernel():
    X, _ = inputs()
    for multiply in (operator.mul, lambda a, b: b * a):
        gradient = jax.jit(jax.grad(lambda c, multiply=multiply: jnp.sum(multiply(c, RBF())(X))))(2.0)
        np.testing.assert_allclose(gradient, sum(rbf(x, z) for x in X for z in X), rtol=1e-12)


def test_sums_and_products_flatten():
    a, b, c = RBF(), Linear(), White()
    assert [type(part) for part in ((a + b) + c).parts] == [type(part) for part in (a + (b + c)).parts]
    assert len((a * (b * c)).parts) == 3
    assert len((a * (b + c)).parts) == 2
    assert repr(Sum(a, White(2.0))).startswith("Sum(parts=(RBF(variance=")


@pytest.mark.parametrize(
    "kernel",
    [White(0.3), RBF() + White(0.3), White(0.3) + RBF(), RBF() * White(0.3), 2.0 * (RBF() + White(0.15))],
    ids=["alone", "sum", "sum-reversed", "product", "scaled"],
)
def test_white_noise_is_on_the_diagonal_of_a_gram_matrix_and_nowhere_else(kernel):
    X, _ = inputs()
    gram, cross, variances = (np.asarray(value) for value in evaluate(kernel, X, X))
    np.testing.assert_allclose(np.diagonal(gram) - np.diagonal(cross), 0.3, rtol=1e-12)
    np.testing.assert_allclose(variances, np.diagonal(gram), rtol=1e-12)
    off = ~np.eye(len(X), dtype=bool)
    # The first row and the last are equal, and still do not share noise.
    np.testing.assert_allclose(gram[off], cross[off], rtol=1e-12)


class OnImages(Kernel):
    """The smallest kernel on images: dot products of all pixels."""

    input_ndim = 3
    variance: jax.Array

    def __init__(self, variance):
        self.variance = variance

    def cross(self, X, Z):
        return self.variance * jnp.einsum("nhwc,mhwc->nm", X, Z)

    def variances(self, X):
        return self.variance * jnp.sum(X**2, (1, 2, 3))


def test_white_and_constant_join_kernels_on_images():
    images = np.random.default_rng(0).normal(size=(2, 3, 4, 4, 1))
    kernel = OnImages(0.5) + White(0.3) + 2.0 * Constant(0.1)
    assert kernel.input_ndim == 3
    flat = images[0].reshape(3, -1)

    @jax.jit
    def everything(kernel, images):
        return kernel(images[0]), kernel(images), kernel(images, images[0]), kernel.diag(images)

    one, gram, cross, variances = everything(kernel, images)
    np.testing.assert_allclose(one, 0.5 * flat @ flat.T + 0.2 + 0.3 * np.eye(3), rtol=1e-12)
    assert gram.shape == (2, 3, 3)
    assert cross.shape == (2, 3, 3)
    np.testing.assert_allclose(variances[0], np.diagonal(gram[0]), rtol=1e-12)


# -- refusals ----------------------------------------------------------------------------------------------------------

X3 = np.ones((4, 3))
THREE = np.ones(3)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: RBF(-1.0), ValueError, r"variance must be positive and finite, got -1\.0"),
        (lambda: RBF(1.0, [1.0, 0.0]), ValueError, r"lengthscale must be .* got 0\.0 at index \(1,\)"),
        (lambda: Matern12(float("nan")), ValueError, "variance must be positive and finite, got nan"),
        (lambda: RationalQuadratic(alpha=0.0), ValueError, "alpha must be positive"),
        (lambda: Periodic(period=-2.0), ValueError, "period must be positive"),
        (lambda: Linear(lengthscale=-1.0), ValueError, "lengthscale must be positive"),
        (lambda: Polynomial(offset=-1.0), ValueError, "offset must be zero or positive"),
        (lambda: ArcCosine(bias_variance=0.0), ValueError, "bias_variance must be positive"),
        (lambda: ArcCosine(weight_variance=0.0), ValueError, "weight_variance must be positive"),
        (lambda: White(-0.1), ValueError, "variance must be positive"),
        (lambda: Gate(0.0, -1.0), ValueError, "width must be positive"),
        (lambda: ChangePoint(RBF(), 1.0, 0.0), TypeError, "after must be a kernel, got float"),
        (lambda: SpectralMixture([1.0], [0.5], [0.1]), ValueError, r"weights, frequencies and scales must be \[Q\]"),
        (lambda: 0.0 * RBF(), ValueError, "scale must be positive"),
        (lambda: Scaled(2.0, RBF()), TypeError, "Scaled takes a kernel and a scale, got float"),
        (lambda: RBF(1j), TypeError, "variance must be real"),
        (lambda: RBF() * "two", TypeError, "scale must be a numeric array, got str"),
        (lambda: RBF() + None, TypeError, "must be a numeric array, got NoneType"),
        (lambda: Sum(RBF(), 1.0), TypeError, r"Sum takes kernels, got \['RBF', 'float'\]"),
        (lambda: Product(), TypeError, "Product takes kernels"),
        (lambda: OnImages(1.0) + RBF(), ValueError, "different rank .*OnImages: 3, RBF: 1"),
        (lambda: Polynomial(2.0), TypeError, "degree must be an integer"),
        (lambda: Polynomial(0), ValueError, "degree must be at least 1, got 0"),
        (lambda: ArcCosine(3), ValueError, "order must be 0 .* got 3"),
        (lambda: RBF(active_dims=1), TypeError, "active_dims must be column numbers .* got 1"),
        (lambda: RBF(active_dims=(0.5,)), TypeError, "active_dims must be column numbers"),
        (lambda: RBF(active_dims=()), ValueError, "active_dims must be distinct column numbers"),
        (lambda: RBF(active_dims=(-1,)), ValueError, r"active_dims .* got \(-1,\)"),
        (lambda: RBF(active_dims=(1, 1)), ValueError, r"active_dims .* got \(1, 1\)"),
        (lambda: RBF(active_dims=(True, 1)), TypeError, r"or a bool for each column, got \(True, 1\)"),
        (lambda: RBF(active_dims=[False, False]), ValueError, "active_dims must be .* at least one"),
        (lambda: RBF(np.ones((2, 2))), ValueError, r"variance must be a scalar or one per output \[D\].*\(2, 2\)"),
        (lambda: RBF(1.0, np.ones((2, 2, 2))), ValueError, r"lengthscale must be .*\[D, d\], got shape \(2, 2, 2\)"),
        (lambda: RBF(np.ones(2), np.ones(3)), ValueError, r"variance \(2,\), lengthscale \(3,\).*\[D, d\]"),
        (lambda: RBF() * np.ones((2, 2)), ValueError, r"scale must be a scalar or one per output.*\(2, 2\)"),
        (lambda: RBF()(np.ones(4)), ValueError, r"RBF takes inputs \[N, features\].*X of shape \(4,\).*X\[:, None\]"),
        (lambda: RBF()(X3, np.ones((1, 1, 4, 3))), ValueError, r"got Z of shape \(1, 1, 4, 3\)"),
        (lambda: OnImages(1.0)(X3), ValueError, r"\[N, height, width, channels\].*\(4, 3\)"),
        (lambda: White()(1.0), ValueError, r"White takes inputs \[N, \.\.\.\]"),
        (lambda: RBF()(X3, X3[:, :2]), ValueError, r"different numbers of columns: X \(4, 3\), Z \(4, 2\)"),
        (lambda: RBF(1.0, ARD[:2])(X3), ValueError, r"lengthscale has shape \(2,\)"),
        (lambda: RBF(1.0, ARD).diag(X3[:, :2]), ValueError, r"lengthscale has shape \(3,\) but .* 2 columns"),
        (lambda: Periodic(period=THREE[:2])(X3), ValueError, r"period has shape \(2,\)"),
        (lambda: ArcCosine(weight_variance=ARD)(X3[:, :2]), ValueError, r"weight_variance has shape \(3,\)"),
        (lambda: Linear(1.0, ARD, active_dims=(0, 1))(X3), ValueError, r"2 active columns \(0, 1\)"),
        (lambda: (RBF(active_dims=(0, 3)) + White())(X3), ValueError, r"active_dims \(0, 3\)"),
        (lambda: RBF(THREE)(np.ones((2, 4, 3))), ValueError, r"X: 2, kernel\.variance: 3"),
        (lambda: (RBF(THREE) + White(THREE[:2]))(X3), ValueError, r"parts\[0\].variance: 3, .*parts\[1\].variance: 2"),
        (lambda: RBF() - 1, TypeError, r"RBF has the operators .* k \+ 1\.0"),
        (lambda: 1 - RBF() * RBF(), TypeError, "Product has the operators"),
        (lambda: -RBF(), TypeError, "RBF has the operators"),
        (lambda: Linear() / 2, TypeError, r"Linear has the operators .* k \* \(1 / c\)"),
        (lambda: RBF() ** 0.5, ValueError, "the power of a kernel must be an integer of at least 1, got 0.5"),
        (lambda: RBF() + -1.0, ValueError, "must be positive and finite, got -1.0"),
        (lambda: HilbertSpace(RBF(1.0, ARD[:2]), 5, (-1, 1)), ValueError, r"lengthscale has shape \(2,\) .* 1 columns"),
        (lambda: HilbertSpace(2.0 * Matern32(1.0, ARD), (5, 4), (-1, 1)), ValueError, r"\(3,\) .* 2 columns"),
        (lambda: jax.tree.map(lambda a: a[None, None], RBF())(X3), ValueError, r"variance must be .*\(1, 1\)"),
    ],
)
def test_refusals_say_what_and_how(make, error, message):
    with pytest.raises(error, match=message):
        make()


def stretched(x, lengthscale):
    return lengthscale * jnp.ones_like(x)


OF_ONE_NUMBER = {
    "variance": lambda x: RBF(x),
    "lengthscale": lambda x: Matern32(1.0, x),
    "scale": lambda x: x * RBF(),
    "white": lambda x: RBF() + White(x),
    "place": lambda x: Gibbs(stretched, lengthscale=x),
}


@pytest.mark.parametrize("make", OF_ONE_NUMBER.values(), ids=OF_ONE_NUMBER)
@pytest.mark.parametrize("value", [-1.0, np.float32(-0.5), np.array(-2.0), 0.0, 0])
def test_constants_out_of_range_are_refused_while_a_program_is_traced_too(make, value):
    for of_kernel in (lambda k: k(X3), lambda k: k.diag(X3), lambda k: k(X3, X3[:2])):
        with pytest.raises(ValueError, match="must be positive and finite"):
            of_kernel(make(value))
        if make is not OF_ONE_NUMBER["place"]:  # whose function is computed in the trace
            with pytest.raises(ValueError, match="must be positive and finite"):
                jax.make_jaxpr(lambda of_kernel=of_kernel: of_kernel(make(value)))()


@pytest.mark.parametrize("make", OF_ONE_NUMBER.values(), ids=OF_ONE_NUMBER)
def test_traced_hyperparameters_that_are_negative_are_no_numbers(make):
    gram = jax.jit(lambda x: make(x)(X3))
    assert np.isnan(gram(-1.0)).any(axis=1).all()
    np.testing.assert_allclose(gram(2.0), make(2.0)(X3), rtol=1e-12)


@pytest.mark.slow_but(kind=[list, np.array])
@pytest.mark.parametrize("kind", [list, tuple, np.array, jnp.array])
@pytest.mark.parametrize("seen", [[True, False, False], [True, False, True]])
@pytest.mark.parametrize("make", [RBF, Linear, Periodic, partial(Gibbs, stretched, lengthscale=1.0)])
def test_bools_are_a_mask_of_columns(make, seen, kind):
    masked, numbered = make(active_dims=kind(seen)), make(active_dims=np.flatnonzero(seen))
    np.testing.assert_array_equal(masked(X3), numbered(X3))
    for inputs in (X3[:, :2], np.concatenate([X3, X3], axis=1)):
        with pytest.raises(ValueError, match=rf"is a mask of 3 columns, and the inputs have {inputs.shape[1]}"):
            masked(inputs)


# -- kernels of the user's own -----------------------------------------------------------------------------------------


def test_a_function_of_two_points_has_kernels_per_output_and_gradients():
    X, Z = inputs(2)
    lengthscale = np.asarray([[0.7, 1.3], [0.5, 2.0]])

    def ours(variance, lengthscale):
        axes = {"lengthscale": 1}
        return Pointwise(rbf_of_points, variance=variance, lengthscale=lengthscale, axes=axes) + White(0.1)

    def built_in(variance, lengthscale):
        return RBF(variance, lengthscale) + White(0.1)

    several = [(1.5, lengthscale[0]), (1.5, lengthscale), (np.asarray([1.0, 2.0]), lengthscale)]

    @jax.jit
    def everything(several):
        def score(make, arguments):
            return jnp.sum(jnp.sin(make(*arguments)(X, Z)))

        found = [
            (
                [evaluate(make(*arguments), X, Z) for arguments in several],
                jax.grad(partial(score, make))(several[1]),
            )
            for make in (ours, built_in)
        ]
        one_per_output = ours(several[2][0], lengthscale[0])(X)[1], built_in(2.0, lengthscale[0])(X)
        return found, one_per_output

    found, one_per_output = everything(several)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), *(gradient for _, gradient in found))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), *(values for values, _ in found))
    np.testing.assert_allclose(*one_per_output, rtol=1e-12)


def test_a_function_of_two_images():
    images = np.random.default_rng(0).normal(size=(3, 4, 4, 1))
    kernel = Pointwise(lambda x, z, scale: scale * jnp.sum(x * z), input_ndim=3, scale=0.5) + White(0.3)
    flat = images.reshape(3, -1)
    np.testing.assert_allclose(
        jax.jit(lambda k, X: k(X))(kernel, images), 0.5 * flat @ flat.T + 0.3 * np.eye(3), rtol=1e-12
    )


class Nothing(Kernel):
    """A kernel without a covariance."""


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Pointwise(1.0), TypeError, "takes a function of two points, got float"),
        (lambda: Pointwise(rbf_of_points, lengthscale="a"), TypeError, "lengthscale"),
        (lambda: Pointwise(rbf_of_points, axes={"period": 1}), ValueError, r"axes names \['period'\]"),
        (lambda: Pointwise(rbf_of_points, lengthscale=np.ones((2, 3))), ValueError, "lengthscale"),
        (lambda: Pointwise(rbf_of_points, active_dims=(0,), input_ndim=3), ValueError, "columns of vectors"),
        (
            lambda: Pointwise(rbf_of_points, active_dims=(4,), variance=1.0, lengthscale=1.0)(inputs()[0]),
            ValueError,
            "active_dims",
        ),
        (lambda: Pointwise(lambda x, z: x * z)(inputs()[0]), ValueError, "one number"),
        (
            lambda: Pointwise(rbf_of_points, variance=np.ones(2), lengthscale=np.ones(3))(inputs()[0]),
            ValueError,
            "outputs D",
        ),
        (lambda: Nothing()(inputs()[0]), NotImplementedError, r"Nothing .* write evaluate\(x, z\)"),
        (lambda: Pointwise(rbf_of_points).frequencies(jax.random.key(0), 1, 1, float), TypeError, "a method"),
    ],
)
def test_kernels_of_the_users_own_are_checked(make, error, message):
    with pytest.raises(error, match=message):
        make()


NOISY = {
    "none": (RBF(), 0.0),
    "noise": (White(0.3), 0.3),
    "sum": (RBF() + 2.0 * White(0.3), 0.6),
    "product": ((RBF(2.0) + White(0.3)) * (Constant(0.5) + White(0.1)), 2.0 * 0.1 + 0.3 * 0.5 + 0.3 * 0.1),
    "scaled": (2.0 * (RBF() * Linear() + White(0.3)) * Constant(0.5), 0.3),
}


@pytest.mark.parametrize("name", NOISY)
def test_a_kernel_is_a_function_and_noise(name):
    kernel, variance = NOISY[name]
    X, Z = inputs()

    @jax.jit
    def everything(kernel):
        function, noise = kernel.split_noise()
        parts = [None if function is None else (function(X, Z), function(X)), None if noise is None else noise(X)]
        return parts, kernel(X, Z), kernel(X)

    (function, noise), cross, gram = everything(kernel)
    of_cross, of_gram = (0, 0) if function is None else function
    found = 0 if noise is None else np.asarray(noise)
    np.testing.assert_allclose(of_cross, cross, rtol=1e-12)
    np.testing.assert_allclose(found, variance * np.eye(len(X)) if variance else 0, rtol=1e-12)
    np.testing.assert_allclose(of_gram + found, gram, rtol=1e-12)


# -- second derivatives, and far inputs --------------------------------------------------------------------------------

SMOOTHNESS = {
    # The second derivative of k(x, z) by x at z = x, of lengthscale 0.5 and variance 2; of kinks what is said of them.
    "Matern12": (Matern12(2.0, 0.5), 0.0),
    "Matern32": (Matern32(2.0, 0.5), -2.0 * 3 / 0.25),
    "Matern52": (Matern52(2.0, 0.5), -2.0 * (5 / 3) / 0.25),
    "RBF": (RBF(2.0, 0.5), -2.0 / 0.25),
    "RationalQuadratic": (RationalQuadratic(2.0, 0.5, 1.5), -2.0 / 0.25),
    "Periodic": (Periodic(2.0, 0.5, 3.0), -2.0 * (np.pi / 3.0) ** 2 / 0.25),
    "ArcCosine 0": (ArcCosine(order=0), 0.0),
    "ArcCosine 1": (ArcCosine(order=1), None),
    "ArcCosine 2": (ArcCosine(order=2), None),
}


def of_pair(kernel):
    return lambda x, z: kernel(jnp.atleast_2d(x), jnp.atleast_2d(z))[0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SMOOTHNESS)
def test_second_derivatives_at_coincident_inputs(name, dtype):
    kernel, limit = SMOOTHNESS[name]
    kernel = jax.tree.map(lambda x: jnp.asarray(x, dtype), kernel)
    k, x = of_pair(kernel), jnp.asarray([0.7, -0.3], dtype)
    kinked = limit == 0.0
    for arguments in ((0, 0), (0, 1), (1, 1)):
        found = np.asarray(jax.jit(jax.jacfwd(jax.grad(k, arguments[0]), arguments[1]))(x, x))
        assert np.isfinite(found).all(), arguments
        if limit is not None:
            sign = 1 if arguments[0] == arguments[1] else -1
            np.testing.assert_allclose(found, sign * limit * np.eye(2), rtol=1e-4, atol=1e-4)
    if not kinked and dtype == np.float64:
        h, found = 1e-4, np.asarray(jax.hessian(k)(x, x))
        e = h * np.eye(2)
        central = [
            [(k(x + a + b, x) - k(x + a - b, x) - k(x - a + b, x) + k(x - a - b, x)) / (4 * h * h) for b in e]
            for a in e
        ]
        np.testing.assert_allclose(found, central, rtol=2e-3, atol=2e-3)
    hessian_of_gram = jax.jit(jax.hessian(lambda X: jnp.sum(jnp.sin(kernel(X)))))(jnp.stack([x, x, x + 1]))
    assert np.isfinite(hessian_of_gram).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", [Matern12, Matern32, Matern52, RBF, RationalQuadratic])
def test_infinite_squares_are_far(kernel, dtype):
    k = of_pair(jax.tree.map(lambda x: jnp.asarray(x, dtype), kernel(2.0, 0.5)))
    for away in (1e10, 1e18, 1e25, 1e30):
        x, z = jnp.zeros(2, dtype), jnp.full(2, away, dtype)
        found = [k(x, z), jax.grad(k)(x, z), jax.hessian(k)(x, z)]
        for values in found:
            np.testing.assert_allclose(values, 0, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize(("period", "far"), [(7.0, 7.0 * 2**20), (0.375, 0.375 * (2**22 - 1)), (0.1, None)])
def test_multiples_of_the_period_are_one_input(period, far):
    period = np.float32(period)
    many = np.float32([3, 1e3, 12345, 1e5, 1e6])
    x = np.float32([0.0, 0.25]) * period
    z = np.float32([far]) if far else (many * period).astype(np.float32)
    kernel = Periodic(np.float32(1), np.float32(0.3), period)
    turns = (x.astype(float)[:, None] - z.astype(float)) / float(
        period
    )  # of the numbers as they are, in double precision
    expected = np.exp(-0.5 * (np.sin(np.pi * turns) / float(np.float32(0.3))) ** 2)
    with jax.numpy_dtype_promotion("standard"):
        np.testing.assert_allclose(kernel(x[:, None], z[:, None]), expected, atol=2e-6)
        np.testing.assert_allclose(kernel(np.concatenate([x, z])[:, None])[:2, 2:], expected, atol=2e-6)
    if far:
        np.testing.assert_allclose(expected[0], 1, rtol=1e-12)


@pytest.mark.slow
def test_derivatives_of_a_periodic_kernel_count_all_periods():
    k = lambda x, z, period: Periodic(1.3, 0.6, period)(x[None, None], z[None, None])[0, 0]  # noqa: E731
    direct = lambda x, z, period: 1.3 * jnp.exp(-0.5 * (jnp.sin(jnp.pi * (x - z) / period) / 0.6) ** 2)  # noqa: E731
    at = tuple(map(jnp.asarray, (12.3, -4.1, 2.7)))
    for derivative in (jax.grad, jax.hessian):
        found, expected = (derivative(f, (0, 1, 2))(*at) for f in (k, direct))
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9), found, expected)
