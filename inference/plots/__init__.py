"""Pictures of trained models. Each picture is drawn into axes and returns these axes.

Figures have the width of a journal column. Letters stay readable if a picture is shown 400 pixels wide. Colour-blind
readers can distinguish the colours (Okabe and Ito 2008). No picture opens a window or changes a setting.
``ax.figure.savefig(path)`` saves a picture, and a notebook shows ``ax.figure``.
"""

from gpzoo.inference.plots._axes import blank
from gpzoo.inference.plots.calibration import confusion, pit, reliability
from gpzoo.inference.plots.components import components
from gpzoo.inference.plots.fields import field_2d, surface
from gpzoo.inference.plots.fits import fit_1d
from gpzoo.inference.plots.images import augmentations, inducing_images, patch_weights
from gpzoo.inference.plots.kernels import kernel_by_class, lengthscales
from gpzoo.inference.plots.layers import layers
from gpzoo.inference.plots.posteriors import against_nuts, prior_posterior
from gpzoo.inference.plots.series import beside, forecast, groups
from gpzoo.inference.plots.training import elbo, learning_curve

__all__ = [
    "against_nuts",
    "augmentations",
    "beside",
    "blank",
    "components",
    "confusion",
    "elbo",
    "field_2d",
    "fit_1d",
    "forecast",
    "groups",
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
