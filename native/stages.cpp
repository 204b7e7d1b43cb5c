#include "stages.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <limits>

namespace farthing {
namespace {

constexpr int kUnitTiles = 4;    // outputs of a product are dealt out in units of 64,
constexpr int kFewTiles = 2;     // or of 32, where the threads would get too few of them
constexpr int kFewUnits = 16;    // a thread's: the last one to end then waits little for the others
constexpr int kLeastRows = 24;   // of a unit: fewer would not make up for loading its weights
constexpr int kRowsPerItem = 8;  // rows of elementwise work in one item

int ceil_divide(int a, int b) { return (a + b - 1) / b; }

// Every thread calls this first. Few rows are prepared by each thread for itself, which saves a
// barrier; many are shared out.
class Source {
 public:
  Source(Worker& worker, const Input& input, std::initializer_list<Product> products) {
    const Value& value = worker.value(input.value);
    rows_ = worker.rows(input.value);
    bool wanted[3] = {};
    for (const Product& product : products) {
      wanted[static_cast<int>(mode_of(worker.matrix(product.matrix).format))] = true;
    }
    if (value.is_prepared) {
      prepared_[static_cast<int>(value.mode)] = worker.prepared(input.value);
      return;
    }
    bool is_private = rows_ <= kPrivateRows;
    for (int mode = 0; mode < 3; ++mode) {
      if (!wanted[mode]) continue;
      prepared_[mode] = is_private ? worker.private_prepared(static_cast<Mode>(mode), value.width)
                                   : worker.shared_prepared(static_cast<Mode>(mode), value.width);
      prepared_[mode].fixed_scale = input.fixed_scale;
    }
    auto prepare_row = [&](int row) {
      const float* x = worker.row(input.value, row);
      if (input.gain >= 0) {
        float* normed = worker.scratch_row();
        worker.kernels.rmsnorm(x, worker.vector(input.gain), input.epsilon, value.width, normed);
        x = normed;
      }
      for (int mode = 0; mode < 3; ++mode) {
        if (wanted[mode]) {
          worker.kernels.prepare(prepared_[mode], row, row + 1, 0, x, value.width, value.width);
        }
      }
    };
    if (is_private) {
      for (int row = 0; row < rows_; ++row) prepare_row(row);
      return;
    }
    worker.each(ceil_divide(rows_, kRowsPerItem), [&](int item) {
      int end = std::min(rows_, (item + 1) * kRowsPerItem);
      for (int row = item * kRowsPerItem; row < end; ++row) prepare_row(row);
    });
    worker.barrier();
  }

  int rows() const { return rows_; }
  const Prepared& for_matrix(const Matrix& matrix) const {
    return prepared_[static_cast<int>(mode_of(matrix.format))];
  }

 private:
  int rows_;
  Prepared prepared_[3];
};

// One work item of a product: rows [row, row_end) and outputs [column, column_end).
struct Unit {
  int row, row_end, column, column_end;

  int rows() const { return row_end - row; }
  int columns() const { return column_end - column; }
};

// The units of a product of `rows` rows and `outputs` outputs: row blocks outside, so that a block
// of activations stays in the nearest cache while the weights stream past.
class Units {
 public:
  Units(int rows, int outputs, int columns, int row_block = kRowBlock)
      : rows_(rows),
        outputs_(outputs),
        columns_(columns),
        row_block_(row_block),
        across_(ceil_divide(outputs, columns)),
        count_(across_ * ceil_divide(rows, row_block)) {}

  int count() const { return count_; }
  Unit operator[](int index) const {
    int row = index / across_ * row_block_;
    int column = index % across_ * columns_;
    return {row, std::min(rows_, row + row_block_), column, std::min(outputs_, column + columns_)};
  }

 private:
  int rows_, outputs_, columns_, row_block_, across_, count_;
};

Units plain_units(const Worker& worker, int rows, int outputs) {
  Units units(rows, outputs, kUnitTiles * kTile);
  if (units.count() >= kFewUnits * worker.threads()) return units;
  return Units(rows, outputs, kFewTiles * kTile);
}

void add_bias(const Worker& worker, int bias, const Unit& unit, float* out, int64_t stride) {
  if (bias < 0) return;
  const float* b = worker.vector(bias) + unit.column;
  for (int row = 0; row < unit.rows(); ++row) {
    worker.kernels.add(out + row * stride, b, unit.columns(), out + row * stride);
  }
}

void multiply(const Worker& worker, const Source& source, const Product& product, const Unit& unit,
              float* out, int64_t stride) {
  const Matrix& matrix = worker.matrix(product.matrix);
  worker.kernels.linear(matrix, source.for_matrix(matrix), unit.row, unit.row_end,
                        unit.column / kTile, ceil_divide(unit.column_end, kTile), out, stride);
  add_bias(worker, product.bias, unit, out, stride);
}

// Outputs in a unit of whole heads: at least 64, and whole tiles.
int head_columns(int head_dim) {
  int columns = head_dim;
  while (columns % kTile != 0 || columns < kUnitTiles * kTile) columns += head_dim;
  return columns;
}

void finish_head(const Worker& worker, const HeadProduct& product, int head_dim, int token,
                 float* head) {
  if (product.gain >= 0) {
    worker.kernels.rmsnorm(head, worker.vector(product.gain), product.epsilon, head_dim, head);
  }
  if (product.rope >= 0) {
    worker.kernels.rope(head, worker.cosines(product.rope, token),
                        worker.sines(product.rope, token), worker.rope(product.rope).count());
  }
}

}  // namespace

void EmbedStage::run(Worker& worker) const {
  const Step& step = worker.step;
  const Matrix& table = worker.matrix(table_);
  worker.each(ceil_divide(step.tokens, kRowsPerItem), [&](int item) {
    int end = std::min(step.tokens, (item + 1) * kRowsPerItem);
    for (int token = item * kRowsPerItem; token < end; ++token) {
      float* out = worker.row(output_, token);
      worker.kernels.unpack_row(table, step.token_ids[token], out);
      if (factor_ != 1.0f) worker.kernels.scale(out, factor_, table.inputs, out);
      for (int rope = 0; rope < worker.rope_count(); ++rope) {
        const Rope& table_of = worker.rope(rope);
        worker.kernels.angles(step.positions[token], table_of.frequencies.data(), table_of.count(),
                              worker.cosines(rope, token), worker.sines(rope, token));
      }
    }
  });
  worker.barrier();
}

void LinearStage::run(Worker& worker) const {
  Source source(worker, input_, {product_});
  Units units = plain_units(worker, source.rows(), worker.matrix(product_.matrix).outputs);
  const int64_t stride = worker.value(output_).stride;
  worker.each(units.count(), [&](int item) {
    Unit unit = units[item];
    float* out = worker.row(output_, unit.row) + unit.column;
    if (residual_ < 0) {
      multiply(worker, source, product_, unit, out, stride);
      return;
    }
    float* tile = worker.scratch_tile(0);
    constexpr int64_t tile_stride = kUnitTiles * kTile;
    multiply(worker, source, product_, unit, tile, tile_stride);
    for (int row = 0; row < unit.rows(); ++row) {
      const float* residual = worker.row(residual_, unit.row + row) + unit.column;
      worker.kernels.add(residual, tile + row * tile_stride, unit.columns(), out + row * stride);
    }
  });
  worker.barrier();
}

void GateStage::run(Worker& worker) const {
  Source source(worker, input_, {gate_, up_});
  const Value& value = worker.value(output_);
  auto activate = activation_ == Activation::Silu ? worker.kernels.swiglu : worker.kernels.geglu;
  Units units = plain_units(worker, source.rows(), worker.matrix(gate_.matrix).outputs);
  constexpr int64_t stride = kUnitTiles * kTile;
  worker.each(units.count(), [&](int item) {
    Unit unit = units[item];
    float* gates = worker.scratch_tile(0);
    float* ups = worker.scratch_tile(1);
    multiply(worker, source, gate_, unit, gates, stride);
    multiply(worker, source, up_, unit, ups, stride);
    for (int row = 0; row < unit.rows(); ++row) {
      float* g = gates + row * stride;
      float* out = value.is_prepared ? g : worker.row(output_, unit.row + row) + unit.column;
      activate(g, ups + row * stride, unit.columns(), out);
    }
    if (value.is_prepared) {
      worker.kernels.prepare(worker.prepared(output_), unit.row, unit.row_end, unit.column, gates,
                             stride, unit.columns());
    }
  });
  worker.barrier();
}

void HeadsStage::run(Worker& worker) const {
  const Cache& cache = worker.cache(layer_);
  const int head_dim = cache.head_dim;
  const int64_t head_bytes = head_block_bytes(worker.cache_type(), head_dim);
  const int columns = head_columns(head_dim);
  Source source(worker, input_, {query_.product, key_.product, value_.product});
  const int query_outputs = worker.matrix(query_.product.matrix).outputs;
  const int key_outputs = worker.matrix(key_.product.matrix).outputs;
  // Heads stay whole, so where there are few it is the rows that are cut.
  const int units = ceil_divide(query_outputs + key_outputs, columns);
  const int cuts = std::max(1, kFewUnits * worker.threads() / units);
  const int row_block = std::clamp(ceil_divide(source.rows(), cuts), kLeastRows, kRowBlock);
  Units queries(source.rows(), query_outputs, columns, row_block);
  Units keys(source.rows(), key_outputs, columns, row_block);

  // Keys and values first: a unit of them is twice the work.
  worker.each(keys.count() + queries.count(), [&](int item) {
    if (item >= keys.count()) {
      Unit unit = queries[item - keys.count()];
      multiply(worker, source, query_.product, unit, worker.row(output_, unit.row) + unit.column,
               worker.value(output_).stride);
      for (int row = unit.row; row < unit.row_end; ++row) {
        for (int column = unit.column; column < unit.column_end; column += head_dim) {
          finish_head(worker, query_, head_dim, row, worker.row(output_, row) + column);
        }
      }
      return;
    }
    float* first = worker.scratch_tile(0);
    float* second = worker.scratch_tile(1);
    Unit unit = keys[item];
    multiply(worker, source, key_.product, unit, first, columns);
    multiply(worker, source, value_.product, unit, second, columns);
    for (int row = 0; row < unit.rows(); ++row) {
      int token = unit.row + row;
      uint8_t* block = worker.token_block(layer_, token);
      for (int column = 0; column < unit.columns(); column += head_dim) {
        float* k = first + row * columns + column;
        float* v = second + row * columns + column;
        finish_head(worker, key_, head_dim, token, k);
        finish_head(worker, value_, head_dim, token, v);
        int head = (unit.column + column) / head_dim;
        worker.kernels.cache_write(worker.cache_type(), head_dim, block + head * head_bytes,
                                   worker.token_slot(token), k, v);
      }
    }
  });
  worker.barrier();
}

void RowStage::hidden(const Worker& worker, int index) const {
  const Operands& o = operands_;
  const int width = worker.value(o.a).width;
  const float* x = worker.row(o.a, worker.step.hidden_rows[index]);
  float* out = worker.program.hidden_data() + static_cast<int64_t>(index) * width;
  if (o.gain < 0) {
    std::memcpy(out, x, sizeof(float) * width);
  } else {
    worker.kernels.rmsnorm(x, worker.vector(o.gain), o.number, width, out);
  }
}

void RowStage::row(const Worker& worker, int row) const {
  if (kind_ == Kind::Rows && row >= worker.step.wanted) {
    hidden(worker, row - worker.step.wanted);
    return;
  }
  const Kernels& kernels = worker.kernels;
  const Operands& o = operands_;
  const int width = worker.value(o.output).width;
  float* out = worker.row(o.output, row);
  if (kind_ == Kind::Rows) {
    std::memcpy(out, worker.row(o.a, worker.step.rows[row]), sizeof(float) * width);
    return;
  }
  const float* a = worker.row(o.a, row);
  switch (kind_) {
    case Kind::Norm:
      for (int column = 0; column < width; column += o.gain_count) {
        kernels.rmsnorm(a + column, worker.vector(o.gain), o.number, o.gain_count, out + column);
      }
      break;
    case Kind::NormAdd: {
      float* normed = worker.scratch_row();
      kernels.rmsnorm(worker.row(o.b, row), worker.vector(o.gain), o.number, width, normed);
      kernels.add(a, normed, width, out);
      break;
    }
    case Kind::Add:
      kernels.add(a, worker.row(o.b, row), width, out);
      break;
    case Kind::Scale:
      kernels.scale(a, o.number, width, out);
      break;
    case Kind::Swiglu:
      kernels.swiglu(a, worker.row(o.b, row), width, out);
      break;
    case Kind::Geglu:
      kernels.geglu(a, worker.row(o.b, row), width, out);
      break;
    case Kind::Rope:
      if (out != a) std::memcpy(out, a, sizeof(float) * width);
      for (int column = 0; column < width; column += o.head_dim) {
        kernels.rope(out + column, worker.cosines(o.rope, row), worker.sines(o.rope, row),
                     worker.rope(o.rope).count());
      }
      break;
    case Kind::Columns:
      for (size_t i = 0; i < o.columns.size(); ++i) out[i] = a[o.columns[i]];
      break;
    case Kind::ZeroColumns:
      if (out != a) std::memcpy(out, a, sizeof(float) * width);
      for (int column : o.columns) out[column] = 0.0f;
      break;
    case Kind::Spread:
      std::fill_n(out, width, -std::numeric_limits<float>::infinity());
      for (size_t i = 0; i < o.columns.size(); ++i) out[o.columns[i]] = a[i];
      break;
    case Kind::Rows:
      break;
  }
}

void RowStage::run(Worker& worker) const {
  int rows = worker.rows(operands_.output) + (kind_ == Kind::Rows ? worker.step.hidden : 0);
  worker.each(ceil_divide(rows, kRowsPerItem), [&](int item) {
    int end = std::min(rows, (item + 1) * kRowsPerItem);
    for (int r = item * kRowsPerItem; r < end; ++r) row(worker, r);
  });
  worker.barrier();
}

}  // namespace farthing
