"""gpzoo: a model zoo of Gaussian processes for NumPyro.

A model is a NumPyro program in which a GP is one ``numpyro.sample`` site; this package is the vocabulary such programs
are written in. Guides, training and prediction are in :mod:`gpzoo.inference`, the papers' programs in
:mod:`gpzoo.models`, their experiments in :mod:`gpzoo.reproductions`.
"""

from gpzoo import kernels, likelihoods
from gpzoo.augmentations import Affine, Deformation, Rotation, SampledView, Subsampled
from gpzoo.distributions import GaussianProcess
from gpzoo.errors import FactorisationError, GPZooError, PrecisionWarning
from gpzoo.grids import InducingGrid
from gpzoo.inducing import Blocks, InducingPatches, InducingPoints, InducingVariable, Kuf, Kuu
from gpzoo.initialisers import blocks, kmeans, random_subset, uniform_patches, unique_patches
from gpzoo.marginals import GaussianMarginals
from gpzoo.posterior import InducingPosterior
from gpzoo.views import Orbit, Patches

__version__ = "0.1.0"

__all__ = [
    "Affine",
    "Blocks",
    "Deformation",
    "FactorisationError",
    "GPZooError",
    "GaussianMarginals",
    "GaussianProcess",
    "InducingGrid",
    "InducingPatches",
    "InducingPoints",
    "InducingPosterior",
    "InducingVariable",
    "Kuf",
    "Kuu",
    "Orbit",
    "Patches",
    "PrecisionWarning",
    "Rotation",
    "SampledView",
    "Subsampled",
    "blocks",
    "kernels",
    "kmeans",
    "likelihoods",
    "random_subset",
    "uniform_patches",
    "unique_patches",
]
