// Activations into the form that a product takes.

// A group whose largest magnitude is below this counts as zeros: 127 / magnitude would overflow.
constexpr float kSmallestMagnitude = 0x1p-120f;

// The group of activations from x on; those from `rest` on are beyond the end of the row and count
// as zeros. Whole groups leave that out.
template <bool Whole>
FARTHING_INLINE void load_group(const float* x, int rest, Float* low, Float* high) {
  if (Whole || rest >= kGroup) {
    *low = load(x);
    *high = load(x + kLanes);
  } else {
    int second = rest - kLanes;
    *low = second < 0 ? load_first(x, rest) : load(x);
    *high = second > 0 ? load_first(x + kLanes, second) : zero();
  }
}

// Up to kLanes groups that are quantised together: where each lies, how many of its numbers belong
// to the row, and its number in the planes.
struct GroupBatch {
  const float* x[kLanes];
  int rest[kLanes];
  int64_t number[kLanes];
};

// The largest magnitude of each group, as an integer: so magnitudes order as they do as floats, and
// a NaN comes above all.
template <bool Whole>
FARTHING_INLINE Int largest_magnitudes(const GroupBatch& batch, int count) {
  Int magnitudes[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; i++) {
    magnitudes[i] = set1_int(0);
    if (!Whole && i >= count) continue;
    Float low, high;
    load_group<Whole>(batch.x[i], batch.rest[i], &low, &high);
    magnitudes[i] = max_int(as_int(abs(low)), as_int(abs(high)));
  }
  return reduce_max_each(magnitudes);
}

// x / scale, what is not finite taken for zero, to be rounded: within 127 either way.
FARTHING_INLINE Float clamped_quotient(Float x, Float scale) {
  // An infinity or a NaN is not below infinity.
  Float finite = where_less(abs(x), set1(__builtin_inff()), x, zero());
  return max(min(div(finite, scale), set1(127.0f)), set1(-127.0f));
}

// scale = max|x| / 127, code = round(x * (127 / max|x|)), halves to even; or with the fixed scale
// code = round(x / scale). A group that holds an infinity or a NaN has a scale like it, which every
// product with the group shows.
template <bool Whole, bool Fixed>
void quantise_groups(const Prepared& prepared, const GroupBatch& batch, int count) {
  Int bits = largest_magnitudes<Whole>(batch, count);
  bool finite = reduce_max_int(bits) < 0x7f800000;
  Float largest = as_float(bits), smallest = set1(kSmallestMagnitude);
  Float scale, fixed = set1(prepared.fixed_scale);
  float inverses[kLanes];
  if constexpr (Fixed) {
    scale = where_less(largest, set1(__builtin_inff()), fixed, largest);
  } else {
    scale = where_less(largest, smallest, zero(), div(largest, set1(127.0f)));
    Float inverse = div(set1(127.0f), largest);
    inverse = where_less(largest, set1(__builtin_inff()), inverse, zero());
    store(inverses, where_less(largest, smallest, zero(), inverse));
  }

  Int sums[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; i++) {
    sums[i] = set1_int(0);
    if (!Whole && i >= count) continue;
    Float low, high;
    load_group<Whole>(batch.x[i], batch.rest[i], &low, &high);
    if constexpr (Fixed) {
      low = clamped_quotient(low, fixed);
      high = clamped_quotient(high, fixed);
    } else {
      low = mul(low, set1(inverses[i]));
      high = mul(high, set1(inverses[i]));
      if (!finite) {
        // An infinity times 0 is a NaN, for which the comparison is false.
        low = where_less(abs(low), set1(128.0f), low, zero());
        high = where_less(abs(high), set1(128.0f), high, zero());
      }
    }
    int8_t* codes = reinterpret_cast<int8_t*>(prepared.data) + batch.number[i] * kGroup;
    store_s8(codes, low);
    store_s8(codes + kLanes, high);
    // Either half's sum fits 16 bits, so both are added at once.
    sums[i] = add_int(to_int(low), shift_left<16>(to_int(high)));
  }
  Int both = reduce_add_each(sums);
  Int low = shift_right_signed<16>(shift_left<16>(both));
  Int high = shift_right_signed<16>(sub_int(both, low));
  Int sum = add_int(low, high);

  float scales[kLanes], scaled_sums[kLanes];
  int32_t sum_of[kLanes], low_of[kLanes], high_of[kLanes];
  store(scales, scale);
  store(scaled_sums, mul(scale, to_float(sum)));
  store_int(sum_of, sub_int(set1_int(0), sum));
  store_int(low_of, sub_int(set1_int(0), low));
  store_int(high_of, sub_int(set1_int(0), high));
  if (Whole) count = kLanes;
#pragma GCC unroll 16
  for (int i = 0; i < count; i++) {
    int64_t g = batch.number[i];
    prepared.scale[g] = scales[i];
    prepared.scaled_sum[g] = scaled_sums[i];
    prepared.negative_sum[g] = sum_of[i];
    prepared.negative_half_sum[2 * g] = low_of[i];
    prepared.negative_half_sum[2 * g + 1] = high_of[i];
  }
}

// As `prepare`, for INT8.
template <bool Fixed>
FARTHING_INLINE void quantise(const Prepared& prepared, int row, int row_end, int column,
                              const float* x, int64_t stride, int count) {
  GroupBatch batch;
  int waiting = 0;
  bool whole = count % kGroup == 0;
  for (; row < row_end; row++, x += stride) {
    int64_t number = static_cast<int64_t>(row) * prepared.groups() + column / kGroup;
    for (int i = 0; i < count; i += kGroup) {
      batch.x[waiting] = x + i;
      batch.rest[waiting] = count - i;
      batch.number[waiting] = number++;
      if (++waiting < kLanes) continue;
      if (whole) {
        quantise_groups<true, Fixed>(prepared, batch, waiting);
      } else {
        quantise_groups<false, Fixed>(prepared, batch, waiting);
      }
      waiting = 0;
    }
  }
  if (waiting > 0) quantise_groups<false, Fixed>(prepared, batch, waiting);
}

// `x` holds the columns [column, column + count) of each row.
void prepare(const Prepared& prepared, int row, int row_end, int column, const float* x,
             int64_t stride, int count) {
  if (prepared.mode == Mode::INT8) {
    return prepared.fixed_scale != 0
               ? quantise<true>(prepared, row, row_end, column, x, stride, count)
               : quantise<false>(prepared, row, row_end, column, x, stride, count);
  }
  for (; row < row_end; row++, x += stride) {
    int64_t start = static_cast<int64_t>(row) * prepared.inputs + column;
    for (int i = 0; i < count; i += kGroup, start += kGroup) {
      Float low, high;
      load_group<false>(x + i, count - i, &low, &high);
      if (prepared.mode == Mode::BF16) {
        uint16_t* to = reinterpret_cast<uint16_t*>(prepared.data) + start;
        store_bf16(to, low);
        store_bf16(to + kLanes, high);
      } else {
        float* to = reinterpret_cast<float*>(prepared.data) + start;
        store(to, low);
        store(to + kLanes, high);
      }
    }
  }
}
