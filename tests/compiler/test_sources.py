"""Import closures: what a module's compiled code can depend on."""

from __future__ import annotations

from pathlib import Path

from framework.compiler.sources import import_closure, source_hash


def write(root: Path, **modules: str) -> None:
    for name, text in modules.items():
        file = root.joinpath(*name.split("__")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def names(files: set[Path], root: Path) -> set[str]:
    return {str(file.relative_to(root)) for file in files}


def test_closure_follows_imports_through_others(tmp_path: Path) -> None:
    write(tmp_path, a__one="from a import two\nimport numpy", a__two="import b.three", b__three="", b__four="")
    assert names(import_closure(tmp_path / "a" / "one.py", tmp_path), tmp_path) == {
        "a/one.py",
        "a/two.py",
        "b/three.py",
    }


def test_circles_end(tmp_path: Path) -> None:
    write(tmp_path, a__one="def f():\n    from a.two import g", a__two="from a.one import f")
    assert names(import_closure(tmp_path / "a" / "one.py", tmp_path), tmp_path) == {"a/one.py", "a/two.py"}


def test_files_beside_a_source_outside_the_root_count(tmp_path: Path) -> None:
    root = tmp_path / "project"
    write(root, framework__x="")
    write(tmp_path / "elsewhere", mine="from helper import h\nfrom framework.x import y", helper="")
    closure = import_closure(tmp_path / "elsewhere" / "mine.py", root)
    assert names(closure, tmp_path) == {"elsewhere/mine.py", "elsewhere/helper.py", "project/framework/x.py"}


def test_a_file_read_again_after_a_change(tmp_path: Path) -> None:
    write(tmp_path, a__one="import a.two", a__two="", a__three="")
    assert names(import_closure(tmp_path / "a" / "one.py", tmp_path), tmp_path) == {"a/one.py", "a/two.py"}
    write(tmp_path, a__one="import a.two, a.three")
    assert len(import_closure(tmp_path / "a" / "one.py", tmp_path)) == 3


def test_hash_sees_names_and_contents(tmp_path: Path) -> None:
    write(tmp_path, one="a", two="bb")
    files = [tmp_path / "one.py", tmp_path / "two.py"]
    before = source_hash(files, tmp_path)
    assert source_hash(files[::-1], tmp_path) == before
    write(tmp_path, one="bb", two="a")
    assert source_hash(files, tmp_path) != before


def test_hash_is_the_same_in_another_copy_of_the_project(tmp_path: Path) -> None:
    hashes = []
    for root in (tmp_path / "here", tmp_path / "there" / "deeper"):
        write(root, a__one="from a import two", a__two="")
        hashes.append(source_hash(import_closure(root / "a" / "one.py", root), root))
    assert hashes[0] == hashes[1]
