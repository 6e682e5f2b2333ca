"""The floors of the house: who may import whom."""

from pathlib import Path

import pytest
from source_tree import ROOMS, ROOT, imports, package_files, relative

# What a whole room must do without: the ground floor decides and describes, it neither computes nor talks.
FORBIDDEN_LIBRARIES = {
    "core": ("torch", "zmq", "transformers", "fastapi", "uvicorn", "httpx"),
    "kernels": ("zmq", "transformers", "fastapi", "uvicorn", "httpx"),
    "worker": ("fastapi", "uvicorn", "httpx"),
    "executor": ("fastapi", "uvicorn", "httpx"),
    "engine": ("fastapi", "uvicorn"),
}


def allowed_rooms(room: str) -> set[str]:
    """Rooms that ``room`` may import: itself and the floors below. Kernels stand alone."""
    return {room} if room == "kernels" else set(ROOMS[: ROOMS.index(room) + 1])


def breaches(path: Path, room: str, allowed: set[str]) -> list[str]:
    found = []
    for line, name in imports(path):
        parts = name.split(".")
        if parts[0] == "octavo" and len(parts) > 1 and parts[1] in ROOMS and parts[1] not in allowed:
            found.append(f"{relative(path)}:{line} ({room}) imports {name}")
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_lower_floors(room: str) -> None:
    files = [path for path in package_files() if path.relative_to(ROOT).parts[0] == room]
    assert files, f"the room {room} has no files"
    assert [breach for path in files for breach in breaches(path, room, allowed_rooms(room))] == []


@pytest.mark.parametrize("room", FORBIDDEN_LIBRARIES)
def test_a_room_keeps_out_the_libraries_of_other_floors(room: str) -> None:
    files = [path for path in package_files() if path.relative_to(ROOT).parts[0] == room]
    found = [
        f"{relative(path)}:{line} imports {name}"
        for path in files
        for line, name in imports(path)
        if name.split(".")[0] in FORBIDDEN_LIBRARIES[room]
    ]
    assert found == []


def test_the_package_imports_itself_only_relatively() -> None:
    found = []
    for path in package_files():
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if text.strip().startswith(("import octavo", "from octavo")):
                found.append(f"{relative(path)}:{number} {text.strip()}")
    assert found == []


def test_a_breach_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import source_tree

    monkeypatch.setattr(source_tree, "ROOT", tmp_path)
    monkeypatch.setitem(globals(), "relative", lambda path: path.name)
    (tmp_path / "core").mkdir()
    bad = tmp_path / "core" / "bad.py"
    bad.write_text("from ..engine.async_llm import AsyncLLM\nfrom . import errors\nfrom .. import api\n")
    found = breaches(bad, "core", allowed_rooms("core"))
    assert found == ["bad.py:1 (core) imports octavo.engine.async_llm", "bad.py:3 (core) imports octavo.api"]
