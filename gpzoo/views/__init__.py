"""Views: maps from an input to the vectors that a base process takes, or distributions over such maps."""

from gpzoo.views.base import Composed, SampledView, View
from gpzoo.views.images import Affine, Deformation, Rotation
from gpzoo.views.orbits import Orbit, Subsampled
from gpzoo.views.patches import Patches

__all__ = [
    "Affine",
    "Composed",
    "Deformation",
    "Orbit",
    "Patches",
    "Rotation",
    "SampledView",
    "Subsampled",
    "View",
]
