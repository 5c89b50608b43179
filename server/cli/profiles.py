"""`rejoinder profiles`: what each preset lets through to an upstream, for those who write or override one."""

import argparse

import msgspec

from server.protocol.profile import PRESETS


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "profiles",
        help="list the profiles of upstreams, or print one",
        description="List the presets by name and dialect, or print one as JSON: its members are those that a table "
        'in the configuration file may override (profile = {preset = "vllm", encrypted_only = "omit"}).',
        allow_abbrev=False,
    )
    parser.add_argument("name", nargs="?", choices=list(PRESETS), metavar="NAME", help="the profile to print")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.name is None:
        for name, profile in PRESETS.items():
            print(f"{name:<14} {profile.dialect}")
        return 0
    text = msgspec.json.encode(PRESETS[arguments.name], order="deterministic")
    print(msgspec.json.format(text, indent=2).decode())
    return 0
