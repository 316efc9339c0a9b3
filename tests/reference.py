"""What should come out: textbook formulas in plain NumPy and SciPy, which share no line with the library."""

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import brentq
from scipy.stats import multivariate_normal, norm

# -- kernels -----------------------------------------------------------------------------------------------------------


def pairs(X, Z):
    """Rows ``[..., N, D]`` and ``[..., M, D]``, shaped so that a kernel of points gives ``[..., N, M]``."""
    return np.asarray(X)[..., :, None, :], np.asarray(Z)[..., None, :, :]


def distance(x, z, lengthscale=1.0):
    """Between points ``[..., D]``."""
    return np.sqrt(np.sum(((x - z) / lengthscale) ** 2, axis=-1))


def rbf(x, z, variance=1.0, lengthscale=1.0):
    return variance * np.exp(-(distance(x, z, lengthscale) ** 2) / 2)


def matern32(x, z, variance=1.0, lengthscale=1.0):
    r = np.sqrt(3) * distance(x, z, lengthscale)
    return variance * (1 + r) * np.exp(-r)


def matern52(x, z, variance=1.0, lengthscale=1.0):
    r = np.sqrt(5) * distance(x, z, lengthscale)
    return variance * (1 + r + r**2 / 3) * np.exp(-r)


# -- Gaussians ---------------------------------------------------------------------------------------------------------


def conditional(Kuu, Kuf, Kff, mean, covariance=0.0):
    """Mean and covariance of ``f`` if ``u`` has these, and 0 if it is known (Rasmussen and Williams 2006, eq. 2.23)."""
    W = np.linalg.solve(Kuu, Kuf)
    mean = np.einsum("...mn,...m->...n", W, mean)
    return mean, Kff - np.swapaxes(W, -1, -2) @ (Kuu - covariance) @ W


def divergence(mean, covariance, K):
    """KL of ``N(mean, covariance)`` from ``N(0, K)``, summed over leading axes."""
    ratio = np.linalg.solve(K, covariance)
    square = np.sum(mean * np.linalg.solve(K, mean[..., None])[..., 0])
    return (np.sum(np.trace(ratio, axis1=-2, axis2=-1) - np.linalg.slogdet(ratio)[1]) + square - np.size(mean)) / 2


def optimal_whitened(Kuu, Kuf, y, noise):
    """Mean and covariance of the best ``q(v)`` for ``u = L v`` (Titsias 2009, eq. 10)."""
    A = solve_triangular(np.linalg.cholesky(Kuu), Kuf, lower=True)
    covariance = np.linalg.inv(np.eye(len(A)) + A @ A.T / noise)
    return covariance @ A @ y / noise, covariance


def collapsed_bound(Kuu, Kuf, variance, y, noise):
    """Titsias (2009), eq. 9, for the prior's variances ``[N]`` and one noise or ``[N]``."""
    Q = Kuf.T @ np.linalg.solve(Kuu, Kuf)
    noise = np.broadcast_to(noise, len(y))
    return multivariate_normal.logpdf(y, cov=Q + np.diag(noise)) - np.sum((variance - np.diag(Q)) / noise) / 2


def normal_quadrature(num_points):
    """Nodes and weights of Gauss and Hermite's rule for the standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_points)
    return nodes, weights / weights.sum()


def mixture_quantile(q, mean, scale):
    """The quantile of an equal mixture of Gaussians, sought from the tail that it is in."""
    ends = mean + norm.ppf(q) * scale
    if np.ptp(ends) < 1e-13 * np.abs(ends).max():
        return ends[0]

    def excess(x):
        return norm.cdf(x, mean, scale).mean() - q if q <= 0.5 else 1 - q - norm.sf(x, mean, scale).mean()

    return brentq(excess, ends.min(), ends.max(), xtol=1e-300, rtol=4 * np.finfo(float).eps, maxiter=1000)


# -- and how far from it -----------------------------------------------------------------------------------------------


def assert_close(ours, wanted, tolerance):
    """Differences are at most this share of the largest number that is wanted."""
    wanted = np.asarray(wanted)
    assert ours.shape == wanted.shape
    assert np.abs(np.asarray(ours) - wanted).max() <= tolerance * np.abs(wanted).max()
