"""The same model has the same numbers, whatever way it is written; a draw that a program takes is always seen."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

from gpzoo import GaussianProcess, InducingBlocks, InducingPoints, draws
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, check, fit, load
from gpzoo.inference.programs.program import look
from gpzoo.inference.reports.program import sites_of
from gpzoo.inference.reports.report import environment
from gpzoo.kernels import RBF, Matern32
from gpzoo.likelihoods import Expected, Gaussian
from gpzoo.models import deep_gp, linear_layers
from tests.programs import KEY, adam, bound, program_of, randomised, sine, terms

X, Y = sine(7)
Z = InducingPoints(np.asarray(X[::3]))
D = 2
ROWS, ENTRIES = np.linspace(1.5, 2.5, len(X)), np.linspace(1.0, 3.0, len(X) * D).reshape(-1, D)


def untrained(program, guide, *args, **kwargs):
    """How the expectations of the program's data are taken."""
    svi = SVI(program, guide, adam(0.1), GaussianProcessELBO())
    return fit(KEY, svi, 0, *args, progress=False, model_kwargs=kwargs).expectations


# -- operators, sides, kinds of number ---------------------------------------------------------------------------------

#: Expressions of ``m f + c``.
EXPRESSIONS = {
    "m * f + c": lambda f, m, c: m * f + c,
    "f * m + c": lambda f, m, c: f * m + c,
    "c + m * f": lambda f, m, c: c + m * f,
    "c - (-m) * f": lambda f, m, c: c - (-m) * f,
    "f / (1 / m) + c": lambda f, m, c: f / (1 / m) + c,
    "m * f - (-c)": lambda f, m, c: m * f - (-c),
    "-(-c - m * f)": lambda f, m, c: -(-c - m * f),
    "m * (c / m + f)": lambda f, m, c: m * (c / m + f),
    "(f + c / m) * m": lambda f, m, c: (f + c / m) * m,
    "(f - (-c) / m) / (1 / m)": lambda f, m, c: (f - (-c) / m) / (1 / m),
}

#: The numbers 2 and 3 of every kind, from a program's namespace of what is traced.
KINDS = {
    "int": lambda traced: (2, 3),
    "float": lambda traced: (2.0, 3.0),
    "NumPy number": lambda traced: (np.float64(2), np.float64(3)),
    "NumPy array": lambda traced: (np.full(traced.shape, 2.0), np.full(traced.shape, 3.0)),
    "NumPy array of one number": lambda traced: (np.array(2.0), np.array([3.0])),
    "JAX number": lambda traced: (jnp.float64(2), jnp.float64(3)),
    "JAX array": lambda traced: (jnp.full(traced.shape, 2.0), jnp.full(traced.shape, 3.0)),
    "argument": lambda traced: (traced.two, traced.three),
    "array of an argument": lambda traced: (jnp.full(traced.shape, traced.two), jnp.full(traced.shape, traced.three)),
    "latent": lambda traced: (traced.latent, traced.latent + 1.0),
}


def every_expression(X, y, two, three, *, outputs=None):
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X, num_outputs=outputs))
    latent = numpyro.sample("latent", dist.LogNormal(0.0, 1.0))
    traced = SimpleNamespace(two=two, three=three, latent=latent, shape=f.shape)
    for kind, numbers in KINDS.items():
        for expression, of in EXPRESSIONS.items():
            value = of(f, *numbers(traced))
            numpyro.sample(f"{expression}, {kind}", Gaussian(value, 0.1), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [None, D])
def test_expressions_of_one_model_have_one_bound_and_one_expectation(outputs):
    program = partial(every_expression, outputs=outputs)
    y = Y if outputs is None else jnp.stack([Y, -Y], axis=1)
    numbers = {"two": jnp.float64(2), "three": jnp.float64(3)}
    guide = InducingGuide(program, Z)
    params = randomised(guide.init_params(KEY, X, y, model_kwargs=numbers)) | {"latent_loc": numbers["two"]}

    @jax.jit
    def of_sites(params, numbers):
        return GaussianProcessELBO(sum_sites=False).loss(KEY, params, program, guide, X, y, **numbers)

    found = {name: -float(value) for name, value in of_sites(params, numbers).items() if "," in name}
    assert len(found) == len(EXPRESSIONS) * len(KINDS) == 100
    posterior = Trained(program, guide, params).posterior(KEY, X, y, model_kwargs=numbers)["f"]
    mean, variance = (np.asarray(x) for x in posterior.marginals())
    square = (np.asarray(y) - 2 * mean - 3) ** 2 + 4 * variance
    by_hand = -0.5 * np.sum(np.log(2 * np.pi * 0.1) + square / 0.1)
    np.testing.assert_allclose(list(found.values()), by_hand, rtol=1e-12)
    assert set(untrained(program, guide, X, y, **numbers).values()) == {"closed form"}


def sums(X, y=None):
    """Sums and dots: two functions of two sites, and their sum, in several ways."""
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X, num_outputs=2))
    g = numpyro.sample("g", GaussianProcess(RBF(0.5, 0.3), X, num_outputs=2))
    own, W = jnp.float64(2.0), jnp.array([[1.0, 0.5], [-2.0, 0.3]])
    ways = {
        "f W + 2 g": [
            f @ W + own * g,
            own * g + f @ W,
            f @ W - -own * g,
            (f @ W / own + g) * own,
            g * own + f.dot(W),
        ],
        "f 1 + g 1": [
            f.sum(axis=-1) + g.sum(axis=-1),
            (f + g).sum(-1),
            (f + g) @ np.ones(2),
            g.dot(jnp.ones(2)) + f @ np.array([1.0, 1.0]),
            sum([f, g]) @ jnp.ones(2),
        ],
        "f_0 + g_1": [
            f[:, 0] + g[:, 1],
            g[..., 1] + f[..., 0],
            f @ np.array([1.0, 0.0]) - -g[:, 1],
            (f[:, :1] + g[:, 1:])[:, 0],
        ],
        "f_0 + g_0, f_1 + g_0": [f + g[:, :1], g[:, :1] + f, g[:, 0][:, None] + f, f + g[:, :1] * np.ones(2)],
    }
    for name, values in ways.items():
        for i, value in enumerate(values):
            numpyro.sample(f"{name} {i}", Gaussian(value, 0.1), obs=y if value.ndim == 2 else y[:, 0])


@pytest.mark.slow
def test_sums_and_dots_are_the_same_in_any_order():
    y = jnp.stack([Y, -Y], axis=1)
    guide = InducingGuide(sums, Z)
    found = terms(sums, guide, randomised(guide.init_params(KEY, X, y)), X, y)
    for name in ("f W + 2 g", "f 1 + g 1", "f_0 + g_1", "f_0 + g_0, f_1 + g_0"):
        values = [float(value) for site, value in found.items() if site.startswith(name)]
        assert len(values) >= 4
        np.testing.assert_allclose(values, values[0], rtol=1e-12)
    assert set(untrained(sums, guide, X, y).values()) == {"closed form"}


def one_drawn(X, y=None, *, swapped=False):
    g = numpyro.sample("g", GaussianProcess(RBF(1.0, 1.0), X))
    h = numpyro.sample("h", GaussianProcess(RBF(0.5, 0.3), X))
    numpyro.deterministic("rate", jnp.exp(draws(g)))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(h + g if swapped else g + h, 0.1), obs=y)


@pytest.mark.slow
def test_a_drawn_site_and_another_add_in_either_order():
    found = []
    for swapped in (False, True):
        program = partial(one_drawn, swapped=swapped)
        guide = InducingGuide(program, Z)
        params = randomised(guide.init_params(KEY, X, Y))
        found.append(float(bound(program, guide, params, X, Y)))
        assert untrained(program, guide, X, Y) == {"y": "closed form given draws of g"}
    np.testing.assert_allclose(*found, rtol=1e-12)


# -- ways to write one model -------------------------------------------------------------------------------------------

S, MEAN, NOISE = 1.7, jnp.cos(X[:, 0]), 0.2


def way(value, kernel=None, mean=None, outputs=None, likelihood=Gaussian, plate=True, scope=False):
    """A program of ``y ~ N(S f + MEAN, NOISE)``, ``f ~ GP(0, RBF(1, 0.7))``."""

    def program(X, y=None, *, num_data=None):
        prior = GaussianProcess(RBF(1.0, 0.7) if kernel is None else kernel, X, mean, num_outputs=outputs)
        f = handlers.scope(numpyro.sample, "inner")("f", prior) if scope else numpyro.sample("f", prior)
        if not plate:
            numpyro.sample("y", likelihood(value(f), NOISE), obs=y)
            return
        with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
            numpyro.sample("y", likelihood(value(f), NOISE), obs=y)

    return program


def by_quadrature(f, noise):
    return Expected(lambda f, noise: dist.Normal(f, jnp.sqrt(noise)), f, noise)


base = way(lambda f: S * f + MEAN)

WAYS = {
    "the other order": way(lambda f: MEAN + f * S),
    "the mean inside": way(lambda f: f * S, mean=MEAN / S),
    "the variance inside": way(lambda f: f + MEAN, kernel=RBF(S**2, 0.7)),
    "mean and variance inside": way(lambda f: f, kernel=RBF(S**2, 0.7), mean=MEAN),
    "one output, taken": way(lambda f: S * f[:, 0] + MEAN, outputs=1),
    "one output, as a map": way(lambda f: f @ jnp.array([S]) + MEAN, outputs=1),
    "one output, summed": way(lambda f: (S * f).sum(axis=-1) + MEAN, outputs=1),
    "a scaled kernel": way(lambda f: MEAN + f, kernel=S**2 * RBF(1.0, 0.7)),
    "without a plate": way(lambda f: S * f + MEAN, plate=False),
    "in a scope": way(lambda f: S * f + MEAN, scope=True),
    "with its noise by keyword": way(
        lambda f: S * f + MEAN, likelihood=lambda f, noise: Gaussian(f=f, noise_variance=noise)
    ),
    "by quadrature": way(lambda f: S * f + MEAN, likelihood=by_quadrature),
    "with the number of its rows": partial(base, num_data=len(X)),
}


@pytest.fixture(scope="module")
def of_base():
    guide = InducingGuide(base, Z)
    params = randomised(guide.init_params(KEY, X, Y))
    return params, float(bound(base, guide, params, X, Y))


@pytest.mark.slow_but(name=["mean and variance inside", "a scaled kernel"])
@pytest.mark.parametrize("name", WAYS)
def test_ways_to_write_one_model_have_one_bound(name, of_base):
    program, (params, expected) = WAYS[name], of_base
    guide = InducingGuide(program, Z)
    start = guide.init_params(KEY, X, Y)
    own = {at: jnp.reshape(params[at.removeprefix("inner/")], x.shape) for at, x in start.items()}
    found = bound(program, guide, own, X, Y)
    np.testing.assert_allclose(found, expected, rtol=1e-12 if name != "by quadrature" else 1e-10)
    exact = "quadrature" if name == "by quadrature" else "closed form"
    assert untrained(program, guide, X, Y) == {"y": exact}


@pytest.mark.slow
def test_a_sum_of_kernels_is_a_sum_of_sites():
    long, short = RBF(1.0, 2.0), Matern32(0.4, 0.3)

    def of_sites(X, y=None):
        f, g = (numpyro.sample(n, GaussianProcess(k, X)) for n, k in (("f", long), ("g", short)))
        numpyro.sample("y", Gaussian(f + g, NOISE), obs=y)

    def of_kernels(X, y=None):
        f = numpyro.sample("f", GaussianProcess(long + short, X))
        numpyro.sample("y", Gaussian(f, NOISE), obs=y)

    two = InducingGuide(of_sites, Z)
    params = randomised(two.init_params(KEY, X, Y))
    one = InducingGuide(of_kernels, InducingBlocks(Z, Z), covariance="block_diagonal")
    start = one.init_params(KEY, X, Y)
    both = start | {
        "f_mean": jnp.concatenate([params["f_mean"], params["g_mean"]]),
        "f_scale": (params["f_scale"], params["g_scale"]),
    }
    assert jax.tree.structure(both) == jax.tree.structure(start)
    np.testing.assert_allclose(bound(of_kernels, one, both, X, Y), bound(of_sites, two, params, X, Y), rtol=1e-10)


# -- draws are seen, and nothing is drawn by itself --------------------------------------------------------------------


drawn = program_of(lambda f: dist.Poisson(jnp.exp(draws(f))))


COUNTS = jnp.arange(len(X)) % 3


@pytest.mark.slow
def test_a_draw_is_seen(tmp_path):
    guide = InducingGuide(drawn, Z)
    svi = SVI(drawn, guide, adam(0.1), GaussianProcessELBO())
    trained = fit(KEY, svi, 0, X, COUNTS, progress=False)
    assert trained.expectations == {"y": "draw of f"}
    (finding,) = check(drawn, X, COUNTS)
    assert (finding.name, finding.site) == ("drawn", "f")
    # In the tables of a report, of the model as it is and of its file.
    seen = look(drawn, (X, COUNTS), {})
    assert ("f", "GP, drawn") in [row[:2] for row in sites_of(drawn, seen).rows]
    trained.save(tmp_path / "model.gpzoo")
    for model in (trained, load(tmp_path / "model.gpzoo", drawn)):
        assert ("expectation of y", "draw of f") in environment(model).rows
        assert model.guide.sites.drawn == {"f"}
    jointly = fit(KEY, SVI(drawn, InducingGuide(drawn, Z, joint={"f"}), adam(0.1), GaussianProcessELBO()), 0, X, COUNTS)
    assert jointly.expectations == {"y": "draw of f"}


@pytest.mark.slow
def test_the_layers_of_a_deep_gp_are_drawn():
    program = partial(deep_gp, layers=linear_layers(X, [1]))
    expected = untrained(program, InducingGuide(program, Z), X, Y)["y"]
    assert expected == "closed form given draws of layer_0"
    names = [(finding.name, finding.site) for finding in check(program, X, Y)]
    assert names == [("drawn", "layer_0")]


@pytest.mark.slow
def test_the_same_program_runs_wherever_its_values_are_arrays(standard_promotion):
    found = Predictive(drawn, num_samples=3)(KEY, X)
    assert found["y"].shape == found["f"].shape == (3, len(X))
    svi = SVI(drawn, AutoNormal(drawn), numpyro.optim.Adam(0.1), Trace_ELBO())
    assert np.isfinite(fit(KEY, svi, 2, X, COUNTS, progress=False).losses).all()


@pytest.mark.slow
def test_programs_without_draws_train_under_other_guides(standard_promotion):
    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        numpyro.sample("y", dist.Poisson(jnp.exp(f)), obs=y)

    svi = SVI(program, AutoNormal(program), optax.adam(0.1), Trace_ELBO())
    assert fit(KEY, svi, 2, X, COUNTS, progress=False).expectations == {"y": "draw of f"}


@pytest.mark.slow
def test_recording_a_site_draws_nothing():
    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        numpyro.deterministic("level", 2.0 * f + 1.0)
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    guide = InducingGuide(program, Z)
    assert untrained(program, guide, X, Y) == {"y": "closed form"}
    params = guide.init_params(KEY, X, Y)
    found = Trained(program, guide, params).predict(random.key(1), X[:2])
    assert set(found) == {"f", "y"}
    values = Predictive(program, num_samples=3)(KEY, X)
    np.testing.assert_allclose(values["level"], 2 * values["f"] + 1)


REFUSED = {
    "jnp": (lambda f, y: numpyro.deterministic("p", jnp.tanh(f)), "^A function of JAX"),
    "lax": (lambda f, y: jax.lax.exp(f), r"^The program gives marginals of a GP site to a function of jax.lax"),
    "an index": (lambda f, y: X[f], r"^The program gives marginals .* takes them as an index"),
    "numpy": (lambda f, y: np.log(f), "^numpy.log"),
    "the other product": (lambda f, y: jnp.ones((3, len(X))) @ f, r"^A @ f .* mixes the rows of f.*"),
    "two outputs": (lambda f, y: f + f, r"^f \+ g, of GP site 'f' and GP site 'f'"),
    "Normal": (
        lambda f, y: numpyro.sample("y", dist.Normal(f, 0.1), obs=y),
        r"distributions? of NumPyro.* GP site 'f'.* likelihoods.Gaussian\(f",
    ),
    "Normal in a plate": (
        lambda f, y: numpyro.plate("n", len(X))(lambda: numpyro.sample("y", dist.Normal(2.0 * f, 1.0), obs=y))(),
        "distributions? of NumPyro",
    ),
    "data": (lambda f, y: numpyro.sample("y", dist.Normal(0.0, 1.0), obs=f), r"^Data site 'y' is a distribution of"),
    "a factor": (lambda f, y: numpyro.factor("y", 0.1 * f), r"^Data site 'y' is a distribution of NumPyro \(Unit\)"),
    "a noise": (lambda f, y: Gaussian(y, f), r"^noise_variance .* A function of JAX.* GP site 'f'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_marginals_cannot_do_is_one_error_that_names_the_way_out(name):
    use, message = REFUSED[name]

    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        use(f, y)
        numpyro.sample("z", Gaussian(f, 0.1), obs=Y)

    with pytest.raises(TypeError, match=message) as error:
        InducingGuide(program, Z).setup(X, Y)
    assert "draws(f)" in str(error.value)
    (finding,) = check(program, X, Y)
    assert finding.name == "refused" and finding.text == str(error.value)
