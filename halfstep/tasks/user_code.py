"""Runs the user's own code: whatever it raises becomes one line that names the model or the task."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import site
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple, TypeVar

from halfstep.errors import ALL_OF_IT, HalfstepError, ModelError, one_line
from halfstep.system import files, native_writes, sealing
from halfstep.tensorflow_import import is_op_determinism_enabled, keras, keras_seed, tensorflow_seed, tf

SEEDS = "the seed (keras.utils.set_random_seed)", "the seed (tf.random.set_seed)"
TF32 = "TensorFloat-32"
SLOW_S = 60.0  # the largest networks of `keras.applications` are built in less
_Answer = TypeVar("_Answer")
_Batch = TypeVar("_Batch")
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_MAX_LENGTH = 300
# What reading the data fails with where the passes differ: of TensorFlow's message, only this is shown.
UNEVEN = "Task.train does not have the same number of batches in every epoch"
REPEAT = "give every epoch as many, as Task.train.repeat().take(steps) does"
_KEPT_START = 80  # characters of a message that is too long
_KERAS_ARGUMENTS = "Arguments received by "  # how the end of a message of Keras begins
# What Keras says of a layer that fails while its output's shape is inferred, before the error itself.
_KERAS_GUESS = re.compile(r"Could not automatically infer the output shape .*?Error encountered:", re.DOTALL)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_TRACEBACK = "Traceback (most recent call last):"
_AUTOGRAPH = "in user code:\n"
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in ')
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:: .*)?$")  # a line that begins in the first column, after the frames


@contextmanager
def explained(
    subject: str, failure: str, kind: type[HalfstepError] = ModelError, *, is_script: bool = False
) -> Iterator[None]:
    """Turns every exception of the block into a `HalfstepError`, and prints a line if the block takes long.

    `sys.exit` in a user's module would otherwise end the stage without a word. The exceptions that a signal raises in
    the block are not changed. Afterwards the process is where it was, and has the settings that results depend on: a
    process that the block has forked ends here.

    Args:
        subject: names the model or the task, at the start of the message.
        failure: what did not work, such as "cannot be built".
        kind: class of the error.
        is_script: the block is a script, which may change the working folder and settings: its process runs nothing
            else.

    Raises:
        HalfstepError: the block raised an exception, or left a setting of Keras or TensorFlow changed.
    """
    unchanged = nullcontext() if is_script else _unchanged(subject, kind)
    with _signals_recorded() as received, _announced_if_slow(subject), unchanged:
        try:
            yield
        except HalfstepError:
            raise
        except BaseException as error:
            if received:
                raise
            raise kind(f"{subject} {failure}{under_policy()}: {describe(error)}") from error


@contextmanager
def _unchanged(subject: str, kind: type[HalfstepError]) -> Iterator[None]:
    """Restores the working folder after the block, and checks the settings."""
    process, folder, before = os.getpid(), Path.cwd(), settings()
    try:
        yield
    finally:
        if os.getpid() != process:  # two processes would write one result
            os._exit(1)
        os.chdir(folder)
    for name, value in settings().items():
        if value != before[name]:
            raise kind(f"{subject} changed {name} from {before[name]} to {value}; remove that call: halfstep sets it")


def settings() -> dict[str, object]:
    """Global settings on which results depend, by name."""
    return {
        "keras.config.floatx": keras.config.floatx(),
        "keras.config.image_data_format": keras.config.image_data_format(),
        "keras.config.epsilon": keras.config.epsilon(),
        "the dtype policy (keras.config.dtype_policy)": keras.config.dtype_policy().name,
        SEEDS[0]: keras_seed(),
        SEEDS[1]: tensorflow_seed(),
        "determinism (tf.config.experimental.enable_op_determinism)": is_op_determinism_enabled(),
        "eager execution (tf.config.run_functions_eagerly)": tf.config.functions_run_eagerly(),
        TF32: tf.config.experimental.tensor_float_32_execution_enabled(),
    }


def under_policy() -> str:
    """Names the policy of a variant with 16 bits, after what failed under it; empty for float32."""
    policy = keras.config.dtype_policy().name
    return "" if policy == "float32" else f" under {policy}"


def answer_of(subject: str, run: Callable[[], _Answer]) -> _Answer | str:
    """What a call returns, or the message of its error, for the process that asked; `subject` names the task."""
    try:
        return run()
    except HalfstepError as error:
        return str(error)
    except Exception as error:  # of the user's own model or task
        return f"{subject}: {describe(error)}"


def describe(error: BaseException) -> str:
    """An exception in one printable line, with the line of the user's code that raised it.

    Where the line does not have all of a long message, it names a file that has.
    """
    try:
        whole = str(error)
    except Exception:  # of the user's own class
        whole = ""
    raised = _raised_in_graph(whole)
    if not_fetched := _not_fetched(error, whole):
        description = not_fetched + _at(traceback.extract_tb(error.__traceback__))
    elif raised:
        description = one_line(raised.text, _MAX_LENGTH) + _at(raised.frames)
    else:
        description = _text(error) + _at(traceback.extract_tb(error.__traceback__))
    path = _log(error) if len(whole) > _MAX_LENGTH else None
    return description + (f"{ALL_OF_IT}{path}" if path else "")


def callback_of(error: BaseException) -> str | None:
    """The class of the callback that an exception was raised in; None if it was raised elsewhere."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        instance = frame.f_locals.get("self")
        if isinstance(instance, keras.callbacks.Callback) and not isinstance(instance, keras.callbacks.CallbackList):
            return type(instance).__name__
    return None


def _not_fetched(error: BaseException, message: str) -> str | None:
    """Says which file Keras cannot fetch, and where it looks for it; None if something else is the cause."""
    url = re.match(r"URL fetch failure on (\S+): None -- ", message)  # with a number, a server has answered
    if url is None:
        return None
    frames = (frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__))
    places = [path for variables in frames if (path := variables.get("download_target"))]
    place = f": fetch it elsewhere, and put it at {places[-1]}" if places else ""
    return f"there is no network to fetch {url[1]}{place}"


class _Raised(NamedTuple):
    """What Python code raised within TensorFlow's graph: the exception's own text, and its frames."""

    text: str
    frames: list[traceback.FrameSummary]


def _raised_in_graph(message: str) -> _Raised | None:
    """Finds the exception in TensorFlow's message, which has its traceback as text; None if it has none."""
    if uneven := re.search(rf"{re.escape(UNEVEN)}( \(\d+ in the first\))?", message):
        return _Raised(f"{uneven[0]}; {REPEAT}", [])
    _, mark, block = message.rpartition(_TRACEBACK)
    if not mark:
        _, mark, block = message.partition(_AUTOGRAPH)
    if not mark:
        return None
    frames = [traceback.FrameSummary(name, int(line), "") for name, line in _FRAME.findall(message)]
    own = [line.strip() for line in textwrap.dedent(block).splitlines() if _EXCEPTION.match(line)]
    return _Raised(own[-1], frames) if own else None


def _log(error: BaseException) -> Path | None:
    """Writes an exception with its traceback to a file. Returns its path; None if it cannot be written."""
    process = multiprocessing.current_process()
    where = (os.environ.get("DVC_STAGE") or "stage", *([process.name] if multiprocessing.parent_process() else []))
    stage = re.sub(r"[^\w@.-]", "_", "-".join(where))
    path = files.WORK_DIR / "errors" / f"{stage}.txt"
    try:
        files.write_text(_checkout / path, "".join(traceback.format_exception(error)))
    except (HalfstepError, OSError):
        return None
    return path


_checkout = Path()  # where halfstep writes; relative as long as the working folder is that of the checkout


def stay_in_checkout() -> None:
    """Makes what this module writes go where the working folder is now: a script will change it."""
    global _checkout
    _checkout = Path.cwd()


def seal(folders: Iterable[Path]) -> None:
    """From now on this process leaves the user's files as they were; `folders` are those of their code."""
    sealing.seal(_checkout.absolute(), folders)
    native_writes.report()


def _text(error: BaseException) -> str:
    name = type(error).__name__
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return _shortened(f"it raised {name}({'' if not error.args else repr(error.args[0])})")
    try:
        text = _shortened(str(error))
    except Exception:  # of the user's own class
        return name
    return f"{name}: {text}" if isinstance(error, KeyError) else text or name


def _shortened(text: str) -> str:
    """On one line, without what Keras adds and without colours; of a long text its end, where the cause is."""
    text = _KERAS_GUESS.sub("", _COLOUR.sub("", text.partition(_KERAS_ARGUMENTS)[0]))
    text = " ".join(text.split())
    if len(text) > _MAX_LENGTH:
        text = f"{text[:_KEPT_START]} ... {text[_KEPT_START - _MAX_LENGTH :]}"
    return one_line(text)


def _at(frames: Iterable[traceback.FrameSummary]) -> str:
    """File and line of the innermost call in the user's code; empty if the exception was raised elsewhere."""
    own = [frame for frame in frames if is_users(Path(frame.filename))]
    return f" ({one_line(Path(own[-1].filename).name)}, line {own[-1].lineno})" if own else ""


def is_users(path: Path) -> bool:
    """Whether a file is neither Python's, nor of a library, nor of halfstep."""
    elsewhere = (sys.prefix, sys.base_prefix, *site.getsitepackages(), str(Path(__file__).parents[1]))
    return path.is_file() and not any(path.is_relative_to(folder) for folder in elsewhere)


@contextmanager
def _signals_recorded() -> Iterator[list[int]]:
    """Yields a list of the signals that arrive in the block, and restores their handlers."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield received
        return
    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in previous.items():
        if callable(handler):
            signal.signal(number, _recording(received, handler))
    try:
        yield received
    finally:
        for number, handler in previous.items():
            if handler is not None:  # None is a handler that Python did not install
                signal.signal(number, handler)


def _recording(received: list[int], handler: Callable[..., object]) -> Callable[..., object]:
    def handle(number: int, frame: object) -> object:
        received.append(number)
        return handler(number, frame)

    return handle


@contextmanager
def _announced_if_slow(subject: str) -> Iterator[None]:
    """A function that never returns is not an error that can be detected: a line a minute says what is waited for."""
    ended, started_s = threading.Event(), time.monotonic()

    def announce() -> None:
        while not ended.wait(SLOW_S):
            waited_s = time.monotonic() - started_s
            print(f"{subject.rstrip(',')}: has taken {waited_s:.0f} s so far{_reading()}", file=sys.stderr, flush=True)

    threading.Thread(target=announce, daemon=True, name="announcer").start()
    try:
        yield
    finally:
        ended.set()


_read: dict[str, int] = {}  # by what is read, the number of batches so far


def _reading() -> str:
    return "".join(f"; {count:,} batches of {name} are read" for name, count in list(_read.items()))


def counted(batches: Iterable[_Batch], name: str) -> Iterator[_Batch]:
    """The same batches. While they are read, the lines that `explained` prints say how many there were."""
    try:
        for number, batch in enumerate(batches, start=1):
            _read[name] = number
            yield batch
    finally:
        _read.pop(name, None)
