"""The command ``gpzoo``, as ``python -m gpzoo``."""

import runpy

if __name__ == "__main__":
    runpy.run_module("gpzoo.reproductions", run_name="__main__")
