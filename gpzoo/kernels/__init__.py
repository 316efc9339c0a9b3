"""Covariance functions: pytrees of hyperparameters."""

from gpzoo.kernels.base import Kernel, Product, Scaled, Sum
from gpzoo.kernels.constant import Constant, White
from gpzoo.kernels.dot_product import ArcCosine, Linear, Polynomial
from gpzoo.kernels.double_sum import Convolutional, DoubleSum, Invariant, MultiChannel, with_fixed_views
from gpzoo.kernels.elementary import Elementary
from gpzoo.kernels.flattened import Flattened
from gpzoo.kernels.pointwise import Pointwise
from gpzoo.kernels.stationary import RBF, Matern12, Matern32, Matern52, Periodic, RationalQuadratic, Stationary

__all__ = [
    "RBF",
    "ArcCosine",
    "Constant",
    "Convolutional",
    "DoubleSum",
    "Elementary",
    "Flattened",
    "Invariant",
    "Kernel",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "MultiChannel",
    "Periodic",
    "Pointwise",
    "Polynomial",
    "Product",
    "RationalQuadratic",
    "Scaled",
    "Stationary",
    "Sum",
    "White",
    "with_fixed_views",
]
