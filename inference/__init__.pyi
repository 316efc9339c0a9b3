"""The names of gpzoo.inference, for type checkers and for the lazy import of each."""

from . import plots, trackers
from .bounds.collapsed import CollapsedELBO
from .bounds.elbo import GaussianProcessELBO
from .bounds.importance import ImportanceWeightedELBO
from .bounds.marginal import marginal
from .bounds.online import OnlineELBO
from .bounds.predictive import PredictiveLogLikelihood
from .diagnosis.check import check
from .diagnosis.diagnose import diagnose
from .diagnosis.findings import Diagnosis, Finding
from .diagnosis.laplace import check_laplace
from .diagnosis.vsbc import vsbc
from .fitted.export import draws_to_arviz
from .fitted.nuts import nuts
from .fitted.predict import predict
from .fitted.summaries import SitePrediction
from .fitted.trained import Trained, load
from .guides.global_inducing import GlobalInducingGuide
from .guides.guide import InducingGuide
from .guides.reparam import WhitenReparam, whitened
from .guides.row_latents import Amortised, PerRow
from .reports.report import report
from .training.callbacks import EarlyStopping, Log, StopTraining
from .training.checkpoints import CheckpointError
from .training.comparison import Candidate, Comparison, compare, error_rate, rmse
from .training.devices import all_devices
from .training.failures import NonFiniteError
from .training.fit import fit
from .training.infer_rows import infer_rows
from .training.lbfgs import lbfgs
from .training.natural import NaturalGradients

__all__ = [
    "Amortised",
    "Candidate",
    "CheckpointError",
    "CollapsedELBO",
    "Comparison",
    "Diagnosis",
    "EarlyStopping",
    "Finding",
    "GaussianProcessELBO",
    "GlobalInducingGuide",
    "ImportanceWeightedELBO",
    "InducingGuide",
    "Log",
    "NaturalGradients",
    "NonFiniteError",
    "OnlineELBO",
    "PerRow",
    "PredictiveLogLikelihood",
    "SitePrediction",
    "StopTraining",
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
