// Activations into the form that a product takes.

// A group whose largest magnitude is below this counts as zeros: 127 / magnitude would overflow.
constexpr float kSmallestMagnitude = 0x1p-120f;

// One group: scale = max|x| / 127, code = round(x * (127 / max|x|)), halves to even. A group that
// holds an infinity or a NaN has a scale like it, which every product with the group shows.
FARTHING_INLINE void quantise_group(const Prepared& prepared, int64_t start, Float low,
                                    Float high) {
  // As integers, magnitudes order as they do as floats, and a NaN comes above all.
  int32_t bits = reduce_max_int(max_int(as_int(abs(low)), as_int(abs(high))));
  float largest;
  memcpy(&largest, &bits, 4);
  bool zeros = largest < kSmallestMagnitude;
  bool finite = largest < __builtin_inff();
  float scale = zeros ? 0.0f : largest / 127.0f;
  Float inverse = set1(zeros || !finite ? 0.0f : 127.0f / largest);
  Float first = mul(low, inverse), second = mul(high, inverse);
  if (!finite) {
    // An infinity times 0 is a NaN, for which the comparison is false.
    first = where_less(abs(first), set1(128.0f), first, zero());
    second = where_less(abs(second), set1(128.0f), second, zero());
  }
  int8_t* codes = reinterpret_cast<int8_t*>(prepared.data) + start;
  store_s8(codes, first);
  store_s8(codes + kLanes, second);
  // Either half's sum fits 16 bits, so both are added at once.
  int32_t both = reduce_add_int(add_int(to_int(first), shift_left<16>(to_int(second))));
  int32_t first_sum = static_cast<int16_t>(both), second_sum = (both - first_sum) >> 16;
  int64_t group = start / kGroup;
  prepared.scale[group] = scale;
  prepared.scaled_sum[group] = scale * static_cast<float>(first_sum + second_sum);
  prepared.negative_sum[group] = -first_sum - second_sum;
  prepared.negative_half_sum[2 * group] = -first_sum;
  prepared.negative_half_sum[2 * group + 1] = -second_sum;
}

// `x` holds the columns [column, column + count).
void prepare(const Prepared& prepared, int row, int column, const float* x, int count) {
  int64_t start = static_cast<int64_t>(row) * prepared.inputs + column;
  for (int i = 0; i < count; i += kGroup, start += kGroup) {
    int rest = count - i, second = rest - kLanes;
    Float low = rest < kLanes ? load_first(x + i, rest) : load(x + i);
    Float high = rest >= kGroup ? load(x + i + kLanes)
                 : second > 0   ? load_first(x + i + kLanes, second)
                                : zero();
    if (prepared.mode == Mode::INT8) {
      quantise_group(prepared, start, low, high);
    } else if (prepared.mode == Mode::BF16) {
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
