"""How is anything asked of a model? Checked once, compiled once, over draws and batches of rows, finite or refused.

A :class:`Subject` is a model at checked arguments. A :class:`Question` is a function of one draw at a batch of rows: it
runs the guide or the program, and returns arrays by group and site.
:func:`ask` compiles the question, or finds it compiled, maps it over draws and batches, and joins; its answer refuses
numbers that are not finite, by the name of their site. Predictions, functions, exports and posteriors are questions. A
new one is written so, in a method of :class:`~gpzoo.inference.Trained` with
:func:`~gpzoo.inference.programs.calls.entry_point`::

    def moments(key, at):  # a draw, here its random key, and a batch; compiled
        shown = Marginals(at.rows_of(layouts), at.views)
        found = run(key, at.args, at.arrays | static, guide=guide, values=at.params, mode=shown).guide
        # Of the posterior, not of the value, which is an array where the program draws the site.
        return {"means": {name: found[name]["fn"].marginals()[0] for name in guide.sites.processes}}

    subject = self._subject((X,), model_kwargs)  # with checked arguments
    guide, static, layouts = subject.guide, subject.static, subject.site_rows.layouts
    count_rows(subject, batch_size)  # refuses arguments whose rows disagree, and joint sites in several batches
    keys, views = random.split(named_key(key, "draws"), num_draws), named_key(key, "views")
    answer = ask(Question("moments", moments), subject, keys, batch_size=batch_size, views=views)
    answer.refuse_not_finite({"means": "means"}, guide.sites.processes)
    answer.found["means"]["f"]  # [num_draws, N], on the host

A number that differs between calls, such as the best outcome so far, is given as ``others=`` and read from
``at.others``. Where ``guide.draws_anything`` is false one draw says it all. A ``summary`` over the axis of draws moves
the axis of rows, ``row_axis={"means": 0}``. Arrays are joined by the layout of the site whose name they have: what is
filed under another name is taken from the first batch, and must be the same in all.

There are three roads: :func:`ask`, in batches, with arrays on the host; :meth:`Subject.compiled_for`, all rows at once,
with arrays on the device; and, inside the user's own ``jit`` or ``grad``, a plain function of JAX that runs the guide,
such as :func:`~gpzoo.inference.asking.functions.one_function`, which is no question.

The function and the summary may close over anything that is the same for all calls with equal ``Question.options``,
static keyword arguments and layouts of rows, but not over data, parameters or keys, which it is given: the first call
compiles it for all. A question about all rows at once, whose answer stays on the device, is
``subject.compiled_for(question)(draws, subject.at())``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Integer, PRNGKeyArray

from gpzoo import _platform
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.programs.arrays import split_arrays
from gpzoo.inference.programs.batches import rows_of_sites
from gpzoo.inference.programs.finite import all_finite, refuse_not_finite
from gpzoo.inference.programs.gp_sites import BatchRows
from gpzoo.inference.programs.program import Look, look
from gpzoo.inference.programs.rows import Layout, SiteRows, number_of_rows

#: Arrays by group and site.
Found: TypeAlias = dict[str, dict[str, Any]]


class At(NamedTuple):
    """Where a question is asked: all that differs between calls of one compiled program.

    Attributes:
        args: positional arguments of the program at the rows of the batch.
        arrays: its keyword arguments that are arrays; the others are static.
        params: of guide and program.
        rows: numbers of the batch's rows of the inputs.
        count: number of all rows.
        number: of the batch.
        views: the key by which sampled views are drawn, the same for all draws and batches.
        of_sites: data by site at the batch's rows.
        others: whatever else the question needs.
    """

    args: tuple
    arrays: dict[str, Any]
    params: dict[str, Any]
    rows: Integer[Any, " N"]
    count: Any
    number: Any = 0
    views: PRNGKeyArray | None = None
    of_sites: dict[str, Any] = {}  # noqa: RUF012 (it is never changed)
    others: Any = None

    def with_static(self, static: Mapping[str, Any]) -> At:
        """With all keyword arguments of the program among the arrays."""
        return self._replace(arrays=self.arrays | dict(static))

    def rows_of(self, layouts: Mapping[str, Layout]) -> BatchRows:
        """The rows that sites have here."""
        return BatchRows(self.rows, self.count, layouts)


@dataclass(frozen=True)
class Question:
    """A function of a draw and a batch of rows.

    Attributes:
        name: compiled programs are kept by it: no two questions have the same.
        of_draw: ``of_draw(draw, at)`` gives arrays by group and site.
        at_once: number of draws that are computed together; ``None`` for all; 0 if ``draws`` has no axis of draws and
            is handed to ``of_draw`` whole.
        summary: a function of the arrays of all draws, which have an axis of draws in front; ``None`` for the arrays.
        row_axis: axis of the rows, by group; 1, behind the draws, where none is named.
        apart: whether sites that are the same in all batches are computed once, by a program of their own.
        options: whatever else ``of_draw`` closes over that may differ between calls, hashable; arrays belong into
            ``at.others``.
        notes: kept by ``of_draw`` while it is traced.
        once: whether the program runs once, on few rows, so that compiling it takes most of the time.
    """

    name: str
    of_draw: Callable[[Any, At], Any]
    at_once: int | None = 1
    summary: Callable[[Any], Any] | None = None
    row_axis: Mapping[str, int] = field(default_factory=dict)
    apart: bool = True
    options: Hashable = ()
    notes: Any = None
    once: bool = False


@dataclass(frozen=True, eq=False)
class Subject:
    """A program at checked arguments: questions are asked of it.

    Attributes:
        model: the program.
        guide: its guide, which has seen data; ``None`` where samples are given, or nothing is latent.
        params: checked values of parameters.
        args: checked positional arguments.
        kwargs: checked keyword arguments.
        compiled: keeps compiled programs, of earlier calls too.
        values: of its sites, where there is no guide: to see how sites follow the rows, the program runs with these.
    """

    model: Callable
    guide: InducingGuide | Any
    params: dict[str, Any]
    args: tuple
    kwargs: dict[str, Any]
    compiled: dict[tuple, Any] = field(default_factory=dict)
    values: Mapping[str, Any] | None = None

    @cached_property
    def _split(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return split_arrays(self.kwargs)

    @property
    def arrays(self) -> dict[str, Any]:
        """Keyword arguments that are arrays."""
        return self._split[0]

    @property
    def static(self) -> dict[str, Any]:
        """Keyword arguments that are part of a compiled program."""
        return self._split[1]

    @cached_property
    def shapes(self) -> tuple:
        """What of the arguments compiled programs depend on."""
        shapes = jax.tree.map(lambda x: (x.shape, str(x.dtype)), (self.args, self.arrays))
        return identity_of(self.static), identity_of({"shapes": shapes})

    @cached_property
    def look(self) -> Look:
        """The program at these arguments, not computed; likelihoods check their data."""
        found = look(self.model, self.args, self.kwargs, self.values)
        self.compiled["sites", *self.shapes] = found.shapes
        return found

    @property
    def site_rows(self) -> SiteRows:
        """How the program's sites follow the rows of its arguments; kept for other arguments of these shapes."""
        return self.site_rows_in_batches(None)

    def site_rows_in_batches(self, batch_size: int | None) -> SiteRows:
        """How they follow the rows in batches of this size."""
        key = ("rows", batch_size, *self.shapes)
        if key not in self.compiled:
            values = self.params | dict(self.values or {})  # parameters may start at random
            self.compiled[key] = rows_of_sites(self.model, self.args, self.kwargs, values, batch_size)
        return self.compiled[key]

    def at(self, **others: Any) -> At:
        """All rows, unless ``others`` say otherwise."""
        count = number_of_rows(self.args)
        fields = {"args": self.args, "arrays": self.arrays, "params": self.params}
        return At(**fields | {"rows": np.arange(count), "count": count} | others)

    def compiled_for(self, question: Question, layouts: Mapping[str, Layout] | None = None) -> CompiledQuestion:
        """The question's compiled program: that of an equal question asked before, if there is one."""
        layouts = layouts or {}
        how = question.apart, question.once
        own = question.at_once, tuple(sorted(question.row_axis.items())), how, question.options
        # Notes of a program with data are not those of one without.
        noted = None if question.notes is None else jax.tree.structure((self.args, self.arrays))
        key = (question.name, identity_of(self.static), identity_of(layouts), own, noted)
        if key not in self.compiled:
            self.compiled[key] = CompiledQuestion(question, frozenset(layouts))
        return self.compiled[key]


class CompiledQuestion:
    """A compiled question, of many draws.

    Attributes:
        question: as it was compiled, with its notes.
        fixed: names of the sites that are the same in all batches; known once it has run in batches.
    """

    def __init__(self, question: Question, of_rows: frozenset[str]) -> None:
        self.question, self.of_rows, self.fixed = question, of_rows, set()
        how = _platform.options_for_one_run() if question.once else None
        self._compiled = jax.jit(self._run, static_argnums=0, compiler_options=how)

    def __call__(self, draws: Any, at: At, which: str = "all") -> Any:
        """Arrays of all sites, of those ``"of rows"``, or of those that are ``"fixed"``."""
        return self._compiled(which, draws, at)

    def _run(self, which: str, draws: Any, at: At) -> Any:
        def of_draw(draw: Any) -> Any:
            found = self.question.of_draw(draw, at)
            if which == "all":
                return found
            self.fixed |= {name for sites in found.values() for name in sites if name not in self.of_rows}
            # What is left out here is not computed.
            return {
                group: {name: x for name, x in sites.items() if (name in self.fixed) == (which == "fixed")}
                for group, sites in found.items()
            }

        found = _over_draws(of_draw, draws, self.question.at_once)
        return found if self.question.summary is None else self.question.summary(found)


def _over_draws(of_draw: Callable[[Any], Any], draws: Any, at_once: int | None) -> Any:
    """Arrays of all draws, with an axis of these in front."""
    if at_once == 0:
        return of_draw(draws)
    count = len(jax.tree.leaves(draws)[0])
    if count == 1:
        return jax.tree.map(lambda x: jnp.asarray(x)[None], of_draw(_first(draws)))
    if at_once is None:
        return jax.vmap(of_draw)(draws)
    return jax.lax.map(of_draw, draws, batch_size=None if at_once == 1 else min(at_once, count))


def _first(draws: Any) -> Any:
    return jax.tree.map(lambda x: x[0], draws)


@dataclass(frozen=True)
class Answer:
    """The arrays of a question on the host.

    Attributes:
        found: arrays by group and site, whose rows are those of all batches.
        question: as it was compiled, with its notes.
        draws: all draws of the question.
        at: the first batch with numbers that are not finite, else the last.
    """

    found: Found
    question: Question
    draws: Any
    at: At

    def refuse_not_finite(
        self, words: Mapping[str, str], processes: Collection[str], site_of: Callable[[str], str] = str
    ) -> None:
        """Refuse numbers that are not finite; the first draw then runs outside ``jit`` and may raise its own error.

        Args:
            words: for the numbers of each group, such as ``"draws"``; other groups are not looked at.
            processes: names of the GP sites.
            site_of: gives the name of the site of a group's array.

        Raises:
            FactorisationError, NonFiniteError: naming the site, see :func:`refuse_not_finite`.
        """
        for group, said in words.items():
            for name, values in self.found.get(group, {}).items():
                refuse_not_finite(site_of(name), said, values, processes, self.explain)

    def explain(self) -> None:
        """Run the first draw outside ``jit``."""
        self.question.of_draw(_first(self.draws), self.at)


def ask(
    question: Question,
    subject: Subject,
    draws: Any,
    *,
    batch_size: int,
    of_sites: Mapping[str, np.ndarray] | None = None,
    **others: Any,
) -> Answer:
    """The answer to a question about all rows, a batch at a time.

    Args:
        question: to be asked.
        subject: the model at all rows.
        draws: a pytree with an axis of draws in front.
        batch_size: most rows at a time.
        of_sites: data of all rows by site; each batch has its own rows of them.
        **others: of :class:`At`, the same in all batches.

    Raises:
        ValueError: in several batches, naming a site whose rows cannot be told from those of the inputs.
    """
    num_rows = max(number_of_rows(subject.args), 1)
    size = min(batch_size, num_rows)
    follow = subject.site_rows_in_batches(size if size < num_rows else None)
    layouts = follow.layouts
    program = subject.compiled_for(question, layouts)
    which = "of rows" if question.apart and size < num_rows else "all"
    parts: list[Found] = []
    explained: At | None = None
    for number, start in enumerate(range(0, num_rows, size)):
        # The last batch repeats the last row, so that all have one shape.
        rows = np.minimum(np.arange(start, start + size), num_rows - 1)
        args = subject.args if size == num_rows else jax.tree.map(lambda x: x[rows], subject.args)  # noqa: B023
        own = {n: x[layouts[n].rows(rows, num_rows)] if n in layouts else x for n, x in (of_sites or {}).items()}
        at = subject.at(args=args, rows=rows, count=num_rows, number=number, of_sites=own, **others)
        try:
            found: Found = program(draws, at, which)
        except Exception as error:
            if size < num_rows:  # it may be a program of one number of rows
                try:
                    follow.refuse_untold(follow.untold, size)
                except ValueError as refusal:
                    raise refusal from error
            raise
        if size < num_rows and not number:
            names = {name for sites in found.values() for name in sites} | program.fixed
            follow.refuse_untold(names, size)
            if which != "all" and program.fixed:
                fixed = program(draws, at, "fixed")
                found = {group: sites | fixed[group] for group, sites in found.items()}
        parts.append(jax.tree.map(np.asarray, found))
        if explained is None and not all_finite(parts[-1]):
            explained = at

    def whole(group: str, name: str) -> np.ndarray:
        own = [part[group][name] for part in parts if name in part[group]]
        return joined(own, layouts.get(name), program.question.row_axis.get(group, 1), num_rows)

    joint = {group: {name: whole(group, name) for name in sites} for group, sites in parts[0].items()}
    return Answer(joint, program.question, draws, explained or at)


def joined(parts: Sequence[Any], layout: Layout | None, axis: int, num_rows: int) -> np.ndarray:
    """An array of all rows of a site, along ``axis``, from the parts that the batches gave.

    Args:
        parts: of every batch, or of the first where the site is the same in all.
        layout: how the site follows the rows of the data; ``None`` where it is the same in all batches.
        axis: of its rows.
        num_rows: of the data.
    """
    if layout is None or len(parts) == 1:
        return np.asarray(parts[0])
    if not layout.strided:
        whole = np.concatenate(parts, axis=axis)
        return np.take(whole, range(layout.count * num_rows), axis) if whole.shape[axis] > num_rows else whole
    apart = [np.reshape(x, (*x.shape[:axis], layout.count, -1, *x.shape[axis + 1 :])) for x in parts]
    whole = np.concatenate(apart, axis=axis + 1).take(range(num_rows), axis + 1)
    return whole.reshape(*whole.shape[:axis], -1, *whole.shape[axis + 2 :])


def identity_of(static: Mapping[str, Any]) -> tuple:
    """The identity of static arguments: their values where these can be compared, else the objects themselves.

    Unlike a ``repr``, it never takes two of them for one. It keeps the objects alive.
    """
    leaves, structure = jax.tree.flatten(dict(static))
    return structure, tuple(map(_identity, leaves))


def _identity(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return "array", leaf.shape, leaf.dtype.str, leaf.tobytes()
    try:
        hash(leaf)
    except TypeError:
        return _Itself(leaf)
    return type(leaf), leaf  # 1 and True and 1.0 are equal


class _Itself:
    """An object without a hash, equal to itself alone."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def count_rows(subject: Subject, batch_size: int) -> int:
    """The number of rows that all inputs share, if the guide can take them ``batch_size`` at a time.

    Raises:
        ValueError: if they do not share one, or the guide draws sites jointly and there is more than one batch.
    """
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(subject.args)]
    num_rows = number_of_rows(subject.args)
    if not num_rows:
        raise ValueError(
            f"The new inputs must be arrays with the same, positive number of rows; got shapes {shapes}. Pass inputs "
            "that have rows of their own in model_kwargs."
        )
    if subject.guide is not None and subject.guide.joint and batch_size < num_rows:
        raise ValueError(
            f"The guide draws {sorted(subject.guide.joint)} jointly over the inputs, so that a prediction depends on "
            f"its batch: pass batch_size={num_rows} or more."
        )
    return num_rows
