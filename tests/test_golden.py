"""Sparse and convolutional GPs against numbers from their authors' and peers' own code, through guide and objective."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest

from gpzoo.distributions import GaussianProcess
from gpzoo.inducing import InducingPatches, InducingPoints, Kuf, Kuu
from gpzoo.inference import GaussianProcessELBO, InducingGuide
from gpzoo.kernels import RBF, Convolutional, White
from gpzoo.likelihoods import Bernoulli, Gaussian, RobustMax

CASES = [
    "svgp_01_ard_whitened_gaussian",
    "svgp_03_bernoulli_qdiag",
    "convgp_01_ti_rect_bernoulli",
    "convgp_03_weighted_digits_robustmax",
    "convgp_05_weighted_unwhitened_gaussian",
    "convgp_12_weighted_plus_white",
]


def kernel(values, image_shape, patch_shape):
    base = RBF(values["variance"], values["lengthscales"])
    if image_shape is None:
        return base
    conv = Convolutional(base, image_shape, patch_shape, values.get("W"), mean=True)
    return conv + White(values["white_variance"]) if "white_variance" in values else conv


class Case:
    """A golden case as a NumPyro program: its kernel's parameters are the case's arrays."""

    def __init__(self, arrays, meta, dtype):
        cast = lambda x: jnp.asarray(x, dtype) if np.issubdtype(x.dtype, np.floating) else jnp.asarray(x)  # noqa: E731
        self.given = {k[3:]: cast(v) for k, v in arrays.items() if k.startswith("in_")}
        self.wanted = {k[4:]: v for k, v in arrays.items() if k.startswith("out_")}
        self.meta, self.dtype = meta, dtype
        names = ("variance", "lengthscales", "W", "white_variance", "noise_variance")
        self.values = {k: self.given[k].reshape(()) if k != "W" and self.given[k].size == 1 else self.given[k] for k in names if k in self.given}
        self.image_shape = tuple(int(i) for i in self.given["image_shape"]) if "image_shape" in self.given else None
        self.patch_shape = tuple(int(i) for i in self.given["patch_shape"]) if self.image_shape else None
        self.outputs = self.given["q_mu"].shape[1]
        self.num_data = int(np.asarray(self.given["num_data"]).ravel()[0])
        self.jitter = float(np.asarray(self.given["jitter"]).ravel()[0])
        self.diagonal = meta.get("q_diag", False)

    def inputs(self, name):
        X = self.given[name]
        return X.reshape(len(X), *self.image_shape, 1) if self.image_shape else X

    def labels(self, name):
        Y = self.given[name]
        if self.meta["likelihood"] == "gaussian":
            return Y if self.outputs > 1 else Y[:, 0]
        return Y[:, 0].astype(int)

    def likelihood(self, f, values):
        kind = self.meta["likelihood"]
        if kind == "gaussian":
            return Gaussian(f, values["noise_variance"])
        if kind == "bernoulli-probit":
            return Bernoulli(f, squash=1e-3)
        return RobustMax(f, squash=self.meta["robustmax_cdf_squash"])

    def program(self, X, y=None):
        values = {k: numpyro.param(k, v) for k, v in self.values.items()}
        prior = GaussianProcess(
            kernel(values, self.image_shape, self.patch_shape),
            X,
            num_outputs=self.outputs if self.outputs > 1 else None,
            jitter=self.jitter,
        )
        f = numpyro.sample("f", prior)
        with numpyro.plate("data", max(self.num_data, len(X)), subsample_size=len(X)):
            numpyro.sample("y", self.likelihood(f, values), obs=y)

    @property
    def params(self):
        squeeze = self.outputs == 1
        mean, scale = self.given["q_mu"], self.given["q_sqrt"]
        if squeeze:
            mean, scale = mean[:, 0], scale[:, 0] if self.diagonal else scale[0]
        return {**self.values, "f_inducing": self.given["Z"], "f_mean": mean, "f_scale": scale}

    @property
    def guide(self):
        variable = InducingPatches if self.image_shape else InducingPoints
        return InducingGuide(
            self.program,
            variable(self.given["Z"]),
            whiten=self.meta["whiten"],
            covariance="diagonal" if self.diagonal else "full",
        )


@pytest.fixture(params=CASES)
def arrays(request, golden):
    return golden(request.param)


@pytest.fixture
def case(arrays):
    return Case(*arrays, np.float64)


def close(ours, theirs, tolerance=1e-8):
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs)
    np.testing.assert_allclose(ours.reshape(theirs.shape), theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


def loss(case, params):
    return GaussianProcessELBO().loss(
        jax.random.key(0), params, case.program, case.guide, case.inputs("X"), case.labels("Y")
    )


def test_bound_and_its_gradients(case):
    value, gradients = jax.value_and_grad(partial(loss, case))(case.params)
    close(-value, case.wanted["elbo"])
    ours = {k: -g for k, g in gradients.items()}
    names = {"f_inducing": "Z", "f_mean": "q_mu", "f_scale": "q_sqrt"}
    for name, gradient in ours.items():
        wanted = case.wanted[f"grad_{names.get(name, name)}"]
        if name == "f_scale" and not case.diagonal:
            wanted = np.tril(wanted)
        close(gradient, wanted, 1e-6)


def test_bound_in_float32(arrays):
    case = Case(*arrays, np.float32)
    with jax.numpy_dtype_promotion("standard"):  # NumPyro's sum over sites starts from a float64 zero under x64
        close(-loss(case, case.params), case.wanted["elbo"], 1e-4)


def test_kl_and_expectations(case):
    with jax.numpy_dtype_promotion("standard"):
        terms = GaussianProcessELBO(sum_sites=False).loss(
            jax.random.key(0), case.params, case.program, case.guide, case.inputs("X"), case.labels("Y")
        )
    close(terms["f"], case.wanted["KL"])
    close(-terms["y"], case.num_data / len(case.given["X"]) * case.wanted["var_exp"].sum())


@pytest.mark.parametrize("dtype, tolerance", [(np.float64, 1e-8), (np.float32, 1e-4)])
def test_marginals(arrays, dtype, tolerance):
    case = Case(*arrays, dtype)
    for suffix in ("", "_test"):
        X = case.inputs("X" + suffix)
        posterior = case.guide.posterior(case.params, X, case.labels("Y" + suffix), rng_key=jax.random.key(0))["f"]
        mean, variance = posterior.marginals()
        assert mean.dtype == variance.dtype == dtype
        close(mean, case.wanted["fmean" + suffix], tolerance)
        close(variance, case.wanted["fvar" + suffix], tolerance)


def test_joint_covariance(case):
    if "fcov_test" not in case.wanted:
        pytest.skip("the case has no joint covariance")
    posterior = case.guide.posterior(case.params, case.inputs("X_test"), case.labels("Y_test"), rng_key=jax.random.key(0))["f"]
    _, covariance = posterior.moments()
    wanted = case.wanted["fcov_test"]
    if wanted.shape[0] == wanted.shape[1] != case.outputs or case.image_shape:
        wanted = np.moveaxis(wanted, -1, 0)
    close(covariance, wanted)


def test_predictive_density(case):
    from gpzoo.inference import predict

    prediction = predict(
        jax.random.key(0),
        case.program,
        case.inputs("X_test"),
        guide=_ready(case),
        params=case.params,
        test_data={"y": case.labels("Y_test")},
        batch_size=2,
    )["y"]
    wanted = case.wanted["log_density_test"]
    total = prediction.log_density if wanted.ndim == 1 or wanted.shape[-1] == 1 else prediction.log_density
    close(total, wanted.sum(-1) if wanted.ndim == 2 else wanted)
    ours = prediction.probs if prediction.mean is None else prediction.mean
    close(ours, case.wanted["ymean_test"])


def _ready(case):
    guide = case.guide
    guide.setup(case.inputs("X"), case.labels("Y"))
    return guide


def test_covariances_of_inducing_patches(case):
    if not case.image_shape:
        pytest.skip("inducing points")
    k, Z = kernel(case.values, case.image_shape, case.patch_shape), InducingPatches(case.given["Z"])
    close(Kuu(Z, k), case.wanted["Kzz"])
    close(Kuf(Z, k, case.inputs("X")), case.wanted["Kzx"])
    close(k.diag(case.inputs("X")), case.wanted["Kdiag"])
