"""Inducing variables: what they are, their covariances with a process, and where they start."""

from gpzoo.inducing.covariances import Kuf, Kuu
from gpzoo.inducing.grid import InducingGrid
from gpzoo.inducing.initialisers import blocks, kmeans, random_subset, uniform_patches, unique_patches
from gpzoo.inducing.variables import Blocks, InducingPatches, InducingPoints, InducingVariable

__all__ = [
    "Blocks",
    "InducingGrid",
    "InducingPatches",
    "InducingPoints",
    "InducingVariable",
    "Kuf",
    "Kuu",
    "blocks",
    "kmeans",
    "random_subset",
    "uniform_patches",
    "unique_patches",
]
