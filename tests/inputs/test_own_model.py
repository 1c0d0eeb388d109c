"""The source files that belong to the user's own model."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from halfstep.inputs.own_model import module_file, own_model_files


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(sources: dict[str, str | bytes]) -> None:
    for name, text in sources.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())


def found(sources: dict[str, str | bytes], name: str = "own:build") -> list[str]:
    write(sources)
    return sorted(own_model_files(name))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import helper", ["helper.py"]),
        ("import helper as h, keras, os.path", ["helper.py"]),
        ("from helper import part", ["helper.py"]),
        ("from package import module", ["package/__init__.py", "package/module.py"]),
        ("from package import function", ["package/__init__.py"]),
        ("from package import *", ["package/__init__.py"]),
        ("import package.sub.deep", ["package/__init__.py", "package/sub/__init__.py", "package/sub/deep.py"]),
        ("from package.sub.deep import x", ["package/__init__.py", "package/sub/__init__.py", "package/sub/deep.py"]),
        ("import loose.module", ["loose/module.py"]),
        ("def build():\n    import helper", ["helper.py"]),
        ("if TYPE_CHECKING:\n    import helper", ["helper.py"]),
        ("try:\n    import helper\nexcept ImportError:\n    pass", ["helper.py"]),
        ("class Layer:\n    async def f(self):\n        from helper import x", ["helper.py"]),
        ("# -*- coding: latin-1 -*-\nname = '\xe9'\nimport helper".encode("latin-1"), ["helper.py"]),
        (b"\xef\xbb\xbfimport helper", ["helper.py"]),
        ("import no_such_module, keras", []),
        ("from ...... import helper", ["helper.py"]),
        ("import importlib\nimportlib.import_module('helper')", []),
        ("text = 'import helper'", []),
        ("from halfstep.tasks.images.models.parts import conv_norm", []),
    ],
)
def test_static_imports_in_the_folder_are_found(source: str | bytes, expected: list[str]) -> None:
    others = {
        "helper.py": "",
        "unused.py": "",
        "package/__init__.py": "",
        "package/module.py": "",
        "package/unused.py": "",
        "package/sub/__init__.py": "",
        "package/sub/deep.py": "",
        "loose/module.py": "",
        "halfstep/__init__.py": "",
        "halfstep/tasks/images/models/parts.py": "",
    }
    assert found({"own.py": source, **others}) == sorted(["own.py", *expected])


def test_relative_imports_and_the_packages_of_the_module() -> None:
    sources = {
        "lib/__init__.py": "from . import first",
        "lib/first.py": "",
        "lib/nets/__init__.py": "",
        "lib/nets/own.py": "from .parts.block import Block\nfrom . import sizes\nfrom ..common import norm",
        "lib/nets/parts/__init__.py": "",
        "lib/nets/parts/block.py": "from ...deep import x",
        "lib/nets/sizes.py": "",
        "lib/common.py": "",
        "lib/deep.py": "",
        "lib/unused.py": "",
    }
    assert found(dict(sources), "lib.nets.own:build") == sorted(set(sources) - {"lib/unused.py"})


def test_imports_are_followed_through_cycles_and_names_of_a_star_import() -> None:
    sources = {
        "own.py": "import a",
        "a.py": "import b\nfrom package import *",
        "b.py": "import a, own",
        "package/__init__.py": "__all__ = ['one', '../../x', 'name']",
        "package/one.py": "import c",
        "c.py": "",
    }
    assert found(dict(sources)) == sorted(sources)


@pytest.mark.parametrize(
    "content",
    [b"import other\ndef f(:", b"\xff\xfe", b"import other\0", b"x = " + b"(" * 5000, b"-" * 100_000 + b"1", b""],
    ids=["syntax", "bytes", "null", "parentheses", "operators", "empty"],
)
def test_helper_that_cannot_be_parsed_belongs_to_the_model(content: bytes) -> None:
    assert found({"own.py": "import helper", "helper.py": content, "other.py": ""}) == ["helper.py", "own.py"]


def test_links_and_folders_in_place_of_modules(folder: Path) -> None:
    write({"own.py": "import loop, package, away, gone, pipe", "package/__init__.py": "from .again import x"})
    write({"outside/real.py": ""})
    (folder / "loop.py").symlink_to("loop.py")
    (folder / "package" / "again").symlink_to("../package")
    (folder / "away.py").symlink_to("outside/real.py")
    (folder / "gone.py").mkdir()
    os.mkfifo(folder / "pipe.py")
    assert found({}) == ["away.py", "own.py", "package/__init__.py"]


def test_only_its_own_package_of_an_installed_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write({f"site-packages/{name}/__init__.py": "" for name in ("nets", "keras")})
    write({"site-packages/nets/own.py": "import keras\nfrom . import parts", "site-packages/nets/parts.py": ""})
    monkeypatch.syspath_prepend(str(folder / "site-packages"))
    assert found({}, "nets.own:build") == ["nets/__init__.py", "nets/own.py", "nets/parts.py"]


def test_helpers_are_found_in_a_folder_of_pythonpath(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write({"lib/nets.py": "import parts", "lib/parts.py": "", "parts.py": ""})
    monkeypatch.syspath_prepend(str(folder / "lib"))
    assert own_model_files("nets:build") == {"nets.py": folder / "lib/nets.py", "parts.py": folder / "lib/parts.py"}


def test_a_task_may_lie_in_any_folder_and_only_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write({"repo/tasks/own.py": "from . import parts\nimport lib", "repo/tasks/parts.py": "", "repo/lib.py": ""})
    write({"lib.py": "", "repo/unused.py": "", "installed/away.py": ""})
    monkeypatch.syspath_prepend(str(folder / "installed"))
    repo = folder / "repo"
    assert own_model_files("tasks.own:build", repo, only_root=True) == {
        name: repo / name for name in ("tasks/own.py", "tasks/parts.py", "lib.py")
    }
    assert own_model_files("away:build", repo, only_root=True) == {}
    assert module_file("away", repo, only_root=True) is None
    assert module_file("away", repo) == folder / "installed/away.py"


@pytest.mark.parametrize("name", ["cnn", "keras.applications.ResNet50", "nowhere:build", "own:", "../own:build"])
def test_other_models_have_no_files(name: str) -> None:
    assert own_model_files(name) == {}


def test_small_trees_take_milliseconds() -> None:
    write({f"m{number}.py": f"import keras, m{number + 1}\n" + "x = [1, 2]\n" * 100 for number in range(10)})
    write({"own.py": "import m0"})
    started_s = time.process_time()
    assert len(own_model_files("own:build")) == 11
    assert time.process_time() - started_s < 0.2  # about 0.02 s
