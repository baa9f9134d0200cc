"""XLA's HLO messages, as far as fuselane reads them, as dynamic protobuf classes.

Only the fields that are read or written somewhere are declared. Everything else (shardings, replica
groups, original values, fields newer than this file) stays in the messages as unknown fields and
survives a round trip byte for byte, at every level of nesting. Three declarations differ from XLA's
on purpose and mean the same on the wire: enums are int32 (an unknown member stays what it was),
maps are lists of key and value (their order is kept), and nothing has presence beyond that of
messages.

The classes live in a descriptor pool of their own, so they never meet XLA's own definitions that
other packages may have registered in the default pool.

Source: field numbers of xla/service/hlo.proto and xla/xla_data.proto as of jaxlib 0.10.2.
"""

from __future__ import annotations

import re
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Message = Any
"""A protobuf message; its class is made at import time, so type checkers cannot know its fields."""

_SCHEMA: Final = """
message TileProto { repeated int64 dimensions = 1; }
message LayoutProto {
  repeated int64 minor_to_major = 1;
  repeated TileProto tiles = 6;
  int64 element_size_in_bits = 7;
  int64 memory_space = 8;
  int64 tail_padding_alignment_in_elements = 16;
}
message ShapeProto {
  int32 element_type = 2;
  repeated int64 dimensions = 3;
  repeated ShapeProto tuple_shapes = 4;
  LayoutProto layout = 5;
  repeated bool is_dynamic_dimension = 6;
}
message ProgramShapeProto {
  repeated ShapeProto parameters = 1;
  ShapeProto result = 2;
  repeated string parameter_names = 3;
}
message LiteralProto {
  ShapeProto shape = 1;
  repeated bool preds = 2;
  bytes u8s = 3;
  repeated int32 s32s = 4;
  repeated int64 s64s = 5;
  repeated uint32 u32s = 6;
  repeated uint64 u64s = 7;
  repeated float f32s = 8;
  repeated double f64s = 9;
  repeated LiteralProto tuple_literals = 10;
  bytes f16s = 11;
  repeated float c64s = 12;
  bytes bf16s = 13;
  bytes s8s = 15;
  bytes u16s = 16;
  bytes s16s = 17;
  repeated double c128s = 18;
  bytes f8e5m2s = 19;
  bytes f8e4m3fns = 20;
  bytes s4s = 21;
  bytes u4s = 22;
  bytes f8e4m3b11fnuzs = 23;
  bytes f8e5m2fnuzs = 24;
  bytes f8e4m3fnuzs = 25;
  bytes s2s = 26;
  bytes u2s = 27;
  bytes f8e4m3s = 28;
  bytes f8e3m4s = 29;
  bytes s1s = 30;
  bytes u1s = 31;
  bytes f4e2m1fns = 32;
  bytes f8e8m0fnus = 33;
  repeated int32 dynamic_sizes = 34;
  bytes f6e3m2fns = 35;
  bytes f6e2m3fns = 36;
}
message PackedLiteralProto {
  ShapeProto shape = 1;
  bytes preds = 2;
  bytes f32s = 8;
  bytes f64s = 9;
  bytes c64s = 12;
  bytes c128s = 18;
}
message ConvolutionDimensionNumbers {
  int64 kernel_input_feature_dimension = 3;
  int64 kernel_output_feature_dimension = 4;
  repeated int64 kernel_spatial_dimensions = 6;
  int64 input_batch_dimension = 7;
  int64 input_feature_dimension = 8;
  int64 output_batch_dimension = 9;
  int64 output_feature_dimension = 10;
  repeated int64 input_spatial_dimensions = 11;
  repeated int64 output_spatial_dimensions = 12;
}
message OpMetadata {
  string op_type = 1;
  string op_name = 2;
  string source_file = 3;
  int32 source_line = 4;
  string deduplicated_name = 12;
  int32 stack_frame_id = 15;
  string scheduling_name = 16;
  int32 source_end_line = 17;
  int32 source_column = 18;
  int32 source_end_column = 19;
}
message WindowDimension {
  int64 size = 1;
  int64 stride = 2;
  int64 padding_low = 3;
  int64 padding_high = 4;
  int64 window_dilation = 5;
  int64 base_dilation = 6;
  bool window_reversal = 7;
}
message Window { repeated WindowDimension dimensions = 1; }
message PaddingConfigDimension {
  int64 edge_padding_low = 1;
  int64 edge_padding_high = 2;
  int64 interior_padding = 3;
}
message PaddingConfig { repeated PaddingConfigDimension dimensions = 1; }
message DotDimensionNumbers {
  repeated int64 lhs_contracting_dimensions = 1;
  repeated int64 rhs_contracting_dimensions = 2;
  repeated int64 lhs_batch_dimensions = 3;
  repeated int64 rhs_batch_dimensions = 4;
}
message PrecisionConfig {
  repeated int32 operand_precision = 1;
  int32 algorithm = 2;
}
message GatherDimensionNumbers {
  repeated int64 offset_dims = 1;
  repeated int64 collapsed_slice_dims = 2;
  repeated int64 start_index_map = 3;
  int64 index_vector_dim = 4;
  repeated int64 operand_batching_dims = 5;
  repeated int64 start_indices_batching_dims = 6;
}
message ScatterDimensionNumbers {
  repeated int64 update_window_dims = 1;
  repeated int64 inserted_window_dims = 2;
  repeated int64 scatter_dims_to_operand_dims = 3;
  int64 index_vector_dim = 4;
  repeated int64 input_batching_dims = 5;
  repeated int64 scatter_indices_batching_dims = 6;
}
message SliceDimensions {
  int64 start = 1;
  int64 limit = 2;
  int64 stride = 3;
}
message StringEntry {
  string key = 1;
  string value = 2;
}
message FrontendAttributes { repeated StringEntry map = 1; }
message OutputOperandAliasing {
  repeated int64 output_shape_index = 1;
  int64 operand_index = 2;
  repeated int64 operand_shape_index = 3;
}
message HloInstructionProto {
  string name = 1;
  string opcode = 2;
  ShapeProto shape = 3;
  OpMetadata metadata = 7;
  LiteralProto literal = 8;
  int64 parameter_number = 9;
  string fusion_kind = 11;
  int64 tuple_index = 13;
  repeated int64 dimensions = 14;
  Window window = 15;
  ConvolutionDimensionNumbers convolution_dimension_numbers = 16;
  repeated SliceDimensions slice_dimensions = 17;
  int32 exponent_bits = 18;
  int32 mantissa_bits = 19;
  repeated int64 dynamic_slice_sizes = 20;
  PaddingConfig padding_config = 21;
  int64 channel_id = 26;
  string custom_call_target = 28;
  DotDimensionNumbers dot_dimension_numbers = 30;
  GatherDimensionNumbers gather_dimension_numbers = 33;
  repeated int64 gather_slice_sizes = 34;
  int64 id = 35;
  repeated int64 operand_ids = 36;
  repeated int64 control_predecessor_ids = 37;
  repeated int64 called_computation_ids = 38;
  bytes backend_config = 43;
  ScatterDimensionNumbers scatter_dimension_numbers = 48;
  int64 feature_group_count = 50;
  PrecisionConfig precision_config = 51;
  bool constrain_layout = 56;
  repeated ShapeProto operand_shapes_with_layout = 57;
  int64 batch_group_count = 58;
  bool is_stable = 60;
  string comparison_direction = 63;
  bool custom_call_has_side_effect = 65;
  bool indices_are_sorted = 67;
  FrontendAttributes frontend_attributes = 68;
  bool unique_indices = 69;
  int32 rng_algorithm = 70;
  string comparison_type = 72;
  repeated OutputOperandAliasing output_operand_aliasing = 74;
  int32 custom_call_schedule = 76;
  int32 custom_call_api_version = 77;
  string comparison_order = 102;
}
message HloComputationProto {
  string name = 1;
  repeated HloInstructionProto instructions = 2;
  ProgramShapeProto program_shape = 4;
  int64 id = 5;
  int64 root_id = 6;
  bool is_fusion_computation = 7;
  string execution_thread = 8;
}
message InstructionSequence { repeated int64 instruction_ids = 1; }
message SequenceEntry {
  int64 key = 1;
  InstructionSequence value = 2;
}
message HloScheduleProto { repeated SequenceEntry sequences = 1; }
message FileLocation {
  int32 file_name_id = 1;
  int32 function_name_id = 2;
  int32 line = 3;
  int32 column = 4;
  int32 end_line = 5;
  int32 end_column = 6;
}
message StackFrame {
  int32 file_location_id = 1;
  int32 parent_frame_id = 2;
}
message StackFrameIndexProto {
  repeated string file_names = 1;
  repeated string function_names = 2;
  repeated FileLocation file_locations = 3;
  repeated StackFrame stack_frames = 4;
}
message AliasEntryProto {
  repeated int64 output_shape_index = 1;
  int64 parameter_number = 2;
  repeated int64 parameter_shape_index = 3;
  int32 kind = 4;
}
message HloInputOutputAliasProto { repeated AliasEntryProto entries = 1; }
message HloModuleProto {
  string name = 1;
  string entry_computation_name = 2;
  repeated HloComputationProto computations = 3;
  ProgramShapeProto host_program_shape = 4;
  int64 id = 5;
  int64 entry_computation_id = 6;
  HloScheduleProto schedule = 7;
  HloInputOutputAliasProto input_output_alias = 8;
  bool is_dynamic = 11;
  StackFrameIndexProto stack_frame_index = 17;
  FrontendAttributes frontend_attributes = 19;
}
"""

_MESSAGE_PATTERN: Final = re.compile(r"message (\w+) \{([^}]*)\}")
_FIELD_PATTERN: Final = re.compile(r"(repeated )?(\w+) (\w+) = (\d+);")
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
    "float": _Field.TYPE_FLOAT,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}


def _declare_field(
    message: Message, package: str, repeated: str, kind: str, name: str, number: str
) -> None:
    field = message.field.add(name=name, number=int(number))
    field.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{package}.{kind}"


def make_classes(schema: str, package: str) -> dict[str, Message]:
    """Returns the class of every message of a schema by its name; messages may not be nested."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )
    for name, body in _MESSAGE_PATTERN.findall(schema):
        message = file.message_type.add(name=name)
        for field in _FIELD_PATTERN.findall(body):
            _declare_field(message, package, *field)
    pool = descriptor_pool.DescriptorPool()
    descriptors = pool.AddSerializedFile(file.SerializeToString()).message_types_by_name
    return {name: message_factory.GetMessageClass(descriptors[name]) for name in descriptors}


_CLASSES: Final = make_classes(_SCHEMA, "fuselane.hlo")

DotDimensionNumbers: Message = _CLASSES["DotDimensionNumbers"]
FrontendAttributes: Message = _CLASSES["FrontendAttributes"]
GatherDimensionNumbers: Message = _CLASSES["GatherDimensionNumbers"]
HloComputationProto: Message = _CLASSES["HloComputationProto"]
HloInstructionProto: Message = _CLASSES["HloInstructionProto"]
HloModuleProto: Message = _CLASSES["HloModuleProto"]
HloScheduleProto: Message = _CLASSES["HloScheduleProto"]
LayoutProto: Message = _CLASSES["LayoutProto"]
LiteralProto: Message = _CLASSES["LiteralProto"]
OpMetadata: Message = _CLASSES["OpMetadata"]
OutputOperandAliasing: Message = _CLASSES["OutputOperandAliasing"]
PackedLiteralProto: Message = _CLASSES["PackedLiteralProto"]
"""LiteralProto with its packed fixed-width fields read as the raw bytes they are on the wire."""
PaddingConfig: Message = _CLASSES["PaddingConfig"]
ProgramShapeProto: Message = _CLASSES["ProgramShapeProto"]
ScatterDimensionNumbers: Message = _CLASSES["ScatterDimensionNumbers"]
ShapeProto: Message = _CLASSES["ShapeProto"]
SliceDimensions: Message = _CLASSES["SliceDimensions"]
StackFrameIndexProto: Message = _CLASSES["StackFrameIndexProto"]
Window: Message = _CLASSES["Window"]
