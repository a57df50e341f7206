// Which instruction set runs.
#pragma once
#include <string>
#include <vector>

#include "kernels.hpp"

namespace clearhead {

std::vector<std::string> available_isas();  // best first
const Kernels& kernels();                   // the chosen one: CLEARHEAD_ISA, else the best

// Throws std::invalid_argument for an unknown name, std::runtime_error for one that this machine
// lacks; both name what is available.
void choose_isa(const std::string& name);

}  // namespace clearhead
