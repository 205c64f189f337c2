# Every target is a script in scripts/: read that for the details. All but `lint` and `book` work offline
# once `make setup` has run.

.DEFAULT_GOAL := help
.PHONY: help setup install demo demo-aicity demo-cluster demo-cluster-aicity image wheel test test-long test-backends bench profiles lint book check-aarch64

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what is missing on this machine (demo and test call it)
	@scripts/setup.sh

install: setup ## build the command `tidemill` with all features, and put it into ~/.cargo/bin
	@scripts/install.sh

demo: setup ## build, then answer spoken questions about pictures
	@scripts/demo.sh

demo-aicity: setup ## build, then follow vehicles across four cameras, with videos to look at
	@scripts/demo_aicity.sh

demo-cluster: setup ## the same on three tiers of containers (needs Docker and Compose)
	@scripts/demo_cluster.sh

demo-cluster-aicity: setup ## demo-aicity on three tiers of containers (needs Docker and Compose)
	@scripts/demo_cluster.sh aicity

image: setup ## the container image, from a release build; IMAGE="--dev --ffmpeg" for others
	@scripts/image.sh $(IMAGE)

wheel: setup ## the wheel for `pip install`, from a release build, in target/wheels; DEV=1 from the development build
	@scripts/wheel.sh $(if $(DEV),--dev)

test: setup ## format, clippy and all tests
	@scripts/test.sh

test-long: setup ## the tests that take long, and more rounds; writes docs/benchmarks/test-long.md
	@scripts/test-long.sh

test-backends: ## set up, build and test the back ends that are programs of their own (libtorch, TVM: 2 GB, minutes); BACKENDS=speed measures
	@scripts/test-backends.sh $(BACKENDS)

bench: setup ## measure; writes docs/benchmarks; BENCH="vqa-loop --rounds 2" for a part
	@scripts/bench.sh $(BENCH)

profiles: setup ## measure the examples' operators; writes examples/vqa/profile.yaml
	@scripts/profiles.sh

lint: setup ## plain English; licences, versions and sources of the dependencies; the build without features; shell scripts
	@scripts/lint.sh

book: setup ## build the book into target/book
	@scripts/book.sh

check-aarch64: setup ## compile everything for 64-bit ARM, without linking
	@scripts/check-aarch64.sh
