// Products of bytes with the dot products of signed bytes that FEAT_DotProd has.

FARTHING_INLINE int32x4_t dot_signed(int32x4_t sum, uint8x16_t a, int8x16_t quad) {
  return vdotq_s32(sum, vreinterpretq_s8_u8(a), quad);
}

// sum[n] + the four products of output n's unsigned bytes with the signed bytes of `quad`, exactly.
// dot4 takes any byte, as a - 128, which is signed, and twice 64 times the bytes of `quad`.
FARTHING_INLINE Int dot4(Int sum, Bytes a, int32_t quad) {
  int8x16_t b = vreinterpretq_s8_s32(vdupq_n_s32(quad));
  uint8x16_t half = vdupq_n_u8(64);
  int32x4_t offset = dot_signed(dot_signed(vdupq_n_s32(0), half, b), half, b);
  return each_part<Int>([&](int i) {
    return vaddq_s32(dot_signed(sum.v[i], veorq_u8(a.v[i], vdupq_n_u8(128)), b), offset);
  });
}
// dot4_small wants bytes below 128, whose signed value is the same.
FARTHING_INLINE Int dot4_small(Int sum, Bytes a, int32_t quad) {
  int8x16_t b = vreinterpretq_s8_s32(vdupq_n_s32(quad));
  return each_part<Int>([&](int i) { return dot_signed(sum.v[i], a.v[i], b); });
}
