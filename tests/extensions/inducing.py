"""Increments of a function between neighbouring inputs: inducing points in other words."""

import jax.numpy as jnp
from jax import Array

from gpzoo import InducingVariable, Kuf, Kuu
from gpzoo.kernels import RBF, DoubleSum


class Increments(InducingVariable):
    """``u_0 = f(z_0)``, ``u_m = f(z_m) - f(z_{m-1})``."""

    Z: Array

    def rows_axis(self, kernel):
        return 0  # more of them follow the last

    def of(self, f):
        return increments(f(self.Z))


def increments(rows):
    return jnp.concatenate([rows[:1], rows[1:] - rows[:-1]])


@Kuu.register(Increments, RBF)
def _(inducing, kernel):
    return increments(increments(kernel(inducing.Z)).T)


@Kuf.register(Increments, RBF, object)
def _(inducing, kernel, X):
    return increments(kernel(inducing.Z, X))


@Kuu.register(Increments, DoubleSum)
def _(inducing, kernel):
    return Kuu(inducing, kernel.base)


@Kuf.register(Increments, DoubleSum, object)
def _(inducing, kernel, X):
    return increments(kernel.cross_view(X, inducing.Z).T)
