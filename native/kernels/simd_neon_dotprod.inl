// Products of bytes with the dot product of signed bytes that FEAT_DotProd has.

constexpr int kByteCentre = 128;  // what dot4 takes off every byte, which makes it a signed one

// sum[n] + the four products of output n's bytes, less 128, with the signed bytes of `quad`,
// exactly.
FARTHING_INLINE Int dot4(Int sum, Bytes a, int32_t quad) {
  int8x16_t b = vreinterpretq_s8_s32(vdupq_n_s32(quad));
  return each_part<Int>([&](int i) {
    uint8x16_t centred = veorq_u8(a.v[i], vdupq_n_u8(128));
    return vdotq_s32(sum.v[i], vreinterpretq_s8_u8(centred), b);
  });
}
// The bytes themselves, which must be below 128.
FARTHING_INLINE Int dot4_small(Int sum, Bytes a, int32_t quad) {
  int8x16_t b = vreinterpretq_s8_s32(vdupq_n_s32(quad));
  return each_part<Int>([&](int i) { return vdotq_s32(sum.v[i], vreinterpretq_s8_u8(a.v[i]), b); });
}
