"""Sparse and convolutional GPs against numbers from their authors' and peers' own code, through guide and objective."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest

from gpzoo.distributions import GaussianProcess
from gpzoo.inducing import InducingPatches, InducingPoints, Kuf, Kuu
from gpzoo.inference import GaussianProcessELBO, InducingGuide, predict
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
        self.values = {
            k: self.given[k].reshape(()) if k != "W" and self.given[k].size == 1 else self.given[k]
            for k in names
            if k in self.given
        }
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


@pytest.fixture(params=CASES, scope="module")
def arrays(request, golden):
    return golden(request.param)


@pytest.fixture(scope="module")
def case(arrays):
    return Case(*arrays, np.float64)


def close(ours, theirs, tolerance=1e-8):
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs)
    np.testing.assert_allclose(ours.reshape(theirs.shape), theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


def terms_of(case, params):
    loss = GaussianProcessELBO(sum_sites=False)
    return loss.loss(jax.random.key(0), params, case.program, case.guide, case.inputs("X"), case.labels("Y"))


def evaluate(case):
    """Everything a case has numbers for, in one compiled program."""

    @jax.jit
    def run(params):
        terms = terms_of(case, params)
        gradients = jax.grad(lambda p: sum(terms_of(case, p).values()))(params)
        found = {}
        for suffix in ("", "_test"):
            X, y = case.inputs("X" + suffix), case.labels("Y" + suffix)
            posterior = case.guide.posterior(params, X, y, rng_key=jax.random.key(0))["f"]
            found[f"fmean{suffix}"], found[f"fvar{suffix}"] = posterior.marginals()
        found["fcov_test"] = posterior.moments()[1]
        return terms, gradients, found

    return run(case.params)


@pytest.fixture(scope="module")
def numbers(case):
    return evaluate(case)


def test_bound_kl_and_expectations(case, numbers):
    terms, _, _ = numbers
    close(-(terms["f"] + terms["y"]), case.wanted["elbo"])
    close(terms["f"], case.wanted["KL"])
    close(-terms["y"], case.num_data / len(case.given["X"]) * case.wanted["var_exp"].sum())


def test_gradients(case, numbers):
    names = {"f_inducing": "Z", "f_mean": "q_mu", "f_scale": "q_sqrt"}
    compared = 0
    for name, gradient in numbers[1].items():
        wanted = case.wanted.get(f"grad_{names.get(name, name)}")
        if wanted is not None:
            triangular = name == "f_scale" and not case.diagonal
            close(-gradient, np.tril(wanted) if triangular else wanted, 1e-6)
            compared += 1
    assert compared >= 5


def test_marginals_and_joint_covariance(case, numbers):
    _, _, found = numbers
    for name, ours in found.items():
        if name not in case.wanted:
            continue
        wanted = case.wanted[name]
        if name == "fcov_test" and case.image_shape:
            wanted = np.moveaxis(wanted, -1, 0)
        close(ours, wanted)


def test_float32(arrays):
    case = Case(*arrays, np.float32)
    terms, _, found = evaluate(case)
    close(-(terms["f"] + terms["y"]), case.wanted["elbo"], 1e-4)
    for name in ("fmean", "fvar", "fmean_test", "fvar_test"):
        assert found[name].dtype == np.float32
        close(found[name], case.wanted[name], 1e-4)


def test_predictions_in_batches(case):
    guide = case.guide
    guide.setup(case.inputs("X"), case.labels("Y"))
    prediction = predict(
        jax.random.key(0),
        case.program,
        case.inputs("X_test"),
        guide=guide,
        params=case.params,
        test_data={"y": case.labels("Y_test")},
        batch_size=2,
    )["y"]
    wanted = case.wanted["log_density_test"]
    close(prediction.log_density, wanted.sum(-1) if wanted.ndim == 2 else wanted)
    close(prediction.probs if prediction.mean is None else prediction.mean, case.wanted["ymean_test"])


def test_covariances_of_inducing_patches(case):
    if not case.image_shape:
        pytest.skip("inducing points")
    k, Z = kernel(case.values, case.image_shape, case.patch_shape), InducingPatches(case.given["Z"])
    close(Kuu(Z, k), case.wanted["Kzz"])
    close(Kuf(Z, k, case.inputs("X")), case.wanted["Kzx"])
    close(k.diag(case.inputs("X")), case.wanted["Kdiag"])
