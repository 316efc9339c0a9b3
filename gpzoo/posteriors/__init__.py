"""Posteriors of Gaussian processes given inducing variables: a form of ``q(u)``, and how ``f`` follows from ``u``."""

from gpzoo.posteriors import forms
from gpzoo.posteriors.base import Conditional, Form
from gpzoo.posteriors.conditional import Interpolation, Projection
from gpzoo.posteriors.posterior import InducingPosterior

__all__ = ["Conditional", "Form", "InducingPosterior", "Interpolation", "Projection", "forms"]
