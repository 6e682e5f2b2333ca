"""The limits that keep the house small, and the texts that keep it readable."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from source_tree import ROOT, package_files, parse, python_files, relative

FILE_LINES = 500
FUNCTION_LINES = 60
PACKAGE_LINES = 20_000  # of code: blank lines, comments and docstrings are free
VAGUE_NAMES = {"utils.py", "helpers.py", "common.py", "misc.py"}

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def definitions(tree: ast.Module) -> Iterator[Definition]:
    """Every function and class of a file, nested ones too."""
    for node in ast.walk(tree):
        if isinstance(node, Definition):
            yield node


def length(node: Definition) -> int:
    """Lines of a definition, decorators included."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return (node.end_lineno or node.lineno) - first + 1


def code_lines(path: Path) -> int:
    """Lines that hold code."""
    prose: set[int] = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    return sum(1 for number, line in lines if line.strip() and not line.strip().startswith("#") and number not in prose)


def public_without_docstring(tree: ast.Module) -> Iterator[Definition]:
    """Public functions and classes of the module, and public methods of those classes, that explain nothing.

    Properties and methods whose name and types say it all are spared if their body is a single statement, and so is
    what overrides a documented method of a base class.
    """
    for node in tree.body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            if ast.get_docstring(node) is None:
                yield node
            if isinstance(node, ast.ClassDef):
                yield from _methods_without_docstring(node)


def _methods_without_docstring(node: ast.ClassDef) -> Iterator[Definition]:
    for method in node.body:
        if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) or method.name.startswith("_"):
            continue
        if ast.get_docstring(method) is None and len(method.body) > 1 and not node.bases:
            yield method


def test_no_file_is_longer_than_the_limit() -> None:
    sizes = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in package_files()}
    assert {name: lines for name, lines in sizes.items() if lines > FILE_LINES} == {}


def test_the_package_stays_small() -> None:
    assert sum(code_lines(path) for path in package_files()) <= PACKAGE_LINES


def test_no_function_is_longer_than_the_limit() -> None:
    found = [
        f"{relative(path)}:{node.lineno} {node.name} has {length(node)} lines"
        for path in package_files()
        for node in definitions(parse(path))
        if not isinstance(node, ast.ClassDef) and length(node) > FUNCTION_LINES
    ]
    assert found == []


def test_every_module_says_what_it_is() -> None:
    assert [relative(path) for path in python_files() if ast.get_docstring(parse(path)) is None] == []


def test_every_public_name_says_what_it_does() -> None:
    found = [
        f"{relative(path)}:{node.lineno} {node.name}"
        for path in package_files()
        for node in public_without_docstring(parse(path))
    ]
    assert found == []


def test_every_function_is_annotated() -> None:
    found = []
    for path in package_files():
        for node in definitions(parse(path)):
            if isinstance(node, ast.ClassDef):
                continue
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            bare = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls")]
            if bare or node.returns is None:
                found.append(f"{relative(path)}:{node.lineno} {node.name}({', '.join(bare)})")
    assert found == []


def test_files_are_named_after_what_they_hold() -> None:
    assert [relative(path) for path in python_files() if path.name in VAGUE_NAMES] == []


def test_nothing_is_left_undone() -> None:
    unfinished = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    own = Path(__file__).resolve()
    found = [
        f"{relative(path)}:{number} {line.strip()}"
        for path in python_files()
        if path.resolve() != own
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if unfinished.search(line) or line.strip() in ("raise NotImplementedError", "raise NotImplementedError()")
    ]
    assert found == []


def test_attributes_are_not_probed_for() -> None:
    """``hasattr``, and ``getattr`` with a default, hide what an object is; types and interfaces say it."""
    found = []
    for path in package_files():
        for node in ast.walk(parse(path)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id == "hasattr" or (node.func.id == "getattr" and len(node.args) > 2):
                found.append(f"{relative(path)}:{node.lineno}")
    assert found == []


def test_tests_mirror_the_rooms() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py")), "tests are collected by path and need no packages"


def test_the_limits_would_notice() -> None:
    tree = ast.parse(
        "def long():\n" + "    x = 1\n" * 60 + "class A:\n    def b(self):\n        c = 1\n        return c\n"
    )
    assert [length(node) for node in definitions(tree) if node.name == "long"] == [61]
    assert [node.name for node in public_without_docstring(tree)] == ["long", "A", "b"]
