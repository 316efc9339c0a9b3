"""What tests of experiments share: the same runs with other settings."""

import pytest

from gpzoo.reproductions.experiment import Run


@pytest.fixture
def shortened(monkeypatch, standard_promotion):
    """Other values of the settings that an experiment has."""
    real = Run.options.fget

    def make(**changes):
        def options(run):
            found = real(run)
            return {**found, **{name: x for name, x in changes.items() if name in found}}

        monkeypatch.setattr(Run, "options", property(options))

    return make
