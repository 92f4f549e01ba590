# The everyday commands. `make help` lists them; each is a script that can be run by itself.

.DEFAULT_GOAL := help
.PHONY: help demo test check soak test-vm bench bench-programs fuzz miri deny tidy fmt install-c

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

demo: ## the same programs without and with Forebay: times, bytes, and whether the files are the same
	@scripts/demo.sh

test: ## everything that must hold before a commit: the checks and every test
	@scripts/install-test-deps.sh
	@scripts/test.sh

check: ## the checks alone: format, lints, docs, source rules, dependencies
	@scripts/install-deny.sh
	@scripts/check.sh

soak: ## the tests with many more random cases, and the long ones; SOAK_CASES=N to choose
	@scripts/install-test-deps.sh
	@scripts/soak.sh

test-vm: ## stores on the persistent memory of an emulated machine, and power cuts: some minutes
	@scripts/test-vm.sh

bench: ## measurements against the kernel; ARGS='...' are passed on
	@cargo run --release --quiet --package forebay-bench -- $(ARGS)

bench-programs: ## programs with and without Forebay, against the targets; ARGS='...' are passed on
	@scripts/install-demo-deps.sh
	@scripts/measure-programs.sh $(ARGS)

fuzz: ## every fuzz target for a while; FUZZ_SECONDS=N each
	@scripts/fuzz.sh

miri: ## the engine's unit tests under Miri, where the toolchain has it
	@scripts/miri.sh

deny: ## licences, sources and versions of dependencies; installs cargo-deny if need be
	@scripts/install-deny.sh
	@cargo deny check bans licenses sources

install-c: ## the C library into PREFIX (/usr/local), below DESTDIR if that is set
	@scripts/install-c.sh

tidy: ## the source rules alone
	@cargo xtask tidy

fmt: ## formats the sources in place
	@cargo fmt --all
