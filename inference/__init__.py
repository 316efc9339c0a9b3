"""Inference for programs with GP sites: guides, the objective, training, prediction, ArviZ."""

from gpzoo.inference.arviz import to_arviz
from gpzoo.inference.checkpoints import CheckpointError
from gpzoo.inference.comparison import Candidate, Comparison, compare, error_rate, rmse
from gpzoo.inference.elbo import GaussianProcessELBO
from gpzoo.inference.functions import draw_functions
from gpzoo.inference.guides import InducingGuide
from gpzoo.inference.mixtures import SitePrediction
from gpzoo.inference.prediction import Predictor, predict
from gpzoo.inference.report import FitResult, NonFiniteError
from gpzoo.inference.training import fit

__all__ = [
    "Candidate",
    "CheckpointError",
    "Comparison",
    "FitResult",
    "GaussianProcessELBO",
    "InducingGuide",
    "NonFiniteError",
    "Predictor",
    "SitePrediction",
    "compare",
    "draw_functions",
    "error_rate",
    "fit",
    "predict",
    "rmse",
    "to_arviz",
]
