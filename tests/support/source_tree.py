"""The checkout as the house tests see it: its rooms, its modules and their syntax trees."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# From the ground up: a room may import only from rooms before it.
ROOMS = ("core", "kernels", "worker", "executor", "engine", "api")


def package_files() -> list[Path]:
    """Every Python file of the package, the front door included."""
    files = [ROOT / "__init__.py"]
    for room in ROOMS:
        files += sorted(path for path in (ROOT / room).rglob("*.py") if "__pycache__" not in path.parts)
    return files


def python_files() -> list[Path]:
    """The package's files, and those of tests and examples."""
    extra = [path for folder in ("tests", "examples") for path in sorted((ROOT / folder).rglob("*.py"))]
    return package_files() + extra


def relative(path: Path) -> str:
    """The path from the root, for messages."""
    return str(path.relative_to(ROOT))


def parse(path: Path) -> ast.Module:
    """The file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of every import in the file, relative ones resolved to ``octavo...``.

    Imports inside functions count as well: a room that is reached late is reached all the same. Those under
    ``if TYPE_CHECKING`` count too, since types are dependencies.
    """
    package = ("octavo", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                yield node.lineno, node.module or ""
                continue
            base = package[: len(package) - node.level + 1]
            module = ".".join((*base, *((node.module,) if node.module else ())))
            if node.module:
                yield node.lineno, module
            else:
                for alias in node.names:
                    yield node.lineno, f"{module}.{alias.name}"
