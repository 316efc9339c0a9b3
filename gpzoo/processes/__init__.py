"""Gaussian processes at inputs: the distribution, its marginals, and moments estimated from sampled views."""

from gpzoo.processes.marginals import EstimatedMarginals, GaussianMarginals, draws
from gpzoo.processes.process import GaussianProcess

__all__ = ["EstimatedMarginals", "GaussianMarginals", "GaussianProcess", "draws"]
