// SPDX-License-Identifier: Apache-2.0
//
// The size of a sweep under a sanitizer, where a run takes 10 to 50 times as long. Test code.
#ifndef TITAN_TESTS_SUPPORT_SANITIZED_H_
#define TITAN_TESTS_SUPPORT_SANITIZED_H_

namespace titan::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// full in an ordinary build, reduced in one with a sanitizer. Reduced, a sweep still reaches every
// kind of case; what it asserts about counts must scale with it.
template <typename T>
constexpr T Rounds(T full, T reduced) {
  return kSanitized ? reduced : full;
}

}  // namespace titan::testing

#endif  // TITAN_TESTS_SUPPORT_SANITIZED_H_
