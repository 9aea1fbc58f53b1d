"""Commands about the command line itself: completion and help."""

import click

from talka.cli.command import command, did_you_mean
from talka.cli.output import say

SHELLS = ("bash", "zsh", "fish")
EXIT_CODES_TOPIC = "exit-codes"
TEXT_COLUMNS = 100


@command(
    "completion",
    "Print the completion script of a shell.",
    ('eval "$(talka completion bash)"', "in ~/.bashrc"),
    ('eval "$(talka completion zsh)"', "in ~/.zshrc"),
    ("talka completion fish | source", "in ~/.config/fish/config.fish"),
)
@click.argument("shell", type=click.Choice(SHELLS), metavar="[bash|zsh|fish]")
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    from click.shell_completion import ShellComplete, get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    root = context.find_root().command
    # The base class's method: bash's own starts a bash to ask for its version first.
    say(ShellComplete.source(found(root, {}, "talka", "_TALKA_COMPLETE")).rstrip())
    return 0


@command(
    "help",
    "Explain a command, or the exit codes.",
    ("talka help run", "the same as talka run --help"),
    ("talka help exit-codes", "what each code means"),
)
@click.argument("topic", nargs=-1, metavar="[COMMAND|exit-codes]")
@click.pass_context
def help_command(context: click.Context, topic: tuple[str, ...]) -> int:
    if topic == (EXIT_CODES_TOPIC,):
        say(exit_codes())
        return 0
    found = context.find_root()
    for name in topic:
        group = found.command
        known = group.list_commands(found) if isinstance(group, click.Group) else []
        command = group.get_command(found, name) if isinstance(group, click.Group) else None
        if command is None:
            hint = did_you_mean(name, [*known, EXIT_CODES_TOPIC])
            raise click.UsageError(f"There is no help on {' '.join(topic)!r}.{hint}", context)
        found = click.Context(command, info_name=name, parent=found)
    say(found.get_help())
    return 0


def exit_codes() -> str:
    from textwrap import wrap

    from talka.work.outcome import EXIT_CODES

    lines = []
    for code, meaning in EXIT_CODES.items():
        lines += wrap(meaning, TEXT_COLUMNS, initial_indent=f"{int(code):>4}  ", subsequent_indent=" " * 6)
    return "\n".join(lines)
