"""The names of gpzoo, for type checkers and for the lazy import of each."""

from . import errors, inducing, kernels, likelihoods, linalg, posteriors, processes, tables, views
from ._pytree import static
from .errors import CheckpointError, DatasetError, FactorisationError, GPZooError, NonFiniteError, PrecisionWarning
from .inducing import (
    InducingBasis,
    InducingBlocks,
    InducingFourier,
    InducingGrid,
    InducingHarmonics,
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
from .posteriors import InducingPosterior
from .processes import EstimatedMarginals, GaussianMarginals, GaussianProcess, draws
from .views import Affine, Deformation, Orbit, Patches, Rotation, SampledView, Subsampled, View

__version__: str

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
    "InducingBasis",
    "InducingBlocks",
    "InducingFourier",
    "InducingGrid",
    "InducingHarmonics",
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
    "draws",
    "errors",
    "inducing",
    "kernels",
    "kmeans",
    "likelihoods",
    "linalg",
    "posteriors",
    "processes",
    "random_subset",
    "static",
    "tables",
    "uniform_patches",
    "unique_patches",
    "views",
]
