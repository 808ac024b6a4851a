# `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

CARGO ?= cargo
TARGET ?= $(or $(CARGO_TARGET_DIR),target)
# Yours, or the one that the control plane is built with; looked for once.
ifndef KUBECTL
KUBECTL = $(eval KUBECTL := $(shell command -v kubectl 2>/dev/null || $(CARGO) run --quiet --bin control-plane -- kubectl-path))$(KUBECTL)
endif
CRDS := $(filter-out %/kustomization.yaml,$(wildcard crd/linkerd/*.yaml))
HOST = $(shell rustc --version --verbose 2>/dev/null | sed -n 's/^host: //p')
MARK := app.kubernetes.io/managed-by=linkerd-operator
# What is deployed, and where to: as config/default and config/control-plane have it.
IMAGE ?= linkerd-operator:dev
IMAGE_TAR := dist/linkerd-operator-image.tar
NAMESPACE := linkerd-operator-system
LINKERD := linkerd
OVERLAY := dist/overlay
WAIT ?= 120s
KIND_CLUSTER ?= linkerd-operator
CERT_MANAGER ?= v1.18.2
CERT_MANAGER_URL = https://github.com/cert-manager/cert-manager/releases/download/$(CERT_MANAGER)/cert-manager.yaml
# Prints what a phase took; the phases are recipes' lines, so this is a shell function.
PHASE = phase() { local name=$$1 begun=$$SECONDS; shift; echo "==> $$name"; "$$@"; echo "==> $$name took $$((SECONDS - begun)) s"; }

# Of a recipe: one that restores what the installer of Linkerd wrote has a finalizer, which nobody but a running operator takes off.
define NO_CONFIGS
defined=$$($(KUBECTL) get crd linkerdconfigs.config.linkerd.io --ignore-not-found -o name) || exit 1; \
if [ -n "$$defined" ] && ! $(KUBECTL) delete linkerdconfigs.config.linkerd.io --all --timeout=$(WAIT); then \
	echo "LinkerdConfigs are still there after $(WAIT), so nothing else was removed. With deletionPolicy RestoreBase they go once a" \
		"running operator has put back what the installer of Linkerd wrote: kubectl get linkerdconfigs. To give that up:" \
		"kubectl patch linkerdconfig NAME --type=merge -p '{\"metadata\":{\"finalizers\":null}}'" >&2; \
	exit 1; \
fi
endef
NEEDS_KIND = command -v kind >/dev/null || { echo "kind is not installed: see https://kind.sigs.k8s.io, or use a cluster that you have:" \
	"load the image onto its nodes, and make deploy" >&2; exit 1; }

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
check: ## Format, lints, links of the documentation, unit and property tests: before every commit
	@$(PHASE); phase format $(CARGO) fmt --all --check; \
	phase lints $(CARGO) clippy --workspace --all-targets --locked -- -D warnings; \
	phase rustdoc env RUSTDOCFLAGS="-D rustdoc::broken_intra_doc_links" \
		$(CARGO) doc --workspace --lib --no-deps --document-private-items --locked --quiet; \
	phase "unit tests" $(CARGO) test --locked --workspace --lib --bins

.PHONY: test
test: ## Everything that CI runs: check, then the end-to-end tests on a real control plane
	@$(PHASE); phase check $(MAKE) check; \
	phase build $(MAKE) build; \
	phase "control plane" $(TARGET)/debug/control-plane build; \
	phase "end-to-end tests" $(CARGO) test --locked --workspace --test e2e

.PHONY: e2e-node
e2e-node: build ## The image and the manifests on a real node, as root: kubelet and kube-proxy, Debian's containerd (make e2e-node-packages)
	@$(PHASE); $(TARGET)/debug/node check; \
	phase image $(MAKE) image; \
	phase "control plane" $(TARGET)/debug/control-plane build; \
	phase "node binaries" $(MAKE) node-binaries; \
	phase "a real node" $(TARGET)/debug/node $(IMAGE_TAR) $(IMAGE)

.PHONY: node-binaries
node-binaries: build ## The kubelet and kube-proxy, from the Go modules that the control plane is built from
	$(TARGET)/debug/control-plane build-node

.PHONY: e2e-node-packages
e2e-node-packages: ## What e2e-node needs of Debian's packages, installed with apt-get
	apt-get update
	DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
		containerd runc containernetworking-plugins nftables iproute2

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

##@ Package it

# What the binary and the image say of themselves: nothing that the next build of this commit would say differently.
STAMP = export LINKERD_OPERATOR_COMMIT="$$(git describe --always --abbrev=40 --exclude='*' --dirty)"; \
	export SOURCE_DATE_EPOCH="$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)}"; \
	export LINKERD_OPERATOR_BUILD_DATE="$$(date -u -d "@$$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)"
STATIC = $(TARGET)/$(HOST)/release/linkerd-operator

# A static binary, because nothing else is in the image. The target is named, though it is the host's: else the flags would
# go to proc macros too, which cannot be static. No path of this machine is in it, so that others get the same bytes.
.PHONY: image
image: ## The container image, without docker and registry: IMAGE=linkerd-operator:dev in dist/linkerd-operator-image.tar
	@$(STAMP); \
	RUSTFLAGS="-C target-feature=+crt-static --remap-path-prefix=$${CARGO_HOME:-$$HOME/.cargo}=cargo --remap-path-prefix=$(CURDIR)=." \
	CARGO_PROFILE_RELEASE_DEBUG=false CARGO_PROFILE_RELEASE_STRIP=symbols \
	$(CARGO) build --locked --release --target $(HOST) --bin linkerd-operator; \
	$(CARGO) build --quiet --locked --workspace --bin image; \
	$(TARGET)/debug/image $(STATIC) $(IMAGE) $(IMAGE_TAR)

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
uninstall: ## All LinkerdConfigs, then those CRDs that `make install` made and nothing uses
	@$(NO_CONFIGS); \
	crds=$$($(KUBECTL) get crd -l $(MARK) -o jsonpath='{.items[*].metadata.name}') || exit 1; \
	for crd in $$crds; do \
		objects=$$($(KUBECTL) get "$$crd" --all-namespaces -o name --request-timeout=30s) || exit 1; \
		if [ -n "$$objects" ]; then \
			echo "$$crd still has objects, left as it is: kubectl get $$crd --all-namespaces"; \
		else \
			$(KUBECTL) delete crd "$$crd"; \
		fi; \
	done

.PHONY: deploy
deploy: overlay ## The operator with the image IMAGE, and waits WAIT=120s until it is available
	@$(KUBECTL) apply --server-side --force-conflicts -k $(OVERLAY)
	@if [ -n "$$($(KUBECTL) get namespace $(LINKERD) --ignore-not-found -o name)" ]; then \
		$(KUBECTL) apply --server-side -k config/control-plane; \
	else \
		echo "There is no namespace $(LINKERD): what the operator may do in it was left out. It serves discovery;" \
			"its controllers wait for the namespace and for: kubectl apply -k config/control-plane"; \
	fi
	@$(KUBECTL) -n $(NAMESPACE) rollout status deployment/linkerd-operator --timeout=$(WAIT) || { \
		$(KUBECTL) -n $(NAMESPACE) get pods -o wide; \
		$(KUBECTL) -n $(NAMESPACE) get events --field-selector=type=Warning; \
		echo "Not available within $(WAIT). Does the cluster have the image $(IMAGE)? For kind: make image kind-load" >&2; \
		exit 1; }

.PHONY: undeploy
undeploy: ## All LinkerdConfigs, then what `make deploy` made
	@$(NO_CONFIGS)
# Its permissions go last, so that it can hand its Leases over.
	@$(KUBECTL) -n $(NAMESPACE) delete deployment linkerd-operator --ignore-not-found --cascade=foreground --timeout=$(WAIT)
	@$(KUBECTL) delete -k config/control-plane --ignore-not-found --timeout=$(WAIT)
	@$(KUBECTL) delete -k config/default --ignore-not-found --timeout=$(WAIT)

.PHONY: build-installer
build-installer: overlay ## All that `make deploy` applies as one file: dist/install.yaml
	@{ echo "# kubectl apply --server-side -f install.yaml: linkerd-operator with the image $(IMAGE). What belongs into the namespace"; \
		echo "# $(LINKERD) is refused where there is none, and can be applied again once there is."; \
		$(KUBECTL) kustomize $(OVERLAY); echo ---; $(KUBECTL) kustomize config/control-plane; } > dist/install.yaml
	@echo dist/install.yaml

# config/default with the image IMAGE, without changing a file that is under version control.
.PHONY: overlay
overlay:
	@mkdir -p $(OVERLAY)
	@printf '%s\n' 'resources: [../../config/default]' 'patches:' '  - target: {kind: Deployment, name: linkerd-operator}' \
		'    patch: |-' '      - {op: replace, path: /spec/template/spec/containers/0/image, value: "$(IMAGE)"}' \
		> $(OVERLAY)/kustomization.yaml

##@ Try it on a cluster of your own

.PHONY: kind-cluster
kind-cluster: ## A cluster of kind's, KIND_CLUSTER=linkerd-operator, unless it is there
	@$(NEEDS_KIND); \
	if kind get clusters 2>/dev/null | grep -qx '$(KIND_CLUSTER)'; then \
		echo "kind has the cluster $(KIND_CLUSTER) already"; \
	else \
		kind create cluster --name '$(KIND_CLUSTER)' --wait 120s; \
	fi

.PHONY: kind-load
kind-load: ## The image that `make image` made onto the nodes of kind's cluster
	@$(NEEDS_KIND); \
	[ -f '$(IMAGE_TAR)' ] || { echo "$(IMAGE_TAR) is not there: make image" >&2; exit 1; }; \
	kind get clusters 2>/dev/null | grep -qx '$(KIND_CLUSTER)' || { \
		echo "kind has no cluster $(KIND_CLUSTER): make kind-cluster, or KIND_CLUSTER=<one of: kind get clusters>" >&2; exit 1; }; \
	kind load image-archive '$(IMAGE_TAR)' --name '$(KIND_CLUSTER)'

.PHONY: controller
controller: ## image, kind-load, deploy
	@$(MAKE) image
	@$(MAKE) kind-load
	@$(MAKE) deploy

.PHONY: cert-manager
cert-manager: ## cert-manager CERT_MANAGER=v1.18.2, for clusters that want it; the operator does not need it yet (from the internet)
	@mkdir -p dist
	@curl --fail --silent --show-error --location --max-time 120 --output dist/cert-manager.yaml '$(CERT_MANAGER_URL)' || { \
		echo "This needs the internet, and curl: $(CERT_MANAGER_URL) could not be had." \
			"Or bring the file by other means and: kubectl apply -f cert-manager.yaml" >&2; exit 1; }
	@$(KUBECTL) apply --server-side -f dist/cert-manager.yaml
	@$(KUBECTL) -n cert-manager wait --for=condition=Available --timeout=$(WAIT) deployment --all

.PHONY: emojivoto
emojivoto: ## An app whose Deployments opted in to restarts (its nodes pull the images)
	@$(KUBECTL) apply -f config/samples/emojivoto.yaml
	@$(KUBECTL) -n emojivoto wait --for=condition=Available --timeout=$(WAIT) deployment --all || { \
		echo "Not available within $(WAIT): the nodes pull the images from the internet. kubectl -n emojivoto get pods" >&2; exit 1; }

.PHONY: clean
clean: ## Removes what was built here (what Kubernetes was built from stays in ~/.cache/linkerd-operator)
	$(CARGO) clean
	rm -rf dist

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
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
