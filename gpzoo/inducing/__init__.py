"""Inducing variables: their kinds, their covariances with a process, and their initial values."""

from gpzoo.inducing.basis import InducingBasis, InducingFourier
from gpzoo.inducing.grid import InducingGrid
from gpzoo.inducing.initialisers import Initialiser, blocks, kmeans, random_subset, uniform_patches, unique_patches
from gpzoo.inducing.kuu_kuf import Kuf, Kuu
from gpzoo.inducing.sphere import InducingHarmonics
from gpzoo.inducing.variables import InducingBlocks, InducingPatches, InducingPoints, InducingVariable

__all__ = [
    "InducingBasis",
    "InducingBlocks",
    "InducingFourier",
    "InducingGrid",
    "InducingHarmonics",
    "InducingPatches",
    "InducingPoints",
    "InducingVariable",
    "Initialiser",
    "Kuf",
    "Kuu",
    "blocks",
    "kmeans",
    "random_subset",
    "uniform_patches",
    "unique_patches",
]
