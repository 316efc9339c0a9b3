"""GPs for data that are not numbers with constant normal noise: changing noise, ordered labels, counts of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array
from numpyro.distributions import constraints

from gpzoo import _checks as checks
from gpzoo.kernels import RBF, Kernel
from gpzoo.likelihoods import Expected, HeteroscedasticGaussian, Ordinal
from gpzoo.models.parameters import positive, precision, rbf
from gpzoo.processes.process import GaussianProcess


def heteroscedastic_gp(
    X: Array,
    y: Array | None = None,
    *,
    noise_variance: float = 0.1,
    jitter: float | None = None,
    num_data: int | None = None,
) -> None:
    """GP regression with input-dependent noise, ``y_n ~ N(f(x_n), exp(g(x_n)))`` (Lázaro-Gredilla and Titsias 2011).

    The functions ``f`` and ``g`` are GPs, each with its own RBF kernel. They are the columns of the site ``f``.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide
        >>> from gpzoo.models import heteroscedastic_gp
        >>> X = np.linspace(0, 1, 20, dtype=np.float32)[:, None]
        >>> params = InducingGuide(heteroscedastic_gp, kmeans(5)).init_params(jax.random.key(0), X, X[:, 0])
        >>> [name for name in params if name.endswith("_inducing")]
        ['f_inducing']

    Args:
        X: inputs ``[N, d]``, best standardised.
        y: targets ``[N]``.
        noise_variance: initial noise variance, in squared units of ``y``. Its logarithm is the initial mean of ``g``.
            This mean is trained.
        jitter: absolute jitter on covariance diagonals; ``None`` for the relative default.
        num_data: number of rows of the whole data, if ``X`` is a minibatch.
    """
    kernel = RBF(positive("f_variance", jnp.ones(2), X), positive("f_lengthscale", jnp.ones((2, X.shape[-1])), X))
    level = jnp.log(positive("noise_variance", noise_variance, X))
    mean = jnp.broadcast_to(jnp.stack([jnp.zeros_like(level), level]), (len(X), 2))
    f = numpyro.sample("f", GaussianProcess(kernel, X, mean, num_outputs=2, jitter=jitter))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", HeteroscedasticGaussian(f), obs=y)


def ordinal_gp(
    X: Array,
    y: Array | None = None,
    *,
    num_classes: int,
    kernel: Callable[[str, Array], Kernel] = rbf,
    jitter: float | None = None,
    num_data: int | None = None,
) -> None:
    """Ordinal regression, for ordered labels: the ordered logit of a GP.

    Chu and Ghahramani 2005, *Gaussian processes for ordinal regression*, use a probit instead of a logit. The parameter
    ``cutpoints`` ``[K - 1]`` has no prior. To give it a prior::

        prior = dist.TransformedDistribution(dist.Normal(jnp.zeros(2), 1.0).to_event(1), OrderedTransform())
        program = handlers.lift(partial(ordinal_gp, num_classes=3), prior={"cutpoints": prior})

    An :class:`~gpzoo.inference.InducingGuide` makes cutpoints and function independent, although they are correlated in
    the posterior. Its intervals of cutpoints are therefore too narrow, for every ``hyperparameters=``. A joint guide of
    cutpoints and function, ``AutoMultivariateNormal(whitened(program, kmeans(20)))``, gives intervals with the right
    coverage.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide
        >>> from gpzoo.models import ordinal_gp
        >>> X, y = np.linspace(0, 1, 20, dtype=np.float32)[:, None], np.arange(20) % 3
        >>> params = InducingGuide(partial(ordinal_gp, num_classes=3), kmeans(5)).init_params(jax.random.key(0), X, y)
        >>> params["cutpoints"].shape
        (2,)

    Args:
        X: inputs ``[N, d]``, best standardised.
        y: ordered labels, ``0 .. num_classes - 1``, ``[N]``.
        num_classes: number of labels, at least two.
        kernel: a function that makes the kernel from a site name and the inputs.
        jitter: absolute jitter on covariance diagonals; ``None`` for the relative default.
        num_data: number of rows of the whole data, if ``X`` is a minibatch.
    """
    cuts = checks.positive_int("num_classes - 1", num_classes - 1)
    start = jnp.linspace(-2, 2, cuts, dtype=precision(X)) if cuts > 1 else jnp.zeros(1, precision(X))
    cutpoints = numpyro.param("cutpoints", start, constraint=constraints.ordered_vector)
    f = numpyro.sample("f", GaussianProcess(kernel("f", X), X, jitter=jitter))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Ordinal(f, cutpoints), obs=y)


def log_gaussian_cox(
    X: Array,
    y: Array | None = None,
    exposure: Array | None = None,
    *,
    kernel: Callable[[str, Array], Kernel] = rbf,
    rate: float = 1.0,
    jitter: float | None = None,
    num_data: int | None = None,
) -> None:
    """A log Gaussian Cox process, for counts of events in space or time: ``y_n ~ Poisson(e_n rate exp(f(x_n)))``.

    See Møller, Syversveen and Waagepetersen 1998, *Log Gaussian Cox processes*. Space or time is divided into cells
    with centres ``x_n`` and sizes ``e_n``. The rate is constant within a cell.

    Example:
        >>> import jax, numpy as np
        >>> from numpyro.infer import Predictive
        >>> from gpzoo.models import log_gaussian_cox
        >>> centres, hours = np.linspace(0, 1, 6, dtype=np.float32)[:, None], np.full(6, 10.0, np.float32)
        >>> Predictive(log_gaussian_cox, num_samples=4)(jax.random.key(0), centres, None, hours)["y"].shape
        (4, 6)

    Args:
        X: centres ``[N, d]``, best standardised.
        y: counts ``[N]``.
        exposure: sizes ``[N]`` of the cells, or another given factor of the rate, 0 or more; ``None`` for 1.
        kernel: a function that makes the kernel from a site name and the inputs.
        rate: initial rate per unit of exposure.
        jitter: absolute jitter on covariance diagonals; ``None`` for the relative default.
        num_data: number of rows of the whole data, if ``X`` is a minibatch.
    """
    f = numpyro.sample("f", GaussianProcess(kernel("f", X), X, jitter=jitter))
    level = positive("rate", rate, X) * (jnp.ones(len(X), precision(X)) if exposure is None else exposure)
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Expected(_poisson, f, level), obs=y)


def _poisson(f: Array, level: Array) -> dist.Poisson:
    return Poisson(level * jnp.exp(f))


class Poisson(dist.Poisson):
    """NumPyro's Poisson distribution, with a finite derivative at rate 0. At this rate, a count of 0 is certain."""

    def log_prob(self, value: Any) -> Any:
        """The log probability of counts."""
        some = jnp.asarray(self.rate) > 0
        known = dist.Poisson(jnp.where(some, self.rate, 1)).log_prob(value)
        return jnp.where(some, known, jnp.where(value == 0, 0.0, -jnp.inf))
