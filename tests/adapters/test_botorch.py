"""A trained model under BoTorch: its values and slopes, moments, shapes, compilations, acquisition functions."""

import doctest
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import SVI

from gpzoo import FactorisationError, GaussianProcess, InducingPoints, kmeans
from gpzoo.inference import CollapsedELBO, InducingGuide, Trained, fit, lbfgs, marginal
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Gaussian
from gpzoo.models import deep_gp, gp_regression, linear_layers, positive
from tests.conftest import ROOT
from tests.programs import at_start, randomised

pytest.importorskip("botorch", reason="an extra of its own")

import torch
from botorch.acquisition import (
    PosteriorMean,
    UpperConfidenceBound,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qUpperConfidenceBound,
)
from botorch.acquisition.multi_objective import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.objective import GenericMCObjective, ScalarizedPosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.model import ModelList
from botorch.optim import optimize_acqf

from gpzoo.adapters import botorch as adapter
from gpzoo.adapters.botorch import FunctionsModel

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
X = RNG.uniform(size=(12, 2))
Y = np.stack([np.sin(3 * X[:, 0]) + X[:, 1], np.cos(3 * X[:, 1])], axis=1)
BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
NEW = torch.tensor(RNG.uniform(size=(4, 3, 2)))


def program(X, y=None, *, outputs=None):
    kernel = RBF(positive("variance", 1.0, X), positive("lengthscale", jnp.full(2, 0.5), X))
    f = numpyro.sample("f", GaussianProcess(kernel, X, num_outputs=outputs))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, 1e-3), obs=y)


def two_columns(X, y=None):
    program(X, y, outputs=2)


def trained_on(program, y):
    svi = SVI(program, InducingGuide(program, InducingPoints(X)), lbfgs(), CollapsedELBO())
    return fit(KEY, svi, 20, X, y, progress=False)


@pytest.fixture(scope="module")
def one():
    return trained_on(program, Y[:, 0])


@pytest.fixture(scope="module")
def two():
    return trained_on(two_columns, Y)


@pytest.fixture(scope="module")
def model(one):
    return FunctionsModel(KEY, one, X)


@pytest.fixture(scope="module")
def model_of_two(two):
    return FunctionsModel(KEY, two, X)


def test_members_are_the_functions_of_the_trained_model(one, two, model, model_of_two):
    flat = NEW.reshape(-1, 2).numpy()
    for trained, of in ((one, model), (two, model_of_two)):
        wanted = trained.functions(KEY, flat, num_draws=128, num_features=64)["f"]
        found = of.posterior(NEW)
        assert found.values.shape == (4, 128, 3, of.num_outputs) and found.values.dtype == torch.double
        np.testing.assert_allclose(found.values.movedim(1, 0).reshape(wanted.shape), wanted, atol=1e-9)
        # A member is one function: the same value wherever the point stands.
        turned = of.posterior(NEW.flip(0, 1)).values.flip(0, 2)
        torch.testing.assert_close(turned, found.values, rtol=0, atol=1e-9)


def test_outputs_are_any_function_of_the_sites(two, model_of_two):
    of = FunctionsModel(KEY, two, X, lambda values: 3.0 + 2.0 * jnp.exp(values["f"][:, 1]))
    found, plain = of.posterior(NEW).values, model_of_two.posterior(NEW).values
    assert of.num_outputs == 1
    torch.testing.assert_close(found, 3.0 + 2.0 * torch.exp(plain[..., 1:]))


def test_slopes_are_those_of_finite_differences(model_of_two):
    weights = torch.tensor(RNG.standard_normal((2, 128, 3, 2)))
    value = lambda x: (model_of_two.posterior(x).values * weights).sum()  # noqa: E731
    x = NEW[:2].clone().requires_grad_()
    (slope,) = torch.autograd.grad(value(x), x)
    for place in np.ndindex(*x.shape):
        step = torch.zeros_like(x)
        step[place] = 1e-5
        wanted = (value(x + step) - value(x - step)) / 2e-5
        torch.testing.assert_close(slope[place], wanted.detach(), rtol=1e-5, atol=1e-5)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        (first,) = torch.autograd.grad(value(x) ** 2, x, create_graph=True)
        first.sum().backward()


@pytest.mark.slow
def test_moments_are_those_of_the_posterior(one):
    """Of 2,000 functions, within five standard errors: variances of draws have ``v sqrt(2 / S)``."""
    S = 2000
    found = FunctionsModel(KEY, one, X, num_draws=S).posterior(NEW[:, 0])
    q = one.posterior(KEY, NEW[:, 0].numpy())["f"]
    mean, variance = (torch.tensor(np.asarray(x))[:, None] for x in (q.mean, q.variance))
    assert (torch.abs(found.mean - mean) < 5 * torch.sqrt(variance / S)).all()
    assert (torch.abs(found.variance / variance - 1) < 5 * (2 / S) ** 0.5).all()


def test_shapes_dtypes_and_places_of_points(model):
    assert model.batch_shape == torch.Size() and model.num_outputs == 1
    wanted = model.posterior(NEW[0]).values
    assert wanted.shape == (128, 3, 1)
    for X in (NEW[0].float(), NEW[None, :1].float()):
        found = model.posterior(X).values
        assert found.dtype == torch.float and found.shape[-2:] == (3, 1)
        torch.testing.assert_close(found.reshape(128, 3, 1), wanted.float(), rtol=0, atol=1e-4)
    assert model.posterior(NEW[:0]).values.shape == (0, 128, 3, 1)
    with pytest.raises(ValueError, match=r"X must be \[\.\.\., q, 2\], got shape \(4, 3, 1\)"):
        model.posterior(NEW[..., :1])
    with pytest.raises(TypeError, match=r"floating-point numbers, got torch\.int64"):
        model.posterior(torch.ones(1, 2, dtype=torch.int64))
    with pytest.raises(UnsupportedError, match="leave out observation_noise"):
        model.posterior(NEW, observation_noise=True)
    with pytest.raises(NotImplementedError, match="condition_on_observations"):
        model.condition_on_observations(NEW[0], NEW[0, :, :1])
    assert model.train().eval().posterior(NEW).values.shape == (4, 128, 3, 1)


def test_functions_of_whole_numbers_have_values_between_them():
    whole = np.arange(6)[:, None]
    trained = at_start(gp_regression, kmeans(4), whole, np.sin(whole[:, 0]))
    points = torch.tensor([[2.0], [2.5], [2.9]]).double()
    values = [FunctionsModel(KEY, trained, of).posterior(points).values for of in (whole, whole.astype(float))]
    torch.testing.assert_close(*values)
    assert values[0][0, 1] != values[0][0, 0]


def test_outputs_that_are_not_there_are_refused_by_name(two):
    with pytest.raises(ValueError, match="outputs must be"):
        FunctionsModel(KEY, two, X, "h")
    with pytest.raises(ValueError, match=r"outputs must be \[N\] or \[N, m\] for N rows, got \(\) for"):
        FunctionsModel(KEY, two, X, lambda values: values["f"].sum())
    with pytest.raises(TypeError, match="trained"):
        FunctionsModel(KEY, two.params, X)


def test_a_covariance_without_a_factor_is_refused_by_its_site():
    def singular(X, y=None):
        numpyro.sample("y", Gaussian(numpyro.sample("f", GaussianProcess(RBF(), X, jitter=0.0)), 0.1), obs=y)

    guide = InducingGuide(singular, InducingPoints(X[:3]))
    params = guide.init_params(KEY, X, Y[:, 0]) | {"f_inducing": jnp.zeros((3, 2))}
    with pytest.raises(FactorisationError, match="'f'"):
        FunctionsModel(KEY, Trained(singular, guide, params), X)


@pytest.mark.slow
def test_few_shapes_are_compiled_and_another_training_compiles_none(one):
    """A program for 8 and 16 points, with slopes and without, whatever the batches."""
    before = adapter._at._cache_size()
    of = FunctionsModel(KEY, one, X, num_features=62)
    for size in (1, 2, 3, 5, 8, 11, 13, 16):
        x = torch.rand(size, 1, 2, dtype=torch.double, requires_grad=True)
        of.posterior(x).values.sum().backward()
        of.posterior(x.detach())
    assert adapter._at._cache_size() - before == 4
    again = fit(KEY, SVI(program, one.guide, lbfgs(), CollapsedELBO()), 3, X, Y[:, 1], progress=False)
    FunctionsModel(KEY, again, X, num_features=62).posterior(NEW)
    assert adapter._at._cache_size() - before == 4


def test_a_sampler_takes_each_function_equally_often(model):
    sampler = adapter.GetSampler(model.posterior(NEW), sample_shape=torch.Size([256]), seed=1)
    posterior = model.posterior(NEW)
    samples = sampler(posterior)
    assert samples.shape == (256, 4, 3, 1)
    torch.testing.assert_close(samples[:128], posterior.values.movedim(-3, 0))
    torch.testing.assert_close(samples[128:], samples[:128])


def test_transforms_and_subsets_are_of_each_function(model_of_two):
    plain = model_of_two.posterior(NEW).values
    weights = torch.tensor([0.3, -2.0], dtype=torch.double)
    found = model_of_two.posterior(NEW, posterior_transform=ScalarizedPosteriorTransform(weights, 1.0))
    torch.testing.assert_close(found.values, 1.0 + (plain * weights).sum(-1, keepdim=True))
    torch.testing.assert_close(model_of_two.subset_output([1]).posterior(NEW).values, plain[..., 1:])
    torch.testing.assert_close(model_of_two.posterior(NEW, output_indices=[1]).values, plain[..., 1:])
    assert model_of_two.subset_output([1]).num_outputs == 1 and model_of_two.num_outputs == 2


ACQUISITIONS = {
    "posterior mean": (lambda model: PosteriorMean(model), 1, {}),
    "analytic upper bound": (lambda model: UpperConfidenceBound(model, 4.0), 1, {}),
    "upper bound": (lambda model: qUpperConfidenceBound(model, 4.0), 3, {}),
    "improvement": (lambda model: qLogExpectedImprovement(model, Y[:, 0].max()), 4, {}),
    "improvement, one after another": (
        lambda model: qLogExpectedImprovement(model, Y[:, 0].max()),
        3,
        {"sequential": True},
    ),
    "improvement given pending points": (
        lambda model: qLogExpectedImprovement(model, Y[:, 0].max(), X_pending=NEW[0]),
        1,
        {"fixed_features": {0: 0.25}},
    ),
    "noisy improvement": (lambda model: qLogNoisyExpectedImprovement(model, torch.tensor(X)), 3, {}),
    "improvement of an objective under a constraint": (
        lambda model: qLogExpectedImprovement(
            model,
            1.0,
            objective=GenericMCObjective(lambda Y, X=None: Y[..., 0] ** 2),
            constraints=[lambda Y: Y[..., 0] - 1.5],
        ),
        2,
        {},
    ),
}


@pytest.mark.slow_but(name=["improvement", "posterior mean"])
@pytest.mark.parametrize("name", ACQUISITIONS)
def test_acquisition_functions_are_optimised(name, model):
    """What is found is better than 64 random candidates."""
    make, q, options = ACQUISITIONS[name]
    torch.manual_seed(0)
    acquisition = make(model)
    found, value = optimize_acqf(acquisition, BOX, q, num_restarts=2, raw_samples=16, **options)
    assert found.shape == (q, 2) and (found >= 0).all() and (found <= 1).all()
    tries = torch.rand(64, q, 2, dtype=torch.double)
    for column, fixed in options.get("fixed_features", {}).items():
        tries[..., column] = fixed
        assert (found[:, column] == fixed).all()
    with torch.no_grad():
        # One after another each value is given the points before it.
        reached = acquisition(found) if not options.get("sequential") else value.max()
        assert reached > acquisition(tries).max() - 1e-6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")  # BoTorch's own model, which is not trained
def test_hypervolume_improves_with_two_outputs(model_of_two, model):
    """Of one model with two, and of ours beside BoTorch's own."""
    torch.manual_seed(0)
    theirs = SingleTaskGP(torch.tensor(X), torch.tensor(Y[:, 1:]))
    for each in (model_of_two, ModelList(model, theirs)):
        acquisition = qLogNoisyExpectedHypervolumeImprovement(
            each, ref_point=[0.0, -1.0], X_baseline=torch.tensor(X), prune_baseline=True, cache_root=False
        )
        few = {"num_restarts": 2, "raw_samples": 32, "options": {"maxiter": 20}}
        found, value = optimize_acqf(acquisition, BOX, 2, **few)
        with torch.no_grad():
            assert value > acquisition(torch.rand(8, 2, 2, dtype=torch.double)).max() - 1e-6
        assert found.shape == (2, 2)


@pytest.mark.slow
def test_the_example_shows_what_it_prints():
    (test,) = (test for test in doctest.DocTestFinder().find(FunctionsModel, globs={}) if test.examples)
    report: list[str] = []
    with jax.numpy_dtype_promotion("standard"):
        doctest.DocTestRunner().run(test, out=report.append)
    assert not report, "".join(report)


@pytest.mark.slow
def test_deep_functions_and_draws_of_hyperparameters_are_those_of_the_trained_model():
    """A program of two layers, and a posterior that is draws."""

    def with_priors(X, y=None):
        lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, lengthscale), X))
        numpyro.sample("y", Gaussian(f, 0.01), obs=y)

    deep = partial(deep_gp, layers=linear_layers(X, [2]))
    guide = InducingGuide(deep, InducingPoints(X))
    params = randomised(guide.init_params(KEY, X, Y[:, 0]))
    draws = {"lengthscale": RNG.uniform(0.3, 0.9, (2, 5))}
    of_draws = Trained.of_draws(KEY, draws, X, Y[:, 0], program=marginal(with_priors))
    for trained, options in ((Trained(deep, guide, params), {"outputs": "f"}), (of_draws, {})):
        of = FunctionsModel(KEY, trained, X, num_draws=12, num_features=16, **options)
        wanted = trained.functions(KEY, NEW[0].numpy(), num_draws=12, num_features=16)["f"]
        np.testing.assert_allclose(of.posterior(NEW[0]).values[..., 0], wanted, atol=1e-8)
    with pytest.raises(ValueError, match=r"GP sites \['f', 'layer_0'\]: name one by outputs="):
        FunctionsModel(KEY, Trained(deep, guide, params), X)


@pytest.mark.slow
def test_the_how_to_page_runs():
    page = (ROOT / "docs" / "how_to" / "bayesian_optimisation.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    names: dict = {}
    with jax.numpy_dtype_promotion("standard"):
        exec(compile(block, "bayesian_optimisation.md", "exec"), names)
    assert names["y"].max() > -0.1 and np.isfinite(names["y"][: names["measured"]]).all()
