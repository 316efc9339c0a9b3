"""gpzoo: a model zoo of Gaussian processes for NumPyro.

A model is a NumPyro program in which a GP is one ``numpyro.sample`` site; this package is the vocabulary such programs
are written in. Guides, training and prediction are in :mod:`gpzoo.inference`, the papers' programs in
:mod:`gpzoo.models`, their experiments in :mod:`gpzoo.reproductions`.
"""

from gpzoo import kernels, likelihoods, tables
from gpzoo._pytree import static
from gpzoo.errors import CheckpointError, DatasetError, FactorisationError, GPZooError, NonFiniteError, PrecisionWarning
from gpzoo.inducing import (
    InducingBlocks,
    InducingGrid,
    InducingPatches,
    InducingPoints,
    InducingVariable,
    Initialiser,
    Kuf,
    Kuu,
    blocks,
    kmeans,
    random_subset,
    uniform_patches,
    unique_patches,
)
from gpzoo.posteriors import InducingPosterior
from gpzoo.processes import EstimatedMarginals, GaussianMarginals, GaussianProcess
from gpzoo.views import Affine, Deformation, Orbit, Patches, Rotation, SampledView, Subsampled, View

__version__ = "0.2.0"

__all__ = [
    "Affine",
    "CheckpointError",
    "DatasetError",
    "Deformation",
    "EstimatedMarginals",
    "FactorisationError",
    "GPZooError",
    "GaussianMarginals",
    "GaussianProcess",
    "InducingBlocks",
    "InducingGrid",
    "InducingPatches",
    "InducingPoints",
    "InducingPosterior",
    "InducingVariable",
    "Initialiser",
    "Kuf",
    "Kuu",
    "NonFiniteError",
    "Orbit",
    "Patches",
    "PrecisionWarning",
    "Rotation",
    "SampledView",
    "Subsampled",
    "View",
    "blocks",
    "kernels",
    "kmeans",
    "likelihoods",
    "random_subset",
    "static",
    "tables",
    "uniform_patches",
    "unique_patches",
]
