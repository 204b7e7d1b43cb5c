// What a product of codes reads of its tiles at one group of inputs: from the packed tiles, or from
// copies that are unpacked for many rows at once.

template <Format F>
struct PackedWeights {
  static constexpr bool kAllGroups = true;  // are one product
  const uint8_t* codes;  // the group's, in the first tile; the others lie `tile_stride` apart
  const uint8_t *spans, *parts;  // of the first tile
  int64_t tile_stride;
  int group, shift;

  // `shift` says which span a group lies in, unless the format does.
  FARTHING_INLINE PackedWeights from(const uint8_t* tile, int64_t tile_stride, int groups,
                                     int group, int shift) {
    return {tile + group * code_bytes(F),
            tile + spans_offset<F>(groups),
            tile + parts_offset<F>(groups),
            tile_stride,
            group,
            layout(F).span ? span_shift(F, 0) : shift};
  }
  FARTHING_INLINE PackedWeights start(const Product& p) {
    return from(p.weights, p.tile_stride, p.x->groups(), 0, p.span_shift);
  }
};

template <Format F>
FARTHING_INLINE void next_group(PackedWeights<F>* w) {
  w->codes += code_bytes(F);
  w->group++;
}
template <int J, Format F>
FARTHING_INLINE void load_step(const PackedWeights<F>& w, int t, Bytes* first, Bytes* second) {
  load_codes<F, J>(w.codes + t * w.tile_stride, first, second);
}
template <Format F>
FARTHING_INLINE Scales scales_at(const PackedWeights<F>& w, int t) {
  return {w.spans + (w.group >> w.shift) * layout(F).span_bytes + t * w.tile_stride,
          w.parts + w.group * layout(F).part_bytes + t * w.tile_stride};
}
template <Format F>
FARTHING_INLINE Float scale_of(const PackedWeights<F>& w, int t, int half) {
  return load_scale<F>(scales_at(w, t), half);
}
template <Format F>
FARTHING_INLINE Float minimum_of(const PackedWeights<F>& w, int t, int half) {
  return load_minimum<F>(scales_at(w, t), half);
}
template <Format F>
FARTHING_INLINE Int zeros_of(const PackedWeights<F>& w, int t) {
  return load_u8(scales_at(w, t).span + kHalfBytes);
}

// Whether codes and scales take so long to come out of their vectors that many rows had better
// share that. Masks are slow where a tier has no instruction that takes them.
constexpr bool is_laborious(Format format) {
  return layout(format).part_bytes > 0 || (layout(format).upper_bits == 1 && kRegisters < 32);
}

// So many groups of two tiles, unpacked, leave room for the activations in the nearest cache.
constexpr int kUnpackedGroups = 16;

// One tile's groups: codes as bytes, a quad of every output after the other, scales as floats.
template <Format F>
struct UnpackedTile {
  static constexpr int kScales = has_halves(F) ? 2 : 1;
  alignas(64) uint8_t codes[kUnpackedGroups][kQuads * kQuadBytes];
  alignas(64) float scale[kUnpackedGroups][kScales][kTile];
  alignas(64) float minimum[has_minimum(F) ? kUnpackedGroups : 1][kScales][kTile];
};

template <Format F, int J>
FARTHING_INLINE void unpack_step(const PackedWeights<F>& from, uint8_t* codes) {
  Bytes first, second;
  load_step<J>(from, 0, &first, &second);
  store_bytes(codes + 2 * J * kQuadBytes, first);
  store_bytes(codes + (2 * J + 1) * kQuadBytes, second);
}

// Groups [group, group_end) of a packed tile.
template <Format F>
void unpack_tile(const uint8_t* tile, int groups, int group, int group_end, UnpackedTile<F>* to) {
  for (int g = group, i = 0; g < group_end; g++, i++) {
    PackedWeights<F> from = PackedWeights<F>::from(tile, 0, groups, g, 0);
    unpack_step<F, 0>(from, to->codes[i]);
    unpack_step<F, 1>(from, to->codes[i]);
    unpack_step<F, 2>(from, to->codes[i]);
    unpack_step<F, 3>(from, to->codes[i]);
    for (int half = 0; half < UnpackedTile<F>::kScales; half++) {
      store(to->scale[i][half], scale_of(from, 0, half));
      if constexpr (has_minimum(F)) store(to->minimum[i][half], minimum_of(from, 0, half));
    }
  }
}

template <Format F>
struct UnpackedWeights {
  static constexpr bool kAllGroups = false;
  const UnpackedTile<F>* tile;  // the others follow it
  int group;                    // from the first unpacked one on

  FARTHING_INLINE UnpackedWeights start(const Product& p) {
    return {reinterpret_cast<const UnpackedTile<F>*>(p.weights), 0};
  }
};

template <Format F>
FARTHING_INLINE void next_group(UnpackedWeights<F>* w) {
  w->group++;
}
template <int J, Format F>
FARTHING_INLINE void load_step(const UnpackedWeights<F>& w, int t, Bytes* first, Bytes* second) {
  const uint8_t* codes = w.tile[t].codes[w.group];
  *first = load_bytes(codes + 2 * J * kQuadBytes);
  *second = load_bytes(codes + (2 * J + 1) * kQuadBytes);
}
template <Format F>
FARTHING_INLINE Float scale_of(const UnpackedWeights<F>& w, int t, int half) {
  return load(w.tile[t].scale[w.group][half]);
}
template <Format F>
FARTHING_INLINE Float minimum_of(const UnpackedWeights<F>& w, int t, int half) {
  return load(w.tile[t].minimum[w.group][half]);
}
