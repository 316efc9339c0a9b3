"""Inference for programs with GP sites: guides, the objective, training, prediction, ArviZ."""

from gpzoo.errors import CheckpointError, NonFiniteError
from gpzoo.inference.arviz import to_arviz
from gpzoo.inference.comparison import Candidate, Comparison, compare, error_rate, rmse
from gpzoo.inference.elbo import GaussianProcessELBO
from gpzoo.inference.guide import InducingGuide
from gpzoo.inference.prediction.functions import draw_functions
from gpzoo.inference.prediction.predict import Predictor, predict
from gpzoo.inference.prediction.summaries import SitePrediction
from gpzoo.inference.training.fit import fit
from gpzoo.inference.training.result import FitResult

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
