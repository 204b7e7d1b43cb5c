// Runs kernels for a test on another machine's emulator: reads calls from standard input, writes
// what they return to standard output, until the input ends.
//
// A call is a tier, a function's name and the arguments of the Python binding of the same name,
// each a byte that says its kind and its content in the host's byte order, little-endian:
//   i int64;  d float64;  s uint32 length and text;  a uint32 dimensions, uint64 shape of each,
//   uint64 bytes, and the elements. A call starts with the number of its arguments, uint32.
// The answer is the content of every array in the order of the arguments, then a float64: what the
// function returned, or 0. Arrays stand between sentinels, and damage to one ends the program.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "../kernels.h"

namespace farthing {
namespace {

[[noreturn]] void fail(const std::string& problem) {
  std::fprintf(stderr, "kernel_server: %s\n", problem.c_str());
  std::exit(1);
}

// False at the end of the input.
bool read(void* to, size_t bytes) { return std::fread(to, 1, bytes, stdin) == bytes; }

template <class Number>
Number read_number() {
  Number number;
  if (!read(&number, sizeof number)) fail("the input ends within a call");
  return number;
}

void write(const void* from, size_t bytes) {
  if (std::fwrite(from, 1, bytes, stdout) != bytes) fail("the output is closed");
}

constexpr size_t kGuard = 128;
constexpr uint8_t kSentinel = 0xa5;

struct Argument {
  int64_t integer = 0;
  double real = 0;
  std::string text;
  std::vector<uint64_t> shape;
  std::vector<uint8_t> memory;  // a guard, the elements, a guard
  bool is_array = false;

  uint8_t* bytes() { return memory.data() + kGuard; }
  size_t size() const { return memory.size() - 2 * kGuard; }
};

Argument read_argument() {
  Argument argument;
  switch (char kind = read_number<char>()) {
    case 'i':
      argument.integer = read_number<int64_t>();
      return argument;
    case 'd':
      argument.real = read_number<double>();
      return argument;
    case 's':
      argument.text.resize(read_number<uint32_t>());
      if (!read(argument.text.data(), argument.text.size())) fail("the input ends within a text");
      return argument;
    case 'a': {
      argument.is_array = true;
      argument.shape.resize(read_number<uint32_t>());
      for (uint64_t& length : argument.shape) length = read_number<uint64_t>();
      argument.memory.assign(read_number<uint64_t>() + 2 * kGuard, kSentinel);
      if (!read(argument.bytes(), argument.size())) fail("the input ends within an array");
      return argument;
    }
    default:
      fail(std::string("no such kind of argument: ") + kind);
  }
}

void check_guards(const Argument& argument) {
  for (size_t i = 0; i < kGuard; ++i) {
    if (argument.memory[i] != kSentinel) fail("a kernel wrote before an array");
    if (argument.memory[argument.memory.size() - 1 - i] != kSentinel)
      fail("a kernel wrote past an array");
  }
}

// The arguments of one call, taken from the first on.
class Arguments {
 public:
  explicit Arguments(std::vector<Argument>& arguments) : next_(arguments.data()) {}

  int integer() { return static_cast<int>(number()); }
  int64_t number() { return (next_++)->integer; }
  float real() { return static_cast<float>((next_++)->real); }
  Argument& array() { return *next_++; }
  template <class Element>
  Element* elements() {
    return reinterpret_cast<Element*>(array().bytes());
  }
  float* floats() { return elements<float>(); }

 private:
  Argument* next_;
};

int count_of(const Argument& argument) { return static_cast<int>(argument.shape[0]); }

Matrix read_matrix(Arguments& a) {
  auto format = static_cast<Format>(a.integer());
  int group = a.integer();
  const uint8_t* packed = a.elements<uint8_t>();
  int outputs = a.integer(), inputs = a.integer();
  return {format, group, outputs, inputs, packed};
}

double pack(const Kernels& k, Arguments a) {
  auto format = static_cast<Format>(a.integer());
  int group = a.integer();
  const uint8_t* source = a.elements<uint8_t>();
  int outputs = a.integer(), inputs = a.integer(), tile = a.integer(), tile_end = a.integer();
  uint8_t* packed = a.elements<uint8_t>();
  k.pack({format, group, outputs, inputs, packed}, source, tile, tile_end, packed);
  return 0;
}

double unpack_row(const Kernels& k, Arguments a) {
  Matrix matrix = read_matrix(a);
  int output = a.integer();
  k.unpack_row(matrix, output, a.floats());
  return 0;
}

Prepared read_prepared(Arguments& a, Mode mode, int inputs) {
  int rows = a.integer();
  return lay_prepared(mode, rows, inputs, a.elements<uint8_t>());
}

double prepare(const Kernels& k, Arguments a) {
  auto mode = static_cast<Mode>(a.integer());
  int rows = a.integer(), inputs = a.integer();
  Prepared prepared = lay_prepared(mode, rows, inputs, a.elements<uint8_t>());
  int row = a.integer(), row_end = a.integer(), column = a.integer();
  const float* x = a.floats();
  int stride = a.integer(), count = a.integer();
  prepared.fixed_scale = a.real();
  k.prepare(prepared, row, row_end, column, x, stride, count);
  return 0;
}

double linear(const Kernels& k, Arguments a) {
  Matrix matrix = read_matrix(a);
  auto mode = static_cast<Mode>(a.integer());
  Prepared x = read_prepared(a, mode, matrix.inputs);
  int row = a.integer(), row_end = a.integer(), tile = a.integer(), tile_end = a.integer();
  float* out = a.floats();
  k.linear(matrix, x, row, row_end, tile, tile_end, out, a.number());
  return 0;
}

double rmsnorm(const Kernels& k, Arguments a) {
  Argument& x = a.array();
  const float* gain = a.floats();
  float epsilon = a.real();
  k.rmsnorm(reinterpret_cast<const float*>(x.bytes()), gain, epsilon, count_of(x), a.floats());
  return 0;
}

double scale(const Kernels& k, Arguments a) {
  Argument& x = a.array();
  float factor = a.real();
  k.scale(reinterpret_cast<const float*>(x.bytes()), factor, count_of(x), a.floats());
  return 0;
}

template <auto Function>
double pair(const Kernels& k, Arguments a) {
  Argument& x = a.array();
  const float* y = a.floats();
  (k.*Function)(reinterpret_cast<const float*>(x.bytes()), y, count_of(x), a.floats());
  return 0;
}

double angles(const Kernels& k, Arguments a) {
  int position = a.integer();
  Argument& frequencies = a.array();
  float *cosine = a.floats(), *sine = a.floats();
  k.angles(position, reinterpret_cast<const double*>(frequencies.bytes()), count_of(frequencies),
           cosine, sine);
  return 0;
}

double rope(const Kernels& k, Arguments a) {
  float* x = a.floats();
  Argument& cosine = a.array();
  k.rope(x, reinterpret_cast<const float*>(cosine.bytes()), a.floats(), count_of(cosine));
  return 0;
}

double cache_write(const Kernels& k, Arguments a) {
  auto type = static_cast<CacheType>(a.integer());
  uint8_t* block = a.elements<uint8_t>();
  int slot = a.integer();
  Argument& key = a.array();
  k.cache_write(type, count_of(key), block, slot, reinterpret_cast<const float*>(key.bytes()),
                a.floats());
  return 0;
}

double attend_chunk(const Kernels& k, Arguments a) {
  Attention attention{};
  attention.type = static_cast<CacheType>(a.integer());
  Argument& query = a.array();
  attention.queries = static_cast<int>(query.shape[0]);
  attention.group = static_cast<int>(query.shape[1]);
  attention.head_dim = static_cast<int>(query.shape[2]);
  attention.query = reinterpret_cast<const float*>(query.bytes());
  attention.query_stride = static_cast<int64_t>(query.shape[1] * query.shape[2]);
  Argument& pool = a.array();
  attention.pool = pool.bytes();
  attention.block_stride = static_cast<int64_t>(pool.shape[1]);
  attention.block_table = a.elements<int32_t>();
  attention.first_position = a.integer();
  attention.window = a.integer();
  attention.scale = a.real();
  int chunk = a.integer();
  k.attend_chunk(attention, chunk, a.floats());
  return 0;
}

double attend_merge(const Kernels& k, Arguments a) {
  int head_dim = a.integer();
  Argument& state = a.array();
  k.attend_merge(reinterpret_cast<float*>(state.bytes()), a.floats(), count_of(state), head_dim);
  return 0;
}

double attend_finish(const Kernels& k, Arguments a) {
  const float* state = a.floats();
  Argument& out = a.array();
  k.attend_finish(state, count_of(out), reinterpret_cast<float*>(out.bytes()));
  return 0;
}

double argmax(const Kernels& k, Arguments a) {
  Argument& x = a.array();
  return k.argmax(reinterpret_cast<const float*>(x.bytes()), count_of(x));
}

double sum_exp(const Kernels& k, Arguments a) {
  Argument& x = a.array();
  return k.sum_exp(reinterpret_cast<const float*>(x.bytes()), count_of(x), a.real());
}

double gumbel(const Kernels& k, Arguments a) {
  NoiseKey key{};
  key.seed = static_cast<uint64_t>(a.number());
  key.choice = static_cast<uint32_t>(a.number());
  key.position = static_cast<uint32_t>(a.number());
  uint32_t first_id = static_cast<uint32_t>(a.number());
  float least = a.real();
  Argument& noise = a.array();
  return k.gumbel(key, first_id, count_of(noise), least, reinterpret_cast<float*>(noise.bytes()));
}

double read_all(const Kernels& k, Arguments a) {
  Argument& data = a.array();
  return k.read_all(data.bytes(), static_cast<int64_t>(data.size()), a.number());
}

double multiply(const Kernels& k, Arguments a) {
  auto mode = static_cast<Mode>(a.integer());
  return static_cast<double>(k.multiply(mode, a.number()));
}

const std::map<std::string, double (*)(const Kernels&, Arguments)> kFunctions = {
    {"pack", pack},
    {"unpack_row", unpack_row},
    {"prepare", prepare},
    {"linear", linear},
    {"rmsnorm", rmsnorm},
    {"scale", scale},
    {"add", pair<&Kernels::add>},
    {"swiglu", pair<&Kernels::swiglu>},
    {"geglu", pair<&Kernels::geglu>},
    {"angles", angles},
    {"rope", rope},
    {"cache_write", cache_write},
    {"attend_chunk", attend_chunk},
    {"attend_merge", attend_merge},
    {"attend_finish", attend_finish},
    {"argmax", argmax},
    {"sum_exp", sum_exp},
    {"gumbel", gumbel},
    {"read_all", read_all},
    {"multiply", multiply},
};

void serve() {
  for (uint32_t count; read(&count, sizeof count);) {
    std::vector<Argument> arguments(count);
    for (Argument& argument : arguments) argument = read_argument();
    if (count < 2) fail("a call needs a tier and a function");
    const char* problem = nullptr;
    const Kernels* kernels = choose_kernels(arguments[0].text.c_str(), &problem);
    if (kernels == nullptr) fail(arguments[0].text + ": " + problem);
    auto function = kFunctions.find(arguments[1].text);
    if (function == kFunctions.end()) fail("no such function: " + arguments[1].text);
    arguments.erase(arguments.begin(), arguments.begin() + 2);
    double result = function->second(*kernels, Arguments(arguments));
    for (Argument& argument : arguments) {
      if (!argument.is_array) continue;
      check_guards(argument);
      write(argument.bytes(), argument.size());
    }
    write(&result, sizeof result);
    std::fflush(stdout);
  }
}

// Without arguments serves calls; with any, names the tiers that run here.
int list_tiers() {
  const char* names[8];
  int count = available_tiers(names, 8);
  for (int i = 0; i < count; ++i) std::printf("%s\n", names[i]);
  return 0;
}

}  // namespace
}  // namespace farthing

int main(int count, char**) {
  if (count > 1) return farthing::list_tiers();
  farthing::serve();
}
