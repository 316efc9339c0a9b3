"""One NumPyro program per paper; a new variant is a new file here."""

from gpzoo.models.convolutional import (
    colour_patch_gp,
    convolutional_gp,
    convolutional_plus_rbf_gp,
    multi_channel_gp,
)
from gpzoo.models.deep import deep_gp, inner_scales, linear_layers
from gpzoo.models.sparse import gp_classification, gp_regression

__all__ = [
    "colour_patch_gp",
    "convolutional_gp",
    "convolutional_plus_rbf_gp",
    "deep_gp",
    "gp_classification",
    "gp_regression",
    "inner_scales",
    "linear_layers",
    "multi_channel_gp",
]
