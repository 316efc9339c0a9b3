"""Posteriors of Gaussian processes given inducing variables."""

from gpzoo.posteriors.grid import GridPosterior
from gpzoo.posteriors.posterior import InducingPosterior

__all__ = ["GridPosterior", "InducingPosterior"]
