"""Posteriors of Gaussian processes given inducing variables: a form of ``q(u)``, and how ``f`` follows from ``u``."""

from gpzoo.posteriors import forms
from gpzoo.posteriors.conditional import Conditional, Interpolation, Projection
from gpzoo.posteriors.forms import Form
from gpzoo.posteriors.posterior import InducingPosterior

__all__ = ["Conditional", "Form", "InducingPosterior", "Interpolation", "Projection", "forms"]
