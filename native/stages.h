// The stages that a fused Program is made of (plan/stages.py says which operations become which).
// Every stage ends with a barrier, so the next may read what it wrote.
#pragma once

#include "program.h"

namespace farthing {

// What a product reads: a value, and the gain of the RMSNorm applied on the way (-1: none).
struct Input {
  int value;
  int gain;
  float epsilon;
  float fixed_scale;  // of int8 activations; 0: each group of inputs has its own
};

// One matrix of a product; bias is a vector's index or -1.
struct Product {
  int matrix;
  int bias;
};

// A product whose outputs are heads: normalised with `gain` (-1: not), rotated by `rope` (-1: not).
struct HeadProduct {
  Product product;
  int gain;
  float epsilon;
  int rope;
};

// output[t] = table[token t] * factor; also the step's rotation tables.
class EmbedStage : public Stage {
 public:
  EmbedStage(int table, float factor, int output)
      : table_(table), factor_(factor), output_(output) {}
  void run(Worker& worker) const override;

 private:
  const int table_;
  const float factor_;
  const int output_;
};

// output = product of the input, plus the residual where that is not -1.
class LinearStage : public Stage {
 public:
  LinearStage(Input input, Product product, int output, int residual)
      : input_(input), product_(product), output_(output), residual_(residual) {}
  void run(Worker& worker) const override;

 private:
  const Input input_;
  const Product product_;
  const int output_, residual_;
};

// output = activation(gate product) * up product.
class GateStage : public Stage {
 public:
  enum class Activation { Silu, Gelu };
  GateStage(Input input, Product gate, Product up, Activation activation, int output)
      : input_(input), gate_(gate), up_(up), activation_(activation), output_(output) {}
  void run(Worker& worker) const override;

 private:
  const Input input_;
  const Product gate_, up_;
  const Activation activation_;
  const int output_;
};

// Query heads into `output`, keys and values straight into the cache of `layer`.
class HeadsStage : public Stage {
 public:
  HeadsStage(Input input, HeadProduct query, HeadProduct key, HeadProduct value, int layer,
             int output)
      : input_(input), query_(query), key_(key), value_(value), layer_(layer), output_(output) {}
  void run(Worker& worker) const override;

 private:
  const Input input_;
  const HeadProduct query_, key_, value_;
  const int layer_, output_;
};

// Attention over the cache; key and value are values to be stored first, or -1 when HeadsStage has
// stored them already.
class AttendStage : public Stage {
 public:
  AttendStage(int query, int key, int value, int output, int layer, int heads, float scale,
              int window)
      : query_(query),
        key_(key),
        value_(value),
        output_(output),
        layer_(layer),
        heads_(heads),
        scale_(scale),
        window_(window) {}
  void run(Worker& worker) const override;

 private:
  Attention attention(const Worker& worker, const QueryTile& tile, int kv_head) const;
  void store(Worker& worker) const;
  void finish(Worker& worker, const QueryTile& tile, int kv_head, const float* state) const;

  const int query_, key_, value_, output_, layer_, heads_;
  const float scale_;
  const int window_;
};

// Operations on single rows that nothing absorbed. Rows also writes the step's hidden states: rows
// of its operand normalised with `gain` and `number`, where there is one.
class RowStage : public Stage {
 public:
  enum class Kind {
    Norm,
    NormAdd,
    Add,
    Scale,
    Swiglu,
    Geglu,
    Rope,
    Columns,
    ZeroColumns,
    Rows,
    Spread
  };
  struct Operands {
    int a = -1, b = -1, output = -1;  // NormAdd: output = a + norm(b)
    int gain = -1, rope = -1, head_dim = 0;
    float number = 0;  // epsilon, or the factor of Scale
    int gain_count = 0;
    std::vector<int> columns;  // of Columns, ZeroColumns and Spread
  };
  RowStage(Kind kind, Operands operands) : kind_(kind), operands_(std::move(operands)) {}
  void run(Worker& worker) const override;

 private:
  void row(const Worker& worker, int row) const;
  void hidden(const Worker& worker, int index) const;

  const Kind kind_;
  const Operands operands_;
};

}  // namespace farthing
