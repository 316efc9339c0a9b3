"""A guide is one of its program: another program's guide is refused, whoever asks, and an equal one's is not."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer import SVI, TraceMeanField_ELBO

from gpzoo import InducingPoints, draws, kmeans
from gpzoo.inference import CollapsedELBO, GaussianProcessELBO, InducingGuide, OnlineELBO, Trained, fit
from gpzoo.kernels import RBF, Matern12, Pointwise
from gpzoo.likelihoods import Expected, Gaussian
from gpzoo.processes.process import GaussianProcess
from tests.programs import KEY, adam, deep, positive, sine

X, Y = sine(8)
Z = InducingPoints(X[::3])


def program(
    kernel=lambda: RBF(1.0, 1.0),
    *,
    inputs=lambda X: X,
    mean,
    outputs=None,
    prior=None,
    parameter="noise",
    noise=None,
    density=None,
    site="f",
    jitter=None,
    constraint=None,
):
    """A program defined anew, as a cell of a notebook that is run again."""

    def defined_anew(X, y=None):
        if prior is not None:
            numpyro.sample("rate", prior)
        gp = GaussianProcess(kernel(), inputs(X), mean=mean(X), num_outputs=outputs, jitter=jitter)
        f = numpyro.sample(site, gp)
        if constraint is not None:
            variance = numpyro.param("noise", 0.1, **constraint(X))
        else:
            variance = positive(parameter, 0.1) if noise is None else noise
        with numpyro.plate("data", len(X)):
            f = f if outputs is None else f[:, 0]
            numpyro.sample("y", Gaussian(f, variance) if density is None else Expected(density, f), obs=y)

    return defined_anew


class Again(RBF):
    """A class defined anew, with the code of another one."""


make = partial(program, mean=lambda X: jnp.sin(X[:, 0]))
normal = lambda f: dist.Normal(f, 0.5)  # noqa: E731

#: What differs: the model's options, the guide's, and words of the message.
OTHERS = {
    "kernel": ({"kernel": Matern12}, {"kernel": RBF}, r"'f' has the kernel Matern12 in the model, in the guide RBF"),
    "hyperparameter": ({"kernel": lambda: RBF(1.0, 2.0)}, {}, r"'f' has another lengthscale"),
    "columns": ({"kernel": lambda: RBF(1.0, 1.0, active_dims=(0,))}, {}, "'f' has another kernel"),
    "sum": ({"kernel": lambda: RBF(1.0, 1.0) + RBF(1.0, 1.0)}, {}, "'f' has the kernel Sum in the model"),
    "function": (
        {"kernel": lambda: Pointwise(lambda x, z: jnp.exp(-jnp.sum((x - z) ** 2)))},
        {"kernel": lambda: Pointwise(lambda x, z: jnp.exp(-jnp.sum((x - z) ** 2) / 2))},
        "'f' has another kernel",
    ),
    "inputs": ({"inputs": lambda X: 2 * X}, {}, "'f' has another inputs"),
    "mean": ({"mean": lambda X: jnp.cos(X[:, 0])}, {}, "'f' has another mean"),
    "jitter": ({"jitter": 1e-3}, {}, "'f' has another jitter"),
    "outputs": ({"outputs": 2, "mean": jnp.sin}, {}, r"'f' has shape \(8, 2\) in the model, in the guide \(8,\)"),
    "name": ({"site": "g"}, {}, "only the model has the GP site 'g'"),
    "latent": ({"prior": dist.LogNormal(0.0, 1.0)}, {}, "only the model has the site 'rate'"),
    "no latent": ({}, {"prior": dist.LogNormal(0.0, 1.0)}, "only the program of the guide has the site 'rate'"),
    "prior": ({"prior": dist.Normal(0.0, 1.0)}, {"prior": dist.Cauchy(0.0, 1.0)}, "'rate' is Normal"),
    "its scale": ({"prior": dist.Normal(0.0, 1.0)}, {"prior": dist.Normal(0.0, 2.0)}, "'rate' has another distrib"),
    "parameter": ({"parameter": "variance"}, {}, "only the model has the parameter 'variance'"),
    "constraint": (
        {"constraint": lambda X: {"constraint": constraints.interval(0.0, 10.0)}},
        {"constraint": lambda X: {"constraint": constraints.positive}},
        "parameter 'noise' has the constraint Interval in the model, in the guide Positive",
    ),
    "no constraint": (
        {"constraint": lambda X: {}},
        {"constraint": lambda X: {"constraint": constraints.positive}},
        "parameter 'noise' has the constraint Real in the model, in the guide Positive",
    ),
    "bound": (
        {"constraint": lambda X: {"constraint": constraints.interval(0.0, 10.0)}},
        {"constraint": lambda X: {"constraint": constraints.interval(0.0, 9.0)}},
        "parameter 'noise' has another constraint in the model than in the guide",
    ),
    "computed bound": (
        {"constraint": lambda X: {"constraint": constraints.greater_than(jnp.min(X) - 9.0)}},
        {"constraint": lambda X: {"constraint": constraints.greater_than(jnp.min(X) - 8.0)}},
        "parameter 'noise' has another constraint in the model than in the guide",
    ),
    "noise": ({"noise": 0.1}, {"noise": 0.2}, "'y' has another distribution"),
    "likelihood": ({"noise": 0.1}, {"density": normal}, "'y' is Gaussian in the model, in the guide Expected"),
    "density": ({"density": normal}, {"density": lambda f: dist.Normal(f, 0.4)}, "'y' has another distribution"),
}

#: The model's options and the guide's, where these do the same.
EQUAL = {
    "anew": ({}, {}),
    "constraint": (
        {"constraint": lambda X: {"constraint": constraints.interval(0.0, 10.0)}},
        {"constraint": lambda X: {"constraint": constraints.interval(0.0, 10.0)}},
    ),
    "no constraint": (
        {"constraint": lambda X: {}},
        {"constraint": lambda X: {"constraint": constraints.real}},
    ),
    "computed bound": (
        {"constraint": lambda X: {"constraint": constraints.greater_than(jnp.min(X) - 9.0)}},
        {"constraint": lambda X: {"constraint": constraints.greater_than(jnp.min(X) - 9.0)}},
    ),
    "with prior": ({"prior": dist.LogNormal(0.0, 1.0)}, {"prior": dist.LogNormal(0.0, 1.0)}),
    "numbers and arrays": ({"kernel": lambda: RBF(jnp.asarray(1.0), 1.0)}, {"kernel": RBF}),
    "class": ({"kernel": Again}, {"kernel": RBF}),
    "mean": ({"mean": lambda X: jnp.sin(X)[:, 0]}, {"mean": lambda X: jnp.sin(X)[:, 0]}),
    "lambdas": (
        {"kernel": lambda: Pointwise(lambda x, z: jnp.exp(-jnp.sum((x - z) ** 2)))},
        {"kernel": lambda: Pointwise(lambda x, z: jnp.exp(-jnp.sum((x - z) ** 2)))},
    ),
    "density": ({"density": lambda f: dist.Normal(f, 0.5)}, {"density": lambda f: dist.Normal(f, 0.5)}),
}


def asked(objective, model, guide, *args, params=None, **kwargs):
    """One call of an objective, as far as its tracing."""
    given = InducingGuide.init_params(guide, KEY, *args) if params is None else params
    jax.eval_shape(lambda: objective.loss(KEY, given, model, guide, *args, **kwargs))


@pytest.mark.parametrize("case", OTHERS)
def test_guides_of_other_programs_are_refused(case):
    of_model, of_guide, message = OTHERS[case]
    model, guide = make(**of_model), InducingGuide(make(**of_guide), Z)
    with pytest.raises(ValueError, match=f"another program than the model: .*{message}"):
        asked(GaussianProcessELBO(), model, guide, X, Y)
    with pytest.raises(ValueError, match=message):
        fit(KEY, SVI(model, guide, adam(0.01), GaussianProcessELBO()), 1, X, Y, progress=False)


@pytest.mark.parametrize("case", EQUAL)
def test_equal_programs_made_anew_are_one(case):
    of_model, of_guide = EQUAL[case]
    model, guide = make(**of_model), InducingGuide(make(**of_guide), Z)
    asked(GaussianProcessELBO(), model, guide, X, Y)
    assert guide.compared is not None and guide.compared[0] is model


WRONG = "another program than the model: GP site 'f' has the kernel Matern12"


def other():
    return make(Matern12), InducingGuide(make(RBF), Z)


@pytest.mark.slow_but(call=["collapsed", "online", "svi.run", "mean field"])
@pytest.mark.parametrize("call", ["collapsed", "online", "earlier", "svi.run", "mean field", "its svi.run", "in jit"])
def test_every_objective_refuses(call):
    model, guide = other()
    params = guide.init_params(KEY, X, Y)
    own = InducingGuide(model, Z)
    own.setup(X, Y)
    with pytest.raises(ValueError, match=WRONG):
        if call == "collapsed":
            asked(CollapsedELBO(), model, guide, X, Y)
        elif call == "online":
            asked(OnlineELBO(Trained(model, own, params)), model, guide, X, Y, params=params)
        elif call == "earlier":
            asked(OnlineELBO(Trained(guide.model, guide, params)), model, own, X, Y, params=params)
        elif call == "svi.run":
            SVI(model, guide, adam(0.01), GaussianProcessELBO()).run(KEY, 2, X, Y, progress_bar=False)
        elif call == "its svi.run":
            with jax.numpy_dtype_promotion("standard"):
                SVI(model, guide, adam(0.01), TraceMeanField_ELBO()).run(KEY, 2, X, Y, progress_bar=False)
        elif call == "mean field":
            fit(KEY, SVI(model, guide, adam(0.01), TraceMeanField_ELBO()), 1, X, Y, progress=False)
        else:
            jax.jit(lambda X, Y: GaussianProcessELBO().loss(KEY, params, model, guide, X, Y))(X, Y)


@pytest.mark.parametrize(
    "call",
    [
        lambda trained: trained.predict(KEY, X),
        lambda trained: trained.functions(KEY, X, num_draws=2, num_features=8),
        lambda trained: trained.posterior(KEY, X),
        lambda trained: trained.add_inducing(KEY, kmeans(2), X),
        lambda trained: trained.condition(KEY, X, Y),
        lambda trained: trained.to_arviz(KEY, X, Y, num_draws=2),
    ],
    ids=["predict", "functions", "posterior", "add_inducing", "condition", "to_arviz"],
)
def test_trained_models_refuse(call):
    model, guide = other()
    with pytest.raises(ValueError, match=WRONG):
        call(Trained(model, guide, guide.init_params(KEY, X, Y)))


def test_handlers_around_both_are_no_difference():
    model, again = make(), make()
    guide = InducingGuide(again, Z)
    outer = handlers.scope(guide, "a", divider=".")
    params = {f"a.{name}": value for name, value in guide.init_params(KEY, X, Y).items()}
    asked(GaussianProcessELBO(), handlers.scope(model, "a", divider="."), outer, X, Y, params=params)
    with pytest.raises(ValueError, match=r"GP site 'a\.f' has the kernel Matern12"):
        wrong = handlers.scope(make(Matern12), "a", divider=".")
        asked(GaussianProcessELBO(), wrong, outer, X, Y, params=params)
    with pytest.raises(ValueError, match=r"only the model has the GP site 'a\.f'"):
        asked(GaussianProcessELBO(), handlers.scope(model, "a", divider="."), guide, X, Y)


def test_draws_that_flow_through_layers_are_compared():
    guide = InducingGuide(partial(deep, num_data=8), Z)
    asked(GaussianProcessELBO(), partial(deep, num_data=8), guide, X, Y)

    def doubled(X, y=None):
        h = numpyro.sample("h", GaussianProcess(RBF(1.0, 1.0), X, mean=X, num_outputs=1))
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, positive("lengthscale", 1.0)), 2 * draws(h)))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, positive("noise", 0.1)), obs=y)

    with pytest.raises(ValueError, match="GP site 'f' has another inputs"):
        asked(GaussianProcessELBO(), doubled, guide, X, Y)


def test_networks_defined_anew_are_one():
    from flax import nnx
    from numpyro.contrib.module import nnx_module

    def of(seed=0, after=jnp.tanh):
        def model(X, y=None):
            network = nnx_module("net", nnx.Linear(1, 2, rngs=nnx.Rngs(seed)))
            f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), after(network(X))))
            with numpyro.plate("data", len(X)):
                numpyro.sample("y", Gaussian(f, 0.1), obs=y)

        return model

    X32, y32 = np.asarray(X, np.float32), np.asarray(Y, np.float32)
    guide = InducingGuide(of(), kmeans(2))
    params = guide.init_params(KEY, X32, y32)
    asked(GaussianProcessELBO(), of(seed=1), guide, X32, y32, params=params)  # it starts elsewhere
    with pytest.raises(ValueError, match="GP site 'f' has another inputs"):
        asked(GaussianProcessELBO(), of(after=jnp.sin), guide, X32, y32, params=params)
