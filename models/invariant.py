"""Gaussian processes with learned invariances (van der Wilk, Bauer, John, Hensman 2018).

``f`` is the mean of a GP ``g`` over views of the input, which are transformed images. The distribution of views is
trained together with the other parameters, by the same bound. Every program has the argument ``view``: an orbit (a
fixed set of transformations), a sampled view (random transformations), or ``None`` for no invariance. The argument may
also be a function of ``X`` that returns a view with trained parameters: :func:`rotation`, :func:`affine` and
:func:`deformation` make such functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpyro
from jax import Array, random
from numpyro.distributions import Distribution

from gpzoo import _checks as checks
from gpzoo._types import ArrayLike
from gpzoo.kernels import RBF, Convolutional, Flattened, Invariant, Kernel
from gpzoo.likelihoods import PolyaGamma, StickBreaking
from gpzoo.models.modules import Network
from gpzoo.models.parameters import gaussian, positive, precision, rbf
from gpzoo.models.recognition import recognition
from gpzoo.processes.marginals import draws
from gpzoo.processes.process import GaussianProcess
from gpzoo.views.base import SampledView, View
from gpzoo.views.patches import Patches

#: A view, or a function that makes one from the inputs.
ViewOf: TypeAlias = View | SampledView | Callable[[Array], View | SampledView]


def invariant_gp(
    X: Array,
    y: Array | None = None,
    *,
    view: ViewOf | None,
    num_outputs: int | None = None,
    variance: float = 1.0,
    lengthscale: float = 1.0,
    noise_variance: ArrayLike = 0.1,
    shared_noise: bool = False,
    jitter: float | None = None,
    num_data: int | None = None,
) -> None:
    """Invariant GP regression: ``f(x) = mean of g(x_a) over p(x_a | x)``, with learned views ``x_a`` of the input.

    A view ``x_a`` is a transformed copy of the input, such as a rotated image. ``g ~ GP(0, RBF)`` and
    ``y ~ N(f(x), noise_variance)``. See van der Wilk, Bauer, John and Hensman 2018, *Learning invariances using the
    marginal likelihood*, eq. 8, 9 and 15. With one-hot ``y``, one output per class and ``shared_noise``, this is the
    paper's classifier for several classes. Inducing variables are views:
    ``InducingGuide(partial(invariant_gp, view=rotation()), unique_patches(750))``. Without a view, they are inputs:
    ``random_subset(750)``.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from gpzoo import unique_patches
        >>> from gpzoo.inference import InducingGuide
        >>> from gpzoo.models import invariant_gp, rotation
        >>> images = np.random.default_rng(0).uniform(size=(10, 6, 6, 1)).astype(np.float32)
        >>> guide = InducingGuide(partial(invariant_gp, view=rotation(30.0)), unique_patches(5))
        >>> float(guide.init_params(jax.random.key(0), images, np.zeros(10, np.float32))["angle"].round(2))
        30.0

    Args:
        X: inputs ``[N, ...]``.
        y: targets ``[N]``, or ``[N, K]`` with ``num_outputs=K``.
        view: the view, or a function that makes it from the inputs; ``None`` for a GP without invariance.
        num_outputs: number of functions, all with the same kernel.
        variance: initial variance of ``g``.
        lengthscale: initial lengthscale of ``g``, in units of pixel values.
        noise_variance: initial noise variance: one number, or one for each column of ``y``.
        shared_noise: whether all columns share one noise variance, see :func:`~gpzoo.models.gaussian`.
        jitter: absolute jitter on covariance diagonals; ``None`` for the relative default.
        num_data: number of rows of the whole data, if ``X`` is a minibatch.
    """
    f = numpyro.sample(
        "f", GaussianProcess(_kernel("f", X, view, variance, lengthscale), X, num_outputs=num_outputs, jitter=jitter)
    )
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", gaussian(f, noise_variance, shared_noise=shared_noise), obs=y)


def invariant_classifier(
    X: Array,
    y: Array | None = None,
    *,
    view: ViewOf | None,
    num_classes: int = 2,
    variance: float = 1.0,
    lengthscale: float = 1.0,
    likelihood: Callable[[Any], Distribution] | None = None,
    jitter: float | None = None,
    num_data: int | None = None,
) -> None:
    """Invariant GP classification: the ``f`` of :func:`invariant_gp` with a logistic likelihood.

    See van der Wilk, Bauer, John and Hensman 2018, *Learning invariances using the marginal likelihood*, section 4.5.
    The likelihood has the Pólya-Gamma bound: each label has an auxiliary variable ``omega``, with the approximate
    posterior ``q(omega) = PG(1, c)``, a Pólya-Gamma distribution. If views are sampled, the network
    :func:`recognition` computes ``c``. If the moments of ``f`` are exact, ``c`` has its optimal value. The paper has
    two classes. With more classes, this program uses stick breaking, as the paper suggests.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from gpzoo import Orbit, unique_patches
        >>> from gpzoo.inference import InducingGuide
        >>> from gpzoo.models import invariant_classifier
        >>> images = np.random.default_rng(0).uniform(size=(10, 6, 6, 1)).astype(np.float32)
        >>> program = partial(invariant_classifier, view=Orbit.of_images((6, 6), flips=True), num_classes=3)
        >>> guide = InducingGuide(program, unique_patches(5))
        >>> guide.init_params(jax.random.key(0), images, np.arange(10) % 3)["f_mean"].shape
        (5, 2)

    Args:
        X: inputs ``[N, ...]``.
        y: labels ``0 .. num_classes - 1``, ``[N]``.
        view: the view, or a function that makes it from the inputs; ``None`` for a GP without invariance.
        num_classes: number of classes ``K``, with ``K - 1`` functions.
        variance: initial variance of ``g``.
        lengthscale: initial lengthscale of ``g``, in units of pixel values.
        likelihood: distribution of ``y`` given ``f`` that replaces the logistic likelihood. For more than two classes,
            ``f`` is then ``[N, K]``. If views are sampled, the likelihood must accept estimated moments
            (:class:`~gpzoo.EstimatedMarginals`).
        jitter: absolute jitter on covariance diagonals; ``None`` for the relative default.
        num_data: number of rows of the whole data, if ``X`` is a minibatch.

    Raises:
        ValueError: for fewer than two classes.
    """
    checks.must(num_classes >= 2, "num_classes", "be 2 or more", str(num_classes))
    outputs = None if num_classes == 2 else num_classes - (likelihood is None)
    prior = GaussianProcess(_kernel("f", X, view, variance, lengthscale), X, num_outputs=outputs, jitter=jitter)
    f = numpyro.sample("f", prior)
    if likelihood is None:
        c = recognition("recognition", X, y, num_classes) if prior.samples_views and y is not None else None
        likelihood = partial(PolyaGamma if outputs is None else StickBreaking, c=c)
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", likelihood(f), obs=y)


def invariant_convolutional_gp(
    X: Array,
    y: Array | None = None,
    *,
    view: ViewOf | None,
    patch_shape: tuple[int, int],
    num_outputs: int | None = None,
    variance: float = 1.0,
    lengthscale: float = 1.0,
    noise_variance: ArrayLike = 0.1,
    shared_noise: bool = False,
    jitter: float | None = None,
    num_data: int | None = None,
) -> None:
    """A weighted convolutional GP with learned invariances: its function is averaged over transformed images.

    ``f(x)`` is the mean of ``(1 / P) sum_p w_p g(T_p x_a)`` over views ``x_a``, which are transformed copies of the
    image ``x``. ``T_p`` extracts patch ``p`` of ``P`` patches. The program combines :func:`convolutional_gp` and
    :func:`invariant_gp`. Inducing variables are patches: ``unique_patches(100)``. With a sampled view, each input needs
    the convolutional kernel between ``num_views ** 2`` pairs of views, so use few views and small minibatches.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from gpzoo import Orbit, unique_patches
        >>> from gpzoo.inference import InducingGuide
        >>> from gpzoo.models import invariant_convolutional_gp
        >>> images = np.random.default_rng(0).uniform(size=(10, 6, 6, 1)).astype(np.float32)
        >>> program = partial(invariant_convolutional_gp, view=Orbit.of_images((6, 6), flips=True), patch_shape=(3, 3))
        >>> guide = InducingGuide(program, unique_patches(5))
        >>> params = guide.init_params(jax.random.key(0), images, np.zeros(10, np.float32))
        >>> params["f_inducing"].shape
        (5, 9)

    Args:
        X: images ``[N, H, W, C]``.
        y: targets ``[N]``, or ``[N, K]`` with ``num_outputs=K``.
        view: the view, or a function that makes it from the inputs; ``None`` for the convolution alone.
        patch_shape: height and width of a patch, in pixels.
        num_outputs: number of functions, all with the same kernel.
        variance: initial variance of the patch response.
        lengthscale: initial lengthscale of the patch response, in units of pixel values.
        noise_variance: initial noise variance: one number, or one for each column of ``y``.
        shared_noise: whether all columns share one noise variance, see :func:`~gpzoo.models.gaussian`.
        jitter: absolute jitter on covariance diagonals; ``None`` for the relative default.
        num_data: number of rows of the whole data, if ``X`` is a minibatch.
    """
    shape = X.shape[1:]
    weights = numpyro.param("weights", jnp.ones(Patches(shape, patch_shape).num_views, precision(X)))
    response = RBF(positive("variance", variance, X), positive("lengthscale", lengthscale, X))
    convolution = Convolutional(response, shape, patch_shape, weights, mean=True)
    kernel = convolution if view is None else Invariant(convolution, _view(view, X))
    f = numpyro.sample("f", GaussianProcess(kernel, X, num_outputs=num_outputs, jitter=jitter))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", gaussian(f, noise_variance, shared_noise=shared_noise), obs=y)


def invariant_deep_gp(
    X: Array,
    y: Array | None = None,
    *,
    view: ViewOf | None,
    width: int,
    likelihood: Callable[[Any], Any] = gaussian,
    num_outputs: int | None = None,
    variance: float = 1.0,
    lengthscale: float = 1.0,
    jitter: float | None = None,
    num_data: int | None = None,
) -> None:
    """A deep GP on invariant features: ``f = GP(h)``, where ``h`` is an invariant GP with ``width`` outputs.

    ``h`` is the ``f`` of :func:`invariant_gp`. The input of the last layer is a draw of ``h``, so the view must be an
    :class:`~gpzoo.Orbit`. A sampled view raises an error, because gpzoo cannot draw ``h`` from estimated moments.
    Training starts with ``h = 0`` at all inputs, so an initialiser such as k-means cannot find inducing points for
    ``f``. Give ``f`` your own ``InducingPoints``, as in
    ``InducingGuide(program, {"features": unique_patches(100), "f": InducingPoints(Z)})``.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from gpzoo import InducingPoints, Orbit, unique_patches
        >>> from gpzoo.inference import InducingGuide
        >>> from gpzoo.models import invariant_deep_gp
        >>> rng = np.random.default_rng(0)
        >>> images, points = (rng.uniform(size=shape).astype(np.float32) for shape in ((10, 6, 6, 1), (4, 2)))
        >>> program = partial(invariant_deep_gp, view=Orbit.of_images((6, 6), flips=True), width=2)
        >>> guide = InducingGuide(program, {"features": unique_patches(5), "f": InducingPoints(points)})
        >>> params = guide.init_params(jax.random.key(0), images, np.zeros(10, np.float32))
        >>> params["features_mean"].shape, params["f_mean"].shape
        ((5, 2), (4,))

    Args:
        X: inputs ``[N, ...]``.
        y: observations.
        view: an orbit, or a function that makes it from the inputs.
        width: number of functions of the first layer.
        likelihood: distribution of ``y`` given ``f``.
        num_outputs: number of functions of the last layer, if the likelihood needs ``[N, K]``.
        variance: initial variance of ``g``.
        lengthscale: initial lengthscale of ``g``, in units of pixel values.
        jitter: absolute jitter on covariance diagonals; ``None`` for the relative default.
        num_data: number of rows of the whole data, if ``X`` is a minibatch.
    """
    prior = GaussianProcess(_kernel("features", X, view, variance, lengthscale), X, num_outputs=width, jitter=jitter)
    h = draws(numpyro.sample("features", prior))
    f = numpyro.sample("f", GaussianProcess(rbf("f", h), h, num_outputs=num_outputs, jitter=jitter))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", likelihood(f), obs=y)


def averaged(network: Network, view: ViewOf) -> Network:
    """The features of a network, averaged over views of its input: ``mean of h(x_a) over p(x_a | x)``.

    A GP on these features has the same invariance as the features (Schwöbel et al. 2022, *Last layer marginal
    likelihood for invariance learning*): ``deep_kernel_gp(X, y, network=averaged(network, affine()))``. The parameters
    of the view are trained with the network, and set the degree of invariance. In training, every input has new views.
    Otherwise all inputs have the same views, so that predictions do not change from call to call.

    Example:
        >>> import numpy as np
        >>> from numpyro import handlers
        >>> from gpzoo.models import averaged, rotation
        >>> def network(images, training):
        ...     return images[:, 0, :, 0]  # the first row of pixels
        >>> images = np.ones((5, 8, 8, 1), np.float32)
        >>> with handlers.seed(rng_seed=0), handlers.trace() as sites:
        ...     features = averaged(network, rotation(30.0, num_views=4))(images, True)
        >>> features.shape, list(sites)
        ((5, 8), ['angle'])

    Args:
        network: network of the inputs, see :func:`~gpzoo.models.network_of`. It receives all views of a batch together,
            as rows. Outside training, each input has 64 views by default. With ``affine(num_views=4, num_fixed=8)``,
            each input has 8 views, which need an eighth of the memory.
        view: the view, or a function that makes it from the inputs, as for :func:`invariant_gp`.

    Raises:
        TypeError: when the network is called, if ``view`` is not a view.
        ValueError: when the network is called, if the views do not have the shape of inputs.
    """

    def of_views(X: Array, training: bool) -> Array:
        made = _view(view, X)
        if not isinstance(made, SampledView):
            views = made.view(X)
        elif training:
            views = made.sample(numpyro.prng_key(), X)
        else:
            views = made.fixed(random.key(0)).view(X)
        size = math.prod(X.shape[1:])
        checks.must(views.shape[2] == size, "Views", f"have the {size} numbers of an input", str(views.shape[2]))
        h = network(views.reshape(-1, *X.shape[1:]), training)
        return jnp.mean(h.reshape(*views.shape[:2], -1), axis=1)

    return of_views


def _view(view: ViewOf, X: Array) -> View | SampledView:
    made: Any = view(X) if callable(view) else view
    return checks.instance("view", made, View | SampledView, "a view, or a function of X that returns one")


def _kernel(name: str, X: Array, view: ViewOf | None, variance: float, lengthscale: float) -> Kernel:
    base = rbf(name, X, variance=variance, lengthscale=lengthscale, ard=False)
    if view is not None:
        return Invariant(base, _view(view, X))
    return Flattened(base) if X.ndim > 2 else base
