"""A form of ``q(u)`` from outside the package: trained, predicted with, exported and drawn from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from numpyro.distributions.kl import kl_divergence
from numpyro.infer import SVI

from gpzoo import GaussianProcess, InducingGrid, InducingPoints
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, fit
from gpzoo.kernels import RBF
from gpzoo.posteriors import Form, InducingPosterior, Interpolation, Projection, forms
from tests.extensions.form import Isotropic
from tests.extensions.inducing import Increments
from tests.programs import KEY, adam, regression, sine

X, Y = sine(30)
Z = X[::6]


class Square(Form):
    """Any root at all, by the least that a form has to say."""

    root_of_S: Array

    def start(self, conditional, scale):
        M = conditional.num_inducing
        return Square(scale * jnp.broadcast_to(jnp.eye(M, dtype=conditional.dtype), (*conditional.outputs, M, M)))

    def root(self):
        return self.root_of_S

    def log_det(self):
        return 2 * jnp.sum(jnp.linalg.slogdet(self.root_of_S)[1])

    def extended(self, mean, old, new):
        more = new.num_inducing - old.num_inducing  # of whitened variables, new ones are independent and standard
        root = jnp.pad(self.root_of_S, ((0, more), (0, more)))
        return jnp.pad(mean, (0, more)), Square(
            root + jnp.diag(jnp.arange(len(root)) >= old.num_inducing).astype(root.dtype)
        )


@pytest.mark.slow
@pytest.mark.parametrize("inducing", [InducingPoints(Z), InducingGrid(9, (-3.0, 3.0))], ids=["points", "grid"])
def test_a_form_of_ones_own_goes_through_everything(inducing):
    guide = InducingGuide(regression, inducing, covariance=Isotropic)
    svi = SVI(regression, guide, adam(0.03), GaussianProcessELBO())
    trained = fit(KEY, svi, 100, X, Y, progress=False)
    assert trained.params["f_deviation"].shape == () and trained.losses[-1] < trained.losses[0]
    assert not np.allclose(trained.params["f_deviation"], 1.0, atol=1e-3)  # it was trained
    assert {"f_mean", "f_deviation"} <= guide.variational_parameters()
    found = trained.predict(KEY, X)["f"]
    # The numbers are those of the form that it is a special case of.
    q = trained.posterior(KEY, X)["f"]
    equal = forms.Diagonal(np.full(q.u_mean.shape, trained.params["f_deviation"]))
    mean, variance = jax.jit(lambda q, equal: InducingPosterior(q.conditional, q.u_mean, equal).marginals())(q, equal)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(found.variance, variance, rtol=1e-6)
    draws = trained.functions(KEY, X[:5], num_draws=2)["f"]
    assert draws.shape == (2, 5) and np.isfinite(draws).all()
    if isinstance(inducing, InducingPoints):  # what is exported does not depend on what the inducing variables are
        exported = trained.to_arviz(KEY, X, Y, num_draws=2)
        assert exported["posterior"]["f"].shape == (1, 2, len(X))
        assert "f_deviation" not in exported["constant_data"]


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("kind", [Projection, Interpolation])
def test_a_root_is_all_that_a_form_needs(kind, whiten):
    """Any root of the same covariance gives the same posterior as its Cholesky factor."""
    rng = np.random.default_rng(0)
    prior = GaussianProcess(RBF(1.3, 0.8), X, num_outputs=2)
    inducing = InducingPoints(Z) if kind is Projection else InducingGrid(len(Z), (-3.0, 3.0))
    root = rng.standard_normal((2, len(Z), len(Z)))
    mean = jnp.asarray(rng.standard_normal((len(Z), 2)))

    @jax.jit
    def evaluate(root, factor):
        at = kind(prior, inducing, whiten=whiten)
        ours, theirs = (InducingPosterior(at, mean, form) for form in (Square(root), forms.Full(factor)))
        draw = ours.draw_inducing(KEY)
        return draw, *[
            (q.moments(), q.marginals(), q.inducing_moments(), kl_divergence(q, prior)) for q in (ours, theirs)
        ]

    draw, (*moments, kl), (*same_moments, same_kl) = evaluate(root, np.linalg.cholesky(root @ root.transpose(0, 2, 1)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9), moments, same_moments)
    np.testing.assert_allclose(kl, same_kl, rtol=1e-7)
    assert draw.shape == mean.shape and np.isfinite(draw).all()


@pytest.mark.slow
def test_more_inducing_variables_change_nothing():
    """A form and inducing variables of one's own, each of which says how it grows."""
    guide = InducingGuide(regression, Increments(Z[:4]), covariance=Square)
    params = guide.init_params(KEY, X, Y)
    shape = params["f_root_of_S"].shape
    params |= {"f_mean": jnp.arange(4.0), "f_root_of_S": jnp.asarray(np.random.default_rng(0).normal(size=shape))}
    before = Trained(regression, guide, params)
    after = before.add_inducing(KEY, Increments(Z[4:]), X)
    assert after.params["f_inducing"].shape == Z.shape and after.params["f_root_of_S"].shape == (len(Z), len(Z))
    old, new = (found.predict(KEY, X)["f"] for found in (before, after))
    np.testing.assert_allclose(new.mean, old.mean, atol=1e-4)
    np.testing.assert_allclose(new.variance, old.variance, atol=1e-4)
    spherical = InducingGuide(regression, InducingPoints(Z), covariance=Isotropic)
    with pytest.raises(ValueError, match="covariance Isotropic"):
        Trained(regression, spherical, spherical.init_params(KEY, X, Y)).add_inducing(KEY, InducingPoints(Z + 9), X)


def test_what_is_no_form_is_refused():
    for covariance in ("spherical", 3, Projection):
        with pytest.raises(ValueError, match=r"covariance must be one of 'full', .* or a form of gpzoo\.posteriors"):
            InducingGuide(regression, InducingPoints(Z), covariance=covariance)
    at = Projection(GaussianProcess(RBF(), X), InducingPoints(Z))
    for form in (Isotropic(), jnp.eye(5)):
        with pytest.raises(TypeError, match=r"form of q\(u\) of site 'f' must be a covariance"):
            InducingPosterior(at, jnp.zeros(5), form)
    with pytest.raises(ValueError, match=r"deviation of q\(u\) of site 'f' has shape \(5,\), expected \(\)"):
        InducingPosterior(at, jnp.zeros(5), Isotropic(jnp.ones(5)))
    with pytest.raises(ValueError, match=r"'low_rank'.*does not go with InducingPoints"):
        InducingPosterior(at, jnp.zeros(5), forms.LowRank(jnp.ones(5), jnp.ones((5, 2))))
