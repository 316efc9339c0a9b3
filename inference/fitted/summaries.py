"""Predictions of a site, averaged over paths, with one path for each draw (Salimbeni and Deisenroth 2017, eq. 18)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp
from jaxtyping import Float, Shaped

from gpzoo.inference.fitted.quantiles import empirical_quantiles, mixture_quantiles
from gpzoo.inference.programs.labelled import Labels


class SitePrediction(NamedTuple):
    """Prediction of one site at ``N`` new inputs, as NumPy arrays. For a Dataset, it has coordinates in place of rows.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide, Trained
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 6, 50, dtype=np.float32)[:, None]
        >>> guide = InducingGuide(gp_regression, kmeans(8))
        >>> start = Trained(gp_regression, guide, guide.init_params(jax.random.key(0), X, np.sin(X[:, 0])))
        >>> found = start.predict(jax.random.key(1), X[:3], quantiles=(0.05, 0.95))
        >>> type(found["y"]).__name__, found["y"].mean.shape, found["y"].quantiles.shape, found["f"].log_density
        ('SitePrediction', (3,), (2, 3), None)

    Attributes:
        mean: predictive mean, ``[N]`` or ``[N, D]``; for labels 0 and 1 (Bernoulli), the probability of 1. ``None`` for
            other labels, which have ``probs``, and if the distribution of ``y`` has no mean at any row (a Cauchy, a
            Student-t with ``df <= 1``). Single rows without a mean have NaN or infinity.
        variance: predictive variance of every entry, in the shape of ``mean``. The variance of ``y`` includes the
            noise. ``None`` if ``y`` has no variance at any row, and with ``mean_only``. Single rows without a variance
            have NaN or infinity.
        log_density: ``log p(y* | data)`` per row, ``[N]``, in nats; ``None`` without test data, and for GP sites that
            were not observed in training. It is the density of the observed entries of a row, and 0 if there are none.
        probs: predictive probabilities of ``K`` classes, ``[N, K]``, for likelihoods of classes, such as Softmax.
        quantiles: quantiles of every entry, ``[Q, N]`` or ``[Q, N, D]``, if asked for; ``None`` for labels.
        draws: ``[S, N]`` or ``[S, N, D]``, if asked for: one draw for each path, or ``num_draws`` if there is one path.
            A path is one draw of every site that must be drawn.
        cdf: predictive probability of a value up to the test value, in the shape of ``mean``. It exists for data sites
            with test data if their likelihood has it in closed form, as Gaussian likelihoods do. It is NaN at test data
            that are NaN.
    """

    # JAX arrays while they are computed. The type is `Any` instead of optional, so that type checkers do not ask for a
    # test at every use.
    mean: np.ndarray | Any
    variance: np.ndarray | Any
    log_density: np.ndarray | Any = None
    probs: np.ndarray | Any = None
    quantiles: np.ndarray | Any = None
    draws: np.ndarray | Any = None
    cdf: np.ndarray | Any = None

    def labelled(self, labels: Labels) -> SitePrediction:
        """The same prediction as ``xarray.DataArray``, with the coordinates of a Dataset in place of row numbers."""
        before, after = {"quantiles": ("quantile",), "draws": ("draw",)}, {"probs": ("class",)}
        axes = {name: (before.get(name, ()), after.get(name, ())) for name in self._fields}
        return SitePrediction(*(labels.labelled(x, *axes[name]) for name, x in self._asdict().items()))

    def __repr__(self) -> str:
        there = ((name, x) for name, x in self._asdict().items() if x is not None)
        return f"SitePrediction({', '.join(f'{name} {list(np.shape(x))}' for name, x in there)})"


#: The axis of the inputs' rows in each field of a :class:`SitePrediction`.
ROW_AXES = dict.fromkeys(SitePrediction._fields, 0) | {"quantiles": 1, "draws": 1}


class Asked(NamedTuple):
    """Parts of a prediction that the caller wants besides moments and densities.

    Unlike the options of a user's call, it is hashable. :class:`~gpzoo.inference.fitted.paths.Paths` has it as a field,
    and so it is part of the key of the compiled program.

    Attributes:
        quantiles: probabilities; ``None`` if no quantiles are wanted.
        keep_draws: whether the result has draws.
        draws_per_path: number of draws of data on each path.
        mean_only: whether the result has no variances. The compiled program then does not compute them.
        parts: names for the addends of GP sites with sums of kernels, by site.
    """

    quantiles: tuple[float, ...] | None
    keep_draws: bool
    draws_per_path: int
    mean_only: bool = False
    parts: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Path(NamedTuple):
    """The prediction at a site along one path.

    Attributes:
        prediction: moments, density, class probabilities and ``cdf``.
        gaussian: mean and variance of every entry if the site is Gaussian given the path, else ``None``.
        draws: draws of the site, ``[draws_per_path, N, ...]``; ``None`` if they are not needed.
    """

    prediction: SitePrediction
    gaussian: tuple[Float[Array, "N *D"], Float[Array, "N *D"]] | None = None
    draws: Shaped[Array, "S N ..."] | None = None


def of_paths(each: Path, asked: Asked) -> SitePrediction:
    """The mixture of all paths with equal weights: moments by the law of total variance, mean of densities (eq. 18)."""
    path, variance, density, quantiles = each.prediction, None, None, None
    mean, probs, cdf = (None if x is None else jnp.mean(x, axis=0) for x in (path.mean, path.probs, path.cdf))
    if mean is not None and path.variance is not None:
        variance = jnp.mean(path.variance, axis=0) + jnp.var(path.mean, axis=0)
    if path.log_density is not None:
        density = logsumexp(path.log_density, axis=0) - jnp.log(len(path.log_density))
    draws: Any = None if each.draws is None else each.draws.reshape(-1, *each.draws.shape[2:])
    if asked.quantiles is not None and mean is not None:
        if each.gaussian is None:
            quantiles = empirical_quantiles(draws, asked.quantiles)
        else:
            quantiles = mixture_quantiles(*each.gaussian, asked.quantiles)
    return SitePrediction(mean, variance, density, probs, quantiles, draws if asked.keep_draws else None, cdf)


def by_field(predictions: Mapping[str, SitePrediction]) -> dict[str, dict[str, Any]]:
    """The arrays of predictions by field and site."""
    found: dict[str, dict[str, Any]] = {field: {} for field in SitePrediction._fields}
    for name, site in predictions.items():
        for field, x in zip(site._fields, site, strict=True):
            if x is not None:
                found[field][name] = x
    return found
