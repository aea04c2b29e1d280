"""The options that change a scenario, the same for every command that takes one."""

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from batchlab.cli.from_command import overrides_of
from batchlab.errors import InputError
from batchlab.plan.trial import POLICY, named
from batchlab.settings import parse_setting


@dataclass
class Changes:
    """What the options change in a scenario.

    policies: to run instead of the file's. settings: those of --set, as texts. workload: a file instead of the
    scenario's. command: a `vllm serve ...` line. of_command: the keys that came from it, once that is known.
    """

    policies: list[str]
    settings: tuple[str, ...] = ()
    workload: str | None = None
    command: str | None = None
    of_command: set[str] = field(default_factory=set)

    def refuse(self, expected: str) -> None:
        """There is no scenario to change. Raises InputError for the first of the options that was given."""
        options = {
            "--policy": ",".join(self.policies) or None,
            "--set": next(iter(self.settings), None),
            "--from-command": self.command,
            "--workload": self.workload,
        }
        for option, value in options.items():
            if value is not None:
                raise InputError(option, None, value, expected)

    @property
    def names(self) -> list[str]:
        """The policies to run, none for the file's."""
        chosen = {text.partition("=")[0].strip() for text in self.settings}
        return self.policies or (["vllm"] if self.command is not None and POLICY not in chosen else [])

    def overrides(self, scenario: str, shorts: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Values by dotted key for `scenario.load`, to which `names` go too; --set goes before the command.

        shorts: more settings, those that are None were not given. Raises InputError.
        """
        own = dict(map(parse_setting, self.settings))
        own |= {key: value for key, value in (shorts or {}).items() if value is not None}
        return self._commanded(scenario, own, own, self.names) | own

    def fixed(
        self, scenario: str, varied: Collection[str] = (), option: str = "", baseline: bool = False
    ) -> dict[str, Any]:
        """Values by dotted key that all runs of a trial have, `engine.policy` among them.

        varied: keys that `option` gives several values of; they go before the command, and --set may not have them.
        baseline: whether there is a run of the command as it is too, which needs the command's values of these keys.
        Raises InputError.
        """
        own = dict(map(parse_setting, self.settings))
        if len(self.policies) > 1:
            raise InputError("--policy", None, ",".join(self.policies), "must be one policy here")
        for key in varied:
            if key in own or (key == POLICY and self.policies):
                given, value = ("--policy", self.policies[0]) if key not in own else (f"--set {key}", own[key])
                raise InputError(given, None, value, f"{option} has this key too")
        policy = {POLICY: self.names[0]} if self.names else {}
        before = own if baseline else {*own, *varied}
        return self._commanded(scenario, own, before, self.names, varied) | own | policy

    def variants(
        self, scenario: str, shorts: Mapping[str, str | None] | None = None
    ) -> tuple[dict[str, list[Any]], list[str]]:
        """Each dotted key with its values, where options take several with commas; the policies. Raises InputError."""
        given = [setting.partition("=") for setting in self.settings]
        given += [(key, "=", value) for key, value in (shorts or {}).items() if value is not None]
        own = parse_values(given)
        names = self.names
        if POLICY in own:
            if names:
                raise InputError(f"--set {POLICY}", None, None, "--policy says it too: give one of them")
            names = [str(name) for name in own.pop(POLICY)]
        first = {key: values[0] for key, values in own.items()}
        of_command = self._commanded(scenario, first, own, names)
        return {key: [value] for key, value in of_command.items()} | own, names

    def _commanded(
        self,
        scenario: str,
        own: Mapping[str, Any],
        given: Collection[str],
        names: list[str],
        varied: Collection[str] = (),
    ) -> dict[str, Any]:
        """What the command says and the other options do not."""
        if self.command is None:
            return {}
        found = overrides_of(self.command, scenario, own, given, names or [str(own[POLICY])], varied)
        self.of_command |= found.keys()
        return found

    def named(self, error: InputError) -> InputError:
        """An error about a setting of the command says so, where it would say --set."""
        return named(error, dict.fromkeys(self.of_command, "--from-command"))


def scenario_options(
    several: bool = False, workload: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare the options; the command gets them as `changes`, and its errors name the option that was wrong.

    several: they take several values with commas, each of them a run. workload: whether the scenario's load is used.
    """
    more = ",..." if several else ""
    runs = " Several with commas: each a run." if several else ""
    options = [
        click.option(
            "--policy",
            "--mode",
            "engines",
            multiple=True,
            metavar=f"NAME{more}",
            help=f"Policy instead of the scenario's: a name, or FILE.py:CLASS.{runs}",
        ),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar=f"KEY=VALUE{more}",
            help=f"Any setting of the scenario: --set engine.max_num_seqs=64{',128' if several else ''}; a request's "
            f"by its id: --set workload.requests.D.arrival=2{',10' if several else ''}; a class's by its name: "
            f"--set workload.generate.classes.chat.weight=2.{runs}",
        ),
        click.option(
            "--from-command",
            metavar="COMMAND",
            help="Policy vllm with the settings of a `vllm serve ...` command; --set goes before it.",
        ),
    ]
    if workload:
        options.append(
            click.option(
                "--workload", type=click.Path(), metavar="FILE", help="Workload file instead of the scenario's."
            )
        )

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(
            engines: tuple[str, ...],
            settings: tuple[str, ...],
            from_command: str | None,
            workload: str | None = None,
            **rest: Any,
        ) -> Any:
            changes = Changes(policy_names(engines), settings, workload, from_command)
            try:
                return function(changes=changes, **rest)
            except InputError as error:
                raise changes.named(error) from error.__cause__

        for option in reversed(options):
            option(call)
        return call

    return declare


def policy_names(given: Collection[str]) -> list[str]:
    """The policies that --policy names. Raises InputError."""
    names = [name for option in given for name in split_values(option)]
    if "" in names:
        raise InputError("--policy", None, ",".join(given), "must be a name, or several with commas")
    _refuse_repeated("--policy", names)
    return names


def parse_values(given: list[tuple[str, str, str]], option: str = "--set") -> dict[str, list[Any]]:
    """The values of each key, from texts parted at their first `=`. Raises InputError, which names the option."""
    values: dict[str, list[Any]] = {}
    for key, equals, text in given:
        parts = split_values(text)
        if len(parts) > 1 and not all(part.strip() for part in parts):
            raise InputError(option, None, f"{key}{equals}{text}", "a value between its commas is empty")
        parsed = [parse_setting(f"{key}{equals}{part}", option) for part in parts]
        name = parsed[0][0]
        if name in values:
            raise InputError(f"{option} {name}", None, None, "given twice: name all its values at once, with commas")
        values[name] = [value for _, value in parsed]
        _refuse_repeated(f"{option} {name}", values[name])
    return values


def _refuse_repeated(option: str, values: list[Any]) -> None:
    """The same value twice is a slip; its columns would be the same."""
    seen: list[str] = []
    for value in values:
        if repr(value) in seen:
            raise InputError(option, None, value, "given twice")
        seen.append(repr(value))


def split_values(text: str) -> list[str]:
    """The parts of a text between its commas, but not those within quotes, brackets or braces."""
    parts = [""]
    quote = ""
    depth = 0
    escaped = False
    for char in text:
        if quote:
            quote = quote if escaped or char != quote else ""
            escaped = not escaped and char == "\\" and quote == '"'
        elif char in "\"'":
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += char
    return parts
