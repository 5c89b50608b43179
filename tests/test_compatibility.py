"""The page on compatibility names tests that exist, and the routes that are served: all of them, and no others."""

import ast
import re
from pathlib import Path

from server.api import responses
from server.app import create
from server.config import load
from server.telemetry import Telemetry

TESTS = Path(__file__).resolve().parent
PAGE = (TESTS.parent / "docs" / "compatibility.md").read_text()


def rows() -> list[list[str]]:
    """The cells of every row of every table, without the heads."""
    lines = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    return [cells for cells in lines if cells[-1] != "shown by"]


def known_tests() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        assert path.stem not in found, "two files of one name"
        body = ast.parse(path.read_text()).body
        functions = (node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        found[path.stem] = {node.name for node in functions if node.name.startswith("test_")}
    return found


def served_routes() -> set[str]:
    """Method and path of what is served. The framework answers OPTIONS by itself, and HEAD goes with GET."""
    app = create(load({"upstream": "http://127.0.0.1:1/v1"}, {"HOME": "/nowhere"}), Telemetry())
    # The route of turns is beside the framework.
    served = {f"POST {responses.CREATE_PATH}"}
    for route in app.routes:
        path = re.sub(r":\w+}", "}", route.path)
        methods = route.methods
        assert ("HEAD" in methods) == ("GET" in methods), path
        served |= {f"{method} {path}" for method in methods - {"HEAD", "OPTIONS"}}
    return served


def test_every_row_names_a_test_that_exists() -> None:
    known = known_tests()
    assert len(rows()) > 50
    for cells in rows():
        named = re.fullmatch(r"`(\w+)\.(\w+)`", cells[-1])
        assert named, cells
        assert named[2] in known.get(named[1], set()), cells[-1]


def test_the_routes_of_the_page_are_those_that_are_served() -> None:
    section = PAGE[PAGE.index("## Routes") : PAGE.index("## Not built yet")]
    told = re.findall(r"^\| `([A-Z]+ /\S*)` \|", section, re.MULTILINE)
    assert len(told) == len(set(told))
    assert set(told) == served_routes()
