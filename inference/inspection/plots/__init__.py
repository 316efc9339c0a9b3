"""What does a trained model look like? Pictures, each drawn into axes and returned as axes.

Figures are made for the column of a journal: letters keep their size where a picture is shown 400 pixels wide. Colours
are those of Okabe and Ito, which the colour-blind can tell apart. No picture opens a window or changes a setting:
``ax.figure.savefig(path)`` keeps one, and a notebook shows ``ax.figure``.
"""

from gpzoo.inference.inspection.plots._axes import blank
from gpzoo.inference.inspection.plots.calibration import confusion, pit, reliability
from gpzoo.inference.inspection.plots.fields import field_2d, surface
from gpzoo.inference.inspection.plots.fits import fit_1d
from gpzoo.inference.inspection.plots.images import augmentations, inducing_images, patch_weights
from gpzoo.inference.inspection.plots.kernels import kernel_by_class, lengthscales
from gpzoo.inference.inspection.plots.layers import layers
from gpzoo.inference.inspection.plots.posteriors import against_nuts, prior_posterior
from gpzoo.inference.inspection.plots.training import elbo, learning_curve

__all__ = [
    "against_nuts",
    "augmentations",
    "blank",
    "confusion",
    "elbo",
    "field_2d",
    "fit_1d",
    "inducing_images",
    "kernel_by_class",
    "layers",
    "learning_curve",
    "lengthscales",
    "patch_weights",
    "pit",
    "prior_posterior",
    "reliability",
    "surface",
]
