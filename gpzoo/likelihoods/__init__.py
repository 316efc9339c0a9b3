"""Likelihoods: NumPyro distributions of ``y`` that take an array or the Gaussian marginals of GP sites."""

from gpzoo.likelihoods.base import Likelihood
from gpzoo.likelihoods.bernoulli import Bernoulli
from gpzoo.likelihoods.censored import Censored
from gpzoo.likelihoods.expected import Expected
from gpzoo.likelihoods.gaussian import Gaussian
from gpzoo.likelihoods.heteroscedastic import HeteroscedasticGaussian
from gpzoo.likelihoods.ordinal import Ordinal
from gpzoo.likelihoods.polya_gamma import PolyaGamma
from gpzoo.likelihoods.robustmax import RobustMax
from gpzoo.likelihoods.softmax import Softmax
from gpzoo.likelihoods.stick_breaking import StickBreaking

__all__ = [
    "Bernoulli",
    "Censored",
    "Expected",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "Ordinal",
    "PolyaGamma",
    "RobustMax",
    "Softmax",
    "StickBreaking",
]
