// Products of bytes with the mixed dot product that FEAT_I8MM has.

constexpr int kByteCentre = 0;  // what dot4 takes off every byte

// sum[n] + the four products of output n's unsigned bytes with the signed bytes of `quad`, exactly.
FARTHING_INLINE Int dot4(Int sum, Bytes a, int32_t quad) {
  int8x16_t b = vreinterpretq_s8_s32(vdupq_n_s32(quad));
  return each_part<Int>([&](int i) { return vusdotq_s32(sum.v[i], a.v[i], b); });
}
FARTHING_INLINE Int dot4_small(Int sum, Bytes a, int32_t quad) { return dot4(sum, a, quad); }
