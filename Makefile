# SPDX-License-Identifier: Apache-2.0
# Every target installs what is missing, builds what it needs, and does its work. `make help` lists them.
SHELL := /bin/bash
JOBS ?= $(shell nproc)
STEPS ?= 40
SEED ?= 1
.PHONY: help setup build programs demo demo_numbers test test-long bench format clean asan tsan

help:
	@echo "make demo        train SmolLM2-135M on additions with every daemon on this machine (STEPS=$(STEPS) SEED=$(SEED))"
	@echo "make test        build and run the tests (under 12 minutes after the build)"
	@echo "make test-long   the heavy suites: whole model, exhaustive sweeps"
	@echo "make programs    build the programs into build/bin, without tests and benchmarks"
	@echo "make build       build everything into build/"
	@echo "make bench       every benchmark; make bench-<area> for one (kernels, startup, weightstore)"
	@echo "make asan        unit and golden tests under AddressSanitizer and UBSan"
	@echo "make tsan        unit tests of what links no gRPC under ThreadSanitizer"
	@echo "make format      clang-format all sources;  make clean  remove build/"

setup:
	@tools/setup.sh

build/build.ninja: setup
	@cmake --preset release > build.configure.log 2>&1 || { cat build.configure.log; rm -f build.configure.log; exit 1; }; rm -f build.configure.log

build: build/build.ninja
	@cmake --build build -j $(JOBS)

programs: build/build.ninja
	@cmake --build build -j $(JOBS) --target demo_programs titan-journal

# What is wrong with a command line is said before anything is built.
demo_numbers:
	@[[ "$(STEPS)" =~ ^[1-9][0-9]{0,4}$$ || "$(STEPS)" == 100000 ]] || { echo "STEPS is '$(STEPS)'; wants a number from 1 to 100000" >&2; exit 2; }
	@[[ "$(SEED)" =~ ^[0-9]{1,19}$$ ]] || { echo "SEED is '$(SEED)'; wants a number from 0 on" >&2; exit 2; }

demo: demo_numbers build/build.ninja
	@cmake --build build -j $(JOBS) --target demo_programs
	@build/bin/titan-demo --steps $(STEPS) --seed $(SEED) --output build/demo

test: build
	@ctest --test-dir build --output-on-failure -LE long

test-long: build
	@tools/peers.sh > /dev/null
	@ctest --test-dir build --output-on-failure -L long

bench: build
	@tools/bench.sh all

bench-%:
	@tools/bench.sh --check $*
	@$(MAKE) --no-print-directory build
	@tools/bench.sh $*

asan: setup
	@cmake --preset asan >/dev/null
	@cmake --build --preset asan -j $(JOBS) --target asan_tests
	@ctest --preset asan

tsan: setup
	@cmake --preset tsan >/dev/null
	@cmake --build --preset tsan -j $(JOBS) --target tsan_tests
	@ctest --preset tsan

format:
	@git ls-files '*.cc' '*.h' | xargs clang-format -i

clean:
	@rm -rf build
