"""Covariance functions; each kernel is a pytree of its hyperparameters."""

from gpzoo.kernels.base import Kernel, Product, Scaled, Sum
from gpzoo.kernels.changing import ChangePoint, Gate, Gibbs
from gpzoo.kernels.constant import Constant, White
from gpzoo.kernels.dot_product import ArcCosine, Linear, Polynomial
from gpzoo.kernels.double_sum import Convolutional, DoubleSum, Invariant, MultiChannel, with_fixed_views
from gpzoo.kernels.elementary import Elementary
from gpzoo.kernels.flattened import Flattened
from gpzoo.kernels.hilbert import HilbertSpace
from gpzoo.kernels.markov import SHO, BrownianMotion
from gpzoo.kernels.pointwise import Pointwise
from gpzoo.kernels.slopes import WithSlopes
from gpzoo.kernels.spectral import Cosine, SpectralMixture
from gpzoo.kernels.stationary import RBF, Matern12, Matern32, Matern52, Periodic, RationalQuadratic, Stationary

__all__ = [
    "RBF",
    "SHO",
    "ArcCosine",
    "BrownianMotion",
    "ChangePoint",
    "Constant",
    "Convolutional",
    "Cosine",
    "DoubleSum",
    "Elementary",
    "Flattened",
    "Gate",
    "Gibbs",
    "HilbertSpace",
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
    "SpectralMixture",
    "Stationary",
    "Sum",
    "White",
    "WithSlopes",
    "with_fixed_views",
]
