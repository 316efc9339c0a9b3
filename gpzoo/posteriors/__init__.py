"""Posteriors of Gaussian processes with inducing variables: forms of ``q(u)`` and conditionals of ``f`` given ``u``."""

from gpzoo.posteriors import forms
from gpzoo.posteriors.base import Conditional, Form
from gpzoo.posteriors.conditional import Interpolation, Projection
from gpzoo.posteriors.posterior import InducingPosterior

__all__ = ["Conditional", "Form", "InducingPosterior", "Interpolation", "Projection", "forms"]
