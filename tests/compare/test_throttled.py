"""A measure with too many throttled rounds decides nothing, and says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from halfstep.compare.case import Judging
from halfstep.compare.document import document_of
from halfstep.compare.report.markdown import render_markdown
from halfstep.compare.verdict import throttled_measures
from halfstep.compare.words import verdict_sentence
from halfstep.results.profile import GpuConditions
from halfstep.system import files
from tests.small_study import PROTOCOL, SmallStudy, html_of, profile, sentences, terminal_of

GPU = GpuConditions(
    name="NVIDIA A100-SXM4-80GB",
    uuid="GPU-74edc72b-204b-7996-59f6-bff24ec89c23",
    readings=48,
    throttled=0.5,
    reasons={"hw_thermal_slowdown": 0.1, "sw_power_cap": 0.9, "sw_thermal_slowdown": 0.5},
    sm_clock_mhz=(705, 1410),
    max_sm_clock_mhz=1410,
    temperature_c=(61, 93),
    power_w=(146.0, 391.5),
    power_limit_w=400.0,
    other_processes=0,
    reading_ms=0.4,
)
SEEN = "NVIDIA A100-SXM4-80GB: sw thermal slowdown, hw thermal slowdown, SM clock 705 to 1410 of 1410 MHz, 61 to 93 °C"


def throttle(file_name: str, is_throttled: Callable[[pd.DataFrame], Any]) -> None:
    """Marks rounds of all arms as throttled, which then do not count."""
    for folder in files.PROFILE.iterdir():
        table = pd.read_csv(folder / file_name)
        table["throttled"] = is_throttled(table)
        table["counted"] &= ~table["throttled"].eq(True)
        table.to_csv(folder / file_name, index=False)
        files.write_manifest(folder)


@pytest.fixture
def on_gpu(project: SmallStudy) -> SmallStudy:
    """The study with what a GPU did during its rounds."""
    for folder in files.PROFILE.iterdir():
        project.edit_profile(folder.name, protocol=PROTOCOL.model_copy(update={"gpus": (GPU,)}).model_dump())
    return project


def test_few_throttled_rounds_are_left_out(on_gpu: SmallStudy) -> None:
    """One of the 20 rounds in the steady state."""
    before = on_gpu.compare().cases[1].speedups["train"]
    throttle("rounds.csv", lambda table: (table["process"] == 1) & (table["round"] == 3))
    comparison = on_gpu.compare()
    assert comparison.void == frozenset()
    assert comparison.cases[1].verdict == "adopt"
    assert comparison.cases[1].speedups["train"].rounds == before.rounds - 1
    assert [reason.code for item in comparison.cases for reason in item.reasons if reason.code == "throttled"] == []


def test_rounds_before_the_steady_state_do_not_matter(on_gpu: SmallStudy) -> None:
    throttle("rounds.csv", lambda table: table["round"] == 0)
    assert on_gpu.compare().throttled == {}


@pytest.fixture
def throttled(on_gpu: SmallStudy) -> Judging:
    """Three of the five rounds of each process were throttled, in training."""
    throttle("rounds.csv", lambda table: table["round"] > 2)
    return on_gpu.compare()


def test_many_throttled_rounds_void_their_measure(throttled: Judging) -> None:
    assert throttled.throttled == {"train": pytest.approx(0.6)}
    assert throttled.void == {"train"}
    assert throttled.differing == frozenset()
    slow, fast = throttled.cases[:2]
    assert slow.verdicts == {"train": "inconclusive", "inference_b1": "reject", "inference_b32": "reject"}
    assert fast.verdicts == {"train": "inconclusive", "inference_b1": "adopt", "inference_b32": "adopt"}
    assert "adopt" not in (slow.verdict, fast.verdict)


def test_reason_has_the_share_and_what_was_seen(throttled: Judging) -> None:
    for candidate in throttled.cases[:2]:
        reason = next(reason for reason in candidate.reasons if reason.measure == "train")  # it comes first
        assert reason.code == "throttled"
        assert f"the GPU was throttled in 60 % of the rounds ({SEEN})" in reason.text
        assert reason.evidence["share"] == pytest.approx(0.6)
        assert reason.evidence["gpus"][0]["sm_clock_mhz"] == [705, 1410]
        assert "cooling" in reason.advice
        assert "control_differs" not in {reason.code for reason in candidate.reasons}


def test_every_report_says_so(throttled: Judging) -> None:
    fast = throttled.cases[1]
    sentence = verdict_sentence(fast)
    assert "is undecided: the GPU was throttled in 60 % of the rounds, so its times decide nothing" in sentence
    (step,) = sentences(fast)
    assert step.startswith("The GPU was throttled in too many rounds of training: look at its cooling")
    terminal = Console(file=StringIO(), width=200)
    terminal.print(terminal_of(throttled))
    assert isinstance(terminal.file, StringIO)
    note = "The GPU was throttled in too many rounds of training, which therefore decides nothing."
    assert note in terminal.file.getvalue()
    result = document_of(throttled)
    assert result.control["train"].throttled == pytest.approx(0.6)
    assert not any(control.differs for control in result.control.values())
    assert result.control["inference_b1"].throttled is None
    assert "The GPU was throttled in too many rounds of training, which therefore decides nothing." in render_markdown(
        result
    )
    page = html_of(throttled)
    assert page.count(note.removeprefix("Note: ")) == page.count("This measurement decides nothing") == 1
    assert "The two copies" not in page


def test_measure_may_be_void_for_both_causes(on_gpu: SmallStudy) -> None:
    on_gpu.scale_times("_control", "rounds.csv", 1.2)
    throttle("rounds.csv", lambda table: table["round"] > 2)
    comparison = on_gpu.compare()
    assert comparison.void == comparison.differing == {"train"}
    codes = [reason.code for reason in comparison.cases[1].reasons if reason.measure == "train"]
    assert set(codes[:2]) == {"throttled", "control_differs"}
    assert document_of(comparison).control["train"].differs


def test_throttled_inference_voids_its_batch_size(on_gpu: SmallStudy) -> None:
    throttle("inference.csv", lambda table: (table["round"] > 2) & (table["batch_size"] == 1))
    comparison = on_gpu.compare()
    assert comparison.void == {"inference_b1"}
    assert comparison.cases[1].verdicts == {
        "train": "adopt",
        "inference_b1": "inconclusive",
        "inference_b32": "adopt",
    }


def test_process_without_another_round_voids_the_measure() -> None:
    """One of 16 processes: a share that would be small enough, but its times count."""
    rounds = pd.DataFrame({"process": range(16), "round": 0, "counted": True, "throttled": [True] + [False] * 15})
    changed_profile = replace(profile(), rounds=rounds, calls=pd.DataFrame({"batch_size": []}))
    assert throttled_measures(changed_profile, ()) == {"train": 1 / 16}
    assert throttled_measures(replace(changed_profile, rounds=rounds.drop(columns="throttled")), (1,)) == {}
