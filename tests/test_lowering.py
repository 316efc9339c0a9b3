"""Programs of the zoo, lowered for GPUs and TPUs on a CPU: nothing goes to the host, nothing is too large."""

import inspect
import math
import re
from functools import partial

import jax
import jaxtyping
import numpy as np
import pytest
from numpyro.infer import SVI

from gpzoo import models, unique_patches
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained
from gpzoo.inference.fitted import export
from gpzoo.inference.fitted.map_batches import BoundModel
from gpzoo.models import convolutional_gp
from tests.programs import KEY, adam
from tests.zoo import OTHERS, PROGRAMS

pytestmark = pytest.mark.usefixtures("standard_promotion")

ACCELERATORS = ("cuda", "tpu")
#: Calls into libraries that stand in a program lowered for a GPU or TPU: no others are known there.
KNOWN = re.compile(r"cu[a-z]+_\w+|Eigh|Qr|ProductOfElementaryHouseholderReflectors|Sharding|annotate_device_placement")


#: Programs with products that are not ours: those of networks, of linear means, and of funsor.
OWN_PRODUCTS = ("invariant", "deep", "deep kernel", "deep with a latent of each row", "mixture")


def text_of(traced):
    """A program for both at once: choices between them stand in it side by side."""
    return traced.lower(lowering_platforms=ACCELERATORS).as_text()


def foreign(text):
    """Names of the calls out of a program that an accelerator does not know."""
    return {name for name in re.findall(r"custom_call @([\w.$]+)", text) if not KNOWN.fullmatch(name)}


def rounded(text):
    """Products of floating numbers whose factors an accelerator may round to ten bits."""
    products = (line.strip() for line in text.splitlines() if re.search(r"dot_general.*xf\d\d", line))
    return {product for product in products if "precision = [HIGHEST, HIGHEST]" not in product}


def largest(text):
    """The number of entries of the largest array of a program."""
    shapes = {found for found in re.findall(r"tensor<((?:\d+x)+)", text)}
    return max(math.prod(int(n) for n in shape.split("x")[:-1]) for shape in shapes)


def turns(program):
    """The numbers of turns of a traced program's loops."""
    holds = lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")  # noqa: E731
    for equation in getattr(program, "jaxpr", program).eqns:
        yield from [equation.params["length"]] if equation.primitive.name == "scan" else []
        for inner in filter(holds, jax.tree.leaves(equation.params, is_leaf=holds)):
            yield from turns(inner)


class Lowered:
    """Texts of programs by name, while none is compiled or run."""

    def __init__(self, monkeypatch):
        self.texts = {}
        monkeypatch.setattr("gpzoo._platform._on_cpu", lambda: False)
        monkeypatch.setattr(export, "container", lambda *groups: None)
        compiled_for = BoundModel.compiled_for
        monkeypatch.setattr(
            BoundModel, "compiled_for", lambda model, fn: partial(self.ones, fn.name, compiled_for(model, fn))
        )

    def ones(self, name, compiled, draws, batch):
        """In place of a program's call: arrays of ones in the shapes of its result."""
        traced = compiled.trace(draws, batch)
        self.texts[name] = text_of(traced)
        return jax.tree.map(lambda x: np.ones(x.shape, x.dtype), traced.out_info)

    def all_of(self, program, X, y, inducing, options=None, start=None):
        """A training step, a prediction and an export; parameters start with the first rows."""
        guide = InducingGuide(program, inducing, **(options or {}))
        params = guide.init_params(KEY, X[:start], y[:start])
        svi = SVI(program, guide, adam(1e-3), GaussianProcessELBO())
        state = jax.eval_shape(lambda params, X, y: svi.init(KEY, X, y, init_params=params), params, X, y)
        step = jax.jit(svi.update).trace(state, X, y)
        self.texts["step"], self.turns = text_of(step), max(turns(step.jaxpr), default=0)
        trained = Trained(program, guide, params)
        trained.predict(KEY, X, test_data={"y": y}, num_draws=2)
        trained.to_arviz(KEY, X, y, num_draws=2)
        assert self.texts.keys() == {"step", "predict", "export", "prior"}


@pytest.fixture
def lowered(monkeypatch):
    # Other tests check shapes, which takes time in every trace.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    return Lowered(monkeypatch)


def test_the_table_has_every_program():
    tables = [make()[0] for make in (PROGRAMS | OTHERS).values()]
    found = {getattr(program, "func", program).__name__ for program in tables}
    functions = {name: value for name, value in vars(models).items() if inspect.isfunction(value)}
    programs = {name for name, f in functions.items() if list(inspect.signature(f).parameters)[1:2] == ["y"]}
    # The network alone has no latent site, and no guide.
    assert programs - {"network_classifier"} == found


def test_calls_of_the_host_are_seen():
    def talkative(x):
        jax.debug.callback(lambda x: None, x)
        return x

    x = np.eye(3)
    # JAX 0.10 lowers no callback for a device that is not there.
    with pytest.raises((TypeError, ValueError)):
        text_of(jax.jit(talkative).trace(x))
    own = jax.jit(jax.numpy.linalg.cholesky).trace(x)
    assert not foreign(text_of(own)) and foreign(own.lower(lowering_platforms=("cpu",)).as_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PROGRAMS | OTHERS if name != "not whitened"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_program_leaves_the_device(name, lowered):
    program, X, *others = (PROGRAMS | OTHERS)[name]()
    lowered.all_of(program, X, *others)
    assert {at: found for at, text in lowered.texts.items() if (found := foreign(text))} == {}
    if name not in OWN_PRODUCTS:
        assert all("dot_general" in text for text in lowered.texts.values())
        assert {at: found for at, text in lowered.texts.items() if (found := rounded(text))} == {}
    # A loop over rows, one at a time, leaves it idle: of 1,200 rows a step took 0.2 s, where others take a millisecond.
    assert lowered.turns < len(X)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_covariances_of_patches_are_never_held_for_a_whole_minibatch(lowered):
    """Of 200 digits, each with 24 x 24 patches, as the papers have them."""
    batch, patches = 200, 24**2
    rng = np.random.default_rng(0)
    X, y = rng.uniform(size=(batch, 28, 28, 1)).astype(np.float32), np.arange(batch) % 2
    lowered.all_of(partial(convolutional_gp, patch_shape=(5, 5)), X, y, unique_patches(6), start=4)
    assert {at: size for at, text in lowered.texts.items() if (size := largest(text)) >= batch * patches**2} == {}
