"""Double sums against golden numbers, naive loops and plain automatic differentiation."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpzoo.inducing.kuu_kuf import Kuf, Kuu
from gpzoo.inducing.variables import InducingPatches
from gpzoo.kernels import RBF, Constant, Convolutional, DoubleSum, Invariant, Linear, Matern32, White
from gpzoo.views.base import View
from gpzoo.views.orbits import Orbit
from gpzoo.views.patches import Patches
from tests.reference import assert_close

GOLDEN = [
    "convgp_01_ti_rect_bernoulli",
    "convgp_03_weighted_digits_robustmax",
    "convgp_05_weighted_unwhitened_gaussian",
    "convgp_06_colour_perchannel_weighted",
    "convgp_12_weighted_plus_white",
]
TOLERANCE = {"float64": 1e-8, "float32": 1e-4}


def images_and_kernel(arrays, dtype):
    def cast(name):
        return jnp.asarray(arrays[name], dtype)

    height, width = (int(size) for size in arrays["in_image_shape"])
    X = cast("in_X").reshape(len(arrays["in_X"]), height, width, -1)
    base = RBF(cast("in_variance"), cast("in_lengthscales"))
    weights = cast("in_W") if "in_W" in arrays else None
    kernel = Convolutional(base, X.shape[1:], arrays["in_patch_shape"], weights, mean=True)
    return X, kernel + White(cast("in_white_variance")) if "in_white_variance" in arrays else kernel


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow_but(dtype=["float64"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", GOLDEN)
def test_golden(golden, name, dtype):
    arrays, _ = golden(name)
    X, kernel = images_and_kernel(arrays, dtype)
    Z = InducingPatches(jnp.asarray(arrays["in_Z"], dtype))
    with_gram = "out_Kxx" in arrays

    @jax.jit
    def evaluate(Z, kernel, X):
        results = {"out_Kzz": Kuu(Z, kernel), "out_Kzx": Kuf(Z, kernel, X), "out_Kdiag": kernel.diag(X)}
        return results | ({"out_Kxx": kernel(X)} if with_gram else {})

    for key, result in evaluate(Z, kernel, X).items():
        assert result.dtype == dtype
        assert_close(result, arrays[key], TOLERANCE[dtype])


def toy(dtype="float64", channels=1, N=3, M=4):
    rng = np.random.default_rng(1)
    view = Patches((5, 4, channels), (2, 2))
    X = rng.uniform(size=(N, 5, 4, channels)).astype(dtype)
    Z = rng.uniform(size=(M, 4)).astype(dtype)
    return view, X, Z, rng.normal(size=view.num_views).astype(dtype)


@pytest.mark.parametrize("weighted, mean", [(False, False), (True, False), (True, True)])
def test_quadruple_loop(weighted, mean):
    view, X, Z, weights = toy(channels=2)
    P = view.num_views
    w = (np.asarray(weights) if weighted else np.ones(P)) / (P if mean else 1)
    kernel = DoubleSum(RBF(1.3, 0.7), view, weights if weighted else None, mean=mean)
    V = np.asarray(view.view(X))

    def base(a, b):
        return 1.3 * np.exp(-np.sum((a - b) ** 2) / (2 * 0.7**2))

    K, Kfu = np.zeros((3, 3)), np.zeros((3, 4))
    for n, m, p, q in itertools.product(range(3), range(3), range(P), range(P)):
        K[n, m] += w[p] * w[q] * base(V[n, p], V[m, q])
    for n, m, p in itertools.product(range(3), range(4), range(P)):
        Kfu[n, m] += w[p] * base(V[n, p], Z[m])

    @jax.jit
    def evaluate(kernel, X, Z):
        return kernel(X), kernel(X, X[:2]), kernel.diag(X), kernel.cross_view(X, Z)

    for result, wanted in zip(evaluate(kernel, X, Z), (K, K[:, :2], np.diag(K), Kfu), strict=True):
        assert_close(result, wanted, 1e-12)


@pytest.mark.parametrize("base", [RBF(1.3, 0.7), Matern32(1.3, 0.7)])
def test_one_patch_of_full_size_is_the_base_kernel(base):
    rng = np.random.default_rng(2)
    X, Z = rng.uniform(size=(3, 4, 3, 1)), rng.uniform(size=(2, 12))
    kernel = Convolutional(base, (4, 3), (4, 3))
    flat = X.reshape(3, 12)

    @jax.jit
    def evaluate(kernel, X, Z):
        return kernel(X), kernel.diag(X), kernel.cross_view(X, Z)

    wanted = jax.jit(lambda base, flat, Z: (base(flat), base.diag(flat), base(flat, Z)))(base, flat, Z)
    for result, exact in zip(evaluate(kernel, X, Z), wanted, strict=True):
        assert_close(result, exact, 1e-12)


def test_white_noise_in_the_base_is_noise_on_every_response():
    view, X, Z, weights = toy()
    noisy, clean = (DoubleSum(base, view, weights) for base in (RBF() + White(0.3), RBF()))
    noise = 0.3 * np.sum(np.square(weights))

    @jax.jit
    def evaluate(kernel):
        return kernel.diag(X), kernel(X), kernel(X, X), kernel.cross_view(X, Z), Kuu(InducingPatches(Z), kernel)

    more = noise, noise * np.eye(3), 0, 0, 0.3 * np.eye(4)
    for result, without, extra in zip(evaluate(noisy), evaluate(clean), more, strict=True):
        assert_close(result, np.asarray(without) + extra, 1e-12)


def test_noise_of_the_base_that_goes_by_the_view():
    view, X, _, weights = toy()
    noise = 0.3 * np.square(view.view(X)).sum(-1) @ np.square(weights)
    diags = jax.jit(lambda *bases: [DoubleSum(base, view, weights).diag(X) for base in bases])
    noisy, clean = diags(RBF() + White(0.3) * Linear(), RBF())
    assert_close(noisy, np.asarray(clean) + noise, 1e-12)


def test_distances_survive_images_far_from_zero_in_float32():
    view, X, Z, weights = toy("float32")
    kernel = DoubleSum(RBF(1.0, 0.5), view, weights)
    evaluate = jax.jit(lambda kernel, X, Z: (kernel.diag(X), kernel.cross_view(X, Z)))
    X, Z = np.asarray(X), np.asarray(Z)
    for far, near in zip(evaluate(kernel, X + 100, Z + 100), evaluate(kernel, X, Z), strict=True):
        assert_close(far, near, 1e-3)


@pytest.mark.slow_but(spread=[8e3], columns=[3, 12])
@pytest.mark.parametrize("spread", [1e3, 8e3, 2e5])
@pytest.mark.parametrize("columns", [2, 3, 12])
@pytest.mark.parametrize("lengthscales", ["one", "each"])
def test_rounding_makes_no_covariance_larger_than_the_variance(lengthscales, columns, spread):
    """In float32, far from each other by the lengthscale: rounded exponents were positive, and variances infinite."""
    X = np.random.default_rng(0).uniform(0, spread, (6, columns)).astype(np.float32)
    scale = np.ones(columns, np.float32) if lengthscales == "each" else 1.0
    turned = Orbit([np.roll(np.arange(columns), i) for i in range(2)])
    kernel = Invariant(RBF(1.0, scale), turned)
    np.testing.assert_allclose(kernel.diag(X), 0.5, rtol=1e-5)
    np.testing.assert_allclose(kernel(X), 0.5 * np.eye(6), atol=1e-5)
    assert np.asarray(kernel(X, X)).max() < 0.5001
    slope = jax.grad(lambda scale: Invariant(RBF(1.0, scale), turned).diag(X).sum())(jnp.asarray(scale))
    np.testing.assert_allclose(slope, 0, atol=1e-5)


@pytest.mark.parametrize("N", [1, 7])
@pytest.mark.parametrize("base, profile", [(RBF, "rbf"), (Matern32, "matern")])
def test_number_of_inputs_need_not_fit_the_chunks(base, profile, N, monkeypatch):
    view, X, Z, weights = toy(N=N)
    monkeypatch.setattr("gpzoo._platform.bytes_at_a_time", lambda: 3 * 8 * view.num_views**2)
    kernel = DoubleSum(base(1.3, 0.7), view, weights)

    @jax.jit
    def both(kernel, weights, X, Z):
        return (kernel.diag(X), kernel.cross_view(X, Z)), naive(globals()[profile], 1.3, 0.7, weights, view.view(X), Z)

    result, (diag, cross) = both(kernel, weights, X, Z)
    assert_close(result[0], diag, 1e-12)
    assert_close(result[1], cross, 1e-12)


# -- gradients ---------------------------------------------------------------------------------------------------------


def naive(profile, variance, lengthscale, weights, V, Z):
    """The same sums with every pair at once, and distances as sums of squared differences."""

    def base(A, B):
        return variance * profile(jnp.sum(jnp.square((A[..., :, None, :] - B[..., None, :, :]) / lengthscale), -1))

    diag = jnp.einsum("p,npq,q->n", weights, base(V, V), weights)
    return diag, jnp.einsum("p,npm->nm", weights, base(V, jnp.broadcast_to(Z, (V.shape[0], *Z.shape))))


def matern(square):
    # A distance whose derivative at zero is zero.
    distance = jnp.sqrt(3 * jnp.where(square > 0, square, 1))
    return jnp.where(square > 0, (1 + distance) * jnp.exp(-distance), 1)


def rbf(square):
    return jnp.exp(-square / 2)


@pytest.mark.slow_but(make=[RBF], wrap=[jax.jit])
@pytest.mark.parametrize(
    "make, profile, lengthscale, dtype, wrap",
    [
        (RBF, rbf, 0.7, "float64", jax.jit),
        (RBF, rbf, 0.7, "float32", jax.jit),
        (RBF, rbf, 0.7, "float64", lambda f: f),
        (RBF, rbf, [0.7, 0.5, 0.9, 1.1], "float64", jax.jit),
        (Matern32, matern, 0.7, "float64", jax.jit),
        (Matern32, matern, 0.7, "float32", jax.jit),
    ],
    ids=["rbf", "rbf float32", "rbf eager", "rbf per pixel", "matern", "matern float32"],
)
def test_gradients_are_those_of_the_naive_sums(make, profile, lengthscale, dtype, wrap):
    view, X, Z, weights = toy(dtype)
    rng = np.random.default_rng(3)
    factors = (rng.normal(size=3).astype(dtype), rng.normal(size=(3, 4)).astype(dtype))
    arguments = (np.asarray(1.3, dtype), np.asarray(lengthscale, dtype), weights, Z, X)
    if wrap is not jax.jit:
        factors, arguments = jax.tree.map(jnp.asarray, (factors, arguments))

    def ours(arguments, factors):
        variance, lengthscale, weights, Z, X = arguments
        kernel = DoubleSum(make(variance, lengthscale), view, weights)
        return jnp.vdot(factors[0], kernel.diag(X)) + jnp.vdot(factors[1], kernel.cross_view(X, Z))

    def wanted(arguments, factors):
        variance, lengthscale, weights, Z, X = arguments
        diag, cross = naive(profile, variance, lengthscale, weights, view.view(X), Z)
        return jnp.vdot(factors[0], diag) + jnp.vdot(factors[1], cross)

    value, gradients = wrap(jax.value_and_grad(ours))(arguments, factors)
    exact = jax.tree.map(lambda a: a.astype("float64"), (arguments, factors))
    wanted_value, wanted_gradients = jax.jit(jax.value_and_grad(wanted))(*exact)
    assert_close(value, wanted_value, TOLERANCE[dtype])
    for gradient, reference in zip(gradients, wanted_gradients, strict=True):
        assert gradient.dtype == dtype
        assert_close(gradient, reference, TOLERANCE[dtype])


def test_gradients_of_gram_matrices():
    view, X, _, weights = toy()
    G = jnp.asarray(np.random.default_rng(4).normal(size=(3, 3)))

    def ours(lengthscale, weights, X):
        return jnp.vdot(G, DoubleSum(RBF(1.3, lengthscale), view, weights)(X))

    def wanted(lengthscale, weights, X):
        V = view.view(X)
        square = jnp.sum(jnp.square(V[:, None, :, None] - V[None, :, None, :]), -1) / lengthscale**2
        return jnp.vdot(G, jnp.einsum("p,nmpq,q->nm", weights, 1.3 * jnp.exp(-square / 2), weights))

    arguments = (jnp.asarray(0.7), weights, X)
    gradients = jax.jit(jax.grad(ours, argnums=(0, 1, 2)))(*arguments)
    for gradient, reference in zip(gradients, jax.jit(jax.grad(wanted, argnums=(0, 1, 2)))(*arguments), strict=True):
        assert_close(gradient, reference, 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [(), (4,)])
def test_second_derivatives(columns):
    view, X, Z, weights = toy()

    def scaled(lengthscale):
        kernel = DoubleSum(RBF(1.3, jnp.full(columns, lengthscale)), view, weights)
        return jnp.sum(kernel.diag(X)) + jnp.sum(kernel.cross_view(X, Z))

    def wanted(lengthscale):
        return sum(jnp.sum(part) for part in naive(rbf, 1.3, lengthscale, weights, view.view(X), Z))

    lengthscale = jnp.asarray(0.7)
    assert_close(jax.jit(jax.hessian(scaled))(lengthscale), jax.jit(jax.hessian(wanted))(lengthscale), 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("base", [RBF, Matern32])
def test_vmap_over_members_of_an_ensemble(base):
    view, X, Z, weights = toy()

    def loss(parameters, X):
        kernel = DoubleSum(base(parameters["variance"], parameters["lengthscale"]), view, parameters["weights"])
        return jnp.sum(jnp.sin(kernel.diag(X))) + jnp.sum(jnp.sin(kernel.cross_view(X, parameters["Z"])))

    factors = np.asarray([1.0, 0.8, 1.3])
    single = {"variance": np.asarray(1.3), "lengthscale": np.asarray(0.7), "weights": weights, "Z": Z}
    many = jax.tree.map(lambda a: factors[(...,) + (None,) * np.ndim(a)] * a, single)
    together = jax.jit(jax.vmap(jax.value_and_grad(loss), in_axes=(0, None)))(many, X)
    together = jax.tree.map(np.asarray, together)
    alone = jax.jit(jax.value_and_grad(loss))
    for member in range(3):
        apart = alone(jax.tree.map(lambda a, member=member: a[member], many), X)
        jax.tree.map(lambda a, b, member=member: assert_close(a[member], b, 1e-10), together, apart)


class Multiples(View):
    """Views with a parameter: an input vector times each of some factors."""

    factors: jax.Array
    num_views, view_size = 3, 2

    def view(self, X):
        return X[:, None, :] * self.factors[:, None]


@pytest.mark.slow
@pytest.mark.parametrize("base", [RBF, Matern32])
def test_parameters_of_a_view_are_learnt(base):
    rng = np.random.default_rng(5)
    X, Z, weights, factors = (jnp.asarray(rng.normal(size=s)) for s in [(4, 2), (5, 2), 3, 3])
    profile = {RBF: rbf, Matern32: matern}[base]

    def ours(factors):
        kernel = DoubleSum(base(1.3, 0.7), Multiples(factors), weights)
        return jnp.sum(jnp.sin(kernel.diag(X))) + jnp.sum(jnp.sin(kernel.cross_view(X, Z)))

    def wanted(factors):
        parts = naive(profile, 1.3, 0.7, weights, Multiples(factors).view(X), Z)
        return sum(jnp.sum(jnp.sin(part)) for part in parts)

    value, gradient = jax.jit(jax.value_and_grad(ours))(factors)
    wanted_value, wanted_gradient = jax.jit(jax.value_and_grad(wanted))(factors)
    assert_close(value, wanted_value, 1e-12)
    assert_close(gradient, wanted_gradient, 1e-9)


# -- costs -------------------------------------------------------------------------------------------------------------


def step(argnums, base=RBF, B=32, M=50):
    """Value and gradients of diag + Kuf at the sizes of MNIST, compiled in float32."""
    view = Patches((28, 28), (5, 5))

    def loss(variance, lengthscale, weights, Z, X):
        kernel = DoubleSum(base(variance, lengthscale), view, weights)
        return jnp.sum(jnp.sin(kernel.diag(X))) + jnp.sum(jnp.sin(kernel.cross_view(X, Z)))

    shapes = [(), (), (view.num_views,), (M, 25), (B, 28, 28, 1)]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.jit(jax.value_and_grad(loss, argnums=argnums)).lower(*arguments).compile()


@pytest.mark.slow
@pytest.mark.parametrize("base", [RBF, Matern32])
def test_memory_is_that_of_a_chunk(base):
    needed = step((0, 1, 2, 3), base).memory_analysis().temp_size_in_bytes
    assert needed < 32 * 576 * 576 * 4 / 4


@pytest.mark.slow
def test_gradient_of_the_inputs_is_paid_for_only_where_asked():
    parameters, inputs = (step(argnums).as_text() for argnums in ((0, 1, 2, 3), (0, 1, 2, 3, 4)))
    # Values of each part in a loop, and weights of Kuf in another; the inputs take a product in two of them.
    assert parameters.count(" while(") == inputs.count(" while(") == 3
    assert parameters.count(" dot(") + 2 == inputs.count(" dot(")


# -- outputs, algebra, errors ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("base", [RBF, Matern32])
def test_one_kernel_per_output(base):
    view, X, Z, weights = toy()
    variance, lengthscale = np.asarray([1.3, 0.4]), np.asarray([[0.7], [1.2]])
    many_weights = np.stack([weights, weights[::-1]])
    many_Z, many_X = np.stack([Z, 2 * Z]), np.stack([X, 1 - X])

    def single(d, weights):
        return DoubleSum(base(variance[d], lengthscale[d, 0]), view, weights)

    def results(kernel, each):
        together = kernel(X), kernel.diag(many_X), kernel.cross_view(X, Z), kernel.cross_view(many_X, many_Z)
        apart = [
            (k(X), k.diag(many_X[d]), k.cross_view(X, Z), k.cross_view(many_X[d], many_Z[d]))
            for d, k in enumerate(each)
        ]
        return together, [jnp.stack(parts) for parts in zip(*apart, strict=True)]

    many, one = base(variance, lengthscale), base(1.3, 0.7)
    cases = [(DoubleSum(one, view, many_weights), [DoubleSum(one, view, many_weights[d]) for d in range(2)])]
    if base is RBF:
        cases += [
            (DoubleSum(many, view, many_weights), [single(d, many_weights[d]) for d in range(2)]),
            (DoubleSum(many, view, weights), [single(d, weights) for d in range(2)]),
        ]
    evaluate = jax.jit(results)
    for case in cases:
        for result, wanted in zip(*evaluate(*case), strict=True):
            assert_close(result, wanted, 1e-12)
    kernel = single(0, weights)

    @jax.jit
    def crosses(kernel):
        of = kernel.cross_view
        together = of(many_X, Z), of(X, many_Z)
        return together, [
            jnp.stack([of(many_X[d], Z) for d in range(2)]),
            jnp.stack([of(X, many_Z[d]) for d in range(2)]),
        ]

    for result, wanted in zip(*crosses(kernel), strict=True):
        assert_close(result, wanted, 1e-12)


def test_adds_with_kernels_that_only_count_inputs():
    view, X, _, weights = toy()
    kernel = DoubleSum(RBF(), view, weights)
    total = kernel + White(0.1) + Constant(2.0)
    of_total, of_kernel = jax.jit(lambda *kernels: [(k(X), k.diag(X)) for k in kernels])(total, kernel)
    assert_close(of_total[0], np.asarray(of_kernel[0]) + 0.1 * np.eye(3) + 2, 1e-12)
    assert_close(of_total[1], np.asarray(of_kernel[1]) + 2.1, 1e-12)
    with pytest.raises(ValueError, match="different rank"):
        kernel + RBF()


def test_survives_a_round_trip_through_jit():
    view, X, _, weights = toy()
    kernel = DoubleSum(RBF(1.3, 0.7), view, weights, mean=True)
    diag = jax.jit(lambda kernel: kernel.diag(X))
    assert_close(diag(jax.jit(lambda k, X: k)(kernel, X)), diag(kernel), 1e-15)
    assert len(jax.tree.leaves(kernel)) == 3


def test_errors():
    view, X, _, _ = toy()
    kernel = DoubleSum(RBF(), view)
    with pytest.raises(ValueError, match=r"P = 12 views, got shape \(11,\)"):
        DoubleSum(RBF(), view, jnp.ones(11))
    with pytest.raises(ValueError, match="base must be a kernel on vectors"):
        DoubleSum(kernel, view)
    with pytest.raises(TypeError, match="base must be a kernel, got float"):
        DoubleSum(1.0, view)
    with pytest.raises(TypeError, match=r"view must be a gpzoo\.views\.View, such as Patches; got tuple"):
        DoubleSum(RBF(), (2, 2))
    with pytest.raises(ValueError, match=r"Z must be \[M, 4\].*got shape \(3, 5\)"):
        kernel.cross_view(X, jnp.zeros((3, 5)))
    with pytest.raises(ValueError, match=r"height, width, channels.*got X of shape \(3, 20\)"):
        kernel(X.reshape(3, 20))
    with pytest.raises(ValueError, match=r"got shape \(3, 4, 5, 1\)"):
        kernel.diag(jnp.swapaxes(X, 1, 2))


# -- patches that know their places (TICK) -----------------------------------------------------------------------------


def with_places(base, X):
    """In NumPy: the covariance between images whose patches of 2 x 2 are told their places."""
    seen = [
        [np.r_[x[i : i + 2, j : j + 2, 0].ravel(), i / 3, j / 2] for i in range(4) for j in range(3)]
        for x in np.asarray(X)
    ]
    each = [[sum(base(s, t) for s in one for t in other) for other in seen] for one in seen]
    return np.array(each) / 12**2


@pytest.mark.parametrize("of_place", ["RBF", "Matern32"])
def test_patches_and_their_places(of_place):
    """Values by two loops; of RBFs, which have one exponent, gradients as of one lengthscale for each column."""
    _, X, Z, weights = toy()
    Z = np.hstack([Z, np.random.default_rng(5).uniform(size=(4, 2))])

    def kernel(variance, of_patches, of_places, weights=None):
        places = {"RBF": RBF, "Matern32": Matern32}[of_place](1.1, of_places, active_dims=(4, 5))
        return Convolutional(
            RBF(variance, of_patches, active_dims=range(4)) * places, (5, 4), (2, 2), weights, mean=True, places=True
        )

    def base(s, t):
        near = np.sum((s[4:] - t[4:]) ** 2) / 0.3**2
        place = np.exp(-near / 2) if of_place == "RBF" else (1 + np.sqrt(3 * near)) * np.exp(-np.sqrt(3 * near))
        return 1.3 * np.exp(-np.sum((s[:4] - t[:4]) ** 2) / (2 * 0.7**2)) * 1.1 * place

    found = jax.jit(lambda X: kernel(1.3, 0.7, 0.3)(X))(X)
    assert_close(found, with_places(base, X), 1e-12)
    assert_close(jax.jit(lambda X: kernel(1.3, 0.7, 0.3).diag(X))(X), np.diag(found), 1e-12)
    if of_place != "RBF":
        return

    def per_column(variance, of_patches, of_places, weights):
        lengthscales = jnp.concatenate([jnp.full(4, of_patches), jnp.full(2, of_places)])
        base = RBF(1.1 * variance, lengthscales)
        return Convolutional(base, (5, 4), (2, 2), weights, mean=True, places=True)

    def scored(make):
        def score(arguments, X, Z):
            own = make(*arguments)
            return jnp.sum(jnp.sin(own.cross_view(X, Z))) + jnp.sum(jnp.cos(own.diag(X)))

        return jax.jit(jax.grad(score, argnums=(0, 1, 2)))((1.3, 0.7, 0.3, weights), X, Z)

    for gradient, reference in zip(*map(jax.tree.leaves, map(scored, (kernel, per_column))), strict=True):
        assert_close(gradient, reference, 1e-10)
