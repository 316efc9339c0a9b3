"""Changes of settings from the command line, ``--set NAME=VALUE``: how they are read, checked and applied."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpzoo.reproductions.experiment import Experiment, Run

#: Options of an experiment that are facts, not settings.
FACTS = ("notes", "selection", "stands_in", "of", "all_splits")

#: Settings that only the programs of some experiments have. These experiments name them in the TOML.
_OF_PROGRAMS = ("start",)

#: Example values for settings whose default has no type, or is 0, which nobody would choose.
_EXAMPLES = {"num_inducing": 1, "natural": 0.1, "weighted": 1, "decay": 0.999, "rate": 0.01, "batch_size": 1}


def parsed(text: str) -> tuple[str, Any]:
    """The name and the value of ``NAME=VALUE``. The value is written as in TOML, or is a word.

    Raises:
        ValueError: if there is no name or no value.
    """
    name, _, value = (part.strip() for part in text.partition("="))
    if not name or not value:
        raise ValueError(f"{text!r} is not NAME=VALUE, such as num_inducing=50")
    try:
        found = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return name, value
    return name, found["value"]


def written(value: Any) -> str:
    """A value as text that :func:`parsed` can read."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{name} = {written(each)}" for name, each in value.items())
        return f"{{{inner}}}"
    return json.dumps(value, default=str)


def changed(options: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an experiment with other values wherever their names occur. Names that do not occur are added."""
    return {name: changes[name] for name in changes.keys() - dict(_named(options)).keys()} | _inside(options, changes)


def _inside(options: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in options.items():
        if name in changes:
            found[name] = changes[name]
        elif isinstance(value, Mapping) and name not in FACTS:
            found[name] = _inside(value, changes)
        else:
            found[name] = value
    return found


def _named(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every setting by its name. Settings of inner tables come after the others."""
    settings = {name: value for name, value in options.items() if name not in FACTS}
    yield from settings.items()
    for value in settings.values():
        if isinstance(value, Mapping):
            yield from _named(value)


def settings_of(experiment: Experiment, run: Run) -> dict[str, Any]:
    """The settings of a run by name, each with an example value: from this run, from another run, or the default.

    Defaults come from the dataclass ``SETTINGS`` of the paper's module. If the module has no such dataclass, they come
    from :class:`~gpzoo.reproductions.training.Setting`, for experiments that name all settings without a default.
    ``start`` is a setting only of experiments that name it, because other programs do not use it.
    """
    from gpzoo.reproductions.judge import module_of
    from gpzoo.reproductions.training import Setting

    run = replace(run, source=experiment.source, changes={})
    found: dict[str, Any] = {}
    for name, value in _named(run.options):
        found.setdefault(name, value)
    for preset in experiment.presets:
        for variant in experiment.variants:
            options = replace(run, preset=preset, variant=variant).options
            found = {name: value for name, value in options.items() if name not in FACTS} | found
    kind = getattr(module_of(experiment.source), "SETTINGS", Setting) if experiment.source else Setting
    defaults = {each.name: _default(each) for each in fields(kind) if each.name not in _OF_PROGRAMS}
    if {name for name, value in defaults.items() if value is MISSING} <= found.keys():
        found = defaults | found
    return found


def _default(field: Field) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def check_changes(experiment: Experiment, run: Run) -> None:
    """Refuse changes of settings that an experiment does not have, and values that a setting cannot have.

    Raises:
        ValueError: naming the setting, and the existing settings or a possible value.
    """
    if not run.changes:
        return
    settings = settings_of(experiment, run)
    for name, value in run.changes.items():
        if name not in settings:
            of = f"{experiment.paper} {experiment.name}"
            raise ValueError(f"unknown setting {name!r}, those of {of} are: {', '.join(sorted(settings))}")
        now = settings[name]
        example = now if isinstance(now, list | tuple) else _EXAMPLES.get(name, now)
        if not _fits(name, value, example):
            known = written(example if now is None or now == 0 else now)
            names = ", ".join(sorted(settings))
            raise ValueError(f"{name} cannot be {written(value)}, it is such as {known}; all settings: {names}")


def _fits(name: str, value: Any, example: Any) -> bool:
    """Whether a setting can have a value."""
    match name:
        case "batch_size" if value == "all":
            return True
        case "rate" if isinstance(value, Mapping):
            known = ({"constant"}, {"warmed"}, {"staircase", "every"})
            return set(value) in known and all(_like(each, 1.0) for each in value.values())
        case "decay":
            return _like(value, example) and value < 1
    return _like(value, example)


def _like(value: Any, example: Any) -> bool:
    """Whether a value has the type of an example; ``None`` and empty lists have none.

    A number must be positive unless the example is negative. It may be 0 if the example is 0.
    """
    if example is None:
        return True
    if isinstance(example, bool) or isinstance(value, bool):
        return isinstance(example, bool) and isinstance(value, bool)
    if isinstance(example, int | float):
        whole = isinstance(value, int)
        number = whole or (isinstance(value, float) and isinstance(example, float) and math.isfinite(value))
        return number and (value > 0 or example < 0 or value == example == 0)
    if isinstance(example, list | tuple):
        first = next((float(each) if isinstance(each, int) else each for each in example), None)
        return isinstance(value, list) and bool(value) and all(_like(each, first) for each in value)
    return isinstance(value, Mapping if isinstance(example, Mapping) else type(example))
