# SPDX-License-Identifier: Apache-2.0
find_package(OpenSSL REQUIRED)
titan_test(chat_template_golden_test LABEL golden SOURCES golden_runner/chat_template_golden_test.cc
  USES core/text core/base LIBS OpenSSL::Crypto)
set_property(GLOBAL APPEND PROPERTY TITAN_GOLDEN_FILES
  chat_template/cases.json chat_template/real_templates.json)
titan_test(text_template_test LABEL unit SOURCES unit/core/text/chat_template_test.cc
  USES core/text core/base)
