"""A group of commands: its help, and the ways out for an unknown word."""

from typing import Any, ClassVar

from typer.core import TyperGroup

from headrace.cli import habits
from headrace.cli.output import err, escape
from headrace.cli.server_part import SERVER, needs_server
from headrace.nearest import nearest

LIST = "list"
HELP = ("-h", "--help")


class CommandGroup(TyperGroup):
    """A group of commands. Its help lists them by their `rich_help_panel`."""

    def understood(self, words: list[str]) -> list[str] | None:
        """Return the command that words of other programs mean, or None."""
        return habits.understood_in_group(words, self.commands)

    def suggested(self, word: str) -> str | None:
        """Return the command that `word` may mean, or None."""
        return nearest(word, self.commands)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments up to the command. Name the place of a command's option."""
        names_none = not any(word in self.commands or word in HELP for word in args)
        if names_none and all(word.startswith("-") for word in args[:1]) and LIST in self.commands:
            # `headrace datasets` and `headrace datasets -o csv` list them.
            args = [LIST, *args]
        if not args and len(self.commands) == 1:
            # The only command of a group needs no name: `headrace config`.
            args = [*self.commands]
        before = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = unknown_option(error)
            named = next((word for word in before if word in self.commands), None)
            commands = self.commands.values() if named is None else [self.commands[named]]
            if option and any(
                option in names.opts for command in commands for names in command.params
            ):
                example = f"{ctx.command_path} {named or 'COMMAND'} {option}"
                ctx.fail(
                    f"No such option: {option}. It belongs to a command, and goes behind it: "
                    f"{example} …"
                )
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command. Understand, or suggest a command for, the words of other programs."""
        word = args[0]
        if word in self.commands or word.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        if meant := self.understood(args):
            shown = " ".join([ctx.command_path, *meant])
            err.print(f"[dim]{escape(word)}: {escape(shown)}[/]", soft_wrap=True)
            return super().resolve_command(ctx, meant)
        suggested = self.suggested(word)
        hint = f" Did you mean `{ctx.command_path} {suggested}`?" if suggested else ""
        return ctx.fail(f"No such command {word!r}.{hint} `{ctx.command_path} -h` lists all.")

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, each with the first sentence of its help, in their groups."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                group = getattr(command, "rich_help_panel", None) or "Commands"
                groups.setdefault(group, []).append(
                    (name, command.get_short_help_str(200).rstrip("."))
                )
        width = max((len(name) for rows in groups.values() for name, _ in rows), default=0)
        for group, rows in groups.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(width), text) for name, text in rows])


class RootGroup(CommandGroup):
    """The commands of `headrace`."""

    of_server: ClassVar[list[str]] = []
    """Names of commands that are missing here, because the server is not installed."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command. Name the distribution that has a missing one."""
        if args[0] in self.of_server:
            raise needs_server(f"headrace {args[0]}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in their groups, and the names of the missing ones."""
        super().format_commands(ctx, formatter)
        if self.of_server:
            with formatter.section(f"With {SERVER} on this machine also"):
                formatter.write_text(", ".join(self.of_server))

    def understood(self, words: list[str]) -> list[str] | None:
        """Return the command that words of other programs mean, or None."""
        meant = habits.understood(words)
        return meant if meant and meant[0] in self.commands else None

    def suggested(self, word: str) -> str | None:
        """Return the command that `word` may mean, or None."""
        suggested = habits.SUGGESTED.get(word.lower())
        known = suggested and suggested.split()[0] in self.commands
        return suggested if known else nearest(word, self.commands)


def unknown_option(error: Exception) -> str | None:
    """Return the option that the parser does not know, or None for any other error."""
    # By name: some versions of typer have their own copy of click, which is private.
    return getattr(error, "option_name", None) if type(error).__name__ == "NoSuchOption" else None
