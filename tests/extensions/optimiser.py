"""An optimiser driver of one's own: gradient descent whose step is halved until the objective falls."""

import jax
import jax.numpy as jnp
from numpyro.optim import _NumPyroOptim


def tree_sub(params, gradient, rate):
    return jax.tree.map(lambda x, g: x - rate * g, params, gradient)


class Halving(_NumPyroOptim):
    """Its state is the parameters and the number of steps that were halved."""

    needs_all_rows = True
    way_out = "Begin closer to the optimum."

    def __init__(self, rate):
        super().__init__(lambda: (lambda params: (params, jnp.zeros((), jnp.int32)), None, lambda state: state[0]))
        self.rate = rate

    def eval_and_update(self, fn, state, forward_mode_differentiation=False):
        i, (params, halved) = state
        (value, aux), gradient = jax.value_and_grad(fn, has_aux=True)(params)

        def lowers(rate):
            return fn(tree_sub(params, gradient, rate))[0] <= value

        start = jnp.asarray(self.rate, value.dtype)
        rate = jax.lax.while_loop(lambda rate: ~lowers(rate) & (rate > 1e-12), lambda rate: rate / 2, start)
        return (value, aux), (i + 1, (tree_sub(params, gradient, rate), halved + (rate < start).astype(halved.dtype)))


class HalvingOfSites(Halving):
    """The same, which reports its halved steps as natural ones of ``q(u)``."""

    def backed_off(self, state):
        return {"f": state[1][1]}
