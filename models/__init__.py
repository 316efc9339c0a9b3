"""One NumPyro program per paper; a new variant is a new file here."""

from gpzoo.models.convolutional import convolutional_gp
from gpzoo.models.sparse import gp_classification, gp_regression

__all__ = ["convolutional_gp", "gp_classification", "gp_regression"]
