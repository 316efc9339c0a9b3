"""The ``gpzoo`` command: run a paper's experiment and report on it, list experiments, fetch data, write the results."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import gpzoo
from gpzoo._extras import MissingExtraError, needs
from gpzoo.errors import DatasetError, GPZooError
from gpzoo.reproductions import terminal as report
from gpzoo.reproductions.changes import check_changes, parsed, written
from gpzoo.reproductions.claims import number
from gpzoo.reproductions.experiment import (
    PRESETS,
    Experiment,
    ReproductionError,
    Run,
    all_experiments,
    module_of_file,
)
from gpzoo.reproductions.kept import read_json, write_text
from gpzoo.reproductions.many_runs import LOG, has_result, sweep

with needs("reproductions", "The command line"):
    import click
    import rich  # noqa: F401

#: Errors whose message is enough without a traceback.
KNOWN_FAILURES = (ReproductionError, DatasetError, GPZooError, MissingExtraError, OSError)

#: Exit statuses of commands that signals stopped.
_STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)


class Failed(click.ClickException):
    """A run that ended early, for a reason that fits into one line."""


class Stopped(click.ClickException):
    """A run that SIGINT or SIGTERM stopped."""

    def __init__(self, number: int, training: BaseException) -> None:
        how = "interrupted" if number == signal.SIGINT else "terminated"
        # The error of a training says whether its checkpoint is written.
        super().__init__(f"{how}: resume by running the same command. {training}")
        vars(self)["exit_code"] = 128 + number  # click's own exit code is an attribute of the class


class Command(click.Command):
    """A command that reports every error as one line on stderr and an exit status, without the usage text."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command as the only work of this process; see :meth:`main`."""
        try:
            self.main(*args, **kwargs)
        except SystemExit as end:
            if end.code in _STOPPED:
                # XLA may still compile in a thread. It crashes when the interpreter ends this thread.
                os._exit(end.code)
            # There is nothing left that an interrupt could stop.
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
            raise

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command, then raise SystemExit with its exit status; see :meth:`click.Command.main`."""
        try:
            status = super().main(*args, **kwargs, standalone_mode=False)
        except click.ClickException as error:
            click.echo(f"gpzoo: {' '.join(error.format_message().split())}", err=True)
            status = error.exit_code
        except click.Abort:
            status = 128 + signal.SIGINT
        except OSError as error:
            status = _output_failure(error)
        try:
            sys.stdout.flush()
        except OSError as error:
            status = status or _output_failure(error)
        sys.exit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command's function. With ``--debug``, failures show a traceback; otherwise, known ones one line."""
        if "debug" not in ctx.params:
            return super().invoke(ctx)
        debug = ctx.params.pop("debug")
        try:
            with _signals_raised():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Stopped(signal.SIGINT, error) from None
        except SystemExit as error:
            if error.code != 128 + signal.SIGTERM:
                raise
            raise Stopped(signal.SIGTERM, error) from None
        except Exception as error:
            # JAX raises this error for a missing platform, such as one in JAX_PLATFORMS.
            backend = isinstance(error, RuntimeError) and "initialize backend" in str(error)
            if isinstance(error, BrokenPipeError) or (isinstance(error, OSError) and _is_of_output(error)):
                raise
            # Settings are checked one by one. They can still be refused in combination, or with the data.
            of_settings = isinstance(error, ValueError) and bool(ctx.params.get("changes"))
            if debug or not (backend or of_settings or isinstance(error, KNOWN_FAILURES)):
                raise
            said = f"{error or type(error).__name__} (--debug shows where)"
            raise Failed(f"JAX cannot start: {error}" if backend else said) from error


@contextmanager
def _signals_raised() -> Iterator[None]:
    """Make SIGTERM raise SystemExit, as SIGINT raises KeyboardInterrupt, and do not lose either of them.

    Python ignores exceptions in callbacks of weak references and of its garbage collector. JAX has many such callbacks.
    """

    def terminated(number: int, frame: Any) -> None:
        end = SystemExit("")
        end.code = 128 + number
        raise end

    def again(lost: Any) -> None:
        number = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}.get(lost.exc_type)
        if number is None:
            hook(lost)
        else:
            threading.Thread(target=repeated, args=(number, at_end := threading.Event())).start()
            at_end.set()

    def repeated(number: int, at_end: threading.Event) -> None:
        # Before the end of the hook, Python would ignore the exception again.
        at_end.wait()
        time.sleep(0.01)
        os.kill(os.getpid(), number)

    handler, hook = signal.signal(signal.SIGTERM, terminated), sys.unraisablehook
    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGTERM, handler)


def _is_of_output(error: OSError) -> bool:
    """Whether an error is about printing a line, and not about a file."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_code is click.echo.__code__


def _output_failure(error: OSError) -> int:
    """The exit status if standard output cannot be written. The rest of the output is dropped.

    Raises:
        OSError: if the error is about something else.
    """
    try:
        print(flush=True)  # if the buffer is empty, only one more character shows whether the output has failed
    except OSError as failure:
        # A closed pipe is not an error: its reader, such as ``head``, has read enough. A full disk is an error.
        if not isinstance(failure, BrokenPipeError):
            click.echo(f"gpzoo: cannot write to standard output: {failure.strerror or failure}.", err=True)
        # Otherwise the interpreter would fail again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    raise error


class Folder(click.Path):
    """A folder with a name. An empty name, as from an unset variable, is refused: it would mean the current folder."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(path_type=Path, **kwargs)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; see :meth:`click.ParamType.convert`."""
        if value == "":
            self.fail("the name is empty; give a path, '.' for the current folder.", param, ctx)
        return super().convert(value, param, ctx)


class Seeds(click.ParamType):
    """Whole numbers and ranges of whole numbers, ``0,1,5`` or ``0-9``, as a tuple without repetitions."""

    name = "seeds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The seeds; see :meth:`click.ParamType.convert`."""
        seeds: dict[int, None] = {}
        for part in value.split(","):
            first, _, last = part.strip().partition("-")
            last = last or first
            numbers = first.isdecimal() and last.isdecimal()
            if not numbers or not 0 <= int(last) - int(first) < 1000 or int(last) >= 2**32:
                self.fail(f"{part!r} is no seed from 0 to 4294967295 and no range such as 0-9.", param, ctx)
            seeds |= dict.fromkeys(range(int(first), int(last) + 1))
        return tuple(seeds)


class Change(click.ParamType):
    """A change of a setting, ``num_inducing=50``, as its name and its new value."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """The name and the value; see :meth:`click.ParamType.convert`."""
        try:
            return parsed(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


class Group(Command, click.Group):
    """A group of commands. Errors are reported as in :class:`Command`."""

    command_class = Command


def _choose(what: str, given: str, choices: Iterable[str]) -> None:
    choices = tuple(dict.fromkeys(choices))
    if given not in choices:
        more = "; --paper FILE.py adds one of your own" * (what == "paper")
        raise click.UsageError(f"unknown {what} {given!r}, choose from: {', '.join(choices)}{more}.")


def find(experiments: Sequence[Experiment], paper: str, name: str) -> Experiment:
    """The experiment of this name in this paper.

    Raises:
        click.UsageError: naming the choices.
    """
    of_paper = {experiment.name: experiment for experiment in _of_paper(experiments, paper)}
    _choose(f"experiment of {paper}", name, of_paper)
    return of_paper[name]


def _of_paper(experiments: Sequence[Experiment], paper: str) -> list[Experiment]:
    _choose("paper", paper, (experiment.paper for experiment in experiments))
    return [experiment for experiment in experiments if experiment.paper == paper]


def _check(experiment: Experiment, preset: str, variants: Iterable[str]) -> None:
    """Refuse a preset and variants that an experiment does not have."""
    for name in variants:
        _choose(f"variant of {experiment.paper} {experiment.name}", name, experiment.variants)
    _choose(f"preset of {experiment.paper} {experiment.name}", preset, experiment.presets)


def _run(
    experiment: Experiment,
    variant: str,
    preset: str,
    seed: int,
    changes: Mapping[str, Any],
    runs: Path = Path("runs"),
) -> Run:
    """A run with its own folder below ``runs``.

    Raises:
        click.UsageError: if the experiment does not have these settings, or if they cannot have these values.
    """
    name = f"{experiment.paper}-{experiment.name}-{variant}-{preset}-seed{seed}{_named(changes)}"
    key = (experiment.paper, experiment.name, variant, preset, seed)
    run = Run(*key, runs / name, source=experiment.source, changes=changes)
    try:
        check_changes(experiment, run)
    except ValueError as error:
        raise click.UsageError(f"--set: {error}.") from None
    return run


def _named(changes: Mapping[str, Any]) -> str:
    """The part of a folder or file name that names the changes."""
    return "".join("-" + re.sub(r"[^\w.+=-]+", "_", f"{name}={written(value)}") for name, value in changes.items())


def _once(context: click.Context, param: click.Parameter, changes: Sequence[tuple[str, Any]]) -> Any:
    """Refuse two values of one setting."""
    if twice := [name for name, count in Counter(name for name, _ in changes).items() if count > 1]:
        raise click.BadParameter(f"{twice[0]} has two values.", context, param)
    return changes


def _split(context: click.Context, param: click.Parameter, variants: str | None) -> list[str] | None:
    return None if variants is None else [name.strip() for name in variants.split(",")]


def reproduce(
    experiment: Experiment,
    variant: str | None,
    preset: str,
    seed: int,
    output: Path | None,
    changes: Iterable[tuple[str, Any]] = (),
) -> None:
    """Run one experiment and print our numbers beside the numbers of the paper.

    Args:
        experiment: the experiment.
        variant: one of its variants; ``None`` for the default.
        preset: one of its presets.
        seed: seed of all random keys of the run.
        output: folder for the results; ``None`` for a folder under ``runs/`` that is named after the run.
        changes: settings with values that differ from the values in the experiment.
    """
    from rich.console import Console

    variant = experiment.default_variant if variant is None else variant
    _check(experiment, preset, [variant])
    run = _run(experiment, variant, preset, seed, dict(changes))
    run = run if output is None else replace(run, output=output)
    from gpzoo.inference.training._progress import on_device
    from gpzoo.reproductions.execute import execute

    result = execute(experiment, run)
    console = Console()
    console.print(report.table(result, experiment.variants[variant]), highlight=False)
    files = ", ".join(sorted(path.name for path in run.output.iterdir() if path.is_file()))
    said = f"Trained for {result['steps']:,} steps in {report.duration(result['seconds_training'])} on {on_device()}."
    opens = "\nposterior.nc opens with arviz.from_netcdf." * ("posterior.nc" in files)
    console.print(f"{said}\nWritten to {run.output}: {files}{opens}", markup=False, highlight=False)


FILE = Folder(exists=True, dir_okay=False)
RESULTS = Folder(exists=True, file_okay=False)
DEBUG = click.option("--debug", is_flag=True, help="Show the traceback of a failure.")
PRESET = click.option("--preset", type=click.Choice(PRESETS), default="quick")
SEED = click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0)
VARIANTS = click.option("--variants", callback=_split, help="Variants, separated by commas; all unless given.")
RUNS = click.option("--output", type=Folder(file_okay=False), default=Path("runs"))
OWN = click.option("--paper", "own", type=FILE, multiple=True, help="A file with a paper of your own, NAME.py.")
CHANGES = click.option(
    "--set",
    "changes",
    type=Change(),
    multiple=True,
    callback=_once,
    help="Another value of a setting, such as num_inducing=50; the result is not set against the paper's.",
)


def run_options(command: Any) -> Any:
    """Add the options of a run, which ``gpzoo reproduce`` and the scripts of papers share."""
    output = click.option("--output", type=Folder(file_okay=False), help="Folder for the results.")
    variant = click.option("--variant", help="The variant; each experiment has a default.")
    return variant(PRESET(SEED(CHANGES(output(DEBUG(command))))))


def script_main(experiments: Sequence[Experiment], args: Sequence[str] | None = None) -> None:
    """Run the module of a paper as a script: ``python reproductions/PAPER.py EXPERIMENT [options]``.

    Args:
        experiments: the experiments of one paper.
        args: the command line; ``None`` for ``sys.argv[1:]``.
    """

    @click.command(cls=Command, context_settings={"show_default": True})
    @click.argument("experiment")
    @run_options
    def script(experiment: str, **options: Any) -> None:
        """Run an experiment of the paper and print our numbers beside the numbers of the paper."""
        reproduce(find(experiments, experiments[0].paper, experiment), **options)

    script(args)


@click.group(cls=Group, invoke_without_command=True, context_settings={"show_default": True})
@click.version_option(gpzoo.__version__, prog_name="gpzoo", message="%(prog)s %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """Reproduce the papers of the model zoo."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@main.command("reproduce")
@click.argument("paper")
@click.argument("experiment")
@run_options
@OWN
def reproduce_command(paper: str, experiment: str, own: Sequence[Path], **options: Any) -> None:
    """Run EXPERIMENT of PAPER and print our numbers beside the numbers of the paper.

    If a run was interrupted, the same command resumes it from its last checkpoint.
    """
    reproduce(find(all_experiments(own), paper, experiment), **options)


@main.command("compare")
@click.argument("paper")
@click.argument("experiment")
@VARIANTS
@PRESET
@SEED
@CHANGES
@RUNS
@OWN
@DEBUG
def compare_command(
    paper: str,
    experiment: str,
    variants: Sequence[str] | None,
    preset: str,
    seed: int,
    changes: Iterable[tuple[str, Any]],
    output: Path,
    own: Sequence[Path],
) -> None:
    """Run the variants of EXPERIMENT of PAPER and compare their bounds and test metrics: here, and in a report.

    The variant with the highest bound comes first, because a bound needs no test data. Runs with a result in OUTPUT are
    not run again.
    """
    from rich.console import Console

    chosen, settings = find(all_experiments(own), paper, experiment), dict(changes)
    _check(chosen, preset, variants or ())
    runs, results = [_run(chosen, name, preset, seed, settings, output) for name in variants or chosen.variants], []
    from gpzoo.reproductions.execute import execute
    from gpzoo.reproductions.inspecting import report_of_runs

    for count, run in enumerate(runs, 1):
        click.echo(f"Variant {run.variant}, {count} of {len(runs)}")
        results.append(read_json(run.output / "result.json") if has_result(run) else execute(chosen, run))
    console = Console()
    console.print(report.comparison(results, console.width))
    path = output / f"{paper}-{experiment}-{preset}-seed{seed}{_named(settings)}.html"
    report_of_runs([run.output for run in runs], path)
    click.echo(f"Report: {path}")


@main.command("sweep")
@click.argument("paper")
@click.argument("names", metavar="[EXPERIMENT]...", nargs=-1)
@VARIANTS
@PRESET
@click.option("--seeds", type=Seeds(), default="0", help="Such as 0,1,5 or 0-9.")
@click.option("--workers", type=click.IntRange(1), default=1, help="Processes at a time.")
@click.option("--cluster", help="Address of a Dask scheduler, whose workers see OUTPUT; in place of local processes.")
@CHANGES
@RUNS
@OWN
@DEBUG
def sweep_command(
    paper: str,
    names: Sequence[str],
    variants: Sequence[str] | None,
    preset: str,
    changes: Iterable[tuple[str, Any]],
    output: Path,
    own: Sequence[Path],
    **options: Any,
) -> None:
    """Run EXPERIMENTs of PAPER, all variants and seeds, each in its own process and folder.

    It ends with the mean of every metric over the seeds, and its standard error. After a stop, the same command
    continues: runs with a result are not run again, and runs with a checkpoint resume.
    """
    from rich.console import Console

    experiments, seeds = all_experiments(own), options.pop("seeds")
    chosen = [find(experiments, paper, name) for name in names] or _of_paper(experiments, paper)
    for experiment in chosen if names else ():
        _check(experiment, preset, ())
    for name in variants or ():
        _choose(f"variant of {paper}", name, (v for experiment in chosen for v in experiment.variants))
    runs = [
        _run(experiment, variant, preset, seed, dict(changes), output)
        for experiment in chosen
        if preset in experiment.presets
        for variant in experiment.variants
        if variants is None or variant in variants
        for seed in seeds
    ]
    if not runs:
        raise click.UsageError(f"none of these experiments has the preset {preset}.")
    failed = set()
    for count, ended in enumerate(sweep(runs, **options), 1):
        run = ended.run
        if ended.failed:
            failed.add(run.output)
        how = "has a result" if ended.status is None else f"failed: {ended.said}" if ended.failed else "done"
        click.echo(f"{count} of {len(runs)}  {run.experiment} {run.variant}, seed {run.seed}: {how}")
    console, done = Console(), [run for run in runs if run.output not in failed]
    for _, of_one in groupby(done, lambda run: run.experiment):
        results = [read_json(run.output / "result.json") for run in of_one]
        console.print(report.comparison(results, console.width), highlight=False)
    if failed:
        raise Failed(f"{len(failed)} of {len(runs)} runs failed; {LOG} in their folders under {output} says how.")


@main.command("inspect")
@click.argument("what", type=Folder(exists=True))
@click.option("--output", type=Folder(dir_okay=False), help="The report; beside WHAT unless given.")
@click.option("--program", help="Of a model: its program, as MODULE:NAME.")
@click.option("--data", type=FILE, help="Of a model: an .npz of the program's arguments.")
@OWN
@DEBUG
def inspect_command(
    what: Path, output: Path | None, program: str | None, data: Path | None, own: Sequence[Path]
) -> None:
    """Write a report on WHAT, the folder of a run or the file of a saved model, as one HTML file.

    For a run, the report evaluates the trained model of the run on the first rows of its test set. Nothing is trained.
    """
    from gpzoo._platform import compiled_for_one_run
    from gpzoo.reproductions.inspecting import report_of_model, report_of_run

    with compiled_for_one_run():
        if what.is_dir():
            output = output or what / "report.html"
            report_of_run(what, lambda paper, name: find(all_experiments(own), paper, name), output)
        else:
            output = output or what.with_suffix(".html")
            report_of_model(what, program, data, output)
    click.echo(f"Report: {output}")


@main.command("list")
@click.argument("paper", required=False)
@click.option("--all", "everything", is_flag=True, help="Show every variant with the paper's numbers.")
@OWN
@DEBUG
def list_command(paper: str | None, everything: bool, own: Sequence[Path]) -> None:
    """List the experiments of all papers or of one PAPER, one line each. With --all, list every variant as well."""
    experiments = all_experiments(own)
    shown = experiments if paper is None else _of_paper(experiments, paper)
    column = 2 + max(len(experiment.name) for experiment in experiments)
    for each, of_paper in groupby(shown, lambda experiment: experiment.paper):
        click.echo(each)
        for experiment in of_paper:
            if everything or paper is not None:
                click.echo("\n".join(_described(experiment)))
                continue
            name = f"  {experiment.name:{column}}"
            room = max(shutil.get_terminal_size().columns - len(name), 20)
            click.echo(name + textwrap.shorten(experiment.description, room, placeholder=" ..."))
    if paper is None and not everything:
        hint = "'gpzoo list PAPER' shows variants, presets and the paper's numbers; '--all' those of all papers."
        click.echo("\n" + "\n".join(_wrapped(hint)))


def _wrapped(text: str, first: str = "") -> list[str]:
    """Lines that fit the terminal. The first line begins with ``first``, and the others are indented by its length."""
    # Without a terminal, there are 80 columns, unless COLUMNS gives another number.
    width = max(shutil.get_terminal_size().columns, len(first) + 20)
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=" " * len(first))


def _described(experiment: Experiment) -> Iterator[str]:
    """An experiment with its variants and the numbers of the paper, in lines that fit the terminal."""
    yield f"  {experiment.name}"
    yield from _wrapped(f"{experiment.description} Presets: {', '.join(experiment.presets)}.", " " * 4)
    column = max(map(len, experiment.variants))
    for variant, metrics in experiment.variants.items():
        known = ", ".join(f"{name} {number(v)}" for name, v in metrics.items() if v is not None)
        default = " (default)" if variant == experiment.default_variant else ""
        yield from _wrapped(f"{known or 'no number in the paper'}{default}", f"    {variant:{column}}  ")


@main.command("data")
@click.argument("name", required=False)
@OWN
@DEBUG
def data_command(name: str | None, own: Sequence[Path]) -> None:
    """List the data sets and say whether they are on this machine, or fetch the data set called NAME."""
    from gpzoo.reproductions import datasets

    for path in own:
        module_of_file(path)
    entries = datasets.available()
    if name is None:
        column = max(len(entry.name) for entry in entries)
        for entry in entries:
            first = f"{entry.name:{column}}  {'here' if entry.present else '-':4}  "
            click.echo("\n".join(_wrapped(entry.description, first)))
        return
    _choose("data set", name, (entry.name for entry in entries))
    dataset = datasets.load(name)
    click.echo(f"{dataset.name}: {len(dataset.X_train):,} training and {len(dataset.X_test):,} test points")
    click.echo(f"from {dataset.source}")


@main.command("results")
@click.option("--folder", type=RESULTS, help="Folder of the result files; reproductions/results unless given.")
@click.option("--output", type=Folder(file_okay=False), default=Path(), help="Folder of the pages.")
@click.option("--check", "checks", is_flag=True, help="Write nothing: fail unless the pages are those of the files.")
@OWN
@DEBUG
def results_command(folder: Path | None, output: Path, checks: bool, own: Sequence[Path]) -> None:
    """Write the pages of results, and their figures, from the recorded result files; or check the pages.

    A check compares every number and verdict of the pages with the files, every file with its schema, and every claim
    with the experiment that answers it. With --paper, the pages are about that paper only, and FOLDER (runs unless
    given) contains the folders of its runs.
    """
    from gpzoo.reproductions.figures import draw_figures
    from gpzoo.reproductions.pages import check, pages
    from gpzoo.reproductions.papers import PAPERS

    folder = folder or Path("runs" if own else "reproductions/results")
    if not folder.is_dir():
        raise click.UsageError(f"there is no folder {folder}, name another one with --folder.")
    experiments, papers = all_experiments(own), PAPERS
    if own:
        experiments = tuple(each for each in experiments if each.source and each.source.module)
        papers = tuple({each.paper: each.source for each in experiments if each.source}.values())
    if checks:
        click.echo(check(folder, output, experiments, papers))
        return
    texts = {output / name: text for name, text in pages(folder, experiments, papers, output).items()}
    if own and any((path.parent / f"{paper.key}.md").is_file() for path in texts for paper in PAPERS):
        raise click.UsageError(f"{output} has the pages of gpzoo's own papers: choose another --output.")
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    click.echo(f"Written to {', '.join(map(str, [*texts, *draw_figures(folder, experiments, papers)]))}")
