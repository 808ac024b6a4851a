# `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

CARGO ?= cargo
TARGET ?= $(or $(CARGO_TARGET_DIR),target)
# Yours, or the one that the control plane is built with.
KUBECTL ?= $(shell command -v kubectl 2>/dev/null || $(CARGO) run --quiet --bin control-plane -- kubectl-path)
CRDS := $(filter-out %/kustomization.yaml,$(wildcard crd/linkerd/*.yaml))
MARK := app.kubernetes.io/managed-by=linkerd-operator
# Prints what a phase took; the phases are recipes' lines, so this is a shell function.
PHASE = phase() { local name=$$1 begun=$$SECONDS; shift; echo "==> $$name"; "$$@"; echo "==> $$name took $$((SECONDS - begun)) s"; }

##@ See it work

.PHONY: demo
demo: build ## A virtual machine becomes an endpoint of a Service, one resource owns the proxy configuration, workloads are restarted for it: on a real control plane (KEEP=1 leaves it running)
	$(TARGET)/debug/demo $(if $(KEEP),--keep)

.PHONY: control-plane
control-plane: build ## A control plane to play with, in the foreground until Ctrl-C
	$(TARGET)/debug/control-plane run

.PHONY: run
run: ## The manager against the current kubeconfig
	$(CARGO) run --bin linkerd-operator -- manager

##@ Test it

.PHONY: check
check: ## Format, lints, unit and property tests: before every commit
	@$(PHASE); phase format $(CARGO) fmt --all --check; \
	phase lints $(CARGO) clippy --workspace --all-targets --locked -- -D warnings; \
	phase "unit tests" $(CARGO) test --locked --workspace --lib --bins

.PHONY: test
test: ## Everything that CI runs: check, then the end-to-end tests on a real control plane
	@$(PHASE); phase check $(MAKE) check; \
	phase build $(MAKE) build; \
	phase "control plane" $(TARGET)/debug/control-plane build; \
	phase "end-to-end tests" $(CARGO) test --locked --workspace --test e2e

# Another server of the Destination API on this machine: SERVER=IP:PORT, PID= of its process for memory and CPU,
# E2E_KUBECONFIG= of the cluster that it watches (without, one is started for it, and said where).
.PHONY: bench
bench: ## What it costs: figures of the controllers, of rollouts and of discovery, release build (BENCH="name …" runs some of them, SERVER=IP:PORT [PID=…] measures another server)
	$(CARGO) build --locked --release --workspace --bin linkerd-operator --bin bench --bin supervisor
	$(TARGET)/release/bench $(if $(SERVER),--server $(SERVER)) $(if $(PID),--pid $(PID)) $(BENCH)

# Minutes that the soak lasts.
MINUTES ?= 5

.PHONY: soak
soak: ## Does it stay right and small: churn, reconnects, slow readers and faults for MINUTES=5, answers compared throughout, release build
	$(CARGO) build --locked --release --workspace --bin linkerd-operator --bin soak --bin supervisor
	$(TARGET)/release/soak $(MINUTES)

.PHONY: build
build: ## The debug binaries of the operator and its tests
	$(CARGO) build --locked --workspace --bins

##@ Install it

.PHONY: install
install: ## The CRDs into the current cluster: ours, and Linkerd's where they are absent
	@$(KUBECTL) apply --server-side -k crd
	@$(KUBECTL) wait --for=condition=Established --timeout=60s -f crd/linkerdconfigs.yaml
	@for crd in $(CRDS); do \
		if $(KUBECTL) get -f "$$crd" >/dev/null 2>&1; then \
			echo "$$crd: there already, left as it is"; \
		else \
			$(KUBECTL) label --local -f "$$crd" $(MARK) -o yaml | $(KUBECTL) create -f -; \
			$(KUBECTL) wait --for=condition=Established --timeout=60s -f "$$crd"; \
		fi; \
	done

.PHONY: uninstall
uninstall: ## Removes the CRDs that `make install` made, if nothing uses them
	@crds=$$($(KUBECTL) get crd -l $(MARK) -o jsonpath='{.items[*].metadata.name}') || exit 1; \
	for crd in $$crds; do \
		objects=$$($(KUBECTL) get "$$crd" --all-namespaces -o name --request-timeout=30s) || exit 1; \
		if [ -n "$$objects" ]; then \
			echo "$$crd still has objects, left as it is: kubectl get $$crd --all-namespaces"; \
		else \
			$(KUBECTL) delete crd "$$crd"; \
		fi; \
	done

##@ Supply chain

.PHONY: advisories
advisories: ## Known vulnerabilities, licences and sources of all dependencies: .deny.toml (needs cargo-deny and the internet)
	@command -v cargo-deny >/dev/null || { echo "cargo-deny is missing: cargo install --locked cargo-deny" >&2; exit 1; }
	@$(CARGO) deny --version
	@$(CARGO) deny --locked check bans licenses sources
	@$(CARGO) deny --locked check advisories || { \
		echo "Above is what was found; or, where the advisory database could not be fetched, nothing was checked: that needs the internet." >&2; \
		exit 1; \
	}

.PHONY: sbom
sbom: ## What the operator is made of, as CycloneDX in target/sbom (needs cargo-cyclonedx)
	@command -v cargo-cyclonedx >/dev/null || { echo "cargo-cyclonedx is missing: cargo install --locked cargo-cyclonedx" >&2; exit 1; }
	@$(CARGO) cyclonedx --format json --target all
	@mkdir -p $(TARGET)/sbom
	@mv linkerd-operator.cdx.json $(TARGET)/sbom/
	@rm -f e2e/e2e.cdx.json
	@echo "$(TARGET)/sbom/linkerd-operator.cdx.json"

##@ Help

.PHONY: help
help: ## This list
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
