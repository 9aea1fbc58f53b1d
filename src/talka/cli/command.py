"""Commands whose help starts with examples, and a group that loads its commands when they are called.

A module with commands imports what a command needs when it is called: the help must be quick.
"""

import contextlib
import difflib
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import click

from talka.cli.output import silence_stdout

Function = TypeVar("Function", bound=Callable[..., Any])

EXAMPLE_COLUMNS = 52
"""An example longer than this has its explanation on the next line."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question to end an error with, or nothing when no known name is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]}?" if close else ""


@contextlib.contextmanager
def readers_may_leave() -> Iterator[None]:
    """`talka --help | head -1` is no error."""
    try:
        yield
    except BrokenPipeError:
        silence_stdout()
        raise click.exceptions.Exit(0) from None


class Option(click.Option):
    """An option with the section of the help it is listed in."""

    def __init__(self, *args: Any, section: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


def options(*made: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Several decorators as one."""

    def decorate(function: Function) -> Function:
        for decorator in reversed(made):
            function = decorator(function)
        return function

    return decorate


def option(section: str, names: str, metavar: str | None, help: str, **kwargs: Any) -> Callable[[Function], Function]:
    """`names`: its flags and, where it is not the last of them, its parameter, with spaces between."""
    return click.option(*names.split(), cls=Option, section=section, metavar=metavar, help=help, **kwargs)


class CliCommand(click.Command):
    def __init__(self, *args: Any, examples: Sequence[tuple[str, str]] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            # Not every one says where it comes from, and without it there is no hint at the help.
            error.ctx = error.ctx or ctx
            raise

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_opening(formatter, str(self.help), self.examples)
        self.format_usage(ctx, formatter)
        self.format_options(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(record)
        write_sections(formatter, sections)


def command(name: str, help: str, *examples: tuple[str, str]) -> Callable[[Callable[..., Any]], CliCommand]:
    return click.command(name, cls=CliCommand, help=help, examples=examples)


class CommandEntry(NamedTuple):
    """A command as the list of commands knows it, before its module is loaded."""

    section: str
    home: str
    """Module below `talka.cli` and attribute, with a colon between."""
    summary: str


class LazyGroup(click.Group):
    """Lists commands from a table and imports the module of one only when it is called."""

    def __init__(
        self, name: str, help: str, entries: Mapping[str, CommandEntry], *examples: tuple[str, str], **kwargs: Any
    ) -> None:
        super().__init__(name, help=help, **kwargs)
        self.entries = entries
        self.examples = examples

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.entries:
            return None
        module, _, attribute = self.entries[cmd_name].home.partition(":")
        command = getattr(importlib.import_module(f"talka.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with readers_may_leave():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with readers_may_leave():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.entries and not name.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"There is no command {name!r}.{did_you_mean(name, self.entries)}", ctx)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_opening(formatter, str(self.help), self.examples)
        self.format_usage(ctx, formatter)
        sections: dict[str, list[tuple[str, str]]] = {}
        widest = max(len(name) for name in self.entries)
        for name, entry in self.entries.items():
            sections.setdefault(entry.section, []).append((name.ljust(widest), entry.summary))
        write_sections(formatter, sections)
        click.Command.format_options(self, ctx, formatter)


class ListingGroup(LazyGroup):
    """Without a command, it lists."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_about_itself = bool(args) and (args[0] in ctx.help_option_names or not args[0].startswith("-"))
        return super().parse_args(ctx, args if is_about_itself or ctx.resilient_parsing else ["list", *args])


def write_sections(formatter: click.HelpFormatter, sections: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    for title, records in sections.items():
        with formatter.section(title):
            formatter.write_dl(records)


def write_opening(formatter: click.HelpFormatter, text: str, examples: Sequence[tuple[str, str]]) -> None:
    formatter.write_text(text)
    if examples:
        with formatter.section("Examples"):
            formatter.write_dl(list(examples), col_max=EXAMPLE_COLUMNS)
    formatter.write_paragraph()
