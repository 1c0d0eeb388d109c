"""What all results share: versioned JSON documents, tables of rows and arrays, checked when they are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from halfstep.errors import CorruptFileError, DataError
from halfstep.system import files
from halfstep.system.records import BaseModel, ConfigDict, ValidationError

if TYPE_CHECKING:
    from typing import Self

    import pandas as pd

SCHEMA_VERSION = "schema_version"


class Record(BaseModel):
    """A part of a document: frozen, without unknown keys. NaN and infinity stay numbers, which `write` refuses."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Document(Record):
    """A JSON file that a stage writes and others read.

    A field that does not apply is None here and absent from the file. `VERSION` is raised when a field is renamed or
    changes its meaning; a file of another version is refused with the command that makes it again.
    """

    VERSION: ClassVar[int]

    def as_json(self) -> dict[str, Any]:
        """The file's content."""
        return {SCHEMA_VERSION: self.VERSION, **self.model_dump(mode="json", by_alias=True, exclude_none=True)}

    def write(self, path: Path) -> None:
        """Writes the file, atomically."""
        files.write_json(path, self.as_json())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads the file.

        Raises:
            DataError: the file is missing.
            CorruptFileError: the file has another schema version, or lacks what its version requires.
        """
        return cls.of(files.read_json(path), path)

    @classmethod
    def of(cls, content: Any, path: Path) -> Self:
        """The document with this content of a file, which `path` names; errors as of `read`, but for a missing file."""
        if not isinstance(content, dict):
            raise corrupt(path, "it is not a JSON object")
        if (version := content.pop(SCHEMA_VERSION, 1)) != cls.VERSION:
            raise CorruptFileError(
                f"{path} has schema version {version} and this release of halfstep reads {cls.VERSION}"
                f"{files.cure_of(path)}"
            )
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            raise corrupt(path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def write_table(path: Path, row_type: type, rows: Sequence[Any]) -> None:
    """Writes dataclass instances as CSV, one column a field. A field whose default is None needs a row that has it."""
    import pandas as pd  # only where tables are

    columns = [field.name for field in fields(row_type)]
    table = pd.DataFrame([asdict(row) for row in rows], columns=columns)
    optional = [field.name for field in fields(row_type) if field.default is None]
    table = table.drop(columns=[name for name in optional if table[name].isna().all()])
    files.write_text(path, table.to_csv(index=False, float_format="%.6f"))


def read_table(path: Path, columns: Sequence[str], *, may_be_empty: bool = False) -> pd.DataFrame:
    """Reads a CSV file.

    Raises:
        DataError: the file is missing.
        CorruptFileError: the file is not CSV, lacks one of `columns`, or is empty although it must not be.
    """
    import pandas as pd  # only where tables are

    try:
        table = pd.read_csv(path)
    except FileNotFoundError as error:
        raise missing(path) from error
    except (ValueError, pd.errors.ParserError) as error:
        raise corrupt(path, str(error)) from error
    absent = [column for column in columns if column not in table.columns]
    if absent or (table.empty and not may_be_empty):
        raise corrupt(path, f"columns {', '.join(absent)} are missing" if absent else "it has no rows")
    return table


def empty_table(columns: Iterable[str]) -> pd.DataFrame:
    """A table without rows."""
    import pandas as pd  # only where tables are

    return pd.DataFrame(columns=list(columns))


def csv_text(rows: Sequence[Mapping[str, float]], columns: Sequence[str]) -> str:
    """Rows as CSV; without any, these columns."""
    import pandas as pd  # only where tables are

    table = pd.DataFrame(list(rows)) if rows else pd.DataFrame(columns=list(columns))
    return table.to_csv(index=False, na_rep="nan")


def read_array(path: Path, dimensions: int, *, may_overflow: bool = False) -> NDArray[Any]:
    """Reads a `.npy` file of numbers.

    Raises:
        DataError: the file is missing.
        CorruptFileError: the file is not an array of numbers, has other dimensions, or contains NaN or infinity
            although it must not.
    """
    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError as error:
        raise missing(path) from error
    except (ValueError, EOFError, OSError) as error:
        raise corrupt(path, str(error)) from error
    is_numeric = array.ndim == dimensions and array.dtype.kind in "iuf"
    if not is_numeric or not (may_overflow or np.isfinite(array).all()):
        wanted = f"{dimensions} dimensions of finite numbers"
        raise corrupt(path, f"it must have {wanted}; its shape is {array.shape} and its type {array.dtype}")
    return np.asarray(array)


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Writes a `.npy` file, atomically.

    Raises:
        DataError: it cannot be written; the previous file is unchanged.
    """
    with files.atomic_path(path) as temporary_path, temporary_path.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def missing(path: Path) -> DataError:
    """The error for a file that is not there."""
    return DataError(f"{path} is missing{files.cure_of(path)}")


def corrupt(path: Path, reason: str) -> CorruptFileError:
    """The error for a file whose content cannot be used."""
    return CorruptFileError(f"{path} cannot be used ({' '.join(reason.split())}){files.cure_of(path)}")
