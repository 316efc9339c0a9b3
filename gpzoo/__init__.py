"""gpzoo: a model zoo of Gaussian processes for NumPyro.

A model is a NumPyro program in which a GP is one ``numpyro.sample`` site; this package is the vocabulary such programs
are written in. Guides, training and prediction are in :mod:`gpzoo.inference`, the papers' programs in
:mod:`gpzoo.models`, their experiments in :mod:`gpzoo.reproductions`.
"""

import lazy_loader

__version__ = "0.4.0"

# Each name, with what it needs, is imported at its first use: "gpzoo --help" does not wait for JAX.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
