// What the parts of the Python module farthing._native share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <string>

#include "kernels.h"

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

// Each adds its functions to farthing._native.kernels.
void bind_kernels(nanobind::module_& m);
void bind_attention(nanobind::module_& m);
void bind_sampler(nanobind::module_& m);
// Adds a class to farthing._native, and its functions to kernels.
void bind_ceilings(nanobind::module_& m, nanobind::module_& kernels);

}  // namespace farthing
