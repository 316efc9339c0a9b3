"""A data folder, a cache folder, and a network that is down."""

import hashlib
from pathlib import Path

import pooch
import pytest
import requests

from gpzoo.reproductions.datasets import registry


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def serve(monkeypatch):
    """``serve(contents)``: let the network hold these addresses only; returns the list of the addresses asked for."""

    def serve(contents: dict[str, bytes]) -> list[str]:
        asked = []

        def get(self, url, output_file, pooch_, check_only=False):
            asked.append(url)
            if url not in contents:
                raise requests.ConnectionError(f"no route to {url}")
            Path(output_file).write_bytes(contents[url])

        monkeypatch.setattr(pooch.HTTPDownloader, "__call__", get)
        return asked

    return serve


@pytest.fixture
def folder(tmp_path, cache, monkeypatch, serve):
    """An empty data folder, an empty cache folder, and a network that is down."""
    path = tmp_path / "my data"
    path.mkdir()
    monkeypatch.setenv("GPZOO_DATA", str(path))
    monkeypatch.setattr(pooch, "os_cache", lambda project: cache)
    serve({})
    return path


@pytest.fixture
def put(folder, monkeypatch):
    """``put(name, contents, **facts)``: files of a data set, by path, whose digests are expected, and other facts."""

    def put(name: str, contents: dict[str, bytes], **facts) -> None:
        known = registry.FACTS[name] | facts
        for key in ("files", "at_hand"):
            known[key] = [dict(file) for file in known.get(key, [])]
            for file in known[key]:
                if file["path"] in contents and "hash" in file:
                    method = file["hash"].partition(":")[0]
                    digest = hashlib.new(method, contents[file["path"]], usedforsecurity=False).hexdigest()
                    file["hash"] = f"{method}:{digest}"
        monkeypatch.setitem(registry.FACTS, name, known)
        for file, content in contents.items():
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_bytes(content)

    return put
