"""Inference for programs with GP sites: guides, objectives, training, and what a trained model can be asked.

The folder ``inference/`` is installed as ``gpzoo.inference``. From the lowest folder to the highest:

* ``programs/``: what a program is and how it runs. ``gp_sites.py`` says which value a GP site has, ``rows.py`` which
  rows of a site go with which rows of data, ``arguments.py`` which arguments pass.
* ``guides/`` and ``bounds/``: posteriors of a program, and objectives.
* ``training/``, which begins in ``fit.py``, and ``fitted/``, what a trained model gives: a call begins in
  ``trained.py``, and its numbers are computed by ``map_batches.py``.
* ``diagnosis/``, ``plots/``: whether to believe it, and how it looks.
* ``reports/``, both on a page; ``trackers.py``, trainings in MLflow and TensorBoard; ``launch.py``, several processes.
"""

import lazy_loader

# Each name, with what it needs, is imported at its first use: a training does not wait for reports.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
