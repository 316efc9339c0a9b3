"""Inference for programs with GP sites: guides, objectives, training, and what a trained model can be asked.

The folder ``inference/`` is installed as ``gpzoo.inference``.
"""

from typing import Any

from gpzoo.errors import CheckpointError, NonFiniteError
from gpzoo.inference._calls import REMOVED, removed
from gpzoo.inference.arviz import draws_to_arviz
from gpzoo.inference.collapsed import CollapsedELBO
from gpzoo.inference.comparison import Candidate, Comparison, compare, error_rate, rmse
from gpzoo.inference.devices import all_devices
from gpzoo.inference.elbo import GaussianProcessELBO
from gpzoo.inference.guide import InducingGuide
from gpzoo.inference.importance import ImportanceWeightedELBO
from gpzoo.inference.inspection import plots, trackers
from gpzoo.inference.inspection.check import check
from gpzoo.inference.inspection.diagnose import diagnose
from gpzoo.inference.inspection.findings import Diagnosis, Finding
from gpzoo.inference.inspection.report import report
from gpzoo.inference.inspection.vsbc import vsbc
from gpzoo.inference.lbfgs import lbfgs
from gpzoo.inference.natural import NaturalGradients
from gpzoo.inference.online import OnlineELBO
from gpzoo.inference.prediction.predict import predict
from gpzoo.inference.prediction.summaries import SitePrediction
from gpzoo.inference.reparam import WhitenReparam, whitened
from gpzoo.inference.row_latents import Amortised, PerRow, infer_rows
from gpzoo.inference.trained import Trained, load
from gpzoo.inference.training.fit import fit

__all__ = [
    "Amortised",
    "Candidate",
    "CheckpointError",
    "CollapsedELBO",
    "Comparison",
    "Diagnosis",
    "Finding",
    "GaussianProcessELBO",
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
    "compare",
    "diagnose",
    "draws_to_arviz",
    "error_rate",
    "fit",
    "infer_rows",
    "lbfgs",
    "load",
    "plots",
    "predict",
    "report",
    "rmse",
    "trackers",
    "vsbc",
    "whitened",
]


def __getattr__(name: str) -> Any:
    # The words of an AttributeError would be lost where a name is imported from here.
    raise (ImportError if name in REMOVED else AttributeError)(removed("gpzoo.inference", name))
