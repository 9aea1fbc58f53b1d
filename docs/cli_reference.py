"""Writes the reference of the command line, from the commands themselves, to stdout."""

import click

from talka.cli.main import COMMANDS, talka

TITLE = """# The command line

Written from the commands by `make docs`; `talka COMMAND --help` says the same.
"""


def main() -> None:
    print(TITLE)
    root = click.Context(talka, info_name="talka", max_content_width=100, terminal_width=100)
    for name in COMMANDS:
        command = talka.get_command(root, name)
        assert command is not None
        show(command, name, root)


def show(command: click.Command, name: str, parent: click.Context) -> None:
    context = click.Context(command, info_name=name, parent=parent, max_content_width=100, terminal_width=100)
    print(f"## {context.command_path}\n\n```\n{command.get_help(context)}\n```\n")
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            show(found, child, context)


if __name__ == "__main__":
    main()
