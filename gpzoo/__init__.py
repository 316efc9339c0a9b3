"""gpzoo: a model zoo of Gaussian processes for NumPyro.

A model is a NumPyro program in which a GP is one ``numpyro.sample`` site; this package is the vocabulary such programs
are written in. Guides, training and prediction are in :mod:`gpzoo.inference`, the papers' programs in
:mod:`gpzoo.models`, their experiments in :mod:`gpzoo.reproductions`.
"""

from pathlib import Path

import lazy_loader

__version__ = "0.4.0"

# In a checkout, where four of the package's folders stand beside this one.
if not (Path(__file__).parent / "inference").exists():
    __path__.append(str(Path(__file__).parents[1]))

# Each name, with what it needs, is imported at its first use: "gpzoo --help" does not wait for JAX.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
