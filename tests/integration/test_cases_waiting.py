"""No reported failure is forgotten: each has its test, or waits for what is not built yet."""

import ast
from collections import Counter
from pathlib import Path

from tests.harness import cases

WAITING = {
    "background turns": "B043 B114",
}


def ids_of_tests() -> set[str]:
    """The case that a test's docstring begins with; some have two tests."""
    tests = [
        node
        for path in Path(__file__).parent.glob("test_cases_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef) and node.name.startswith("test_")
    ]
    return {(ast.get_docstring(test) or "")[:4] for test in tests} & set(cases())


def test_every_reported_failure_is_tested_or_waits() -> None:
    waiting = [case_id for ids in WAITING.values() for case_id in ids.split()]
    counted = Counter([*ids_of_tests(), *waiting])
    assert counted == Counter(cases().keys())
