"""A guide is one of its program: another program's guide is refused, whoever asks."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import handlers
from numpyro.infer import SVI, TraceMeanField_ELBO

from gpzoo import InducingPoints, kmeans
from gpzoo.inference import CollapsedELBO, GaussianProcessELBO, InducingGuide, OnlineELBO, Trained, fit
from gpzoo.kernels import RBF, Matern12
from gpzoo.likelihoods import Gaussian
from gpzoo.models import deep_gp, linear_layers
from gpzoo.processes.process import GaussianProcess
from tests.programs import KEY, adam, sine

X, Y = sine(8)
Z = InducingPoints(X[::3])


def program(X, y=None, *, kernel=RBF, scale=1.0, mean=None):
    f = numpyro.sample("f", GaussianProcess(kernel(1.0, 1.0), X, mean))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f * scale, 0.1), obs=y)


def defined_anew():
    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    return program


class Programs:
    def program(self, X, y=None):
        program(X, y)


PROGRAMS = Programs()
scoped = partial(handlers.scope, prefix="a", divider=".")

#: Two programs that are one.
SAME = {
    "function": (program, program),
    "partials": (partial(program, scale=2.0), partial(program, scale=2.0)),
    "arrays": (partial(program, mean=np.ones(8)), partial(program, mean=np.ones(8))),
    "functions": (partial(program, kernel=Matern12), partial(program, kernel=Matern12)),
    "layers": tuple(partial(deep_gp, layers=linear_layers(X, [2])) for _ in range(2)),
    "partials of partials": (partial(partial(program, scale=2.0), mean=None), partial(program, scale=2.0, mean=None)),
    "method": (PROGRAMS.program, PROGRAMS.program),
    "handlers": (scoped(program), scoped(program)),
}

#: Two programs that are not.
OTHERS = {
    "function": (program, defined_anew()),
    "defined anew": (defined_anew(), defined_anew()),
    "argument": (partial(program, scale=2.0), partial(program, scale=1.0)),
    "kind of number": (partial(program, scale=1), partial(program, scale=1.0)),
    "array": (partial(program, mean=np.ones(8)), partial(program, mean=np.zeros(8))),
    "shape": (partial(program, mean=np.ones(8)), partial(program, mean=np.ones((8, 1)))),
    "name": (partial(program, scale=1.0), partial(program, mean=1.0)),
    "bound": (partial(program, kernel=RBF), program),
    "method": (Programs().program, Programs().program),
    "handler": (scoped(program), program),
    "prefix": (scoped(program), handlers.scope(program, prefix="b", divider=".")),
}


def asked(objective, model, guide, *args, params):
    """One call of an objective, as far as its tracing."""
    jax.eval_shape(lambda: objective.loss(KEY, params, model, guide, *args))


@pytest.mark.slow_but(case=["partials", "functions", "handlers", "arrays"])
@pytest.mark.parametrize("case", SAME)
def test_one_program_is_accepted(case):
    model, own = SAME[case]
    guide = InducingGuide(own, kmeans(3))
    asked(GaussianProcessELBO(), model, guide, X, Y, params=guide.init_params(KEY, X, Y))


@pytest.mark.parametrize("case", OTHERS)
def test_guides_of_other_programs_are_refused(case):
    model, own = OTHERS[case]
    with pytest.raises(ValueError, match="another program"):
        asked(GaussianProcessELBO(), model, InducingGuide(own, Z), X, Y, params={})


def other():
    return program, InducingGuide(partial(program, kernel=Matern12), Z)


@pytest.mark.parametrize("call", ["collapsed", "online", "earlier", "svi.run", "mean field", "in jit"])
def test_every_objective_refuses(call):
    model, guide = other()
    params = guide.init_params(KEY, X, Y)
    own = InducingGuide(model, Z)
    own.setup(X, Y)
    with pytest.raises(ValueError, match="another program"):
        if call == "collapsed":
            asked(CollapsedELBO(), model, guide, X, Y, params=params)
        elif call == "online":
            asked(OnlineELBO(Trained(model, own, params)), model, guide, X, Y, params=params)
        elif call == "earlier":
            asked(OnlineELBO(Trained(guide.model, guide, params)), model, own, X, Y, params=params)
        elif call == "svi.run":
            SVI(model, guide, adam(0.01), GaussianProcessELBO()).run(KEY, 2, X, Y, progress_bar=False)
        elif call == "mean field":
            fit(KEY, SVI(model, guide, adam(0.01), TraceMeanField_ELBO()), 1, X, Y, progress=False)
        else:
            jax.jit(lambda X, Y: GaussianProcessELBO().loss(KEY, params, model, guide, X, Y))(X, Y)


@pytest.mark.slow
def test_the_divergence_of_numpyros_objective_refuses_another_kernel():
    model, guide = other()
    with jax.numpy_dtype_promotion("standard"), pytest.raises(ValueError, match="another program"):
        SVI(model, guide, adam(0.01), TraceMeanField_ELBO()).run(KEY, 2, X, Y, progress_bar=False)


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
    with pytest.raises(ValueError, match="another program"):
        call(Trained(model, guide, guide.init_params(KEY, X, Y)))


def test_handlers_around_both_are_no_difference():
    guide = InducingGuide(program, Z)
    outer = scoped(guide)
    params = {f"a.{name}": value for name, value in guide.init_params(KEY, X, Y).items()}
    asked(GaussianProcessELBO(), scoped(program), outer, X, Y, params=params)
    with pytest.raises(ValueError, match="another program"):
        asked(GaussianProcessELBO(), scoped(partial(program, kernel=Matern12)), outer, X, Y, params=params)
    with pytest.raises(ValueError, match="another program"):
        asked(GaussianProcessELBO(), scoped(program), guide, X, Y, params=params)


def test_traced_arguments_are_equal_to_themselves():
    def loss(mean):
        model = partial(program, mean=mean)
        guide = InducingGuide(partial(program, mean=mean), Z)
        return GaussianProcessELBO().loss(KEY, guide.init_params(KEY, X, Y), model, guide, X, Y)

    jax.eval_shape(loss, jnp.ones(8))
