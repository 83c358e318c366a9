"""The help page of a command: usage, arguments, options, and below them the options that commands share."""

from __future__ import annotations

from typing import Any, Final

from typer.core import TyperCommand, TyperGroup

from perdure.cli.pointers import NOUN_POINTERS, unknown_command

Row = tuple[str, str]

HELP_FLAGS: Final[list[str]] = ["--help", "-h"]
CONTEXT: Final[dict[str, Any]] = {"help_option_names": HELP_FLAGS, "max_content_width": 100}


class Command(TyperCommand):
    def format_usage(self, ctx: Any, formatter: Any) -> None:
        pieces = ["[OPTIONS]", *(usage_of(p) for p in self.params if is_argument(p))]
        formatter.write_usage(ctx.command_path, " ".join(pieces))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for title, rows in sections_of(self, ctx).items():
            with formatter.section(title):
                formatter.write_dl(rows)


class HelpGroup(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word = args[0]
        if word not in self.commands and not word.startswith("-") and not ctx.resilient_parsing:
            raise unknown_command(ctx.command_path, word, self.commands, NOUN_POINTERS.get(str(ctx.info_name), ""))
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for title, rows in sections_of(self, ctx).items():
            with formatter.section(title):
                formatter.write_dl(rows)
        self.format_commands(ctx, formatter)


def sections_of(command: Any, ctx: Any) -> dict[str, list[Row]]:
    """Arguments and options by heading."""
    out: dict[str, list[Row]] = {"Arguments": [], "Options": []}
    for p in command.get_params(ctx):
        if is_argument(p):
            out["Arguments"].append((metavar_of(p), help_of(p)))
        elif not getattr(p, "hidden", False):
            out.setdefault(getattr(p, "rich_help_panel", None) or "Options", []).append((flags_of(p), help_of(p)))
    return {title: rows for title, rows in out.items() if rows}


def is_argument(param: Any) -> bool:
    return bool(param.param_type_name == "argument")


def usage_of(param: Any) -> str:
    name = metavar_of(param)
    name = name if param.required else f"[{name}]"
    return f"{name}..." if param.nargs == -1 else name


def metavar_of(param: Any) -> str:
    if param.metavar:
        return str(param.metavar)
    if is_argument(param):
        return str(param.name).upper()
    choices = getattr(param.type_descriptor, "choices", None) if hasattr(param, "type_descriptor") else None
    if choices:
        return "|".join(str(getattr(c, "value", c)) for c in choices)
    kinds = {"int": "N", "float": "N", "Path": "FILE"}
    kind = param.bare_type() if hasattr(param, "bare_type") else "str"
    return kinds.get(kind.removesuffix(" | None"), "TEXT")


def flags_of(param: Any) -> str:
    flags = sorted(param.opts, key=lambda o: o.startswith("--"))
    text = ", ".join(flags)
    if param.secondary_opts:
        text = f"{text} / {', '.join(param.secondary_opts)}"
    return text if param.is_flag else f"{text} {metavar_of(param)}"


def help_of(param: Any) -> str:
    text = param.help or ""
    default = param.default
    shown = isinstance(default, (int, str)) and not isinstance(default, bool) and default != ""
    if shown and param.show_default and not is_argument(param):
        return f"{text} [{default}]".strip()
    return text
