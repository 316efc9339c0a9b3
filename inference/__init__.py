"""Inference for programs with GP sites: guides, objectives, training, and what a trained model can be asked.

The folder ``inference/`` is installed as ``gpzoo.inference``. From the lowest folder to the highest:

* ``programs/``: what a program is and how it runs. ``gp_sites.py`` says which value a GP site has, ``rows.py`` which
  rows of a site go with which rows of data, ``arguments.py`` which arguments pass.
* ``guides/`` and ``bounds/``: posteriors of a program, and objectives.
* ``training/``, which begins in ``fit.py``, and ``asking/``, which begins in ``ask.py``: questions to a trained model.
* ``diagnosis/``, ``plots/``, ``reports/``: whether to believe it, how it looks, and both on a page.
"""

from gpzoo.errors import CheckpointError, NonFiniteError
from gpzoo.inference import plots, trackers
from gpzoo.inference.asking.export import draws_to_arviz
from gpzoo.inference.asking.nuts import nuts
from gpzoo.inference.asking.predict import predict
from gpzoo.inference.asking.summaries import SitePrediction
from gpzoo.inference.asking.trained import Trained, load
from gpzoo.inference.bounds.collapsed import CollapsedELBO
from gpzoo.inference.bounds.elbo import GaussianProcessELBO
from gpzoo.inference.bounds.importance import ImportanceWeightedELBO
from gpzoo.inference.bounds.marginal import marginal
from gpzoo.inference.bounds.online import OnlineELBO
from gpzoo.inference.diagnosis.check import check
from gpzoo.inference.diagnosis.diagnose import diagnose
from gpzoo.inference.diagnosis.findings import Diagnosis, Finding
from gpzoo.inference.diagnosis.laplace import check_laplace
from gpzoo.inference.diagnosis.vsbc import vsbc
from gpzoo.inference.guides.global_inducing import GlobalInducingGuide
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.guides.reparam import WhitenReparam, whitened
from gpzoo.inference.guides.row_latents import Amortised, PerRow
from gpzoo.inference.reports.report import report
from gpzoo.inference.training.comparison import Candidate, Comparison, compare, error_rate, rmse
from gpzoo.inference.training.devices import all_devices
from gpzoo.inference.training.fit import fit
from gpzoo.inference.training.infer_rows import infer_rows
from gpzoo.inference.training.lbfgs import lbfgs
from gpzoo.inference.training.natural import NaturalGradients

__all__ = [
    "Amortised",
    "Candidate",
    "CheckpointError",
    "CollapsedELBO",
    "Comparison",
    "Diagnosis",
    "Finding",
    "GaussianProcessELBO",
    "GlobalInducingGuide",
    "ImportanceWeightedELBO",
    "InducingGuide",
    "NaturalGradients",
    "NonFiniteError",
    "OnlineELBO",
    "PerRow",
    "SitePrediction",
    "Trained",
    "WhitenReparam",
    "all_devices",
    "check",
    "check_laplace",
    "compare",
    "diagnose",
    "draws_to_arviz",
    "error_rate",
    "fit",
    "infer_rows",
    "lbfgs",
    "load",
    "marginal",
    "nuts",
    "plots",
    "predict",
    "report",
    "rmse",
    "trackers",
    "vsbc",
    "whitened",
]
