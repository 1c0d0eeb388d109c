"""What a release said of its studies is still said: every number and every sentence. More may be said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from halfstep.compare.document import document_of, judged
from halfstep.compare.report.html import render_report
from halfstep.compare.report.markdown import render_markdown
from halfstep.compare.report.terminal import answer_text, brief
from halfstep.compare.study import Study, load_study
from halfstep.params.schema import CompareParams
from halfstep.results.comparison import Comparison
from tests.frozen import COLUMNS, FOLDER, text_of_page, unpack

MOST_WORDS = 1500  # on a page
STUDIES = sorted(path.name.removesuffix(".tar.xz") for path in FOLDER.glob("*.tar.xz"))


def study_of(name: str, folder: Path) -> tuple[Study, CompareParams]:
    """A frozen study, and how it is judged; `folder` is the working folder."""
    unpack(name, folder)
    params: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.params.yaml").read_text(encoding="utf-8"))
    settings = CompareParams(**params["compare"])
    train, sizes = params["train"], params["profile"]["inference_batch_sizes"]
    return load_study(settings.baseline, train["variants"], train["seeds"], sizes), settings


def compared(name: str, folder: Path) -> Comparison:
    """A frozen study, compared again; `folder` is the working folder."""
    return document_of(judged(*study_of(name, folder)))


def texts_of(comparison: Comparison) -> str:
    """What the terminal, the page and the Markdown say, one after the other."""
    console = Console(width=COLUMNS, color_system=None)
    with console.capture() as capture:
        console.print(brief(comparison))
    parts = {
        "terminal": f"{capture.get()}{answer_text(comparison)}\n",
        "page": text_of_page(render_report(comparison)),
        "Markdown": render_markdown(comparison),
    }
    return "\n".join(f"======== {name} ========\n{text}" for name, text in parts.items())


def differences(frozen: Any, current: Any, where: str = "") -> list[str]:
    """Where a value is not as it was; keys may have been added."""
    if isinstance(frozen, dict) and isinstance(current, dict):
        missing = [f"{where}.{key}: missing" for key in frozen.keys() - current.keys()]
        shared = frozen.keys() & current.keys()
        return missing + [text for key in shared for text in differences(frozen[key], current[key], f"{where}.{key}")]
    if isinstance(frozen, list) and isinstance(current, list) and len(frozen) == len(current):
        return [
            text
            for n, pair in enumerate(zip(frozen, current, strict=True))
            for text in differences(*pair, f"{where}[{n}]")
        ]
    is_same = frozen == (pytest.approx(current, rel=1e-6) if isinstance(frozen, float) else current)
    return [] if is_same else [f"{where}: {frozen!r} has become {current!r}"]


def lost(frozen: str, current: str) -> list[str]:
    """Lines that are no longer there, in their order."""
    rest = iter(line.strip() for line in current.splitlines())
    return [line for line in (line.strip() for line in frozen.splitlines()) if line and line not in rest]


def test_there_are_nine_studies() -> None:
    assert len(STUDIES) == 9


@pytest.mark.parametrize("name", STUDIES)
def test_every_key_and_sentence_is_as_it_was(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    comparison = compared(name, tmp_path)
    frozen = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert differences(frozen, comparison.as_json()) == []
    assert len(text_of_page(render_report(comparison)).split()) <= MOST_WORDS
    assert lost((FOLDER / f"{name}.txt").read_text(encoding="utf-8"), texts_of(comparison)) == []


@pytest.mark.parametrize("flags", ["", "--xla_enable_command_buffers_during_profiling=true"])
def test_traces_without_cuda_graphs_are_said(flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA launches kernels one by one while a profiler runs, unless it is told otherwise."""
    monkeypatch.chdir(tmp_path)
    study, settings = study_of("h100", tmp_path)
    study = replace(study, environment={**study.environment, "settings": {"XLA_FLAGS": flags}})
    said = [note for note in document_of(judged(study, settings)).notes or () if "CUDA graphs" in note]
    assert len(said) == (not flags)


def test_difference_is_found() -> None:
    assert differences({"a": [1.0, {"b": "x"}]}, {"a": [1.0 + 1e-9, {"b": "x", "c": 1}]}) == []
    assert differences({"a": [1.0], "b": 1}, {"a": [1.1]}) == [".b: missing", ".a[0]: 1.0 has become 1.1"]
    assert lost("a\nb\nc", "a\nc\nd") == ["b", "c"]
    assert lost("a\nc", "a\nb\nc") == []
