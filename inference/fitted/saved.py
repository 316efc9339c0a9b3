"""Files of trained models: parameters, the guide's options and sites, and the versions.

An object is saved by name and arguments, but only if its class is public in gpzoo (inducing variables, initialisers,
forms). Loading calls the class with the arguments. If a parameter is of another class, such as an equinox module, its
arrays are saved by their paths. Loading puts them into an object that the caller gives. A file names no module, and
loading imports none.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import random
from jax.tree_util import keystr
from numpyro.distributions import constraints
from numpyro.infer import autoguide

import gpzoo
from gpzoo import _checks as checks
from gpzoo.errors import CheckpointError, plain
from gpzoo.inducing.initialisers import Initialiser, blocks
from gpzoo.inducing.variables import InducingBlocks, InducingVariable
from gpzoo.inference.bounds.marginal import marginal
from gpzoo.inference.guides.draws import LAWS, LEFT_OUT, DrawsGuide
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.guides.row_latents import PerRow
from gpzoo.inference.programs import files
from gpzoo.inference.programs.arguments import refuse_unknown
from gpzoo.inference.programs.program import named
from gpzoo.inference.programs.rows import Layout
from gpzoo.inference.programs.sites import Sites
from gpzoo.posteriors import forms
from gpzoo.posteriors.forms import Form

_FORMAT, _VERSION = "gpzoo trained model", 1

#: Names of a guide's options.
OPTIONS = tuple(name for name in inspect.signature(InducingGuide).parameters if name != "model")

#: Classes that a file may name, by their public names.
_PUBLIC = {name: getattr(gpzoo, name) for name in gpzoo.__all__}
_PUBLIC = {
    name: made
    for name, made in _PUBLIC.items()
    if isinstance(made, type) and issubclass(made, InducingVariable | Initialiser | blocks)
}

#: Forms of covariances by name.
_FORMS = {name: getattr(forms, name) for name in forms.__all__}

#: NumPyro's classes of guides by name.
_AUTOGUIDES = {
    name: made
    for name, made in vars(autoguide).items()
    if isinstance(made, type) and issubclass(made, autoguide.AutoGuide)
}

#: NumPyro's initialisation strategies without options, by name.
_STRATEGIES = {
    name: getattr(numpyro.infer, name)
    for name in ("init_to_feasible", "init_to_mean", "init_to_median", "init_to_sample", "init_to_uniform")
}


class _Foreign(TypeError):
    """A value that contains more than numbers, strings, Python containers and public classes of gpzoo."""


# -- to a file ---------------------------------------------------------------------------------------------------------


def save(path: Path, trained: Any) -> None:
    """See :meth:`gpzoo.inference.Trained.save`."""
    arrays: dict[str, np.ndarray] = {"losses": np.asarray(trained.losses)}
    try:
        own = jax.tree.map(lambda x: np.asarray(x) if isinstance(x, np.generic) else x, dict(trained.params))
        params = {"dict": [[name, _of_param(f"params[{name!r}]", value, arrays)] for name, value in own.items()]}
    except _Foreign as error:
        raise TypeError(f"A file holds pytrees of arrays, not {error}.") from None
    description = {
        "format": _FORMAT,
        "version": _VERSION,
        "written_by": _versions(),
        "program": named(trained.model),
        "params": params,
        "seconds": float(trained.seconds),
        "expectations": dict(trained.expectations),
        "data": dict(trained.data),
        **_of_guide(trained.guide, arrays),
    }
    try:
        files.write(path, description, arrays)
    except OSError as error:
        raise CheckpointError(f"{path} could not be written: {error}.") from error


def _of_param(name: str, value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """A parameter in JSON. For an object of another class, only its arrays are described, by their paths."""
    own: dict[str, np.ndarray] = {}
    try:
        found = _encoded(name, value, own)
    except _Foreign:
        own, leaves = {}, jax.tree_util.tree_leaves_with_path(value)
        if not leaves or any(x is value for _, x in leaves):
            raise
        named = [(keystr(path), x) for path, x in leaves]
        found = {"paths": [[path, _encoded(f"{name}{path}", x, own)] for path, x in named]}
    arrays |= own
    return found


def _versions() -> dict[str, str]:
    return {"gpzoo": gpzoo.__version__, "jax": jax.__version__, "numpyro": numpyro.__version__}


def _of_guide(guide: Any, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Options and sites of a guide. Options that cannot be saved are replaced by a description."""
    sites = getattr(guide, "sites", None) if isinstance(guide, InducingGuide) else None
    found: dict[str, Any] = {"sites": None if sites is None else _of_sites(sites)}
    if type(guide) not in (InducingGuide, DrawsGuide):
        return found | {"guide": None, "foreign": f"is {getattr(guide, '__name__', type(guide).__name__)}"}
    own: dict[str, np.ndarray] = {}
    try:
        options = {name: _encoded(f"guide {name}", getattr(guide, name), own) for name in OPTIONS}
    except _Foreign as error:
        return found | {"guide": None, "foreign": f"has {error}"}
    arrays |= own
    return found | {"guide": options, "foreign": None}


#: Records about a program's sites in a file, by their names.
_NAMED = ("latents", "processes", "drawn", "inner", "names", "enumerated", "together")


def _of_sites(sites: Sites) -> dict[str, Any]:
    named = {name: sorted(getattr(sites, name)) for name in _NAMED}
    # Constraints with parameters are left out, because trained values satisfy them.
    limits = {name: _constraint_name(x) for name, x in sites.constraints.items()}
    limits = {name: public for name, public in limits.items() if public}
    shapes = {
        name: None if parts is None else {at: list(shape) for at, shape in parts.items()}
        for name, parts in sites.parameters.items()
    }
    within = {name: list(layout) for name, layout in sites.within.items()}
    drawn = {"plate_depth": sites.plate_depth, "within": within, "coupled": [list(group) for group in sites.coupled]}
    return named | {"parameters": shapes, "constraints": limits, "descriptions": dict(sites.descriptions)} | drawn


def _constraint_name(constraint: Any) -> str | None:
    return next((name for name in constraints.__all__ if getattr(constraints, name) is constraint), None)


def _encoded(name: str, x: Any, arrays: dict[str, np.ndarray]) -> Any:
    """A value in JSON. Its arrays are added to ``arrays``.

    Raises:
        _Foreign: unless it is a number, string, array, container of these, or instance of a public class of gpzoo.
    """

    def each(values: Any) -> list[Any]:
        return [_encoded(f"{name}[{i}]", value, arrays) for i, value in enumerate(values)]

    x = x.item() if isinstance(x, np.generic) else x
    if x is None or type(x) in (bool, int, float, str):
        return x
    if type(x) in (list, tuple):
        return {type(x).__name__: each(x)}
    if isinstance(x, frozenset):
        return {"frozenset": each(sorted(x))}
    if isinstance(x, Mapping) and all(type(key) in (int, str) for key in x):
        return {"dict": [[key, _encoded(f"{name}[{key!r}]", value, arrays)] for key, value in x.items()]}
    if isinstance(x, np.ndarray | jax.Array):
        arrays[name] = files.numbers(x)
        kind = {"key": str(random.key_impl(x))} if files.is_key(x) else {}
        # Type promotion in the program depends on weak types.
        return {"array": name, "weak": bool(getattr(x, "weak_type", False)), **kind}
    public = type(x).__name__
    own = _PUBLIC.get(public) is type(x)
    if own and isinstance(x, InducingBlocks | blocks):
        return {"gpzoo": public, "args": each(x.parts), "kwargs": {}}
    if own and is_dataclass(x):
        given = {f.name: getattr(x, f.name) for f in fields(x) if getattr(x, f.name) is not None}
        kwargs = {field: _encoded(f"{name}.{field}", value, arrays) for field, value in given.items()}
        return {"gpzoo": public, "args": [], "kwargs": kwargs}
    kind = x if isinstance(x, type) else type(x)
    if _FORMS.get(kind.__name__) is kind and issubclass(kind, Form):
        kwargs = {} if x is kind else {f: _encoded(f"{name}.{f}", getattr(x, f), arrays) for f in kind.static_fields}
        return {"form": kind.__name__, "kwargs": kwargs}
    if isinstance(x, type) and _AUTOGUIDES.get(x.__name__) is x:
        return {"autoguide": x.__name__}
    if type(x) is PerRow:  # without a network
        return {"per_row": _encoded(f"{name}.start", x.start, arrays), "scale": float(x.scale)}
    strategy = getattr(x, "__name__", "")
    if strategy and _STRATEGIES.get(strategy) is x:
        return {"numpyro": strategy}
    raise _Foreign(f"{name}, {f'{strategy} of type ' if strategy else 'of type '}{public}")


# -- from a file -------------------------------------------------------------------------------------------------------


def load(path: Path, program: Callable, guide: Any = None, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Arguments of a :class:`~gpzoo.inference.Trained`; see :func:`gpzoo.inference.load`."""
    message = "load takes the program itself, load(path, program), in place of marginal(program)."
    checks.refuse(isinstance(program, marginal), message, TypeError)
    try:
        description, arrays = files.read(path)
        if description.get("format") != _FORMAT:
            raise ValueError("gpzoo wrote it for another purpose")
        _check_versions(path, description)
        try:
            found, options, sites = _decoded_all(description, arrays)
        except Exception as error:
            raise ValueError("its description is not that of a trained model") from error
        _check_precision(arrays)
        _check_program(path, description, program)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be loaded as a trained model: {plain(f'{error!s:.300}')}.") from error
    loose = {name: x for name, x in found["params"].items() if isinstance(x, _ByPath)}
    refuse_unknown("params", params or (), loose, "parameters")
    for name, by_path in loose.items():
        if name not in (params or {}):
            raise ValueError(
                f"{path} holds the arrays of {name!r} without the object that they are in, which is of your own or of "
                f"another library: give it to load, load(path, program, params={{{name!r}: module}})."
            )
        found["params"][name] = _filled(name, dict(params or {})[name], by_path)
    if guide is None:
        if options is None:
            foreign = plain(f"{description['foreign']!s:.200}")
            raise ValueError(
                f"{path} does not contain its guide, which {foreign}: make the guide as for the training and give it "
                "to load, load(path, program, guide=InducingGuide(...))."
            )
        guide = _guide(program, options)
    if isinstance(guide, DrawsGuide):  # files of earlier versions have only draws of the functions
        found["params"] = {LAWS: {}, LEFT_OUT: {}} | found["params"]
    if isinstance(guide, InducingGuide) and guide.sites is None:
        guide.sites = sites
    return {"model": program, "guide": guide, **found}


def _guide(program: Callable, options: Mapping[str, Any]) -> InducingGuide:
    if options.get("hyperparameters") == "draws":
        return DrawsGuide(program, options["inducing"])
    return InducingGuide(program, **options)


class _ByPath(dict):
    """Arrays of a parameter by their paths."""


def _filled(name: str, like: Any, by_path: _ByPath) -> Any:
    """An object with the arrays of a file in place of its own arrays, and ``None`` for leaves that are not numbers.

    Raises:
        ValueError: naming arrays that only the object or only the file has, or that have different shapes.
    """
    leaves = jax.tree_util.tree_leaves_with_path(like)
    floats = {keystr(path): np.shape(x) for path, x in leaves if isinstance(x, jax.Array | np.ndarray) and _real(x)}
    there = {path: np.shape(x) for path, x in by_path.items()}
    if different := sorted(path for path in floats | there if floats.get(path) != there.get(path)):
        at = different[0]
        raise ValueError(
            f"params[{name!r}] is not the object that was saved: {at} has shape {floats.get(at, 'none')}, in the file "
            f"{there.get(at, 'none')}."
        )
    return jax.tree_util.tree_map_with_path(lambda path, x: by_path.get(keystr(path)), like)


def _real(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _check_program(path: Path, description: Mapping[str, Any], program: Callable) -> None:
    there, here = description.get("program"), named(program)
    if isinstance(there, str) and here and there != here:
        message = f"{path} is of a program that is called {plain(there)[:60]}, and is loaded with {here}."
        warnings.warn(f"{message} If that is not the same, predictions are wrong.", UserWarning, stacklevel=4)


def _check_versions(path: Path, description: Mapping[str, Any]) -> None:
    """Refuse other formats, naming the gpzoo version that reads them. Warn about other versions of JAX and NumPyro.

    Raises:
        ValueError: for another format.
    """
    written, here = description.get("written_by"), _versions()
    if not isinstance(written, dict) or not all(isinstance(written.get(name), str) for name in here):
        raise ValueError("it does not say what wrote it")
    there = {name: plain(written[name])[:40] for name in here}
    if description.get("version") != _VERSION:
        raise ValueError(
            f"its format is not that of gpzoo {here['gpzoo']}; gpzoo {there['gpzoo']}, which wrote it, reads it"
        )
    names = [name for name in ("jax", "numpyro") if there[name] != here[name]]
    if other := [f"{name} {there[name]} there and {here[name]} here" for name in names]:
        warnings.warn(
            f"{path} was written with other versions, {', '.join(other)}: predictions may differ by rounding.",
            UserWarning,
            stacklevel=4,
        )


def _check_precision(arrays: Mapping[str, np.ndarray]) -> None:
    long = [name for name, x in arrays.items() if name != "losses" and x.dtype.itemsize == 8 and x.dtype.kind in "iuf"]
    if long and not jax.config.read("jax_enable_x64"):
        raise ValueError(f"{long[0]} is {arrays[long[0]].dtype}; call numpyro.enable_x64() first")


def _decoded_all(
    description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, Any] | None, Sites | None]:
    """Fields of the trained model, and options and sites of its guide if the file has them."""
    found = {name: description[name] for name in ("expectations", "data")}
    found["params"] = _decoded(description["params"], arrays)
    if not all(isinstance(x, dict) for x in found.values()):
        raise ValueError("a file of another kind")
    found["losses"], found["seconds"] = np.array(arrays["losses"]), float(description["seconds"])
    options = description["guide"]
    if options is not None:
        options = {name: _decoded(options[name], arrays) for name in OPTIONS if name in options}
        _guide(lambda: None, options)  # refuses options out of range
    return found, options, None if description["sites"] is None else _sites(description["sites"])


def _sites(described: Mapping[str, Any]) -> Sites:
    # Files of earlier versions do not have these.
    absent: dict[str, Any] = dict.fromkeys(("inner", "enumerated", "coupled", "together"), ())
    absent |= {"plate_depth": 0, "within": {}, "descriptions": {}}
    described = absent | dict(described)
    shapes: dict[str, Any] = {}
    for name, parts in described["parameters"].items():
        shapes[name] = None if parts is None else {at: tuple(map(int, shape)) for at, shape in parts.items()}
    return Sites(
        **{name: frozenset(described[name]) for name in _NAMED},
        parameters=shapes,
        constraints={name: getattr(constraints, _public(x)) for name, x in described["constraints"].items()},
        plate_depth=int(described["plate_depth"]),
        within={name: Layout(int(count), bool(strided)) for name, (count, strided) in described["within"].items()},
        descriptions=dict(described["descriptions"]),
        coupled=tuple(tuple(map(str, group)) for group in described["coupled"]),
    )


def _public(constraint: str) -> str:
    """The name of one of NumPyro's constraints."""
    return constraints.__all__[constraints.__all__.index(constraint)]


def _decoded(x: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The inverse of :func:`_encoded`. Invalid JSON raises some error."""
    if not isinstance(x, dict):
        return x
    if "array" in x:
        value = arrays[x["array"]]
        weak = x["weak"] and value.ndim == 0 and "key" not in x
        return jnp.asarray(value.item()) if weak else files.on_device(value, x.get("key"))
    if "gpzoo" in x:
        return _PUBLIC[x["gpzoo"]](*(_decoded(part, arrays) for part in x["args"]), **_options(x, arrays))
    if "form" in x:
        return _FORMS[x["form"]](**_options(x, arrays))
    if "numpyro" in x:
        return _STRATEGIES[x["numpyro"]]
    if "autoguide" in x:
        return _AUTOGUIDES[x["autoguide"]]
    if "per_row" in x:
        return PerRow(_decoded(x["per_row"], arrays), scale=float(x["scale"]))
    ((kind, content),) = x.items()
    if kind == "paths":
        return _ByPath((str(at), _decoded(value, arrays)) for at, value in content)
    if kind == "dict":
        return {key: _decoded(value, arrays) for key, value in content}
    containers = {"list": list, "tuple": tuple, "frozenset": frozenset}
    return containers[kind](_decoded(value, arrays) for value in content)


def _options(x: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name: _decoded(value, arrays) for name, value in x["kwargs"].items()}
