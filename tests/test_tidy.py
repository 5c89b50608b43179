"""The code's own shape, as a test: sizes, names, docstrings, and what a reader should never find.

The limits are those of `server/`; tests and migrations may be as long as they need. Complexity and style are ruff's,
the direction of imports is import-linter's. Only the standard library and pytest are used here.
"""

import ast
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
DECISION_LINES_MAX = 40
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}

# The brackets keep the first pattern from finding itself. The second finds what only one person's machine has.
LEFT_FOR_LATER = re.compile(r"\b(?:TO[D]O|FIX[M]E|X{3})\b")
SOMEBODYS_FOLDER = re.compile(r"(?<![\w.~}])/(?:home|root|Users|work|workspace)/[\w.]")

# Their subject is home directories, and all of these are made up.
ABOUT_HOMES = {"tests/unit/test_config.py"}


def modules(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def texts() -> Iterator[tuple[str, str]]:
    """Name and content of the repository's own text files: nothing built, cached or installed, no recorded bytes."""
    for folder, folders, names in os.walk(ROOT):
        here = Path(folder)
        folders[:] = [name for name in folders if not is_foreign(here / name)]
        for path in map(here.joinpath, names):
            if path.name == ".git":
                # In a further worktree of git's this is a file, which names the first one.
                continue
            try:
                yield named(path), path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def is_foreign(folder: Path) -> bool:
    name = named(folder)
    hidden = folder.name.startswith(".") and name != ".ci"
    return hidden or folder.name in {"__pycache__", "node_modules"} or name in {"build", "dist", "data", "tests/data"}


def functions(source: str) -> Iterator[tuple[str, int]]:
    """Name and length in lines, from `def` to the last line, of every function and method."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def test_no_file_of_the_server_is_too_long() -> None:
    lengths = {named(path): len(path.read_text().splitlines()) for path in modules("server")}
    assert lengths, "there is no server to measure"
    assert {name: length for name, length in lengths.items() if length > FILE_LINES_MAX} == {}


def test_no_function_of_the_server_is_too_long() -> None:
    lengths = {
        f"{named(path)}:{name}": length for path in modules("server") for name, length in functions(path.read_text())
    }
    assert lengths, "there is no function to measure"
    assert {name: length for name, length in lengths.items() if length > FUNCTION_LINES_MAX} == {}


def test_a_function_is_measured_from_def_to_its_last_line() -> None:
    source = "@decorated\nasync def outer(\n    a,\n):\n    def inner():\n        return a\n    return inner\n"
    assert dict(functions(source)) == {"outer": 6, "inner": 2}


def test_every_module_says_what_lives_in_it() -> None:
    silent = [
        named(path)
        for path in modules("server", "tests", "migrations")
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_every_module_of_the_protocol_has_unit_tests_of_its_own() -> None:
    protocol = [path for path in (ROOT / "server" / "protocol").iterdir() if not path.stem.startswith("__")]
    assert protocol, "there is no protocol to test"
    # A package is tested through what it gives to others, in one file or more.
    tests = [path.stem for path in (ROOT / "tests" / "unit").glob("test_*.py")]
    untested = [
        path.stem
        for path in protocol
        if not any(
            test == f"test_{path.stem}" or (path.is_dir() and test.startswith(f"test_{path.stem}_")) for test in tests
        )
    ]
    assert sorted(untested) == []


def test_no_module_has_a_name_that_explains_nothing() -> None:
    vague = [named(path) for path in modules("server", "tests", "migrations") if path.stem in VAGUE_NAMES]
    assert vague == []


def test_nothing_is_left_for_later() -> None:
    found = [
        f"{name}:{number}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if LEFT_FOR_LATER.search(line)
    ]
    assert found == []


def test_no_text_names_a_folder_of_somebodys_machine() -> None:
    found = [
        f"{name}:{number}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if SOMEBODYS_FOLDER.search(line) and name not in ABOUT_HOMES
    ]
    assert found == []


@pytest.mark.parametrize("folder", ["home", "root", "Users", "work", "workspace"])
def test_a_folder_of_somebodys_machine_is_recognised(folder: str) -> None:
    assert SOMEBODYS_FOLDER.search(f"cd /{folder}/ada/rejoinder")
    assert SOMEBODYS_FOLDER.search(f'open("/{folder}/.netrc")')


@pytest.mark.parametrize(
    "text",
    ["https://example.com/home/page", "~/work/rejoinder", "/var/lib/rejoinder", "docs/work/log", "{base}/root/x"],
)
def test_other_paths_are_not_taken_for_one(text: str) -> None:
    assert not SOMEBODYS_FOLDER.search(text)


def test_a_recorded_decision_is_short() -> None:
    lengths = {named(path): len(path.read_text().splitlines()) for path in (ROOT / "docs" / "adr").glob("[0-9]*.md")}
    assert "docs/adr/0001-record-decisions.md" in lengths
    assert {name: length for name, length in lengths.items() if length > DECISION_LINES_MAX} == {}


def test_every_package_of_the_server_has_its_place_in_the_layers() -> None:
    """import-linter itself runs in `make lint`; here only that no module can escape its contract."""
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layered = [contract for contract in configuration["contracts"] if contract["type"] == "layers"]
    assert [(contract["containers"], contract["exhaustive"]) for contract in layered] == [(["server"], True)]
