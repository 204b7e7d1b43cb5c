// What the parts of the Python module farthing._native share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "kernels.h"
#include "sampler.h"

namespace farthing {

template <class Element, int Dimensions>
using Array = nanobind::ndarray<Element, nanobind::ndim<Dimensions>, nanobind::c_contig,
                                nanobind::device::cpu>;

inline void require(bool holds, const char* problem) {
  if (!holds) throw std::invalid_argument(problem);
}

// The table of the tier so named; throws std::invalid_argument for one unknown or not runnable
// here.
inline const Kernels& tier_named(const char* name) {
  const char* problem = nullptr;
  const Kernels* kernels = choose_kernels(name, &problem);
  if (kernels == nullptr)
    throw std::invalid_argument("tier '" + std::string(name) + "': " + problem);
  return *kernels;
}

using MaskRows = Array<const int32_t, 1>;
using Masks = Array<const uint32_t, 2>;

// Points `view` at a step's masks, if it has any; the number of them. `rows` are wanted.
inline int64_t set_masks(SamplingView& view, const std::optional<MaskRows>& mask_rows,
                         const std::optional<Masks>& masks, size_t rows, int vocabulary) {
  require(mask_rows.has_value() == masks.has_value(), "mask_rows and masks come together");
  if (!masks) return 0;
  require(mask_rows->size() == rows, "mask_rows needs one entry a wanted row");
  require(static_cast<int64_t>(masks->shape(1)) == words_of(vocabulary),
          "a mask has one bit for each token of the vocabulary, in words of 32");
  view.mask_rows = mask_rows->data();
  view.masks = masks->data();
  return static_cast<int64_t>(masks->shape(0));
}

// Each adds its functions to farthing._native.kernels.
void bind_kernels(nanobind::module_& m);
void bind_attention(nanobind::module_& m);
void bind_sampler(nanobind::module_& m);
// Adds a class to farthing._native, and its functions to kernels.
void bind_ceilings(nanobind::module_& m, nanobind::module_& kernels);

}  // namespace farthing
