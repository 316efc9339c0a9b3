"""Sparse and convolutional GPs against numbers from their authors' and peers' own code, through guide and objective."""

from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest

from gpzoo.inducing.kuu_kuf import Kuf, Kuu
from gpzoo.inducing.variables import InducingBlocks, InducingPatches, InducingPoints
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained
from gpzoo.kernels import RBF, Convolutional, Flattened, White
from gpzoo.likelihoods import Bernoulli, Gaussian, RobustMax
from gpzoo.processes.process import GaussianProcess

CASES = [
    "svgp_01_ard_whitened_gaussian",
    "svgp_03_bernoulli_qdiag",
    "convgp_01_ti_rect_bernoulli",
    "convgp_03_weighted_digits_robustmax",
    "convgp_05_weighted_unwhitened_gaussian",
    "convgp_06_colour_perchannel_weighted",
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
        self.image_shape = None
        if "image_shape" in self.given:
            height, width = (int(i) for i in self.given["image_shape"])
            self.image_shape = (height, width, self.given["X"].shape[1] // (height * width))
        self.patch_shape = tuple(int(i) for i in self.given["patch_shape"]) if self.image_shape else None
        self.outputs = self.given["q_mu"].shape[1]
        self.num_data = int(np.asarray(self.given["num_data"]).ravel()[0])
        self.jitter = float(np.asarray(self.given["jitter"]).ravel()[0])
        self.diagonal = meta.get("q_diag", False)

    def inputs(self, name):
        X = self.given[name]
        return X.reshape(len(X), *self.image_shape) if self.image_shape else X

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

    @cached_property
    def guide(self):
        variable = InducingPatches if self.image_shape else InducingPoints
        return InducingGuide(
            self.program,
            variable(self.given["Z"]),
            whiten=self.meta["whiten"],
            covariance="diagonal" if self.diagonal else "full",
        )


#: The case of the slow tests alone.
SLOW = "convgp_05_weighted_unwhitened_gaussian"


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.slow] * (name == SLOW)) for name in CASES], scope="module"
)
def arrays(request, golden):
    return golden(request.param)


@pytest.fixture(scope="module")
def case(arrays):
    return Case(*arrays, np.float64)


def close(ours, theirs, tolerance=1e-8):
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs)
    np.testing.assert_allclose(ours.reshape(theirs.shape), theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


def with_gradients(terms_of, params, wanted):
    """Terms of a bound, and the gradients of their sum where they are wanted."""
    if not wanted:
        return terms_of(params), None

    def bound(params):
        terms = terms_of(params)
        return sum(terms.values()), terms

    (_, terms), gradients = jax.value_and_grad(bound, has_aux=True)(params)
    return terms, gradients


def terms_of(case, params):
    loss = GaussianProcessELBO(sum_sites=False)
    return loss.loss(jax.random.key(0), params, case.program, case.guide, case.inputs("X"), case.labels("Y"))


def evaluate(case):
    """Everything a case has numbers for, in one compiled program; gradients in float64, where they are compared."""

    @jax.jit
    def run(params):
        terms, gradients = with_gradients(partial(terms_of, case), params, case.dtype == np.float64)
        found = {}
        # At the training inputs and the test inputs together: moments at some do not depend on the others.
        X, y = (
            jnp.concatenate([of(name), of(f"{name}_test")]) for of, name in ((case.inputs, "X"), (case.labels, "Y"))
        )
        posterior = Trained(case.guide.model, case.guide, params).posterior(jax.random.key(0), X, y)["f"]
        N = len(case.given["X"])
        for name, values in zip(("fmean", "fvar"), posterior.marginals(), strict=True):
            found[name], found[f"{name}_test"] = values[:N], values[N:]
        found["fcov_test"] = posterior.moments()[1][..., N:, N:]
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


@pytest.mark.parametrize("name", [CASES[1], CASES[4], CASES[6]])
def test_float32(name, golden):
    case = Case(*golden(name), np.float32)
    terms, _, found = evaluate(case)
    close(-(terms["f"] + terms["y"]), case.wanted["elbo"], 1e-4)
    for name in ("fmean", "fvar", "fmean_test", "fvar_test"):
        assert found[name].dtype == np.float32
        close(found[name], case.wanted[name], 1e-4)


def test_predictions_in_batches(case):
    guide = case.guide
    guide.setup(case.inputs("X"), case.labels("Y"))
    prediction = Trained(case.program, guide, case.params).predict(
        jax.random.key(0), case.inputs("X_test"), test_data={"y": case.labels("Y_test")}, batch_size=2
    )["y"]
    wanted = case.wanted["log_density_test"]
    close(prediction.log_density, wanted.sum(-1) if wanted.ndim == 2 else wanted)
    close(prediction.probs if prediction.mean is None else prediction.mean, case.wanted["ymean_test"])


def test_covariances_of_inducing_patches(case):
    if not case.image_shape:
        pytest.skip("inducing points")
    k, Z = kernel(case.values, case.image_shape, case.patch_shape), InducingPatches(case.given["Z"])
    covariances = jax.jit(lambda Z, k, X: (Kuu(Z, k), Kuf(Z, k, X), k.diag(X)))(Z, k, case.inputs("X"))
    for found, name in zip(covariances, ("Kzz", "Kzx", "Kdiag"), strict=True):
        close(found, case.wanted[name])


# -- a sum of two processes, each with inducing variables in its own space ---------------------------------------------


@pytest.fixture(scope="module")
def sum_case(golden):
    return golden("convgp_10_sum_meanfield")


class SumCase:
    """Convolution plus RBF of the flattened image, as one site with blocks."""

    def __init__(self, arrays, meta, dtype):
        self.given = {k[3:]: jnp.asarray(v, dtype if v.dtype.kind == "f" else None) for k, v in arrays.items()}
        self.wanted = {k[4:]: v for k, v in arrays.items() if k.startswith("out_")}
        self.meta = meta
        self.jitter, self.num_data = float(arrays["in_jitter"]), int(arrays["in_num_data"])
        q_mu, q_sqrt = (self.given[name] for name in ("q_mu", "q_sqrt"))
        self.kernel_names = ("conv_variance", "conv_lengthscales", "W", "rbf_variance", "rbf_lengthscales")
        self.kernel_names += ("white_variance",)
        self.params = {name: self.given[name] for name in self.kernel_names}
        self.params |= {
            "f_inducing": (self.given["Z_conv"], self.given["Z_rbf"].reshape(-1, 8, 8, 1)),
            "f_mean": jnp.concatenate([q_mu[:, 0::2], q_mu[:, 1::2]]),
            "f_scale": (q_sqrt[0::2], q_sqrt[1::2]),
        }
        start = InducingBlocks(
            InducingPatches(self.params["f_inducing"][0]), InducingPoints(self.params["f_inducing"][1])
        )
        self.guide = InducingGuide(self.program, start, covariance="block_diagonal")

    def data(self, suffix=""):
        return self.given[f"X{suffix}"].reshape(-1, 8, 8, 1), self.given[f"Y{suffix}"][:, 0].astype(int)

    def kernel(self, values):
        base = RBF(values["conv_variance"], values["conv_lengthscales"])
        whole = RBF(values["rbf_variance"], values["rbf_lengthscales"]) + White(values["white_variance"])
        return Convolutional(base, (8, 8), (3, 3), values["W"], mean=True) + Flattened(whole)

    def program(self, X, y=None):
        values = {name: numpyro.param(name, self.params[name]) for name in self.kernel_names}
        f = numpyro.sample("f", GaussianProcess(self.kernel(values), X, num_outputs=10, jitter=self.jitter))
        with numpyro.plate("data", max(self.num_data, len(X)), subsample_size=len(X)):
            numpyro.sample("y", RobustMax(f, squash=self.meta["robustmax_cdf_squash"]), obs=y)


@pytest.mark.slow_but(dtype=[np.float64])
@pytest.mark.parametrize("dtype, tolerance", [(np.float64, 1e-8), (np.float32, 1e-4)])
def test_sum_of_two_processes(sum_case, dtype, tolerance):
    case = SumCase(*sum_case, dtype)
    X, y = case.data()
    X_test, y_test = case.data("_test")
    loss = GaussianProcessELBO(sum_sites=False)

    @jax.jit
    def run(params):
        terms = lambda p: loss.loss(jax.random.key(0), p, case.program, case.guide, X, y)  # noqa: E731
        moments = [
            Trained(case.guide.model, case.guide, params).posterior(jax.random.key(0), *data)["f"].marginals()
            for data in ((X, y), (X_test, y_test))
        ]
        u = InducingBlocks(InducingPatches(params["f_inducing"][0]), InducingPoints(params["f_inducing"][1]))
        covariances = Kuu(u, case.kernel(params)), Kuf(u, case.kernel(params), X)
        return *with_gradients(terms, params, dtype == np.float64), moments, covariances

    terms, gradients, moments, (K, cross) = run(case.params)
    close(-(terms["f"] + terms["y"]), case.wanted["elbo"], tolerance)
    close(terms["f"], case.wanted["KL"], tolerance)
    for suffix, (mean, variance) in zip(("", "_test"), moments, strict=True):
        close(mean, case.wanted[f"fmean{suffix}"], tolerance)
        close(variance, case.wanted[f"fvar{suffix}"], tolerance)
    for i, name in enumerate(("conv", "rbf")):
        close(K.blocks[i], case.wanted[f"Kzz_{name}"], tolerance)
        close(cross[6 * i : 6 * i + 6], case.wanted[f"Kzx_{name}"], tolerance)
    if dtype == np.float64:
        wanted = {name: case.wanted[f"grad_{name}"] for name in case.kernel_names}
        for name, gradient in wanted.items():
            close(-gradients[name], gradient, 1e-6)
        close(-gradients["f_inducing"][0], case.wanted["grad_Z_conv"], 1e-6)
        close(-gradients["f_inducing"][1], case.wanted["grad_Z_rbf"], 1e-6)
        q_mu, q_sqrt = case.wanted["grad_q_mu"], case.wanted["grad_q_sqrt"]
        close(-gradients["f_mean"], np.concatenate([q_mu[:, 0::2], q_mu[:, 1::2]]), 1e-6)
        for i in range(2):
            close(-gradients["f_scale"][i], np.tril(q_sqrt[i::2]), 1e-6)
        found = Trained(case.program, case.guide, case.params).predict(
            jax.random.key(0), X_test, test_data={"y": y_test}
        )["y"]
        close(found.log_density, case.wanted["log_density_test"].sum(-1))
        close(found.probs, case.wanted["ymean_test"])
