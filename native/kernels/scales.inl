// The scales and minima of a packed tile (formats.h), of sixteen outputs at a time.

constexpr int kHalfBytes = kTile * 2;  // one fp16 number for every output of a tile

// Whether a weight is scale * code + minimum.
constexpr bool has_minimum(Format format) {
  switch (format) {
    case Format::Q4_1:
    case Format::Q5_1:
    case Format::Q4_K:
    case Format::Q5_K:
    case Format::Q2_K:
      return true;
    default:
      return false;
  }
}
// Whether the code that stands for zero differs from span to span.
constexpr bool has_zeros(Format format) { return format == Format::INT4_ASYM; }

// Span of group g is g >> this, unless the layout leaves it to the matrix.
constexpr int span_shift(Format format, int group) {
  int inputs = layout(format).span ? layout(format).span : group;
  return inputs == 32 ? 0 : inputs == 64 ? 1 : inputs == 128 ? 2 : inputs == 256 ? 3 : 31;
}

// Where the span and the part of a group lie in a tile.
struct Scales {
  const uint8_t* span;
  const uint8_t* part;
};

// Offsets in a tile: where its spans start, and where its parts do.
template <Format F>
FARTHING_INLINE int64_t spans_offset(int64_t groups) {
  return groups * code_bytes(F);
}
template <Format F>
FARTHING_INLINE int64_t parts_offset(int64_t groups) {
  // Only formats of 256 inputs a span have parts.
  return spans_offset<F>(groups) + divide_up(groups, 8) * layout(F).span_bytes;
}

// Scales of the group's inputs, or of those of its half.
template <Format F>
FARTHING_INLINE Float load_scale(Scales at, int half) {
  if constexpr (F == Format::INT8) return load(reinterpret_cast<const float*>(at.span));
  Float span = load_f16(reinterpret_cast<const uint16_t*>(at.span));
  switch (F) {
    case Format::Q4_K:
    case Format::Q5_K:
      return mul(span, to_float(load_u8(at.part)));
    case Format::Q6_K:
    case Format::Q3_K:
      return mul(span, load_s8(reinterpret_cast<const int8_t*>(at.part) + half * kTile));
    case Format::Q2_K:
      return mul(span, to_float(low_bits<4>(load_u8(at.part + half * kTile))));
    default:
      return span;
  }
}

template <Format F>
FARTHING_INLINE Float load_minimum(Scales at, int half) {
  Float span = load_f16(reinterpret_cast<const uint16_t*>(at.span + kHalfBytes));
  switch (F) {
    case Format::Q4_K:
    case Format::Q5_K:
      return mul(span, to_float(load_u8(at.part + kTile)));
    case Format::Q2_K:
      return mul(span, to_float(shift_right<4>(load_u8(at.part + half * kTile))));
    default:
      return span;
  }
}
