"""Reasons about settings that a variant leaves alone and that may be faster: its batch, XLA, and oneDNN."""

from __future__ import annotations

from halfstep.compare.explain.accounts import calm_steps_ms
from halfstep.compare.explain.evidence import Evidence, changes_of
from halfstep.compare.explain.overhead import larger_steps
from halfstep.results.comparison import Reason
from halfstep.results.profile import HOST
from halfstep.stats.speedup import t_interval
from halfstep.text import ms_text, number_text, percent_text

IDLE_SHARE = 0.2  # of the step, without any operation
_FEWEST_REPEATS = 2


def step_overhead(data: Evidence) -> Reason | None:
    """No operation runs in a good part of the step: starting steps and operations takes its time at any batch.

    On a CPU, a trace does not show operations of a few microseconds.
    """
    account = data.candidate.account
    if account.empty:
        return None
    # what the profiler adds to a step may all be idle, and is not counted
    step_ms = calm_steps_ms(data.candidate.rounds)
    busy_ms = account[account["kind"] != HOST].groupby("process")["time_ms"].sum()
    step_ms, busy_ms = step_ms.align(busy_ms, join="inner")
    idle_ms = step_ms - busy_ms
    if len(step_ms) < _FEWEST_REPEATS:
        return None
    low, high = t_interval((idle_ms / step_ms).to_numpy())
    share = float(idle_ms.sum() / step_ms.sum())
    if low < IDLE_SHARE:
        return None
    none = "no operation runs" if data.on_gpu else "no operation runs that takes more than a few microseconds"
    return Reason(
        code="step_overhead",
        text=f"In {percent_text(share)} of a training step ({100 * low:.0f} to {percent_text(high)}), "
        f"{number_text(float(idle_ms.mean()))} of {ms_text(float(step_ms.mean()))}, {none}: to start a step "
        "and its operations takes as long for a batch of any size, and in any precision.",
        evidence={"idle_ms": float(idle_ms.mean()), "step_ms": float(step_ms.mean())}
        | {"share": share, "low": low, "high": high, "repeats": len(step_ms)},
        advice="Give each step more work: a larger batch, or XLA, which fuses operations.",
        time_ms=float(idle_ms.mean()),
        **changes_of(larger_steps(data, share)),
    )


def small_batch(data: Evidence) -> Reason | None:
    """A larger batch trains clearly more examples per second, as `profile.find_max_batch` found."""
    largest, here = data.candidate.summary.largest_batch, data.candidate.batch_size
    speeds = {one.batch_size: one.examples_per_s for one in largest.tried if one.examples_per_s} if largest else {}
    best = max(speeds, key=speeds.__getitem__, default=here)
    if here not in speeds or best <= here or speeds[best] < data.min_speedup * speeds[here]:
        return None
    return Reason(
        code="small_batch",
        text=f"At batch {best:,} training runs at {number_text(speeds[best])} examples/s, and at batch {here:,} at "
        f"{number_text(speeds[here])}, each alone on the machine.",
        evidence={"batch_size": here, "examples_per_s": speeds[here]}
        | {"best_batch_size": best, "best_examples_per_s": speeds[best]},
        advice="Another batch changes the training: its quality must be measured too.",
        change=data.changed("batch_size", best, speeds[best] / speeds[here]),
    )


def onednn_off(data: Evidence) -> Reason | None:
    """The entry of a variant by itself, such as the baseline, switches oneDNN off on a CPU."""
    entry = data.candidate.summary.entry
    if data.baseline is not None or data.on_gpu or entry.onednn or data.candidate.rounds.empty:
        return None
    return Reason(
        code="onednn_off",
        text="oneDNN, whose kernels are usually faster on CPUs, is off in this variant.",
        evidence={"onednn": False},
        advice="Try onednn: true in its entry of variants.",
        change=data.changed("onednn", True),
    )
