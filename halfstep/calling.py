"""`halfstep.judge(...)`: the command `halfstep judge` from Python, also for a function of a notebook."""

from __future__ import annotations

import hashlib
import html
import inspect
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from halfstep.compare.report import tables
from halfstep.compare.report.terminal import answer_text
from halfstep.errors import CommandError, WorkspaceError
from halfstep.results.comparison import COMPARISON, Comparison
from halfstep.system import files
from halfstep.words.text import measure_label, yaml_text

_FOLDER = files.WORK_DIR / "called"
_FUNCTION = "function.pkl"
_OF_A_TASK = {"batch_size", "seed"}  # arguments of a function that returns a Task
_CALLING = '''\
"""What `halfstep.judge` was called with, as a {what}. It is written anew by each call."""

from pathlib import Path

import cloudpickle

SHA256 = "{sha256}"
function = cloudpickle.loads((Path(__file__).parent / "{pickle}").read_bytes())
{last}
'''
_WIDTH, _ROW, _LEFT = 640, 22, 215  # of the picture, in pixels
_PRE = '<pre style="font-family: monospace">'


class Judged(Comparison):
    """What was judged, as in `comparison.json`; a notebook shows its answer and its intervals."""

    def to_frame(self) -> pd.DataFrame:
        """A row for each candidate and measure: the speed-up, its interval, the times and the noise floor."""
        return tables.speedups(self)

    def _repr_html_(self) -> str:
        return f"{_PRE}{html.escape(answer_text(self))}</pre>{_picture(self.to_frame(), self.min_speedup)}"


def judge(
    what: str | Path | Callable[..., Any] | None = None,
    *,
    model: Callable[[], Any] | None = None,
    train: Any = None,
    validation: Any = None,
    variants: Sequence[str] = (),
    arguments: Sequence[str] = (),
    parameters: Mapping[str, Any] | None = None,
    options: Sequence[str] = (),
    folder: str | Path = ".",
) -> Judged:
    """Judges a training in lower precision, as `halfstep judge` does, and prints its progress.

    Args:
        what: a training script, `module:function`, a function without arguments that calls `fit`, or a function of
            `batch_size` and `seed` that returns a `halfstep.tasks.Task`. A function may be one of a notebook, with a
            closure: it is copied to the processes that train and time it.
        model: in place of `what`, a function that returns a new compiled model, which is trained on `train` for as many
            epochs as `train.epochs` says.
        train, validation: arrays `(x, y)` for it, or a function that returns a `tf.data.Dataset`.
        variants: the baseline and what is compared with it; by default float32, mixed_float16 and mixed_bfloat16.
        arguments: of the script's command line.
        parameters: by dotted name, such as `{"train.epochs": 3}`.
        options: others of the command, such as `("--train",)` or `("--python", "../.venv/bin/python")`.
        folder: in which the training runs; everything is written below `.halfstep` there.

    Raises:
        WorkspaceError: it could not answer; what is printed says why.
        CommandError: a function cannot be copied to another process, or `what` and `model` are both given.
    """
    if (what is None) == (model is None):
        raise CommandError("halfstep.judge: give what is judged, or model=, train= and validation=")
    here = Path(folder).absolute()
    if model is not None:
        epochs = int((parameters or {}).get("train.epochs") or 1)
        what = _training(model, train, validation, epochs)
    given, settings = _copied(what, here) if callable(what) else ([str(what)], {})
    command = [sys.executable, "-m", "halfstep", "judge", *given, *options]
    command += [f"--variants={','.join(variants)}"] if variants else []
    settings |= parameters or {}
    command += [f"--set={key}={_text(value)}" for key, value in settings.items()]
    _run([*command, *(["--", *arguments] if arguments else [])], here)
    return Judged.read(here / files.JUDGE / COMPARISON)


def _training(model: Callable[[], Any], train: Any, validation: Any, epochs: int) -> Callable[[], None]:
    """A function that trains the model, as a script would."""
    if not callable(model):
        raise CommandError(
            "halfstep.judge: model is a model; give a function that makes and compiles it, because its layers keep the "
            "precision in which they were made"
        )

    def data(given: Any) -> tuple[Any, ...]:
        made = given() if callable(given) else given
        return made if isinstance(made, tuple) else (made,)

    def training() -> None:
        others = {} if validation is None else {"validation_data": validation() if callable(validation) else validation}
        model().fit(*data(train), epochs=epochs, **others)

    return training


def _copied(function: Callable[..., Any], here: Path) -> tuple[list[str], dict[str, Any]]:
    """Writes a function where the pipeline finds it: the argument that names it, and parameters."""
    import cloudpickle

    try:
        content = cloudpickle.dumps(function)
    except Exception as error:  # of any object that the function refers to
        name = getattr(function, "__name__", "the function")
        raise CommandError(
            f"halfstep.judge: {name} cannot be copied to another process ({error}); make what it refers to inside of it"
        ) from error
    folder, is_task = here / _FOLDER, set(inspect.signature(function).parameters) >= _OF_A_TASK
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _FUNCTION).write_bytes(content)
    text = _CALLING.format(
        what="task" if is_task else "script",
        sha256=hashlib.sha256(content).hexdigest(),
        pickle=_FUNCTION,
        last="" if is_task else "function()",
    )
    path = folder / ("called_task.py" if is_task else "called.py")
    files.write_text(path, text.rstrip("\n") + "\n")
    if is_task:
        return ["called_task:function"], {"task.path": os.path.relpath(folder, here / files.JUDGE)}
    return [str(path.relative_to(here))], {}


def _text(value: Any) -> str:
    """A value of a parameter as `--set` takes it."""
    return f"[{', '.join(map(_text, value))}]" if isinstance(value, list | tuple) else yaml_text(value)


def _run(command: Sequence[str], here: Path) -> None:
    """Runs the command and prints its lines as they come, which a notebook shows below the cell."""
    with subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
    if process.returncode:
        raise WorkspaceError(f"halfstep.judge: it could not answer (status {process.returncode}); see above")


def _picture(frame: pd.DataFrame, required: float) -> str:
    """The intervals of the speed-ups, on a logarithmic axis with 1 and the smallest speed-up worth having."""
    if frame.empty:
        return ""
    logs = [math.log(value) for value in (*frame["low"], *frame["high"], 1.0, required)]
    low, high = min(logs), max(logs)
    height = _ROW * (len(frame) + 1)

    def x(ratio: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 20) * (math.log(ratio) - low) / max(high - low, 0.01)

    return "".join(
        [
            f'<svg width="{_WIDTH}" height="{height}" role="img" aria-label="Speed-ups with 95 % intervals" '
            'font-family="sans-serif" font-size="12" fill="currentColor" stroke="currentColor">',
            *_marks(x, height, required),
            *(
                f'<text x="4" y="{y + 4}" stroke="none">{label}</text>'
                f'<line x1="{x(row.low):.1f}" x2="{x(row.high):.1f}" y1="{y}" y2="{y}" stroke-width="2"/>'
                f'<circle cx="{x(row.ratio):.1f}" cy="{y}" r="4" stroke="none">'
                f"<title>{row.ratio:.2f} ({row.low:.2f} to {row.high:.2f})</title></circle>"
                for number, row in enumerate(frame.itertuples())
                for y in [_ROW // 2 + _ROW * number]
                for label in [html.escape(f"{row.variant}, {measure_label(row.measure)}")]
            ),
            "</svg>",
        ]
    )


def _marks(x: Callable[[float], float], height: int, required: float) -> Iterator[str]:
    for ratio in dict.fromkeys((1.0, required)):
        yield (
            f'<line x1="{x(ratio):.1f}" x2="{x(ratio):.1f}" y1="0" y2="{height - _ROW}" stroke-dasharray="3" '
            f'opacity="0.5"/><text x="{x(ratio):.1f}" y="{height - 6}" text-anchor="middle" stroke="none">'
            f"{ratio:g}×</text>"
        )
