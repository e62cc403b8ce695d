// SPDX-License-Identifier: Apache-2.0
//
// The exponential function of doubles for results that must be the same bits everywhere: our own
// polynomial of IEEE operations, no math library. Pure, any thread.
#ifndef TITAN_CORE_BASE_DOUBLE_EXP_H_
#define TITAN_CORE_BASE_DOUBLE_EXP_H_

namespace titan {

// e^x, within 2 ulp of the C library's in the tests: 0 below -745.2, infinity above 709.8, NaN
// stays.
double DoubleExp(double x);

}  // namespace titan

#endif  // TITAN_CORE_BASE_DOUBLE_EXP_H_
