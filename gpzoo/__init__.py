"""gpzoo: a model zoo of Gaussian processes for NumPyro.

A model is a NumPyro program in which a GP is one ``numpyro.sample`` site. This package has the parts of such programs:
kernels, inducing variables, likelihoods and more. Guides, training and prediction are in :mod:`gpzoo.inference`. The
programs of papers are in :mod:`gpzoo.models`, and the experiments of papers in :mod:`gpzoo.reproductions`.
"""

from pathlib import Path

import lazy_loader

__version__ = "0.4.0"

# For a checkout, in which three of the package's folders are beside this one.
if not (Path(__file__).parent / "inference").exists():
    __path__.append(str(Path(__file__).parents[1]))

# Each name and its dependencies are imported at its first use, so "gpzoo --help" does not wait for JAX.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
