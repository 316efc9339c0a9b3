"""A hidden Markov model whose emissions are GPs of an input finds the states and the functions that made its data."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan
from numpyro.infer import SVI
from scipy.stats import norm

from gpzoo import GaussianProcess, draws, kmeans
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
from gpzoo.kernels import RBF
from tests.programs import KEY, adam, positive

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
T, STAY = 80, 0.9
X = RNG.uniform(-2, 2, (T, 1))
STATES = np.cumsum(RNG.uniform(size=T) > STAY) % 2
TRUTH = np.stack([np.sin(2 * X[:, 0]), 1.0 - X[:, 0] ** 2 / 2], axis=1)
Y = TRUTH[np.arange(T), STATES] + 0.15 * RNG.standard_normal(T)


def program(X, y=None):
    """One of two functions of the input at each time, by a state that mostly stays."""
    stay = numpyro.sample("stay", dist.Beta(2.0, 2.0))
    moves = jnp.array([[stay, 1 - stay], [1 - stay, stay]])
    f = draws(numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X, num_outputs=2)))
    noise = positive("noise", 0.3)

    def step(z, at):
        z = numpyro.sample("z", dist.Categorical(moves[z]), infer={"enumerate": "parallel"})
        return z, numpyro.sample("y", dist.Normal(at[0][z], noise), obs=at[1])

    scan(step, 0, (f, y), length=len(X))


def most_probable_path(f, stay, noise):
    """Viterbi's: the states given the functions, from state 0 before the first."""
    moves, density = np.log([[stay, 1 - stay], [1 - stay, stay]]), norm(f, noise).logpdf(Y[:, None])
    best, back = moves[0] + density[0], []
    for own in density[1:]:
        ways = best[:, None] + moves
        back.append(ways.argmax(axis=0))
        best = ways.max(axis=0) + own
    path = [int(best.argmax())]
    for came_from in reversed(back):
        path.append(came_from[path[-1]])
    return np.array(path[::-1])


def test_states_and_functions_are_recovered():
    guide = InducingGuide(program, kmeans(8), joint={"f"}, initial_scale=0.1)
    svi = SVI(program, guide, adam(0.03), GaussianProcessELBO())
    starts = [np.random.default_rng(seed).standard_normal((8, 2)) for seed in range(3, 6)]
    keys = jax.random.split(KEY, len(starts))
    start = {"f_mean": np.stack(starts)}
    every = fit(keys, svi, 1000, X, Y, in_axes=None, init_params=start, progress=False)
    best = every.member(int(np.argmin(every.losses[:, -50:].mean(axis=1))))
    f = np.asarray(best.posterior(KEY, X)["f"].mean)
    z = most_probable_path(f, float(best.params["stay_loc"]), float(best.params["noise"]))
    order = [0, 1] if np.mean(z == STATES) > 0.5 else [1, 0]
    right, apart = np.asarray(order)[z] == STATES, np.abs(TRUTH[:, 0] - TRUTH[:, 1]) > 0.5
    print(right.mean(), right[apart].mean(), apart.mean(), best.params["stay_loc"], best.params["noise"])
    assert right.mean() > 0.9 and right[apart].mean() > 0.97
    seen = [np.abs(f[STATES == k, order[k]] - TRUTH[STATES == k, k]).mean() for k in range(2)]
    print(seen)
    assert max(seen) < 0.12
    assert 0.8 < best.params["stay_loc"] < 0.98 and 0.1 < best.params["noise"] < 0.2
