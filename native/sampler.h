// Samples one wanted row. engine/sampler.py is the readable definition; the answer is the same
// token, found without sorting the vocabulary.
//
// Nothing here depends on the tier but its speed, on other rows, or on the thread.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace farthing {

// core.SamplingRows: arrays of one entry a row; row r owns entries adjusted_starts[r] up to
// adjusted_starts[r + 1] of the `adjusted_*` arrays. It may take the tokens whose bits are set in
// mask mask_rows[r], or all where that is -1; both arrays are null where no row has a mask.
struct SamplingView {
  const float* temperature;
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const float* repetition_penalty;
  const float* presence_penalty;
  const float* frequency_penalty;
  const uint64_t* seed;
  const uint32_t* choice;
  const uint32_t* position;
  const int32_t* logprobs;
  const int32_t* target;
  const int32_t* adjusted_starts;
  const int32_t* adjusted_ids;
  const float* adjusted_bias;
  const uint8_t* adjusted_seen;
  const int32_t* adjusted_count;
  const int32_t* mask_rows;
  const uint32_t* masks;  // [masks][words_of(vocabulary)]
};

constexpr int64_t words_of(int64_t vocabulary) { return (vocabulary + 31) / 32; }

constexpr int kMostLogprobs = 20;

// Throws std::invalid_argument for rows that sample_row must not be given: spans that do not divide
// the `entries` adjusted ids, ids outside the vocabulary, parameters out of range, more
// alternatives than `width` or kMostLogprobs, a mask that is none of the `masks`.
void check_sampling(const SamplingView& sampling, int rows, int64_t entries, int64_t masks,
                    int vocabulary, int width);

// Bytes of scratch that one thread needs; it starts on 64 bytes. 12 + 1/16 bytes a token (of the
// vocabulary rounded up to 1,024) and 8 KB.
constexpr int64_t sample_scratch_bytes(int64_t vocabulary) {
  const int64_t padded = round_up(vocabulary, 1024);
  return 12 * padded + padded / 16 + 8192;
}

// Samples row `row` from its `logits`. `top_ids` and `top_logprobs` are of `width` entries, padded
// with -1 and -inf. A row with a target (not -1) gives that as its token. The token is -1 where
// every logit that is left is NaN or -inf; logprob is NaN where the row asks for none.
void sample_row(const Kernels& kernels, const float* logits, int vocabulary,
                const SamplingView& sampling, int row, uint8_t* scratch, int32_t* token,
                float* logprob, int32_t* top_ids, float* top_logprobs, int width);

}  // namespace farthing
