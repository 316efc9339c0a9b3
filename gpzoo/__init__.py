"""gpzoo: a model zoo of Gaussian processes for NumPyro."""

__version__ = "0.1.0"
