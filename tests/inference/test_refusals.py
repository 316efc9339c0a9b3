"""What a refusal says where the cause lies elsewhere than the program was stopped, and what must not be refused."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import SVI
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from numpyro.infer.util import log_density

from gpzoo import InducingPoints, kmeans
from gpzoo.errors import FactorisationError, NonFiniteError
from gpzoo.inference import (
    GaussianProcessELBO,
    InducingGuide,
    Trained,
    check,
    diagnose,
    fit,
    load,
    marginal,
    nuts,
    predict,
    whitened,
)
from gpzoo.kernels import RBF, Pointwise, White
from gpzoo.likelihoods import Expected, Gaussian
from gpzoo.models import categories
from gpzoo.processes.process import GaussianProcess
from gpzoo.tables import ArrayTable
from tests.programs import KEY, adam, bayesian_regression, regression, sine

X, Y = map(np.asarray, sine(8))


def train(program, guide, *args, steps=1, **options):
    return fit(KEY, SVI(program, guide, adam(0.01), GaussianProcessELBO()), steps, *args, progress=False, **options)


def start(program=regression, inputs=X, y=Y):
    guide = InducingGuide(program, InducingPoints(inputs[::3]))
    return Trained(program, guide, guide.init_params(KEY, inputs, y))


# -- categories --------------------------------------------------------------------------------------------------------


def of_categories(X, y=None):
    kernel = RBF(1.0, 1.0, active_dims=(0,)) * categories("f", X, 3)
    f = numpyro.sample("f", GaussianProcess(kernel, X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)


@pytest.mark.slow
def test_inducing_points_between_categories_are_a_finding():
    inputs = np.concatenate([X, np.arange(8.0)[:, None] % 3], axis=1)
    names = []
    for points in (inputs[::3], (inputs[:3] + inputs[3:6] + inputs[4:7]) / 3):
        guide = InducingGuide(of_categories, InducingPoints(points))
        trained = Trained(of_categories, guide, guide.init_params(KEY, inputs, Y))
        names.append([finding.name for finding in diagnose(KEY, trained, inputs, Y).findings])
    assert ["inducing inputs between categories" in found for found in names] == [False, True]


@pytest.mark.slow_but(number=[7.0], call=["posterior"])
@pytest.mark.parametrize("number", [1.5, 7.0, -1.0])
@pytest.mark.parametrize("call", ["predict", "posterior", "condition"])
def test_numbers_that_are_no_categories_are_refused(number, call):
    inputs = np.concatenate([X, np.arange(8.0)[:, None] % 3], axis=1)
    trained, bad = start(of_categories, inputs), inputs.copy()
    bad[5, 1] = number
    with pytest.raises(ValueError, match=f"whole numbers from 0 to 2, got {number}"):
        if call == "condition":
            trained.condition(KEY, bad, Y)
        else:
            getattr(trained, call)(KEY, bad)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("made", [AutoNormal, AutoMultivariateNormal])
def test_files_hold_guides_of_other_latent_sites(made, tmp_path):
    guide = InducingGuide(bayesian_regression, InducingPoints(X[::3]), hyperparameters=made)
    trained = Trained(bayesian_regression, guide, guide.init_params(KEY, X, Y))
    trained.save(tmp_path / "model")
    loaded = load(tmp_path / "model", bayesian_regression)  # no guide is given
    for site, wanted in trained.predict(KEY, X[:3], num_draws=2).items():
        np.testing.assert_array_equal(loaded.predict(KEY, X[:3], num_draws=2)[site].mean, wanted.mean)


# -- checks before a training ------------------------------------------------------------------------------------------


def two_inputs(X, Z, y=None):
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f + jnp.sum(Z), 0.1), obs=y)


def test_what_fit_refuses_is_a_finding():
    guide = InducingGuide(two_inputs, InducingPoints(X[::3]))
    with pytest.raises(ValueError, match="different numbers of rows") as refused:
        train(two_inputs, guide, X, X[:5], Y)
    (finding,) = check(two_inputs, X, X[:5], Y)
    assert finding.name == "refused" and finding.text == str(refused.value)
    (finding,) = check(regression, X)
    assert finding.name == "refused" and "'y' has no data" in finding.text
    assert str(check(regression, X)) == f"Findings\n- refused: {finding.text}"
    assert str(check(regression, X, Y)) == "Findings: none"


#: Distributions of a data site that lacks ``obs=y``, given ``f`` as a function.
FORGOTTEN = {
    "a likelihood": lambda X, f: Gaussian(f(), 0.1),
    "a likelihood with a mask": lambda X, f: Gaussian(f(), 0.1).mask(X[:, 0] > 0),
    "counts": lambda X, f: dist.Poisson(jnp.ones(len(X))),
    "classes": lambda X, f: dist.Categorical(logits=jnp.zeros((len(X), 3))),
    "numbers": lambda X, f: dist.Normal(jnp.zeros(len(X)), 1.0).to_event(1),
    "a GP": lambda X, f: GaussianProcess(RBF(1.0, 1.0) + White(0.1), X),
}


@pytest.mark.parametrize("site", FORGOTTEN)
def test_a_forgotten_obs_is_named(site):
    def program(X, y=None):
        variance = numpyro.sample("variance", dist.LogNormal(0.0, 1.0))
        f = lambda: numpyro.sample("f", GaussianProcess(RBF(variance, 1.0), X))  # noqa: E731
        numpyro.sample("y", FORGOTTEN[site](X, f))

    guide = InducingGuide(program, kmeans(3))
    for call in (partial(train, program, guide), partial(guide.init_params, KEY), partial(nuts, KEY, program)):
        with pytest.raises(ValueError, match=r"has no data.* obs=y"):
            call(X, Y)
    (finding,) = check(program, X, Y)
    assert finding.name == "refused" and "has no data" in finding.text


# -- diagnoses ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_part_of_the_training_says_nothing_of_its_posterior():
    guide = InducingGuide(bayesian_regression, InducingPoints(X[::3]), hyperparameters="normal")
    trained = train(bayesian_regression, guide, X, Y)
    found = diagnose(KEY, trained, X, Y, train_args=(X[:4], Y[:4]))
    assert "hyperparameters not trusted" not in [finding.name for finding in found.findings]
    notes = [s.note for s in found.sections if s.rows == (("not available",),)]
    assert len(notes) == 2 and all("given the 8 rows of training, and these are 4" in note for note in notes)


# -- words -------------------------------------------------------------------------------------------------------------


def test_missing_inputs_are_not_masked():
    bad = X.copy()
    bad[3] = np.nan
    with pytest.raises(ValueError, match="inputs, mean and kernel must be known numbers") as refused:
        start().predict(KEY, bad)
    assert "mask" not in str(refused.value)


def test_tables_are_for_fit():
    with pytest.raises(TypeError, match="X is a table, which fit alone takes whole"):
        start().predict(KEY, ArrayTable(X, Y))


def test_inducing_points_of_other_columns():
    guide = InducingGuide(regression, InducingPoints(np.ones((3, 2))))
    with pytest.raises(
        ValueError, match=r"inputs of shape \(8, 1\), .* inducing points .* \(3, 2\): both need the same columns"
    ):
        train(regression, guide, X, Y)


def of_kernel(function):
    def program(X, y=None):
        scale = numpyro.param("scale", jnp.ones((), X.dtype))
        f = numpyro.sample("f", GaussianProcess(Pointwise(function, scale=scale), X))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    return program


@pytest.mark.slow
def test_kernels_without_a_derivative_are_told_from_long_steps():
    program = of_kernel(lambda x, z, scale: jnp.exp(-jnp.sqrt(jnp.sum((x / scale - z / scale) ** 2))))
    with pytest.raises(NonFiniteError, match=r"f_inducing, scale is not finite.*no derivative"):
        train(program, InducingGuide(program, InducingPoints(X[::3])), X, Y)


def test_kernels_that_are_not_finite_are_named():
    program = of_kernel(lambda x, z, scale: scale * jnp.where(jnp.all(x == z), 1.0, jnp.nan))
    with pytest.raises(FactorisationError, match=r"first nan of variables 0 and 1.*a kernel of your own is not finite"):
        train(program, InducingGuide(program, InducingPoints(X[::3])), X, Y)


def test_predictions_print_their_shapes():
    assert repr(start().predict(KEY, X[:2])["y"]) == "SitePrediction(mean [2], variance [2])"


def test_priors_of_other_latent_sites_are_those_of_the_program():
    def other(X, y=None):
        numpyro.sample("noise", dist.LogNormal(0.0, 1.0))

    with pytest.raises(ValueError, match="another program"):
        guide = InducingGuide(bayesian_regression, InducingPoints(X[::3]))
        train(other, guide, X, Y)


def test_numbers_in_place_of_arrays_of_q_are_refused():
    guide = InducingGuide(regression, InducingPoints(X[::3]))
    with pytest.raises(ValueError, match=r"mean of q\(u\) of site 'f' has shape \(\), expected \(3,\)"):
        guide.init_params(KEY, X, Y, given={"f_mean": 0.0})


def test_a_diagnosis_needs_data():
    with pytest.raises(ValueError, match="Site 'y' has no data"):
        diagnose(KEY, start(), X)


# -- values from handlers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("site", ["lengthscale", "noise", "f"])
@pytest.mark.parametrize("where", ["around", "inside", "by a function"])
def test_a_latent_site_whose_value_a_handler_gives_is_refused(site, where):
    data = {site: jnp.zeros(len(X)) if site == "f" else jnp.array(0.5)}

    def inside(X, y=None):
        with handlers.substitute(data=data):
            bayesian_regression(X, y)

    def by_name(msg):
        return data.get(msg["name"])

    program = {
        "around": handlers.substitute(bayesian_regression, data=data),
        "inside": inside,
        "by a function": handlers.substitute(bayesian_regression, substitute_fn=by_name),
    }[where]
    guide = InducingGuide(program, InducingPoints(X[::3]))
    found = rf"Latent site '{site}' has a value from a handler .*handlers\.condition\(program, data="
    with pytest.raises(ValueError, match=found):
        guide.init_params(KEY, X, Y)
    with pytest.raises(ValueError, match=found):
        train(program, InducingGuide(program, InducingPoints(X[::3])), X, Y)


# -- distributions that jax.vmap made ----------------------------------------------------------------------------------


def gp(value, X, f):
    return GaussianProcess(RBF(1.0, value) + White(0.1), X)


def gp_of_outputs(value, X, f):
    return GaussianProcess(RBF(1.0, value), X, num_outputs=3)


def gaussian(value, X, f):
    return Gaussian(f, value)


def masked(value, X, f):
    return Gaussian(f, value).mask(jnp.ones(len(X), bool))


def expected(value, X, f):
    return Expected(lambda f, scale: dist.StudentT(4.0, f, scale), f, value, num_points=3)


MAPS = {
    "vmap": jax.vmap,
    "nested": lambda of_value: jax.vmap(lambda value: jax.vmap(of_value)(value[None])),
    "under jit": lambda of_value: jax.jit(jax.vmap(of_value)),
    "a loop": lambda of_value: lambda values: jax.lax.map(of_value, values),
}


def of_maps(X, y=None, *, make, how, count):
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    f = numpyro.sample("f", GaussianProcess(RBF(scale, 1.0), X))
    fn = MAPS[how](lambda value: make(value, X, f))(jnp.linspace(1.0, 2.0, count))
    numpyro.sample("g" if make is gp_of_outputs else "y", fn, obs=None if make is gp_of_outputs else y)


@pytest.mark.slow_but(count=[3], make=[gp, masked])
@pytest.mark.parametrize(
    ("make", "how", "count"),
    [(make, "vmap", count) for make in (gp, gp_of_outputs, gaussian, masked, expected) for count in (1, 3, len(X))]
    + [(make, how, 3) for make in (gp, gaussian) for how in MAPS],
)
def test_a_mapped_distribution_is_refused_at_its_site(make, how, count):
    program = partial(of_maps, make=make, how=how, count=count)
    found = r"Site '[gy]': .* was made under jax\.vmap"
    with pytest.raises(ValueError, match=found):
        InducingGuide(program, InducingPoints(X[::3])).setup(X, Y)
    with pytest.raises(ValueError, match=found):
        predict(KEY, program, X, posterior_samples={"scale": Y[:1], "f": Y[None]}, train_args=(X, Y))
    with pytest.raises(ValueError, match="was made under"):  # NumPyro's own calls do not say where they are
        log_density(program, (X, Y), {}, {"scale": jnp.array(1.0), "f": Y, "g": jnp.zeros((8, 3))})
    with pytest.raises(ValueError, match=found):
        log_density(marginal(program), (X, Y), {}, {"scale": jnp.array(1.0)})
    with pytest.raises(ValueError, match=found if make is gp_of_outputs else "was made under"):
        draws = {"scale": jnp.array(1.0), "f_base": Y, "g_base": jnp.zeros((8, 3))}
        log_density(whitened(program), (X, Y), {}, draws)


@pytest.mark.slow_but(make=[expected])
@pytest.mark.parametrize("make", [gp, gaussian, expected])
def test_densities_inside_a_map_are_those_of_each(make):
    values = jnp.linspace(1.0, 2.0, 3)
    of_all = jax.vmap(lambda value: make(value, X, Y))(values)
    found = jax.vmap(lambda fn: fn.log_prob(Y))(of_all)
    np.testing.assert_allclose(found, [make(value, X, Y).log_prob(Y) for value in values])
    one = jax.tree.map(lambda x: x[1], of_all)
    np.testing.assert_allclose(one.log_prob(Y), found[1])
