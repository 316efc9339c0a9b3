"""Pareto-smoothed importance weights of draws, computed by ArviZ 0.x or 1.x."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from gpzoo.inference.fitted.container import Group, container, import_arviz


def largest_k(num_draws: int) -> float:
    """The largest k-hat at which estimates from this number of weighted draws are reliable. Above it, ArviZ warns.

    Vehtari, Simpson, Gelman, Yao and Gabry (2024), *Pareto smoothed importance sampling*, section 3.2.4.
    """
    return min(1 - 1 / np.log10(num_draws), 0.7)


def pareto(log_weights: Float[np.ndarray, " S"]) -> tuple[Float[np.ndarray, " S"], float]:
    """Pareto-smoothed log weights and their k-hat, computed by ArviZ."""
    arviz = import_arviz()
    log_weights = np.asarray(log_weights, np.float64)
    if np.ptp(log_weights) < 1e-6:  # there is no tail to fit
        return log_weights, 0.0
    if "InferenceData" in vars(arviz):
        smoothed, k = arviz.psislw(log_weights)
    else:
        import xarray

        # From 1.0 on, ArviZ takes log likelihoods. The weights for leaving out are their inverse.
        smoothed, k = xarray.DataArray(-log_weights, dims="draw").azstats.psislw(dim="draw")
    return np.asarray(smoothed), float(k)


class LeaveOneOut(NamedTuple):
    """Predictive densities of each row given all other rows.

    Attributes:
        elpd: logarithms of the densities in nats, ``[N]``, from draws with importance weights for the posterior.
        k: k-hat of each row, ``[N]``. As in ``arviz.loo``, it assumes that the draws come from the posterior.
        above: number of rows whose k-hat is above :func:`largest_k`.
        warns: whether ``arviz.loo`` warns.
    """

    elpd: Float[np.ndarray, " N"]
    k: Float[np.ndarray, " N"]
    above: int
    warns: bool


def leave_one_out(log_likelihood: Float[np.ndarray, "S N"], log_ratio: Float[np.ndarray, " S"]) -> LeaveOneOut:
    """Leave-one-out densities of an approximate posterior.

    The method is Magnusson, Andersen, Jonasson and Vehtari (2019), *Bayesian leave-one-out cross-validation for large
    data*, section 2.2. Each draw has two weights, which are smoothed together. The first weight leaves a row out. The
    second weight turns draws of ``q`` into draws of the posterior.

    Args:
        log_likelihood: log likelihood of each row, by draw.
        log_ratio: ``log p - log q`` of each draw, up to a constant.
    """
    arviz = import_arviz()
    data = container({"log_likelihood": Group({"y": log_likelihood[None]})}, {}, {}, None, None)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*shape parameter of Pareto")  # k-hat is returned
        plain: Any = arviz.loo(data, pointwise=True, reff=1.0)
        if "InferenceData" in vars(arviz):
            smoothed, _ = arviz.psislw((log_ratio[:, None] - log_likelihood).T)
            elpd = np.asarray(logsumexp(smoothed + log_likelihood.T, axis=1))
        else:
            found = arviz.loo_approximate_posterior(data, log_ratio, np.zeros_like(log_ratio), pointwise=True)
            elpd = np.asarray(found.elpd_i)
    k = np.ravel(plain.pareto_k)
    return LeaveOneOut(elpd, k, int(np.sum(k > plain.good_k)), bool(plain.warning))
