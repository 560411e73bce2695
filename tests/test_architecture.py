"""The house: each file has a place, and imports go up the list only."""

from __future__ import annotations

import ast
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import trioagent

PACKAGE = Path(trioagent.__file__).parent
ROOT = PACKAGE.parent
LAYERS = [
    ["_events"],
    ["_errors"],
    ["_phase", "_turn"],
    ["_state"],
    ["_outcome", "_limits"],
    ["_ports"],
    ["_foreign", "_schema"],
    ["_tools"],
    ["_plan", "_scopes"],
    ["_ending"],
    ["_reply", "_effects"],
    ["_calls"],
    ["_guards", "_attempts"],
    ["_approvals", "_budget"],
    ["_run"],
    ["_subagents"],
    ["_agent"],
    ["models", "stores", "prices", "isolate"],
    ["mcp"],
    ["observe", "testing"],
    ["bench"],
    ["cli"],
    ["__init__", "__main__"],
]
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}
ADAPTERS_KNOW = {
    n for names in LAYERS[: LAYERS.index(["_plan", "_scopes"])] for n in names
}
FILES = sorted(PACKAGE.rglob("*.py"))


def place(path: Path) -> str:
    """The name in LAYERS that a file belongs to."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Dotted names a file imports at run time, also inside functions."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    package = "trioagent." + ".".join(path.relative_to(PACKAGE).parts[:-1])
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.rstrip(".") if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            found.add(module)
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def ours(path: Path) -> set[str]:
    """The names in LAYERS that a file imports, but for its own."""
    dotted = (name.split(".") for name in imports(path))
    names = {parts[1] for parts in dotted if parts[0] == "trioagent" and parts[1:]}
    return (names & HEIGHT.keys()) - {place(path)}


def test_every_file_has_a_place() -> None:
    assert {place(path) for path in FILES} == HEIGHT.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_up_the_list_only(path: Path) -> None:
    too_high = {name for name in ours(path) if HEIGHT[name] >= HEIGHT[place(path)]}
    assert too_high == set()


@pytest.mark.parametrize(
    ("folder", "besides"),
    [
        ("models", set()),
        ("stores", set()),
        ("isolate", set()),
        ("mcp", {"isolate"}),  # for servers that are processes
    ],
)
def test_adapters_know_words_and_ports_and_not_each_other(
    folder: str, besides: set[str]
) -> None:
    for path in (PACKAGE / folder).rglob("*.py"):
        assert ours(path) <= ADAPTERS_KNOW | besides, path


@pytest.mark.parametrize(
    "name", ["_events", "_errors", "_phase", "_turn", "_state", "_outcome", "_limits"]
)
def test_the_words_know_no_trio(name: str) -> None:
    assert not any(i.split(".")[0] == "trio" for i in imports(PACKAGE / f"{name}.py"))


@pytest.mark.parametrize(
    ("library", "files"),
    [
        ("httpx", {"models/_http.py"}),
        (
            "rich",
            {f"observe/{name}.py" for name in ("console", "story", "tree")}
            | {"bench/_table.py", "cli/bench.py", "cli/_bench_run.py"},
        ),
        ("numpy", {"bench/_stats.py"}),
        ("matplotlib", {"bench/_plots.py"}),
        ("sqlite3", {"stores/sqlite.py"}),
        ("mcp", {"mcp/_link.py", "mcp/_stdio.py", "mcp/_http.py"}),
        ("httpx2", {"mcp/_http.py"}),
    ],
)
def test_one_importer_each(library: str, files: set[str]) -> None:
    importers = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        if any(name.split(".")[0] == library for name in imports(path))
        and "adapters" not in path.parts  # they import what they measure
    }
    assert importers <= files


def test_the_front_door_is_sorted_and_complete() -> None:
    names = trioagent.__all__
    assert names == sorted(names)
    assert all(hasattr(trioagent, name) for name in names)
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    imported = [
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert sorted(imported) == names


def test_the_map_names_every_file() -> None:
    assert trioagent.__doc__
    for path in PACKAGE.glob("*.py"):
        if not path.stem.startswith("__"):
            assert path.stem in trioagent.__doc__, path.stem


def test_importing_it_loads_nothing_that_is_not_needed() -> None:
    code = (
        "import sys, trioagent, trioagent.mcp;"
        "print(*{m.split('.')[0] for m in sys.modules} & {'httpx', 'rich', 'argparse',"
        " 'docstring_parser', 'xllamacpp', 'sqlite3', 'asyncio', 'mcp', 'mcp_types',"
        " 'anyio', 'httpx2', 'pydantic'})"
    )
    # What measures the coverage of processes would import something itself.
    env = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE")}
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=env,
    )
    assert out.stdout.split() == []


def somewhere() -> None:
    """A function that a worker could find."""


def test_a_tool_goes_into_a_process_without_an_import_up_the_list() -> None:
    assert "isolate" not in ours(PACKAGE / "_tools.py")
    assert trioagent.tool(isolate="process")(somewhere).needs is not None


def code_lines(path: Path) -> int:
    """Lines to read: not blank, no comment, of no docstring and no import."""
    text = path.read_text()
    lines = {
        number
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.strip().startswith("#")
    }
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        skipped: ast.stmt | None = None
        if isinstance(node, kinds) and ast.get_docstring(node):
            skipped = node.body[0]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            skipped = node
        if skipped is not None and skipped.end_lineno:
            lines -= set(range(skipped.lineno, skipped.end_lineno + 1))
    return len(lines)


def test_the_core_can_be_read_whole() -> None:
    core = [p for p in PACKAGE.glob("_*.py") if not p.stem.startswith("__")]
    assert sum(code_lines(path) for path in core) <= 3_300
    for path in FILES:
        assert code_lines(path) <= 300, path


def test_the_loop_stays_small() -> None:
    tree = ast.parse((PACKAGE / "_run.py").read_text())
    loop = ["drive", "take_turns", "ask_model", "call_tools", "call_tool"]
    functions = [n for n in tree.body if isinstance(n, ast.AsyncFunctionDef)]
    assert [f.name for f in functions] == loop, "first in the file, and whole"
    lines = 0
    for function in functions:
        assert function.end_lineno
        lines += function.end_lineno - function.lineno + 1
        if ast.get_docstring(function):
            lines -= 1
    assert lines <= 45


def test_python_m_trioagent_is_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["trioagent", "--help"])
    with pytest.raises(SystemExit) as left:
        runpy.run_module("trioagent", run_name="__main__")
    assert left.value.code == 0
    assert "trioagent" in capsys.readouterr().out
