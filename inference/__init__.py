"""Inference for programs with GP sites: guides, objectives, training, and everything that a trained model can do.

The folder ``inference/`` is installed as ``gpzoo.inference``. From the lowest folder to the highest:

* ``programs/``: what a program is and how it runs. ``gp_sites.py`` gives the value of a GP site, ``rows.py`` the rows
  of a site that go with rows of data, and ``arguments.py`` checks arguments.
* ``guides/`` and ``bounds/``: posteriors of a program, and objectives.
* ``training/`` and ``fitted/``: training, which begins in ``fit.py``, and the results of a trained model. A call of a
  trained model begins in ``trained.py``, and ``map_batches.py`` computes its numbers.
* ``diagnosis/`` and ``plots/``: checks of a model, and pictures of it.
* ``reports/``: checks and pictures on one page; ``trackers.py``: trainings in MLflow and TensorBoard; ``launch.py``:
  scripts in several processes.
"""

import lazy_loader

# Each name, with its imports, is imported at its first use: a training does not wait for reports.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
