"""Are numbers that were drawn what they should be on average? Differences in standard errors."""

import numpy as np
from numpyro.diagnostics import effective_sample_size
from scipy.stats import gamma


def standard_error(draws):
    """Of the mean over the first axis."""
    return draws.std(0) / np.sqrt(len(draws))


def off(draws, wanted, floor=0.0):
    """How many standard errors the mean over the first axis is from what is wanted; ``floor`` is added to each."""
    draws = np.asarray(draws, np.float64)
    return np.abs(draws.mean(0) - wanted) / (standard_error(draws) + floor)


def assert_unbiased(draws, wanted, sigmas=5, floor=0.0, within=0.05):
    """The mean is what is wanted, and the draws are so many that this says something."""
    assert np.max(off(draws, wanted, floor)) < sigmas
    assert np.max(standard_error(np.asarray(draws, np.float64)) + floor) < within * max(np.abs(wanted).max(), 1)


def assert_moments(draws, mean, covariance, sigmas=5):
    """Means and covariances of draws ``[S, N]`` of any distribution, by the spread of their products."""
    covariance, deviations = np.asarray(covariance), np.asarray(draws) - mean
    assert (np.abs(deviations.mean(0)) < sigmas * np.sqrt(np.diagonal(covariance) / len(draws))).all()
    products = deviations[:, :, None] * deviations[:, None, :]
    assert np.max(off(products, covariance, floor=1e-13)) < sigmas


def assert_gaussian_moments(draws, mean, covariance, sigmas=5):
    """Means and covariances of Gaussian draws ``[S, N]``, whose covariances have known standard errors."""
    covariance, deviations = np.asarray(covariance), np.asarray(draws) - mean
    variance, S = np.diagonal(covariance), len(draws)
    assert (np.abs(deviations.mean(0)) < sigmas * np.sqrt(variance / S)).all()
    error = np.sqrt((np.outer(variance, variance) + covariance**2) / S)
    assert (np.abs(deviations.T @ deviations / S - covariance) < sigmas * error).all()


def gaussian_p_value(draws, mean, covariance):
    """Of all standardised errors of means and variances together: their squares add up to a mixture of chi-squares."""
    draws, mean, covariance = (np.asarray(x, np.float64) for x in (draws, mean, covariance))
    scale = np.sqrt(np.diagonal(covariance))
    correlation = covariance / np.outer(scale, scale)
    z = np.sqrt(len(draws)) * (draws.mean(0) - mean) / scale
    v = np.sqrt(len(draws) / 2) * (np.mean((draws - mean) ** 2, axis=0) / scale**2 - 1)
    average = 2 * len(z)
    spread = 2 * np.sum(correlation**2) + 2 * np.sum(correlation**4)
    return gamma.sf(z @ z + v @ v, average**2 / spread, scale=spread / average)


def errors_apart(draws, mean, error):
    """How many Monte Carlo errors, ours and theirs together, the mean of draws ``[chains, draws]`` is from ``mean``."""
    draws = np.asarray(draws)
    own = draws.std(ddof=1) / np.sqrt(effective_sample_size(draws))
    return abs(draws.mean() - mean) / np.hypot(own, error)
