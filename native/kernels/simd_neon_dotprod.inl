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
// sum[n] + the products of the bytes of two vectors, themselves, with a quad each; all bytes are
// below 64.
FARTHING_INLINE Int dot8_small(Int sum, Bytes first, Bytes second, int32_t first_quad,
                               int32_t second_quad) {
  int8x16_t b = vreinterpretq_s8_s32(vdupq_n_s32(first_quad));
  int8x16_t d = vreinterpretq_s8_s32(vdupq_n_s32(second_quad));
  return each_part<Int>([&](int i) {
    int32x4_t part = vdotq_s32(sum.v[i], vreinterpretq_s8_u8(first.v[i]), b);
    return vdotq_s32(part, vreinterpretq_s8_u8(second.v[i]), d);
  });
}
