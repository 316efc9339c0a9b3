"""NumPyro programs, with one file for each kind of model, and their common parts: parameters, views, networks."""

from gpzoo.models.convolutional import (
    colour_patch_gp,
    convolutional_gp,
    convolutional_plus_rbf_gp,
    multi_channel_gp,
    translation_insensitive_gp,
)
from gpzoo.models.coregionalised import categories, coregionalised_gp
from gpzoo.models.deep import deep_gp, inner_scales, linear_layers
from gpzoo.models.deep_convolutional import convolutional_layer, deep_convolutional_gp
from gpzoo.models.deep_kernel import deep_kernel_gp, network_classifier
from gpzoo.models.invariant import (
    averaged,
    invariant_classifier,
    invariant_convolutional_gp,
    invariant_deep_gp,
    invariant_gp,
)
from gpzoo.models.latent_inputs import gplvm, latent_variable_deep_gp, principal_components
from gpzoo.models.mixture import mixture_of_gps
from gpzoo.models.modules import network_of, shifted_and_mirrored
from gpzoo.models.observations import heteroscedastic_gp, log_gaussian_cox, ordinal_gp
from gpzoo.models.parameters import gaussian, positive, rbf
from gpzoo.models.recognition import recognition
from gpzoo.models.sparse import gp_classification, gp_regression
from gpzoo.models.train_deep_kernel import fit_deep_kernel, fit_network
from gpzoo.models.views import affine, deformation, rotation

__all__ = [
    "affine",
    "averaged",
    "categories",
    "colour_patch_gp",
    "convolutional_gp",
    "convolutional_layer",
    "convolutional_plus_rbf_gp",
    "coregionalised_gp",
    "deep_convolutional_gp",
    "deep_gp",
    "deep_kernel_gp",
    "deformation",
    "fit_deep_kernel",
    "fit_network",
    "gaussian",
    "gp_classification",
    "gp_regression",
    "gplvm",
    "heteroscedastic_gp",
    "inner_scales",
    "invariant_classifier",
    "invariant_convolutional_gp",
    "invariant_deep_gp",
    "invariant_gp",
    "latent_variable_deep_gp",
    "linear_layers",
    "log_gaussian_cox",
    "mixture_of_gps",
    "multi_channel_gp",
    "network_classifier",
    "network_of",
    "ordinal_gp",
    "positive",
    "principal_components",
    "rbf",
    "recognition",
    "rotation",
    "shifted_and_mirrored",
    "translation_insensitive_gp",
]
