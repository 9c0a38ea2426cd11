"""What protoc would generate for a small message like Waymo's Scenario, made without protoc.

::

    message Scenario { string scenario_id = 1; repeated double timestamps_seconds = 2; repeated Track tracks = 3; }
    message Track { int32 id = 1; }
"""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FILE = descriptor_pb2.FileDescriptorProto(
    name="scenario_messages.proto", package="demo", syntax="proto3"
)
_TRACK = _FILE.message_type.add(name="Track")
_TRACK.field.add(name="id", number=1, label=1, type=5)
_SCENARIO = _FILE.message_type.add(name="Scenario")
_SCENARIO.field.add(name="scenario_id", number=1, label=1, type=9)
_SCENARIO.field.add(name="timestamps_seconds", number=2, label=3, type=1)
_SCENARIO.field.add(name="tracks", number=3, label=3, type=11, type_name=".demo.Track")
_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(_FILE.SerializeToString())

Scenario = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("demo.Scenario"))
Scenario.__module__ = __name__  # as in generated code, so that messages pickle


def unnamed_class():
    """The same message by a class that no module has."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(_FILE.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("demo.Scenario"))
