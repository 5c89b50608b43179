"""The page for operators names every setting with its default, and every metric with what to do about it."""

import re
from pathlib import Path
from typing import Any

import msgspec

from server.config import Config
from server.metrics import Metrics, Sources

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "operations.md").read_text()


def rows() -> dict[str, str]:
    """The default in the table of settings, by name."""
    table = PAGE[PAGE.index("| setting |") :]
    table = table[: table.index("\n\n")]
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table, re.MULTILINE))


def told(default: Any) -> str:
    """A default as a person would write it."""
    if default in (None, ()):
        return "-"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, int) and default % (1 << 20) == 0 and default > 0:
        return f"{default} ({default >> 20} MiB)"
    return str(default)


def test_every_setting_has_its_row() -> None:
    assert list(rows()) == list(Config.__struct_fields__)


def test_every_row_tells_the_default() -> None:
    defaults = {
        field.name: told(field.default)
        for field in msgspec.structs.fields(Config)
        if field.default is not msgspec.NODEFAULT
    }
    assert defaults["port"] == "8080", "the defaults were not found"
    assert {name: default for name, default in rows().items() if name != "data_dir"} == defaults


def test_every_metric_has_its_row_and_every_row_its_metric() -> None:
    metrics = Metrics()
    sources = Sources(open_turns=lambda: 0, connections_in_use=lambda: 0, connections_max=1, prefixes={})
    with metrics.asking(sources):
        families = re.findall(r"^# TYPE (\w+) ", metrics.text().decode(), re.MULTILINE)
    table = PAGE[PAGE.index("| metric |") :]
    told = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(told) == sorted(name for name in families if not name.startswith("process_"))


def test_every_metric_has_its_advice() -> None:
    table = PAGE[PAGE.index("| metric |") :]
    advice = dict(re.findall(r"^\| `(rejoinder_\w+)` \| [^|]+ \|([^|\n]*)\|$", table, re.MULTILINE))
    assert list(advice) == re.findall(r"^\| `(rejoinder_\w+)` \|", table, re.MULTILINE)
    assert [name for name, text in advice.items() if not text.strip()] == []
