"""The settings that have an option: how `--help` tells them, and how they become a Config."""

import argparse
import os
from typing import Any, Final

from server.config import Config, load

_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "upstream": {"metavar": "URL", "help": "base URL of the model server, such as http://host:8000/v1"},
    "upstream_api_key": {
        "metavar": "KEY",
        "help": "key for the model server (safer: REJOINDER_UPSTREAM_API_KEY_FILE)",
    },
    "host": {"metavar": "ADDRESS", "help": "address to listen on (127.0.0.1)"},
    "port": {"metavar": "PORT", "help": "port to listen on, 0 for any free one (8080)"},
    "workers": {"metavar": "N", "help": "how many processes serve the port, such as one a core (1)"},
    "data_dir": {"metavar": "FOLDER", "help": "where the embedded Postgres keeps its data"},
    "database_url": {"metavar": "URL", "help": "a Postgres of your own, postgresql://..., instead of the embedded one"},
    "open_to_all": {
        "action": "store_true",
        "default": None,
        "help": "serve everybody while there is no API key, also on an address that others reach",
    },
    "no_migrate": {"action": "store_true", "default": None, "help": "leave the schema to `rejoinder migrate`"},
    "log_level": {"metavar": "LEVEL", "help": "debug, info, warning or error (info)"},
    "config": {"metavar": "FILE", "help": "a TOML file of settings; also by REJOINDER_CONFIG"},
}

EVERYWHERE: Final = "Every setting can also be given as a variable (REJOINDER_DATA_DIR) or in the TOML file (data_dir)."


def add(parser: argparse.ArgumentParser, *names: str) -> None:
    """Give `parser` the options of these settings."""
    parser.epilog = EVERYWHERE
    for name in names:
        parser.add_argument(f"--{name.replace('_', '-')}", **_OPTIONS[name])


def settings(arguments: argparse.Namespace) -> Config:
    """The settings of this process, its options first. Raises ConfigError."""
    return load({name: getattr(arguments, name, None) for name in _OPTIONS}, os.environ)
