"""Records: checked by pydantic where halfstep runs, plain dataclasses in the interpreter of the user.

That interpreter need not have pydantic, and may have a release that halfstep cannot use. Records are only checked where
files are read and written, which is here: over there their classes have the same fields, defaults, properties and
methods. They cross the connection between both by `pickle`.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

IS_ELSEWHERE = "HALFSTEP_ELSEWHERE"  # environment variable of a process in another interpreter than halfstep's

if TYPE_CHECKING or IS_ELSEWHERE not in os.environ:
    from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WrapValidator, model_validator
else:

    def Field(default: Any = dataclasses.MISSING, *, default_factory: Any = dataclasses.MISSING, **_: object) -> Any:
        """A field with this default."""
        if type(default) in (dict, list):
            return dataclasses.field(default_factory=lambda: default.copy())
        return dataclasses.field(default=default, default_factory=default_factory)

    def model_validator(**_: object) -> Any:
        """A method that is not called, because nothing is checked."""
        return lambda method: method

    def BeforeValidator(_: object) -> None:
        """Nothing, because nothing is checked."""

    WrapValidator, ConfigDict, ValidationError = BeforeValidator, dict, ValueError

    class BaseModel:
        """Base of the records."""

        def __init_subclass__(cls) -> None:
            for name in vars(cls).get("__annotations__", {}):
                if type(vars(cls).get(name)) in (dict, list):
                    setattr(cls, name, Field(vars(cls)[name]))
            dataclasses.dataclass(frozen=True, kw_only=True)(cls)

        @classmethod
        def model_validate(cls, content: dict[str, Any]) -> Any:
            """The record with this content of a file, which halfstep has written."""
            return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in content.items()})

        def model_copy(self, *, update: dict[str, Any]) -> Any:
            """The record with other values of some fields."""
            return dataclasses.replace(self, **update)

        def __getstate__(self) -> dict[str, Any]:
            kept = ("fields_set", set(vars(self))), ("extra", None), ("private", None)
            return {"__dict__": vars(self)} | {f"__pydantic_{name}__": value for name, value in kept}

        def __setstate__(self, state: dict[str, Any]) -> None:
            vars(self).update(state["__dict__"])


__all__ = [
    "BaseModel",
    "BeforeValidator",
    "ConfigDict",
    "Field",
    "ValidationError",
    "WrapValidator",
    "model_validator",
]
