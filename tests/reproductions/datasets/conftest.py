"""A data folder, a cache folder, and a network that is down."""

import copy
import hashlib
from pathlib import Path
from typing import Any

import pooch
import pytest
import requests

from gpzoo.reproductions.datasets import registry


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def serve(monkeypatch):
    """``serve(contents)``: let the network hold these addresses only, or fail so; the addresses that are asked for."""

    def serve(contents: dict[str, bytes | Exception]) -> list[str]:
        asked = []

        def get(self, url, output_file, pooch_, check_only=False):
            asked.append(url)
            found = contents.get(url, requests.ConnectionError(f"no route to {url}"))
            if isinstance(found, Exception):
                raise found
            Path(output_file).write_bytes(found)

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
    """``put(name, contents, facts, rows)``: files by path, whose digests are expected, and facts; returns the rows."""

    def put(name: str, contents: dict[str, bytes], facts: dict | None = None, rows: Any = None) -> Any:
        known = copy.deepcopy(registry.FACTS[name] | (facts or {}))
        for file in (*known.get("files", ()), *known.get("at_hand", ())):
            if file["path"] in contents and "hash" in file:
                method = file["hash"].partition(":")[0]
                digest = hashlib.new(method, contents[file["path"]], usedforsecurity=False)
                file["hash"] = f"{method}:{digest.hexdigest()}"
        monkeypatch.setitem(registry.FACTS, name, known)
        for path, content in contents.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_bytes(content)
        return rows

    return put
