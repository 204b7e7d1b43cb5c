// Products of bytes with the mixed dot product that FEAT_I8MM has.

constexpr int kByteCentre = 0;  // what dot4 takes off every byte

// sum[n] + the four products of output n's unsigned bytes with the signed bytes of `quad`, exactly.
FARTHING_INLINE Int dot4(Int sum, Bytes a, int32_t quad) {
  int8x16_t b = vreinterpretq_s8_s32(vdupq_n_s32(quad));
  return each_part<Int>([&](int i) { return vusdotq_s32(sum.v[i], a.v[i], b); });
}
// The same for the bytes of two vectors and a quad for each; all bytes are below 64, so that tiers
// without such an instruction may add four products in 16 bits.
FARTHING_INLINE Int dot8_small(Int sum, Bytes first, Bytes second, int32_t first_quad,
                               int32_t second_quad) {
  return dot4(dot4(sum, first, first_quad), second, second_quad);
}
