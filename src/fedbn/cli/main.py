"""The `fedbn` command: finds commands by name, and turns errors into a line and an exit code."""

from __future__ import annotations
import __future__

import ast
import importlib
import io
import logging
import os
import shlex
import signal
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from fedbn import __version__, registry
from fedbn.cli.console import results_apart
from fedbn.errors import ConfigError, FedbnError, Interrupted, Untrusted, unforeseen, unknown
from fedbn.flower import require_flower
from fedbn.text import shown

# The parser's own errors: click's, or those of the copy of click that newer typers carry.
_parser: Any = sys.modules[typer.BadParameter.__module__]

_LIGHT = (
    *("typer", "fedbn.__version__", "fedbn.registry", "fedbn.errors", "fedbn.text"),
    *("fedbn.cli", "fedbn.cli.console", "fedbn.experiments.configuration", "fedbn.runs.folder"),
)

_SHELLS = ("bash", "zsh", "fish")

# Of each group: its commands, and the modules that have them.
_COMMANDS = {
    "fedbn": {
        "run": "run",
        "resume": "training",
        "merge": "training",
        "rescore": "training",
        "reproduce": "reproduce",
        "predict": "predict",
        "adapt": "adapt",
        "evaluate": "predict",
        "report": "report",
        "compare": "compare",
        "export": "predict",
        "inspect": "inspect",
        "audit": "inspect",
        "ls": "run",
        "schema": "run",
        "theory": "reproduce",
    },
    "data": {"ls": "data", "prepare": "data_prepare", "show": "data", "check": "data"},
    "federation": {
        **dict.fromkeys(("init", "server", "join", "approve"), "federation"),
        **dict.fromkeys(("propose", "check", "run"), "federation_run"),
        **dict.fromkeys(("status", "add-site"), "federation"),
        **dict.fromkeys(("request", "admit", "revoke", "rotate", "log"), "federation_keys"),
        "demo": "federation_run",
    },
}


class Commands(TyperGroup):
    """Names its commands from the table, and imports the one that is called.

    A command's module imports all it needs, torch most of the time, which takes seconds that help,
    completion and a mistyped flag need not wait for: for these, signatures are read from sources.
    """

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self._modules = _COMMANDS[str(self.name)]
        self.commands = {**{name: TyperCommand(name) for name in self._modules}, **self.commands}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Find a command, to list it."""
        command = super().get_command(ctx, cmd_name)
        if command and cmd_name in self._modules:
            lines = registry.first_lines(f"fedbn.cli.{self._modules[cmd_name]}")
            command.help = lines[cmd_name.replace("-", "_")]
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that words begin with; gives its name, itself and the other words."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in self._modules:
            module = f"fedbn.cli.{self._modules[name]}"
            if module not in sys.modules:
                command = _command(name, outline(module)["app"])
                if ctx.resilient_parsing:  # a shell completes, or a page is made
                    return name, command, rest
                # Prints help or refuses what nobody knows, and ends there; or nothing happens.
                command.make_context(name, list(rest), parent=ctx)
            if module.startswith("fedbn.cli.federation"):
                require_flower()
            command = _command(name, importlib.import_module(module).app)
            command.callback = results_apart()(command.callback)  # help and completion use stdout
        return name, command, rest


@cache
def outline(module: str) -> dict[str, Any]:
    """The commands of a module without what they do: their signatures, from its source."""
    names: dict[str, Any] = {}
    flags = __future__.annotations.compiler_flag  # types stay text, as they do in the module
    for node in registry.source(module).body:
        if isinstance(node, ast.ImportFrom | ast.Import) and not _light(node):
            names |= _outlined(node)
            continue
        if isinstance(node, ast.FunctionDef):
            outer = {**dict(ast.iter_fields(node)), "body": node.body[:1]}
            node = ast.copy_location(ast.FunctionDef(**outer), node)
        with suppress(NameError):  # what is made of something that was not imported
            exec(compile(ast.Module([node], []), module, "exec", flags), names)
    return names


def _light(node: ast.ImportFrom | ast.Import) -> bool:
    """Tell whether an import takes no time: Python's own, the parser, and what commands share."""
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif node.module == "fedbn":
        modules = [f"fedbn.{alias.name}" for alias in node.names]
    else:
        modules = [node.module or ""]
    return all(m in _LIGHT or m.partition(".")[0] in sys.stdlib_module_names for m in modules)


def _outlined(node: ast.ImportFrom | ast.Import) -> dict[str, Any]:
    """What is imported from another module of commands."""
    if isinstance(node, ast.Import) or not str(node.module).startswith("fedbn.cli."):
        return {}
    found = outline(str(node.module))
    return {alias.name: found[alias.name] for alias in node.names if alias.name in found}


def _command(name: str, app: typer.Typer) -> Any:
    made: Any = typer.main.get_command(app)
    return getattr(made, "commands", {name: made})[name]


app = typer.Typer(
    name="fedbn",
    cls=Commands,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 fine · 1 the run failed · 2 unknown command or flag · 3 a wrong value · "
    "4 data · 5 too few clients · 6 damaged run files · 7 not approved at a site · "
    "130 interrupted, the state saved.",
)

data = typer.Typer(
    name="data",
    cls=Commands,
    invoke_without_command=True,
    help="List, prepare, show and check data: the paper's, and your own.",
    epilog="Examples: fedbn data ls   ·   fedbn data prepare digits   ·   "
    "fedbn data show digits_mini --out digits.png   ·   fedbn data check my_pictures/",
)
app.add_typer(data)

federation = typer.Typer(
    name="federation",
    cls=Commands,
    help="Sites on separate machines, over Flower: keys, TLS, runs that survive.",
    no_args_is_help=True,
    epilog="First: fedbn federation demo   ·   then: init, server, join at each site, run.",
)
app.add_typer(federation)


@data.callback()
def _data(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def _version(context: typer.Context, asked: bool) -> None:
    if asked and not context.resilient_parsing:  # not while a shell completes the line
        print(f"fedbn {__version__}")
        raise typer.Exit


@app.callback()
def _fedbn(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version.")
    ] = False,
) -> None:
    """Federated learning when data looks different at every site: FedBN and its relatives.

    Start with [bold]fedbn run[/bold]: four methods on embedded data, no GPU needed.
    """


def main() -> NoReturn:
    """Run the command line and end the process with the documented exit code."""
    # Closed streams lead nowhere: the next file to be opened would take their number.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # ± in a table, on an ASCII terminal
    if "_FEDBN_COMPLETE" in os.environ:  # a shell asks; typer answers, and ends the process
        with suppress(Exception):  # an error would be printed into the line that is being typed
            app(prog_name="fedbn")
        sys.exit(1)
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    if debug:
        os.environ["FEDBN_DEBUG"] = "1"  # for worker processes
        logging.basicConfig(level=logging.DEBUG)
    os.environ["MPLBACKEND"] = "agg"  # a notebook's backend need not be installed here
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(_ended(arguments or ["--help"], debug))


def _completion_setup(arguments: list[str]) -> int:
    """Print or install the completion of a shell; return the exit code.

    typer recognises the shell that called, or takes the name of one. Which of the two its options
    do is decided by an environment variable. It ends the process where others return.
    """
    option, *named = arguments[:2]
    if named and named[0] not in _SHELLS:
        raise ConfigError(f"{option}: {unknown('shell', named[0], _SHELLS)}")
    if named:
        os.environ["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"
    done, printed = False, io.StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            app([option, *named], standalone_mode=False, prog_name="fedbn")
    except SystemExit as end:
        done = not end.code
    except OSError as error:
        raise ConfigError(
            f"{option}: cannot write the completion script: {error}; "
            "print it with --show-completion instead"
        ) from error
    if not done:
        raise ConfigError(
            f"{option}: cannot recognise this shell; name it: `fedbn {option} SHELL`, "
            f"where SHELL is {', '.join(_SHELLS)}"
        )
    print(printed.getvalue().replace("Shells.", ""), end="")  # typer prints an enum's member
    return 0


def _ended(arguments: list[str], debug: bool) -> int:
    try:
        if arguments[0] in ("--install-completion", "--show-completion"):
            return _completion_setup(arguments)
        _check_directory()
        code = int(app(arguments, standalone_mode=False, prog_name="fedbn") or 0)
        if code == Interrupted.exit_code:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
        sys.stdout.flush()
        return code
    except _parser.ClickException as error:
        return _refused(error)
    except Untrusted as error:
        line = shlex.join(["fedbn", *arguments, "--trust", error.module])
        return _failed(f"{error}; to do so: `{line}`", error.exit_code, debug)
    except FedbnError as error:
        return _failed(str(error), error.exit_code, debug)
    except (KeyboardInterrupt, typer.Abort):
        return _failed("interrupted; finished rounds are saved", Interrupted.exit_code, debug)
    except (Exception, SystemExit) as error:  # a user's code may ask for the end
        try:
            sys.stdout.flush()
        except OSError:  # a pipe broke or a disk is full: the last flush is to go nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if any(isinstance(e, BrokenPipeError) for e in (error, error.__context__)):
            return 1  # typer and rich make a SystemExit of it
        return _failed(unforeseen(error), 1, debug)


def _check_directory() -> None:
    """Refuse a directory that is gone before torch looks for it, which ends the process."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise ConfigError(
            "the current directory was removed: change into one that exists"
        ) from None


def _refused(error: Any) -> int:
    """Tell a wrong value from what the parser does not know, in one line."""
    missing = isinstance(error, _parser.MissingParameter)
    wrong_value = isinstance(error, typer.BadParameter) and not missing
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "fedbn"
    text = f"{error.format_message()} (legal: `{command} --help`)"
    return _failed(text, ConfigError.exit_code if wrong_value else error.exit_code, False)


def _failed(text: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"fedbn: {shown(text)}", file=sys.stderr)
    return code
