"""Trainings in TensorBoard and MLflow: what is written, and that it can be read again."""

import os
import struct
import sys
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import SVI, Trace_ELBO

from gpzoo._extras import MissingExtraError
from gpzoo.inference import fit
from gpzoo.inference.trackers import MLflow, TensorBoard
from tests.programs import KEY, adam, around_constant, constant, sine

real = pytest.mark.skipif(not os.environ.get("GPZOO_STRESS"), reason="needs MLflow and tensorboardX; make stress")


def tracked(tracker, steps=25):
    svi = SVI(constant, around_constant, adam(0.02), Trace_ELBO())
    result = fit(KEY, svi, steps, *sine(10), callback=tracker, callback_steps=10, progress=False)
    tracker.bound(result)
    return result


def doubled(params):
    return {"twice-the-mean": 2 * params["f_mean"]}


def check(found, result):
    """``found``: values by name and step."""
    assert {name: list(steps) for name, steps in found.items()} == {
        "seconds": [10, 20, 25],
        "loss": [10, 20, 25],
        "parameters/f_mean": [10, 20, 25],
        "parameters/f_scale": [10, 20, 25],
        "metrics/twice-the-mean": [10, 20, 25],
        "bound": list(range(1, 26)),
    }
    assert found["parameters/f_mean"][25] == pytest.approx(float(result.params["f_mean"]), rel=1e-6)
    assert found["metrics/twice-the-mean"][10] == pytest.approx(2 * found["parameters/f_mean"][10], rel=1e-6)
    assert found["loss"][25] == pytest.approx(result.losses[20:].mean(), rel=1e-6)
    np.testing.assert_allclose(list(found["bound"].values()), -result.losses, rtol=1e-6)


@pytest.fixture
def written(monkeypatch):
    """A stand-in for tensorboardX: what is written, by name and step."""
    found = {}

    class SummaryWriter:
        def __init__(self, logdir):
            found["folder"] = logdir

        def add_scalar(self, name, value, step):
            found.setdefault(name, {})[step] = value

        def flush(self):
            pass

        def close(self):
            found["closed"] = True

    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=SummaryWriter))
    return found


def test_parameters_metrics_and_the_bound_are_tracked(written, tmp_path):
    with TensorBoard(tmp_path, doubled) as board:
        result = tracked(board)
    assert written.pop("closed") and written.pop("folder") == str(tmp_path)
    check(written, result)


def test_long_bounds_are_means_and_large_parameters_are_left_out(written, tmp_path):
    with TensorBoard(tmp_path) as board:
        params = {"scales": jnp.ones(16), "u": jnp.ones(17), "network": {"bias": 1.0}, "labels": jnp.arange(3)}
        board(1, 0.5, params)
        assert len(written.pop("seconds")) == 1
        assert sorted(set(written) - {"folder"}) == sorted(f"parameters/scales/{i}" for i in range(16))
        board.bound(SimpleNamespace(losses=-np.arange(2500.0)))
    bound = written["bound"]
    assert len(bound) == 1000 and list(bound)[-1] == 2500
    steps = np.diff([0, *bound])
    assert np.dot(steps, list(bound.values())) == pytest.approx(np.arange(2500.0).sum())
    with pytest.raises(ValueError, match=r"track one of them, such as trained.member\(0\)"):
        board.bound(SimpleNamespace(losses=np.zeros((2, 5))))


@pytest.mark.parametrize(("tracker", "module"), [(TensorBoard, "tensorboardX"), (MLflow, "mlflow")])
def test_a_missing_library_is_named_with_its_extra(monkeypatch, tmp_path, tracker, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"needs {module}, .* pip install 'gpzoo\[trackers\]'"):
        tracker(str(tmp_path))


@pytest.mark.stress
@real
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_what_is_written(tmp_path):
    proto = pytest.importorskip("tensorboardX.proto.event_pb2")
    with TensorBoard(tmp_path, doubled) as board:
        result = tracked(board)
    found = {}
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    while content:
        # A record is its length, a checksum, the event, and another checksum.
        (length,) = struct.unpack_from("<Q", content)
        event = proto.Event.FromString(content[12 : 12 + length])
        content = content[16 + length :]
        for value in event.summary.value:
            found.setdefault(value.tag, {})[event.step] = value.simple_value
    check(found, result)


@pytest.mark.stress
@real
@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_what_is_logged(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        result = tracked(MLflow(doubled))
    client = mlflow.MlflowClient()
    names = client.get_run(run.info.run_id).data.metrics
    check({n: {m.step: m.value for m in client.get_metric_history(run.info.run_id, n)} for n in names}, result)
