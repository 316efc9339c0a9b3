"""A trained model in a file: the same bits in a fresh process without data, and only refusals from bad files."""

import copy
import hashlib
import io
import json
import os
import pickle
import re
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from flax import linen as nn
from jax import random
from numpyro.contrib.module import flax_module
from numpyro.infer import SVI, init_to_value

import gpzoo
from gpzoo import (
    CheckpointError,
    GaussianProcess,
    InducingGrid,
    InducingPatches,
    InducingPoints,
    blocks,
    kmeans,
    unique_patches,
)
from gpzoo.inducing.variables import InducingBlocks
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, fit, load, marginal
from gpzoo.inference.fitted.saved import _decoded, _encoded
from gpzoo.kernels import RBF, Matern52, Periodic
from gpzoo.likelihoods import Expected, Gaussian
from gpzoo.models import (
    deep_gp,
    deep_kernel_gp,
    gp_regression,
    inner_scales,
    invariant_convolutional_gp,
    network_of,
    rotation,
)
from gpzoo.tables.arrays import ArrayTable
from tests.conftest import ROOT

KEY = random.key(0)
RNG = np.random.default_rng(0)
X = RNG.standard_normal((30, 2)).astype(np.float32)
IMAGES = RNG.uniform(size=(12, 5, 5, 1)).astype(np.float32)
NEW, NEW_IMAGES = X[:7] + np.float32(0.1), IMAGES[:3] * np.float32(0.9)
LAYERS = {"layers": (np.eye(2, 1, dtype=np.float32),)}


def network():
    """With batch normalisation, so that there is mutable state."""
    from flax import linen

    class Normalised(linen.Module):
        @linen.compact
        def __call__(self, x, training):
            return linen.BatchNorm(use_running_average=not training)(linen.Dense(2)(x))

    return network_of(Normalised())


def cases():
    """The program, its guide, data, its arguments in training, new inputs, its arguments there; by name."""
    y, labels = X[:, 0] ** 2, (X[:, 0] > 0).astype(np.int32)
    turned = partial(invariant_convolutional_gp, view=rotation(20.0, num_views=2, num_fixed=3), patch_shape=(3, 3))
    deep_kernel = partial(deep_kernel_gp, network=network())
    return {
        "sparse": (gp_regression, InducingGuide(gp_regression, kmeans(5)), (X, y), {}, NEW, {}),
        "deep": (
            deep_gp,
            InducingGuide(deep_gp, kmeans(5), initial_scale=inner_scales([1])),
            (X, y),
            LAYERS,
            NEW,
            LAYERS,
        ),
        "invariant": (turned, InducingGuide(turned, unique_patches(5)), (IMAGES, y[:12]), {}, NEW_IMAGES, {}),
        "deep kernel": (
            deep_kernel,
            InducingGuide(deep_kernel, InducingGrid(8)),
            (X, labels),
            {"training": True},
            NEW,
            {},
        ),
    }


def predicted(trained, new, model_kwargs):
    found = trained.predict(KEY, new, num_draws=3, keep_draws=True, model_kwargs=model_kwargs)
    return {f"{site} {k}": x for site, parts in found.items() for k, x in parts._asdict().items() if x is not None}


class Models(dict):
    """A training of three steps, and the others as they start; each is made when it is first asked for."""

    def __missing__(self, name):
        program, guide, data, model_kwargs, *_ = cases()[name]
        with jax.numpy_dtype_promotion("standard"):
            if name == "sparse":
                svi = SVI(program, guide, optax.adam(0.02), GaussianProcessELBO())
                self[name] = fit(KEY, svi, 3, *data, progress=False)
            else:
                self[name] = Trained(program, guide, guide.init_params(KEY, *data, model_kwargs=model_kwargs))
        return self[name]


@pytest.fixture(scope="module")
def trained():
    return Models()


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
import jax, numpy, tests.conftest
# What is compiled here is not compiled again.
jax.config.update("jax_compilation_cache_dir", {cache!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
from pathlib import Path
from tests.inference.test_saved import cases, load, predicted
folder = Path({folder!r})
with jax.numpy_dtype_promotion("standard"):
    for name, (program, _, _, _, new, model_kwargs) in cases().items():
        numpy.savez(folder / f"{{name}}.npz", **predicted(load(folder / name, program), new, model_kwargs))
"""


@pytest.mark.slow
def test_a_fresh_process_predicts_the_same_bits_without_data(trained, tmp_path):
    ours = {}
    with jax.numpy_dtype_promotion("standard"):
        for name, (*_, new, model_kwargs) in cases().items():
            trained[name].save(tmp_path / name)
            ours[name] = predicted(trained[name], new, model_kwargs)
    cache = jax.config.jax_compilation_cache_dir
    script = SCRIPT.format(root=str(ROOT), folder=str(tmp_path), cache=cache)
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=500)
    for name, expected in ours.items():
        with np.load(tmp_path / f"{name}.npz") as theirs:
            assert set(theirs) == set(expected)
            for field, values in expected.items():
                np.testing.assert_array_equal(theirs[field], values, err_msg=f"{name}: {field}")


def through_joblib(trained):
    joblib = pytest.importorskip("joblib")
    joblib.dump(trained, file := io.BytesIO())
    file.seek(0)
    return joblib.load(file)


COPIES = {"pickle": lambda x: pickle.loads(pickle.dumps(x)), "joblib": through_joblib, "deep": copy.deepcopy}
QUESTIONS = {
    "predict": lambda trained: trained.predict(KEY, NEW, num_draws=2),
    "functions": lambda trained: trained.functions(KEY, NEW, num_draws=2, num_features=8),
    "to_arviz": lambda trained: trained.to_arviz(KEY, X, X[:, 0] ** 2, num_draws=2),
    "posterior": lambda trained: trained.posterior(KEY, NEW),
}


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("way", COPIES)
def test_a_model_that_was_asked_can_be_copied(way, question, trained, standard_promotion):
    model = trained["sparse"]
    QUESTIONS[question](model)
    copied = COPIES[way](model)
    for field, values in predicted(model, NEW, {}).items():
        np.testing.assert_array_equal(predicted(copied, NEW, {})[field], values, err_msg=field)


def assert_same(one, other):
    assert jax.tree.structure(one.params) == jax.tree.structure(other.params)
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(one.losses, other.losses)


@pytest.fixture(scope="module")
def saved(trained, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model.gpzoo"
    trained["sparse"].save(path)
    return path


def test_everything_but_the_state_comes_back(trained, saved):
    before, after = trained["sparse"], load(saved, gp_regression)
    assert_same(before, after)
    assert after.state is None and after.model is gp_regression and after.guide.sites == before.guide.sites
    assert (after.seconds, after.expectations, after.data) == (before.seconds, before.expectations, before.data)
    assert after.data["argument X"] == "float32[30, 2]" and len(after.data["argument X sha256"]) == 16
    assert repr(after.guide.inducing) == repr(kmeans(5)) and list(saved.parent.iterdir()) == [saved]
    assert b"pickle" not in saved.read_bytes() and b"__reduce__" not in saved.read_bytes()


@pytest.mark.slow
def test_what_a_table_held_and_several_trainings_come_back(trained, tmp_path, standard_promotion):
    program, guide, data, *_ = cases()["sparse"]
    svi = SVI(program, guide, optax.adam(0.02), GaussianProcessELBO())
    one = fit(KEY, svi, 0, ArrayTable(*data), batch_size=30, progress=False)
    one.save(tmp_path / "one")
    assert load(tmp_path / "one", program).data == one.data and "table rows" in str(one.data)
    both = fit(random.split(KEY, 2), svi, 1, *data, in_axes=None, progress=False)
    both.save(tmp_path / "both")
    assert_same(load(tmp_path / "both", program).member(1), both.member(1))


OPTIONS = {
    "points": InducingPoints(X[:3]),
    "patches": InducingPatches(X[:3]),
    "grid": InducingGrid((8, 9), ((0.0, 1.0), (-2.0, 2.0)), interpolation="linear"),
    "blocks": InducingBlocks(InducingPoints(X[:3]), InducingPatches(X[:2])),
    "start of blocks": blocks(unique_patches(3), InducingPoints(X[:4])),
    "by site": {"f": kmeans(3), "g": InducingGrid(8)},
    "containers": {"a": [1, (2.5, None)], "b": frozenset({"f"}), "c": float("inf"), 0: True},
    "key": random.key(3),
    "weak": jnp.asarray(2.0),
    "half": jnp.arange(3, dtype=jnp.bfloat16),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_comes_back(name):
    arrays = {}
    described = json.loads(json.dumps(_encoded("option", OPTIONS[name], arrays)))
    found = _decoded(described, arrays)
    parts = lambda x: (type(x), *x.parts) if isinstance(x, blocks) else x  # noqa: E731
    assert repr(parts(found)) == repr(parts(OPTIONS[name]))
    if name == "weak":
        assert found.weak_type and found.dtype == OPTIONS[name].dtype


class Mine(kmeans):
    """An initialiser of somebody's own."""


def test_a_guide_with_parts_of_ones_own_is_given_to_load(trained, tmp_path, standard_promotion):
    params = trained["sparse"].params
    for number, options in enumerate([{"inducing": Mine(5)}, {"inducing": kmeans(5), "init_loc_fn": init_to_value}]):
        guide = InducingGuide(gp_regression, **options)
        guide.setup(*cases()["sparse"][2])
        one = Trained(gp_regression, guide, params)
        one.save(tmp_path / "mine")
        what = ("inducing, of type Mine", "init_loc_fn, init_to_value")[number]
        with pytest.raises(ValueError, match=rf"which has guide {what}.*load\(path, program, guide="):
            load(tmp_path / "mine", gp_regression)
        again = load(tmp_path / "mine", gp_regression, guide=InducingGuide(gp_regression, **options))
        np.testing.assert_array_equal(again.predict(KEY, NEW)["f"].mean, one.predict(KEY, NEW)["f"].mean)
    module = Trained(gp_regression, guide, {"network": Mine(2)})
    with pytest.raises(TypeError, match=r"A file holds pytrees of arrays, not params\['network'\], of type Mine"):
        module.save(tmp_path / "mine")


def test_float64_is_not_cut_to_float32(trained, tmp_path):
    one = trained["sparse"]
    one.with_params({name: np.asarray(x, np.float64) for name, x in one.params.items()}).save(tmp_path / "long")
    with jax.enable_x64(False), pytest.raises(CheckpointError, match=r"float64; call numpyro.enable_x64\(\) first"):
        load(tmp_path / "long", gp_regression)


@pytest.mark.slow
def test_arrays_of_an_equinox_module_are_put_into_the_one_given(tmp_path, standard_promotion):
    equinox = pytest.importorskip("equinox")
    module, fresh, other = (
        equinox.nn.MLP(2, 2, width, 1, key=random.key(seed), dtype=jnp.float32) for seed, width in enumerate((4, 4, 5))
    )
    program = partial(deep_kernel_gp, network=network_of(module))
    guide = InducingGuide(program, InducingGrid(8))
    params = guide.init_params(KEY, X, (X[:, 0] > 0).astype(np.int32), model_kwargs={"training": True})
    one = Trained(program, guide, params)
    one.save(tmp_path / "one")
    with pytest.raises(ValueError, match=r"params=\{'network\$params': module\}"):
        load(tmp_path / "one", program)
    with pytest.raises(ValueError, match=r"layers\[0\].bias has shape \(5,\), in the file \(4,\)"):
        load(tmp_path / "one", program, params={"network$params": other})
    program = partial(deep_kernel_gp, network=network_of(fresh))
    again = load(tmp_path / "one", program, params={"network$params": fresh})
    jax.tree.map(np.testing.assert_array_equal, again.params, one.params)
    for name, x in predicted(one, NEW, {}).items():
        np.testing.assert_array_equal(predicted(again, NEW, {})[name], x)
    with pytest.raises(TypeError, match="pytrees of arrays"):
        one.with_params(dict(params) | {"network$params": print}).save(tmp_path / "bad")


# -- bad files ---------------------------------------------------------------------------------------------------------


def rehashed(content, change):
    """The file with a description that was changed, and the right hash of it."""
    _, line, rest = content.split(b"\n", 2)
    description = json.loads(line)
    changed = change(description)
    line = (changed if isinstance(changed, bytes) else json.dumps(description).encode()) + b"\n"
    return hashlib.sha256(line).hexdigest().encode() + b"\n" + line + rest


def put(*path):
    """A change of a description: the last of the path in the place that the others lead to."""
    *places, last, value = path

    def change(description):
        inner = description
        for place in places:
            inner = inner[place]
        inner[last] = copy.deepcopy(value)

    return change


DEEP = b'{"format": "gpzoo trained model", "params": ' + b'{"list": [' * 50_000 + b"]}" * 50_000 + b"}"
HOSTILE = [
    *(put("arrays", i, 2, shape) for i in (0, 3) for shape in ([2**60], [2**31, 2**31], [-1], [1.5], "x", [True], 7)),
    *(put("arrays", 1, 1, dtype) for dtype in ("O", "object", "i4,f4", "V999999999999", "", "S8", "(9999,)f4", None)),
    *(put("arrays", arrays) for arrays in ([], None, [[]], [["params"]], {"a": 1}, "arrays")),
    *(put("version", version) for version in (0, 2, "1", None, [])),
    *(put("written_by", by) for by in ({}, None, {"gpzoo": 3}, {"gpzoo": "x" * 1000}, ["gpzoo"])),
    *(put("guide", "inducing", "gpzoo", name) for name in ("__version__", "tables", "os.system", "GaussianProcess", 3)),
    *(put("guide", "inducing", "kwargs", kw) for kw in ({}, {"num_inducing": "many"}, {"num_inducing": -1}, {"x": 1})),
    *(put("guide", option, value) for option, value in (("rank", -1), ("whiten", "a"), ("covariance", "fulll"))),
    *(put("guide", "init_loc_fn", value) for value in ({"numpyro": "os"}, {"numpyro": "MCMC"}, {"call": "os"})),
    *(put("sites", value) for value in ({}, [], {"latents": ["f"]}, 3)),
    put("sites", "constraints", {"f": "os"}),
    *(put("params", value) for value in ({"array": "nothing"}, {"dict": [[1, 2, 3]]}, {"list": []}, None, [])),
    *(put(part, value) for part in ("seconds", "expectations", "data") for value in ([[]], "x", None)),
    put("format", "gpzoo"),
    lambda description: description.clear(),
    lambda description: b"[]",
    lambda description: b"nothing",
    lambda description: b'"\xff"',
    lambda description: DEEP,
]


def mutations(content):
    """200 files that are not what was saved."""
    rng = np.random.default_rng(1)
    for _ in range(60):
        place, bit = int(rng.integers(len(content))), 1 << int(rng.integers(8))
        yield content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]
    for _ in range(25):
        yield content[: int(rng.integers(len(content)))]
    for _ in range(25):
        a, b, c, d = sorted(rng.integers(len(content), size=4).tolist())
        yield content[:a] + content[c:d] + content[b:c] + content[a:b] + content[d:]
    yield from (b"", b"\n", b"\0" * 4096, content + b"\0", content + content, b"\x80\x04N.", b"PK\x03\x04" + content)
    changes = list(HOSTILE)
    while len(changes) < 83:
        changes.append(changes[len(changes) % 40])
    yield from (rehashed(content, change) for change in changes[:83])


def test_bad_files_are_refused_in_one_sentence(trained, saved, tmp_path):
    content, path = saved.read_bytes(), tmp_path / "bad"
    refused = same = 0
    for mutated in mutations(content):
        path.write_bytes(mutated)
        try:
            found = load(path, gp_regression)
        except CheckpointError as error:
            message = str(error)
            assert message.startswith(f"{path} cannot be loaded as a trained model: ") and message.endswith(".")
            assert "\n" not in message and len(message) < len(str(path)) + 400
            refused += 1
        else:
            assert_same(found, trained["sparse"])
            same += 1
    assert refused + same == len(list(mutations(content))) and refused > 180
    for nothing, words in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(CheckpointError, match=words):
            load(nothing, gp_regression)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="it is not a file"):
        load(tmp_path / "pipe", gp_regression)


def test_a_file_of_another_program_is_told_apart(tmp_path, standard_promotion):
    guide = InducingGuide(gp_regression, kmeans(4))
    Trained(gp_regression, guide, guide.init_params(KEY, X, X[:, 0])).save(tmp_path / "model")

    def with_slope(X, y=None):
        slope = numpyro.sample("slope", dist.Normal(0.0, 10.0))
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X, mean=slope * X[:, 0]))
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    with pytest.warns(UserWarning, match="of a program that is called gp_regression, and is loaded with with_slope"):
        other = load(tmp_path / "model", with_slope)
    with pytest.raises(ValueError, match=r"with_slope has the site\(s\) \['slope'\], and the trained one had"):
        other.predict(KEY, X)


def waves_of(kernel, start=1.0, law=dist.Laplace, offset=True):
    def waves(X, y=None):
        scale = numpyro.param("scale", start)
        mean = numpyro.sample("offset", dist.Normal(0.0, 1.0)) if offset else 0.0
        f = numpyro.sample("f", GaussianProcess(kernel(scale), X, mean=mean * jnp.ones(len(X))))
        numpyro.sample("y", Expected(law, f, 0.1), obs=y)

    return waves


def own(scale):
    return 2.0 * RBF(1.0, scale) + Periodic(0.5, 1.0, 3.0)


#: Programs with the sites of the trained one, which has ``own``; what is said of each, or nothing.
OTHERS = {
    "an addend less": (waves_of(lambda s: 2.0 * RBF(1.0, s)), r"Scaled\(.*RBF.* trained one .*GaussianProcess of Sum"),
    "a Matern": (waves_of(lambda s: 2.0 * Matern52(1.0, s) + Periodic(0.5, 1.0, 3.0)), "Matern52.* trained one .*RBF"),
    "by column": (waves_of(lambda s: own(jnp.stack([s, s]))), r"lengthscale=array\[:\].* trained"),
    "one column": (waves_of(lambda s: 2.0 * RBF(1.0, s, [0]) + Periodic(0.5, 1.0, 3.0)), "active_dims=.* trained"),
    "a law": (waves_of(own, law=dist.Cauchy), "'y' is Expected of Cauchy, .* trained one it was Expected of Laplace"),
    "a site less": (waves_of(own, offset=False), "'offset' is missing, .* trained one it was Normal"),
    # Where a parameter starts is no matter to a trained one.
    "another start": (waves_of(own, start=2.0), None),
}


@pytest.mark.slow_but(name=["a Matern"])
@pytest.mark.parametrize("name", OTHERS)
def test_another_kernel_or_likelihood_at_the_same_sites_is_told(name, tmp_path, standard_promotion):
    guide, (other, words) = InducingGuide(waves_of(own), kmeans(4)), OTHERS[name]
    Trained(guide.model, guide, guide.init_params(KEY, X, X[:, 0])).save(tmp_path / "model")
    loaded = load(tmp_path / "model", other)
    if words:
        with pytest.warns(UserWarning, match=words):
            loaded.predict(KEY, X)
    loaded.predict(KEY, X)  # it is said once


class Net(nn.Module):
    @nn.compact
    def __call__(self, X):
        return nn.Dense(X.shape[1])(X)


@pytest.mark.slow_but(lost=["net$params"])
@pytest.mark.parametrize("lost", ["scale", "noise", "net$params"])
def test_a_trained_parameter_that_nothing_uses_is_refused(lost, tmp_path, standard_promotion):
    def program(lost=""):
        def waves(X, y=None):
            known = {name: 0.7 if name == lost else numpyro.param(name, 0.7) for name in ("scale", "noise")}
            features = X if lost == "net$params" else flax_module("net", Net(), input_shape=X.shape)(X)
            f = numpyro.sample("f", GaussianProcess(RBF(1.0, known["scale"]), features))
            numpyro.sample("y", Gaussian(f, known["noise"]), obs=y)

        return waves

    guide = InducingGuide(program(), InducingPoints(X[:4]))
    Trained(guide.model, guide, guide.init_params(KEY, X, X[:, 0])).save(tmp_path / "model")
    other = load(tmp_path / "model", program(lost))
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"trained parameters .*'{re.escape(lost)}'"):
            other.predict(KEY, X)
    load(tmp_path / "model", program()).predict(KEY, X)


def test_versions_are_told_apart(trained, saved, tmp_path):
    content, path = saved.read_bytes(), tmp_path / "other"

    def older(description):
        description["version"], description["written_by"]["gpzoo"] = 0, "0.1.9"

    path.write_bytes(rehashed(content, older))
    with pytest.raises(
        CheckpointError, match=r"its format is not that of gpzoo .*; gpzoo 0\.1\.9, which wrote it, reads"
    ):
        load(path, gp_regression)
    path.write_bytes(rehashed(content, put("written_by", "jax", "0.0.1")))
    with pytest.warns(UserWarning, match=r"other versions, jax 0\.0\.1 there and .*may differ by rounding") as warned:
        found = load(path, gp_regression)
    assert warned[0].filename == __file__
    assert_same(found, trained["sparse"])


def test_a_write_that_fails_leaves_what_was_there(trained, saved, tmp_path, monkeypatch):
    path = tmp_path / "model"
    trained["sparse"].save(path)
    before = path.read_bytes()

    def full(*args):
        raise OSError("No space left on device")

    for stage in ("fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(os, stage, full)
            with pytest.raises(CheckpointError, match="could not be written: No space left"):
                trained["sparse"].save(path)
        assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    with pytest.raises(CheckpointError, match="could not be written"):
        trained["sparse"].save(tmp_path / "none" / "model")
    with pytest.raises(TypeError, match="path must be the path of a file, got 3"):
        trained["sparse"].save(3)
    with pytest.raises(ValueError, match="path must be the path of a file, got ' '"):
        load(" ", gp_regression)
    assert gpzoo.__version__ in saved.read_text(errors="replace") and numpyro.__version__


def test_a_marginal_program_is_not_what_a_file_belongs_to(saved, trained):
    with pytest.raises(TypeError, match=r"load takes the program itself"):
        load(saved, marginal(trained["sparse"].model))
