"""Classes of protocol buffers that are declared here, with the fields that are read and no others.

The schemas of TensorFlow's copies take seconds to import. Texts are declared as bytes: names may be invalid UTF-8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Fields = Mapping[str, Sequence[tuple[str, int, str]]]

_PROTO = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bytes": _PROTO.TYPE_BYTES,
    "int32": _PROTO.TYPE_INT32,
    "int64": _PROTO.TYPE_INT64,
    "uint64": _PROTO.TYPE_UINT64,
}


def message_class(name: str, package: str, fields: Fields) -> Any:
    """The class of message `name`.

    Args:
        name: one of the messages in `fields`.
        package: distinguishes this schema from others.
        fields: by message, name, number and type of each field; `*` before a type means that the field is repeated.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    for message, declared_fields in fields.items():
        declared = file.message_type.add(name=message)
        for field, number, field_type in declared_fields:
            _declare(declared, package, field, number, field_type)
    pool = descriptor_pool.DescriptorPool()  # a separate pool: the default one may hold TensorFlow's messages
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))


def _declare(declared: descriptor_pb2.DescriptorProto, package: str, name: str, number: int, field_type: str) -> None:
    label = _PROTO.LABEL_REPEATED if field_type.startswith("*") else _PROTO.LABEL_OPTIONAL
    plain = field_type.removeprefix("*")
    field = declared.field.add(name=name, number=number, label=label, type=_SCALARS.get(plain, _PROTO.TYPE_MESSAGE))
    if plain not in _SCALARS:
        field.type_name = f".{package}.{plain}"
