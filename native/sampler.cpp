#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace farthing {
namespace {

#include "kernels/noise.inl"

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Candidate {
  float scaled;
  int32_t id;
};

// The order in which filters keep tokens: the likelier first, the lower id on ties.
bool precedes(const Candidate& a, const Candidate& b) {
  return a.scaled > b.scaled || (a.scaled == b.scaled && a.id < b.id);
}

// What every filter leaves is a prefix of that order: the tokens above `scaled`, and those equal to
// it with an id of at most `id`.
struct Cutoff {
  double scaled;
  int32_t id;

  bool keeps(float other, int32_t other_id) const {
    return other > scaled || (other == scaled && other_id <= id);
  }
};

constexpr int kBins = 2048;
constexpr int kBinsPerNat = 32;

struct Scratch {
  float* scaled;          // [vocabulary] adjusted logits, then scaled ones
  Candidate* candidates;  // [vocabulary]
  float* tile_largest;    // [vocabulary / 64], of `scaled`
  uint32_t* bins;         // [kBins]
};

Scratch lay_scratch(int64_t vocabulary, uint8_t* memory) {
  const int64_t padded = round_up(vocabulary, 1024);
  return {reinterpret_cast<float*>(memory), reinterpret_cast<Candidate*>(memory + 4 * padded),
          reinterpret_cast<float*>(memory + 12 * padded),
          reinterpret_cast<uint32_t*>(memory + 12 * padded + padded / 16)};
}

int tiles_of(int vocabulary) { return (vocabulary + kNoiseTile - 1) / kNoiseTile; }

struct Bits {
  uint32_t bit[32];
};

constexpr Bits kBits = [] {
  Bits bits{};
  for (int i = 0; i < 32; ++i) bits.bit[i] = uint32_t{1} << i;
  return bits;
}();

// out[i] = x[i] where bit i of the mask is set, else -inf. Most words of most masks are all or
// nothing; the others are chosen from without branches, which compilers put into lanes.
void mask_logits(const float* __restrict x, const uint32_t* mask, int vocabulary,
                 float* __restrict out) {
  for (int first = 0; first < vocabulary; first += 32) {
    const uint32_t word = mask[first / 32];
    const int count = std::min(32, vocabulary - first);
    if (word == 0) {
      std::fill_n(out + first, count, -kInfinity);
    } else if (word == ~uint32_t{0}) {
      std::copy_n(x + first, count, out + first);
    } else {
      auto choose = [&](int i) {
        uint32_t bits;
        std::memcpy(&bits, x + first + i, sizeof(bits));
        const uint32_t keep = (word & kBits.bit[i]) != 0 ? ~uint32_t{0} : 0;
        bits = (bits & keep) | (0xff800000u & ~keep);  // of -inf
        std::memcpy(out + first + i, &bits, sizeof(bits));
      };
      if (count == 32) {
        for (int i = 0; i < 32; ++i) choose(i);
      } else {
        for (int i = 0; i < count; ++i) choose(i);
      }
    }
  }
}

// Logit bias, then penalties, of the ids that the row lists.
void adjust(const SamplingView& sampling, int row, float* logits) {
  const float repetition = sampling.repetition_penalty[row];
  const float presence = sampling.presence_penalty[row];
  const float frequency = sampling.frequency_penalty[row];
  for (int i = sampling.adjusted_starts[row]; i < sampling.adjusted_starts[row + 1]; ++i) {
    float value = logits[sampling.adjusted_ids[i]] + sampling.adjusted_bias[i];
    if (sampling.adjusted_seen[i]) value = value > 0 ? value / repetition : value * repetition;
    value -= frequency * static_cast<float>(sampling.adjusted_count[i]);
    if (sampling.adjusted_count[i] > 0) value -= presence;
    logits[sampling.adjusted_ids[i]] = value;
  }
}

// scaled[i] = (x[i] - largest) / temperature, 0 at the largest even where that is infinite; x may
// be scaled itself.
void scale_logits(const float* x, int vocabulary, float largest, float temperature,
                  const Scratch& scratch) {
  float* scaled = scratch.scaled;
  for (int i = 0; i < vocabulary; ++i) {
    scaled[i] = x[i] == largest ? 0.0f : (x[i] - largest) / temperature;
  }
  for (int tile = 0; tile < tiles_of(vocabulary); ++tile) {
    const float* in_tile = scaled + tile * kNoiseTile;
    const int count = std::min(kNoiseTile, vocabulary - tile * kNoiseTile);
    float most[4] = {-kInfinity, -kInfinity, -kInfinity, -kInfinity};
    int i = 0;
    for (; i + 4 <= count; i += 4) {
      for (int j = 0; j < 4; ++j) most[j] = in_tile[i + j] > most[j] ? in_tile[i + j] : most[j];
    }
    for (; i < count; ++i) most[0] = in_tile[i] > most[0] ? in_tile[i] : most[0];
    scratch.tile_largest[tile] = std::max(std::max(most[0], most[1]), std::max(most[2], most[3]));
  }
}

// Tokens counted by how far they lie below the likeliest: bin b holds -scaled in
// [b, b + 1) / kBinsPerNat, the last one everything further down, NaN too.
void count_bins(const Scratch& scratch, int vocabulary) {
  std::memset(scratch.bins, 0, kBins * sizeof(uint32_t));
  for (int i = 0; i < vocabulary; ++i) {
    const float bin = scratch.scaled[i] * -kBinsPerNat;
    ++scratch.bins[bin < kBins - 1 ? static_cast<int>(bin) : kBins - 1];
  }
}

// Everything in bins [0, bin] lies above the result.
float below_bin(int bin) {
  return bin < kBins - 1 ? static_cast<float>(bin + 1) / -kBinsPerNat : -kInfinity;
}

// A bound that at least `count` tokens lie above, if there are so many.
float bound_of_count(const uint32_t* bins, int count) {
  int64_t above = 0;
  int bin = 0;
  for (; bin < kBins - 1; ++bin) {
    above += bins[bin];
    if (above >= count) break;
  }
  return below_bin(bin);
}

// A bound that tokens of the weight `mass` or more lie above, if the vocabulary has so much.
float bound_of_mass(const uint32_t* bins, double mass) {
  double above = 0.0;
  int bin = 0;
  for (; bin < kBins - 1; ++bin) {
    if (bins[bin] != 0) above += bins[bin] * exp_double(below_bin(bin));
    if (above >= mass) break;
  }
  return below_bin(bin);
}

int collect(const Scratch& scratch, int vocabulary, float bound) {
  int count = 0;
  for (int tile = 0; tile < tiles_of(vocabulary); ++tile) {
    if (!(scratch.tile_largest[tile] > bound)) continue;
    const int end = std::min((tile + 1) * kNoiseTile, vocabulary);
    for (int i = tile * kNoiseTile; i < end; ++i) {
      scratch.candidates[count] = {scratch.scaled[i], i};
      count += scratch.scaled[i] > bound;
    }
  }
  return count;
}

double total_weight(const Candidate* candidates, int from, int to) {
  double total = 0.0;
  for (int i = from; i < to; ++i) total += exp_double(candidates[i].scaled);
  return total;
}

// The size of the shortest prefix, by `precedes`, that weighs at least `mass`; the candidates are
// left with that prefix in front. Halves the uncertain part, in linear time and without sorting it.
int nucleus(Candidate* candidates, int count, double mass) {
  int known = 0;  // too short
  int size = count;
  double known_weight = 0.0;
  while (size - known > 1) {
    const int middle = known + (size - known) / 2;
    std::nth_element(candidates + known, candidates + middle, candidates + size, precedes);
    const double weight = known_weight + total_weight(candidates, known, middle);
    if (weight >= mass) {
      size = middle;
    } else {
      known = middle;
      known_weight = weight;
    }
  }
  return size;
}

Cutoff filter(const Kernels& kernels, const SamplingView& sampling, int row, int vocabulary,
              const Scratch& scratch) {
  const int top_k = sampling.top_k[row];
  const double top_p = sampling.top_p[row];
  const double min_p = sampling.min_p[row];
  Cutoff cutoff{-kInfinity, -1};
  const bool few = top_k > 0 && top_k < vocabulary;
  if (few || top_p < 1.0) {
    count_bins(scratch, vocabulary);
    double mass = few ? 0.0 : top_p * kernels.sum_exp(scratch.scaled, vocabulary, 0.0f);
    Candidate* candidates = scratch.candidates;
    int count =
        collect(scratch, vocabulary,
                few ? bound_of_count(scratch.bins, top_k) : bound_of_mass(scratch.bins, mass));
    if (few && count > top_k) {
      std::nth_element(candidates, candidates + top_k, candidates + count, precedes);
      count = top_k;
    }
    if (top_p < 1.0) {
      if (few) mass = top_p * total_weight(candidates, 0, count);
      count = nucleus(candidates, count, mass);
    }
    const Candidate& last = *std::max_element(candidates, candidates + count, precedes);
    cutoff = {last.scaled, last.id};
  }
  if (min_p > 0.0) {
    const double least = log_double(min_p);
    if (least > cutoff.scaled) cutoff = {least, vocabulary};
  }
  return cutoff;
}

// The token of the largest scaled logit plus noise among those that `cutoff` keeps, the lowest id
// on ties. A tile of tokens gets no noise if even the largest could not lift its best token above
// the best so far; `likeliest`, whose tile comes first, makes that so for most.
int draw(const Kernels& kernels, const NoiseKey& key, int vocabulary, const Scratch& scratch,
         const Cutoff& cutoff, int likeliest) {
  constexpr double kLargestNoise = 22.88;  // -ln(-ln(1 - 2^-33)), and a little
  double best = -kInfinity;
  int token = -1;
  float noise[kNoiseTile];
  auto visit = [&](int tile) {
    const int first = tile * kNoiseTile;
    const int count = std::min(kNoiseTile, vocabulary - first);
    const float least = static_cast<float>(best - scratch.tile_largest[tile]);
    if (!kernels.gumbel(key, static_cast<uint32_t>(first), count, least, noise)) return;
    for (int i = 0; i < count; ++i) {
      const float scaled = scratch.scaled[first + i];
      const double score = static_cast<double>(scaled) + static_cast<double>(noise[i]);
      if (score < best || !cutoff.keeps(scaled, first + i)) continue;
      if (score > best || (score == best && first + i < token)) {
        best = score;
        token = first + i;
      }
    }
  };
  visit(likeliest / kNoiseTile);
  for (int tile = 0; tile < tiles_of(vocabulary); ++tile) {
    const double largest = scratch.tile_largest[tile];
    if (largest >= cutoff.scaled && largest + kLargestNoise >= best) visit(tile);
  }
  return token;
}

// The `count` largest logits' ids, in falling order, the lowest id first on ties; never NaN or
// -inf.
int largest_logits(const float* logits, int vocabulary, int count, int32_t* ids) {
  int found = 0;
  float worst = -kInfinity;  // what a further one must exceed
  if (count == 0) return 0;
  for (int first = 0; first < vocabulary; first += kNoiseTile) {
    const int end = std::min(first + kNoiseTile, vocabulary);
    int exceeds = 0;
    for (int i = first; i < end; ++i) exceeds |= logits[i] > worst;
    if (!exceeds) continue;
    for (int i = first; i < end; ++i) {
      if (!(logits[i] > worst)) continue;
      int place = found < count ? found++ : count - 1;
      for (; place > 0 && logits[i] > logits[ids[place - 1]]; --place) ids[place] = ids[place - 1];
      ids[place] = i;
      if (found == count) worst = logits[ids[count - 1]];
    }
  }
  return found;
}

void require(bool holds, const char* problem) {
  if (!holds) throw std::invalid_argument(problem);
}

}  // namespace

void check_sampling(const SamplingView& sampling, int rows, int64_t entries, int64_t masks,
                    int vocabulary, int width) {
  require(sampling.adjusted_starts[0] == 0 && sampling.adjusted_starts[rows] == entries,
          "sampling: adjusted_starts do not cover the adjusted ids");
  for (int r = 0; r < rows; ++r) {
    require(sampling.adjusted_starts[r] <= sampling.adjusted_starts[r + 1],
            "sampling: adjusted_starts must not fall");
    require(sampling.temperature[r] >= 0 && sampling.temperature[r] < kInfinity,
            "sampling: temperature must be finite and at least 0");
    require(sampling.top_k[r] >= 0, "sampling: top_k must be at least 0");
    require(sampling.top_p[r] > 0, "sampling: top_p must be above 0");
    require(sampling.min_p[r] >= 0 && sampling.min_p[r] <= 1,
            "sampling: min_p must be from 0 to 1");
    require(sampling.target[r] >= -1 && sampling.target[r] < vocabulary,
            "sampling: a target is outside the vocabulary");
    require(sampling.logprobs[r] <= std::min(width, kMostLogprobs),
            "sampling: more log-probabilities than there is room for");
    require(sampling.mask_rows == nullptr ||
                (sampling.mask_rows[r] >= -1 && sampling.mask_rows[r] < masks),
            "sampling: a mask_rows entry is none of the masks");
  }
  for (int64_t i = 0; i < entries; ++i) {
    require(sampling.adjusted_ids[i] >= 0 && sampling.adjusted_ids[i] < vocabulary,
            "sampling: an adjusted id is outside the vocabulary");
  }
}

void sample_row(const Kernels& kernels, const float* logits, int vocabulary,
                const SamplingView& sampling, int row, uint8_t* memory, int32_t* token,
                float* logprob, int32_t* top_ids, float* top_logprobs, int width) {
  const Scratch scratch = lay_scratch(vocabulary, memory);
  const float* adjusted = logits;
  const int mask = sampling.mask_rows == nullptr ? -1 : sampling.mask_rows[row];
  if (mask >= 0) {
    mask_logits(logits, sampling.masks + mask * words_of(vocabulary), vocabulary, scratch.scaled);
    adjusted = scratch.scaled;
  }
  if (sampling.adjusted_starts[row] < sampling.adjusted_starts[row + 1]) {
    if (mask < 0) std::memcpy(scratch.scaled, logits, sizeof(float) * vocabulary);
    adjust(sampling, row, scratch.scaled);
    adjusted = scratch.scaled;
  }
  int chosen = kernels.argmax(adjusted, vocabulary);
  if (chosen >= 0 && adjusted[chosen] == -kInfinity) chosen = -1;
  if (chosen >= 0 && sampling.target[row] >= 0) {
    chosen = sampling.target[row];
  } else if (chosen >= 0 && sampling.temperature[row] > 0) {
    scale_logits(adjusted, vocabulary, adjusted[chosen], sampling.temperature[row], scratch);
    const Cutoff cutoff = filter(kernels, sampling, row, vocabulary, scratch);
    const NoiseKey key{sampling.seed[row], sampling.choice[row], sampling.position[row]};
    chosen = draw(kernels, key, vocabulary, scratch, cutoff, chosen);
  }
  *token = chosen;

  const int wanted = sampling.logprobs[row];
  std::fill(top_ids, top_ids + width, -1);
  std::fill(top_logprobs, top_logprobs + width, -kInfinity);
  *logprob = wanted < 0 ? std::numeric_limits<float>::quiet_NaN() : -kInfinity;
  const int likeliest = wanted < 0 ? -1 : kernels.argmax(logits, vocabulary);
  if (likeliest < 0 || logits[likeliest] == -kInfinity) return;
  const float largest = logits[likeliest];
  const double log_total = log_double(kernels.sum_exp(logits, vocabulary, largest));
  auto logprob_of = [&](int id) {
    const float logit = logits[id];
    if (std::isnan(logit)) return -kInfinity;
    const double below = logit == largest ? 0.0 : static_cast<double>(logit) - largest;
    return static_cast<float>(below - log_total);
  };
  if (chosen >= 0) *logprob = logprob_of(chosen);
  const int found = largest_logits(logits, vocabulary, wanted, top_ids);
  for (int i = 0; i < found; ++i) top_logprobs[i] = logprob_of(top_ids[i]);
}

}  // namespace farthing
