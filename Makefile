# Common tasks. `make` alone lists them.
#
# Arguments for the program or for the tests go into ARGS: make demo ARGS="--headless --seconds 60".

.DEFAULT_GOAL := help
SHELL := /bin/sh
# rustup installs cargo here; a shell opened earlier does not have it in its PATH.
export PATH := $(PATH):$(HOME)/.cargo/bin
ARGS ?=

.PHONY: help demo test client-test soak soak-queue upgrade-test otel-test build check lint features fmt docs bench bench-queue bench-peer bench-burst bench-throttle bench-trip bench-notify bench-admission bench-recipient bench-gateway browser-test fresh clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

demo: ## install missing requirements, build, and show a governed reindex on a dashboard (Ctrl-C ends it)
	@scripts/setup.sh --demo && exec cargo run -p flyball-lab -- demo $(ARGS)

test: ## install missing requirements, build, and run all tests on a private Postgres, Redis and Prometheus
	@scripts/setup.sh && scripts/setup-counterparts.sh && exec scripts/test.sh $(ARGS)

soak: ## run the long forms of the plan and fault tests, FLYBALL_SOAK_S seconds each (300), then soak-queue
	@scripts/setup.sh && cargo test --workspace --test it -- --ignored --nocapture --test-threads 1 soak_ $(ARGS)
	@$(MAKE) soak-queue ARGS=

soak-queue: ## run 2,000 jobs a second for an hour and draw target/soak.svg; shorter with ARGS="--soak-s 600"
	@scripts/setup.sh && exec cargo bench -p flyball-lab --bench queue -- --only soak --curve $(CURDIR)/target/soak.svg $(ARGS)

upgrade-test: ## build the version before, and run its programs and this one's beside one schema
	@scripts/setup.sh && FLYBALL_OLDER_PROGRAM=$$(scripts/older.sh) && export FLYBALL_OLDER_PROGRAM && \
		exec cargo test --workspace --test it -- runner::upgrade $(ARGS)

otel-test: ## build with the feature otel, and test the export of traces to a collector
	@scripts/setup.sh && exec cargo test -p flyball-lab --features otel --test otel $(ARGS)

build: ## build the program for production: target/dist/flyball
	cargo build --profile dist

check: lint ## check a change: lint, then the source conventions (tests/it/tidy)
	cargo test --workspace --test it -- tidy

lint: ## formatting and clippy, warnings are errors
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

features: ## compile the library with each of its features alone; warnings are errors
	@for feature in "" runner http reindex notifications governor api otel cli; do \
		echo "features: $${feature:-none}" && \
		cargo clippy -p flyball-core -p flyball --lib --no-default-features --features "$$feature" -- -D warnings || exit 1; \
	done

fmt: ## format the sources
	cargo fmt --all

docs: ## build the library's documentation: target/doc/flyball/index.html
	cargo doc --no-deps

bench-peer: ## measure one lane of the queue beside graphile_worker, whose program it builds first
	@scripts/setup.sh && cargo build --release --locked --manifest-path lab/peers/graphile_worker/Cargo.toml --target-dir $(CURDIR)/target/peers \
	  && exec cargo bench -p flyball-lab --bench queue -- --only peer --peer $(CURDIR)/target/peers/release/peer-graphile-worker $(ARGS)

bench-queue: ## measure the queue on private servers; the long form with ARGS="--full", one case with ARGS="--only drain"
	@scripts/setup.sh && exec cargo bench -p flyball-lab --bench queue -- $(ARGS)

bench-burst: ## measure a burst of one key against a rate-limited server, in the four modes of on_429
	@scripts/setup.sh && exec cargo bench -p flyball-lab --bench burst -- $(ARGS)

bench-throttle: ## measure throttles on a private Redis; one case with ARGS="--only accuracy"
	@scripts/setup.sh && exec cargo bench -p flyball-lab --bench throttle -- $(ARGS)

bench-trip: ## measure the time from a rising load to the last granted token; FLYBALL_TRIPS times (10)
	@scripts/setup.sh && exec cargo test --workspace --test it -- --ignored --nocapture bench_trips $(ARGS)

bench-notify: ## measure notifications with a fake provider: rates, limits, CPU; one part with ARGS="--part send"
	@scripts/setup.sh && exec cargo bench -p flyball-lab --bench notify -- $(ARGS)

bench-admission: ## measure the admission of tenants' messages; one part with ARGS="--part decide"
	@scripts/setup.sh && exec cargo bench -p flyball-lab --bench admission -- $(ARGS)

bench-recipient: ## measure the gates of recipients: plans, digests, disk, a crowd; one part with ARGS="--part plans"
	@scripts/setup.sh && exec cargo bench -p flyball-lab --bench recipient -- $(ARGS)

bench-gateway: ## measure the gateway: memory, deliveries, latency; one part with ARGS="--part idle"
	@scripts/setup.sh && exec cargo bench -p flyball-lab --bench gateway -- $(ARGS)

bench: bench-queue bench-throttle bench-burst bench-trip bench-notify bench-admission bench-recipient bench-gateway ## all eight

# Node.js 20 has WebSockets behind the option, and newer versions without.
client-test: ## test the JavaScript client with a fake gateway; Node.js 20 or newer
	@exec node --experimental-websocket --test --test-reporter=spec clients/javascript/test/*.test.mjs

browser-test: ## drive the dashboard, the JavaScript client and the example inbox in headless Chromium
	@scripts/setup.sh --browser && scripts/setup.sh --demo && cargo build --quiet && \
		node --test scripts/browser-test/*.test.mjs && $(MAKE) --no-print-directory client-test && \
		node scripts/browser-test/inbox.mjs && node scripts/browser-test/inbox-server.mjs && node scripts/browser-test/gateway.mjs && \
		exec node scripts/browser-test/run.mjs $(ARGS)

fresh: ## remove the demo's data, so that the next demo starts from scratch
	cargo run --quiet -- services --dir .flyball/demo/services --wipe
	cargo run --quiet -- services --dir .flyball/demo/store/engine --wipe
	rm -rf .flyball

clean: ## remove all build output
	cargo clean
