# `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

CARGO ?= cargo
TARGET ?= $(or $(CARGO_TARGET_DIR),target)
# With --workspace, as in all other builds: with the features of one package, most dependencies are compiled again.
CONTROL_PLANE = $(CARGO) build --quiet --locked --workspace --bin control-plane && $(TARGET)/debug/control-plane
# The kubectl in PATH, else the one that the test control plane builds. Resolved once, at first use.
ifndef KUBECTL
KUBECTL = $(eval KUBECTL := $(shell command -v kubectl 2>/dev/null || { $(CONTROL_PLANE) kubectl-path; }))$(KUBECTL)
endif
# The same for Helm.
ifndef HELM
HELM = $(eval HELM := $(shell command -v helm 2>/dev/null || { $(CONTROL_PLANE) helm-path; }))$(HELM)
endif
# The same for crane.
ifndef CRANE
CRANE = $(eval CRANE := $(shell command -v crane 2>/dev/null || { $(CONTROL_PLANE) crane-path; }))$(CRANE)
endif
CHARTS := charts/linkerd-operator-crds charts/linkerd-operator
CRDS := $(filter-out %/kustomization.yaml,$(wildcard crd/linkerd/*.yaml))
# The target of the image and of a release. Another Linux target needs its standard library and its C compiler: see
# docs/src/install/image.md.
TRIPLE ?= $(HOST)
HOST = $(shell rustc --version --verbose 2>/dev/null | sed -n 's/^host: //p')
MARK := app.kubernetes.io/managed-by=linkerd-operator
# The deployed image, and the namespaces as in config/default and config/control-plane.
IMAGE ?= linkerd-operator:dev
IMAGE_TAR := dist/linkerd-operator-image.tar
NAMESPACE := linkerd-operator-system
LINKERD := linkerd
# The label selector of what config contains, and not of what Helm installed.
OURS := app.kubernetes.io/part-of=linkerd-operator,app.kubernetes.io/managed-by=kustomize
OVERLAY := dist/overlay
# The path from the overlay to this directory.
OVERLAY_BASE := ../..
WAIT ?= 120s
KIND_CLUSTER ?= linkerd-operator
CERT_MANAGER ?= v1.18.2
CERT_MANAGER_URL = https://github.com/cert-manager/cert-manager/releases/download/$(CERT_MANAGER)/cert-manager.yaml
# Prints the duration of a phase. It is a shell function, because the phases are lines of recipes.
PHASE = phase() { local name=$$1 begun=$$SECONDS; shift; echo "==> $$name"; "$$@"; echo "==> $$name took $$((SECONDS - begun)) s"; }

# Deletes all LinkerdConfigs. Those with deletionPolicy RestoreBase have a finalizer, which only a running operator
# removes.
define NO_CONFIGS
defined=$$($(KUBECTL) get crd linkerdconfigs.config.linkerd.io --ignore-not-found -o name) || exit 1; \
if [ -n "$$defined" ] && ! $(KUBECTL) delete linkerdconfigs.config.linkerd.io --all --timeout=$(WAIT); then \
	echo "LinkerdConfigs still exist after $(WAIT), so nothing else was removed. A LinkerdConfig with deletionPolicy RestoreBase is" \
		"deleted once a running operator has restored the base configuration: kubectl get linkerdconfigs. To skip the restore:" \
		"kubectl patch linkerdconfig NAME --type=merge -p '{\"metadata\":{\"finalizers\":null}}'" >&2; \
	exit 1; \
fi
endef
NEEDS_KIND = command -v kind >/dev/null || { echo "kind is not installed: see https://kind.sigs.k8s.io. To use another cluster, load the" \
	"image onto its nodes and run make deploy" >&2; exit 1; }

##@ Try it

.PHONY: demo
demo: build ## Demonstrate ExternalWorkload endpoints, proxy configuration, workload restarts, a second cluster and a new root on real control planes (KEEP=1 leaves it running)
	$(TARGET)/debug/demo $(if $(KEEP),--keep)

.PHONY: control-plane
control-plane: build ## Run a Kubernetes control plane in the foreground until Ctrl-C
	$(TARGET)/debug/control-plane run

.PHONY: run
run: ## Run the manager against the current kubeconfig
	LINKERD_OPERATOR_OPERATOR_NAMESPACE=$${LINKERD_OPERATOR_OPERATOR_NAMESPACE:-$(NAMESPACE)} \
		$(CARGO) run --bin linkerd-operator -- manager

##@ Test

.PHONY: check
check: ## Check format, lints and documentation links, and run unit and property tests: before every commit
	@$(PHASE); phase format $(CARGO) fmt --all --check; \
	phase lints $(CARGO) clippy --workspace --all-targets --locked -- -D warnings; \
	phase rustdoc env RUSTDOCFLAGS="-D rustdoc::broken_intra_doc_links" \
		$(CARGO) doc --workspace --lib --no-deps --document-private-items --locked --quiet; \
	phase "unit tests" $(CARGO) test --locked --workspace --lib --bins

# An error of a test names what failed. Frames of the runtime after it would be all that is left of a long log.
# Tests wait most of the time: for leases, intervals and soaks. At most four at a time have dedicated control planes, so
# further threads would only wait for these.
TEST_THREADS = $(or $(RUST_TEST_THREADS),$(shell threads=$$((3 * $$(nproc))); echo $$((threads < 8 ? threads : 8))))

.PHONY: test
test: ## Run all tests of CI: check, the end-to-end tests on a real control plane, and short forms of soak, demo and bench
	@$(PHASE); phase check $(MAKE) check; \
	phase build $(MAKE) build; \
	phase "control plane" $(TARGET)/debug/control-plane build; \
	phase helm $(TARGET)/debug/control-plane build-helm; \
	phase prometheus $(TARGET)/debug/control-plane build-prometheus; \
	phase "crane and Krew" $(TARGET)/debug/control-plane build-release-tools; \
	phase "walk of 10,000 steps" env WALK_STEPS=10000 \
		$(CARGO) test --locked --workspace --lib -- walk_tests --nocapture; \
	phase "end-to-end tests" env RUST_TEST_THREADS=$(TEST_THREADS) RUST_LIB_BACKTRACE=0 $(CARGO) test --locked --workspace --test e2e; \
	phase "soak for a minute" $(TARGET)/debug/soak 1; \
	phase demo $(TARGET)/debug/demo; \
	phase "one benchmark" $(TARGET)/debug/bench revert

.PHONY: e2e-node
e2e-node: build ## Test the image and the manifests on a real node, as root: kubelet, kube-proxy and Debian's containerd (make e2e-node-packages)
	@$(PHASE); $(TARGET)/debug/node check; \
	phase image $(MAKE) image; \
	phase "control plane" $(TARGET)/debug/control-plane build; \
	phase "node binaries" $(MAKE) node-binaries; \
	phase "a real node" $(TARGET)/debug/node $(IMAGE_TAR) $(IMAGE)

.PHONY: node-binaries
node-binaries: build ## Build the kubelet and kube-proxy from the same Go modules as the control plane
	$(TARGET)/debug/control-plane build-node

.PHONY: e2e-node-packages
e2e-node-packages: ## Install the Debian packages that e2e-node needs, with apt-get
	apt-get update
	DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
		containerd runc containernetworking-plugins nftables iproute2

# Linkerd's programs are not part of this repository: give the paths of your own builds. A part whose program is not
# given is left out, and the report says so.
.PHONY: e2e-linkerd
e2e-linkerd: build ## Compare the operator with Linkerd's own programs: LINKERD_CONTROLLER=, LINKERD_CLI=, LINKERD_CHARTS=, and as root LINKERD_PROXY= and LINKERD_POLICY_CONTROLLER= (paths; SEEDS="1 2 3", PARTS="answers table clusters traffic identity trust distrust injector reviews bursts service-profiles cli")
	@$(PHASE); phase "control plane" $(TARGET)/debug/control-plane build; \
	phase "against Linkerd" $(TARGET)/debug/linkerd

# It is not part of `make test`: a browser comes from no registry of Rust or Go.
.PHONY: e2e-dashboard
e2e-dashboard: build ## Open the dashboard in headless Chromium (make e2e-dashboard-packages, or CHROMIUM=PATH; SCREENSHOTS=FOLDER)
	@$(PHASE); $(TARGET)/debug/browser check; \
	phase "control plane" $(TARGET)/debug/control-plane build; \
	phase "the dashboard in Chromium" $(TARGET)/debug/browser $(SCREENSHOTS)

.PHONY: e2e-dashboard-packages
e2e-dashboard-packages: ## Install the Debian package that e2e-dashboard needs, with apt-get
	apt-get update
	DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends chromium

OTHER_VERSION = $(abspath $(TARGET)/other-version)

# It is not part of `make test`: a second build of the operator takes about as long as all unit tests, and an older
# revision is not in a shallow clone.
.PHONY: e2e-versions
e2e-versions: ## Run two versions of the operator against each other: OTHER=REVISION, built in target/other-version
	@[ -n '$(OTHER)' ] || { echo "OTHER is not set: make e2e-versions OTHER=REVISION, for example a release's tag" >&2; exit 1; }
	@$(PHASE); phase build $(MAKE) build; \
	phase "build of $(OTHER)" $(MAKE) other-version; \
	phase "control plane" $(TARGET)/debug/control-plane build; \
	phase "two versions" env E2E_OTHER_VERSION=$(OTHER_VERSION) $(CARGO) test --locked --workspace --test e2e versions::

# A worktree keeps the times of unchanged files, so that cargo compiles only what differs from the last OTHER.
.PHONY: other-version
other-version:
	@revision=$$(git rev-parse --verify --quiet '$(OTHER)^{commit}') || { echo "OTHER=$(OTHER) is not a revision of this repository" >&2; exit 1; }; \
	if [ -e '$(OTHER_VERSION)/.git' ]; then git -C '$(OTHER_VERSION)' checkout --quiet --force --detach "$$revision"; \
	else git worktree add --quiet --force --detach '$(OTHER_VERSION)' "$$revision"; fi
	@cd '$(OTHER_VERSION)'; env -u CARGO_TARGET_DIR $(CARGO) build --locked --workspace --bin linkerd-operator

# The tests that depend most on the API server: its validation, defaults, CEL rules, Leases, watches and permissions.
KUBERNETES ?= 1.34
.PHONY: e2e-kubernetes
e2e-kubernetes: build ## Run end-to-end tests on another version of Kubernetes: KUBERNETES=1.34 (the first build takes minutes)
	@$(PHASE); export E2E_KUBERNETES=$(KUBERNETES); \
	phase "control plane" $(TARGET)/debug/control-plane build; \
	phase "Kubernetes $(KUBERNETES)" $(CARGO) test --locked --workspace --test e2e -- $(KUBERNETES_TESTS)
KUBERNETES_TESTS := crd:: external_workload:: leadership:: manifests:: linkerd_config_crd:: linkerd_config::adoption \
	linkerd_config::drift linkerd_config::rollouts::crash linkerd_config::rollouts::evict \
	discovery::changes discovery::oracle discovery::bad_input profile::changes profile::process faults:: harness::

# To measure another server of the Destination API on this host: SERVER=IP:PORT, PID= of its process to measure memory
# and CPU, E2E_KUBECONFIG= of the cluster that it watches (by default a cluster is started, and its kubeconfig is
# printed). With BENCH=identity, it is another identity service; the files that it must use are printed.
.PHONY: bench
bench: ## Benchmark the controllers, rollouts, discovery and identity, release build (BENCH="name …" selects benchmarks, SERVER=IP:PORT [PID=…] measures another server)
	$(CARGO) build --locked --release --workspace --bin linkerd-operator --bin bench --bin supervisor
	$(TARGET)/release/bench $(if $(SERVER),--server $(SERVER)) $(if $(PID),--pid $(PID)) $(BENCH)

# Duration of the soak test in minutes.
MINUTES ?= 5

.PHONY: soak
soak: ## Check answers and memory under churn, reconnects, slow readers and faults for MINUTES=5, release build
	$(CARGO) build --locked --release --workspace --bin linkerd-operator --bin soak --bin supervisor
	$(TARGET)/release/soak $(MINUTES)

# The seconds for each target of the fuzzer, and the targets.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= $(basename $(notdir $(wildcard e2e/fuzz/targets/*.rs)))
CARGO_FUZZ := 0.13.2

# The unit tests run the same targets over the corpus. No sanitizer, because the operator has no unsafe code. The
# dependencies have the versions of the operator. New inputs are kept in target/fuzz, and findings in e2e/fuzz/artifacts.
.PHONY: fuzz
fuzz: ## Fuzz what strangers send with libFuzzer, FUZZ_SECONDS=60 for each target (needs a nightly toolchain and a C++ compiler; FUZZ_TARGETS="name …")
	@grep -qs '"cargo-fuzz $(CARGO_FUZZ) ' $(TOOLS)/.crates.toml || \
		$(CARGO) install --quiet --locked --root $(TOOLS) cargo-fuzz@$(CARGO_FUZZ)
	@cp Cargo.lock e2e/fuzz/Cargo.lock; \
	for target in $(FUZZ_TARGETS); do \
		echo "==> $$target for $(FUZZ_SECONDS) s"; mkdir -p "$(abspath $(TARGET))/fuzz/$$target"; \
		PATH="$(TOOLS)/bin:$$PATH" $(CARGO) +nightly fuzz run --fuzz-dir e2e/fuzz --sanitizer none \
			--target-dir "$(abspath $(TARGET))/fuzz/build" $$target "$(abspath $(TARGET))/fuzz/$$target" e2e/fuzz/corpus/$$target \
			-- -max_total_time=$(FUZZ_SECONDS) -dict=$(CURDIR)/e2e/fuzz/words.dict -timeout=25 -print_final_stats=1; \
	done

MDBOOK := 0.5.4

# mdbook comes from crates.io, into the target directory. `make check` checks the links of the documentation and the
# pages that are generated from the sources.
.PHONY: docs
docs: ## Build the user's book and the internals with mdBook: docs/book/src/index.html
	@[ "$$($(TARGET)/tools/bin/mdbook --version 2>/dev/null)" = "mdbook v$(MDBOOK)" ] || \
		$(CARGO) install --quiet --locked --root $(TARGET)/tools --no-default-features --features search mdbook@$(MDBOOK)
	$(CARGO) test --quiet --locked --lib docs_tests
	$(TARGET)/tools/bin/mdbook build docs
	$(TARGET)/tools/bin/mdbook build docs/internals
	@echo docs/book/src/index.html docs/book/internals/src/index.html

.PHONY: build
build: ## Build the debug binaries of the operator and its tests
	$(CARGO) build --locked --workspace --bins

##@ Package

# The version information of the binary and the image. It is the same in every build of one commit.
STAMP = export LINKERD_OPERATOR_COMMIT="$$(git describe --always --abbrev=40 --exclude='*' --dirty)"; \
	export SOURCE_DATE_EPOCH="$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)}"; \
	export LINKERD_OPERATOR_BUILD_DATE="$$(date -u -d "@$$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)"
STATIC = $(TARGET)/$(TRIPLE)/release/linkerd-operator

# On arm64, kernels have pages of up to 64 KiB (2^16), and jemalloc ends the process if its own pages are smaller.
STATIC_ENV = $(STAMP); $(if $(filter aarch64%,$(TRIPLE)),export JEMALLOC_SYS_WITH_LG_PAGE=16;)
CROSS = $(filter-out $(HOST),$(TRIPLE))
# As Debian names the cross compiler: aarch64-linux-gnu-gcc for aarch64-unknown-linux-gnu.
CROSS_GCC = $(subst -unknown-,-,$(TRIPLE))-gcc
CROSS_NAME = $(subst -,_,$(TRIPLE))
CROSS_ENV = $(if $(CROSS),export CC_$(CROSS_NAME)=$(CROSS_GCC); \
	export CARGO_TARGET_$(shell tr a-z A-Z <<< '$(CROSS_NAME)')_LINKER=$(CROSS_GCC);)
# `auditable build` records the dependencies in the binary.
BUILD ?= build

# The binary is static, because the image contains no library. --target is set even though it is the host's: otherwise
# the flags would also apply to proc macros, which cannot be static. Host paths are remapped, so that builds are
# reproducible.
.PHONY: image
image: ## Build the container image without docker and registry: IMAGE=linkerd-operator:dev in dist/linkerd-operator-image.tar (TRIPLE=aarch64-unknown-linux-gnu for arm64)
	@$(STATIC_ENV) $(CROSS_ENV) \
	RUSTFLAGS="-C target-feature=+crt-static --remap-path-prefix=$${CARGO_HOME:-$$HOME/.cargo}=cargo --remap-path-prefix=$(CURDIR)=." \
	CARGO_PROFILE_RELEASE_DEBUG=false CARGO_PROFILE_RELEASE_STRIP=symbols \
	$(CARGO) $(BUILD) --locked --release --target $(TRIPLE) --bin linkerd-operator; \
	$(CARGO) build --quiet --locked --workspace --bin image; \
	$(TARGET)/debug/image $(STATIC) $(IMAGE) $(IMAGE_TAR)

PACKAGES ?= dist
# The default of the chart's value image.repository.
CHART_IMAGE ?=

# The version of both charts is that of Cargo.toml: `make check` compares them. Helm writes the current time into a
# package, so Helm only checks the charts here.
.PHONY: helm-package
helm-package: ## Package both Helm charts, also as OCI image layouts: dist/NAME-VERSION.tgz and dist/NAME-VERSION-oci.tar (CHART_IMAGE=repository of the image)
	@$(HELM) lint --strict $(CHARTS)
	@$(CARGO) build --quiet --locked --workspace --bin chart
	@$(STAMP); $(TARGET)/debug/chart '$(PACKAGES)' '$(CHART_IMAGE)' $(CHARTS)

##@ Install

# kubectl does not wait but fails while a new CRD has no conditions yet, so a failure is tried once more.
WAIT_CRD = $(KUBECTL) wait --for=condition=Established --timeout=60s -f
ESTABLISHED = established() { $(WAIT_CRD) "$$1" 2>/dev/null || { sleep 2; $(WAIT_CRD) "$$1"; }; }

.PHONY: install
install: ## Install the CRDs into the current cluster: ours, and those of Linkerd's that are absent
	@$(KUBECTL) apply --server-side -k crd
	@$(ESTABLISHED); established crd/linkerdconfigs.yaml; \
	for crd in $(CRDS); do \
		if $(KUBECTL) get -f "$$crd" >/dev/null 2>&1; then \
			echo "$$crd: already installed, left unchanged"; \
		else \
			$(KUBECTL) label --local -f "$$crd" $(MARK) -o yaml | $(KUBECTL) create -f -; \
			established "$$crd"; \
		fi; \
	done

.PHONY: uninstall
uninstall: ## Delete all LinkerdConfigs, then the unused CRDs that `make install` created
	@$(NO_CONFIGS); \
	crds=$$($(KUBECTL) get crd -l $(MARK) -o jsonpath='{.items[*].metadata.name}') || exit 1; \
	for crd in $$crds; do \
		objects=$$($(KUBECTL) get "$$crd" --all-namespaces -o name --request-timeout=30s) || exit 1; \
		if [ -n "$$objects" ]; then \
			echo "$$crd still has objects, left unchanged: kubectl get $$crd --all-namespaces"; \
		else \
			$(KUBECTL) delete crd "$$crd"; \
		fi; \
	done

.PHONY: deploy
deploy: overlay ## Deploy the operator with the image IMAGE, and wait up to WAIT=120s until it is available
# The permissions first, so that the operator is not denied anything when it starts.
	@if [ -n "$$($(KUBECTL) get namespace $(LINKERD) --ignore-not-found -o name)" ]; then \
		$(KUBECTL) apply --server-side -k config/control-plane; \
	else \
		echo "Namespace $(LINKERD) does not exist, so the operator's permissions in it were not applied. The operator serves" \
			"discovery; its controllers wait for the namespace and for: kubectl apply --server-side -k config/control-plane"; \
	fi
	@$(KUBECTL) apply --server-side --force-conflicts -k $(OVERLAY)
	@$(KUBECTL) -n $(NAMESPACE) rollout status deployment/linkerd-operator --timeout=$(WAIT) || { \
		$(KUBECTL) -n $(NAMESPACE) get pods -o wide; \
		$(KUBECTL) -n $(NAMESPACE) get events --field-selector=type=Warning; \
		echo "Not available within $(WAIT). Does the cluster have the image $(IMAGE)? For kind: make image kind-load" >&2; \
		exit 1; }

.PHONY: undeploy
undeploy: ## Delete all LinkerdConfigs, then the operator with its optional components
	@$(NO_CONFIGS)
# First of all what makes the API server call the operator.
	@$(KUBECTL) delete mutatingwebhookconfigurations,validatingwebhookconfigurations -l $(OURS)
# The permissions are deleted last, so that the operator can release its Leases.
	@$(KUBECTL) -n $(NAMESPACE) delete deployment linkerd-operator --ignore-not-found --cascade=foreground --timeout=$(WAIT)
	@$(KUBECTL) -n $(LINKERD) delete lease linkerd-operator --ignore-not-found
	@$(KUBECTL) delete -k config/control-plane --ignore-not-found --timeout=$(WAIT)
	@$(KUBECTL) delete -k config/default --ignore-not-found --timeout=$(WAIT)
# What the components of an overlay added.
	@$(KUBECTL) -n $(LINKERD) delete deployments -l $(OURS) --cascade=foreground --timeout=$(WAIT)
	@$(KUBECTL) -n $(LINKERD) delete poddisruptionbudgets,networkpolicies,serviceaccounts,roles,rolebindings -l $(OURS)
	@$(KUBECTL) delete clusterroles,clusterrolebindings -l $(OURS)

.PHONY: build-installer
build-installer: overlay ## Write all objects that `make deploy` applies to one file: dist/install.yaml
	@{ echo "# kubectl apply --server-side -f install.yaml: linkerd-operator with the image $(IMAGE). If namespace $(LINKERD)"; \
		echo "# does not exist, the objects in it are rejected: apply this file again when it exists."; \
		$(KUBECTL) kustomize $(OVERLAY); echo ---; $(KUBECTL) kustomize config/control-plane; } > dist/install.yaml
	@echo dist/install.yaml

# Generates an overlay of config/default with the image IMAGE, so that no versioned file changes.
.PHONY: overlay
overlay:
	@mkdir -p $(OVERLAY)
	@printf '%s\n' 'resources: [$(OVERLAY_BASE)/config/default]' 'patches:' '  - target: {kind: Deployment, name: linkerd-operator}' \
		'    patch: |-' '      - {op: replace, path: /spec/template/spec/containers/0/image, value: "$(IMAGE)"}' \
		> $(OVERLAY)/kustomization.yaml

##@ Local cluster

.PHONY: kind-cluster
kind-cluster: ## Create the kind cluster KIND_CLUSTER=linkerd-operator, unless it exists
	@$(NEEDS_KIND); \
	if kind get clusters 2>/dev/null | grep -qx '$(KIND_CLUSTER)'; then \
		echo "The kind cluster $(KIND_CLUSTER) already exists"; \
	else \
		kind create cluster --name '$(KIND_CLUSTER)' --wait 120s; \
	fi

.PHONY: kind-load
kind-load: ## Load the image that `make image` built onto the nodes of the kind cluster
	@$(NEEDS_KIND); \
	[ -f '$(IMAGE_TAR)' ] || { echo "$(IMAGE_TAR) does not exist: run make image" >&2; exit 1; }; \
	kind get clusters 2>/dev/null | grep -qx '$(KIND_CLUSTER)' || { \
		echo "The kind cluster $(KIND_CLUSTER) does not exist: run make kind-cluster, or set KIND_CLUSTER to one of: kind get clusters" >&2; exit 1; }; \
	kind load image-archive '$(IMAGE_TAR)' --name '$(KIND_CLUSTER)'

.PHONY: controller
controller: ## Run image, kind-load and deploy
	@$(MAKE) image
	@$(MAKE) kind-load
	@$(MAKE) deploy

.PHONY: cert-manager
cert-manager: ## Install cert-manager CERT_MANAGER=v1.18.2 from the internet; the operator works without it
	@mkdir -p dist
	@curl --fail --silent --show-error --location --max-time 120 --output dist/cert-manager.yaml '$(CERT_MANAGER_URL)' || { \
		echo "Could not download $(CERT_MANAGER_URL): this needs the internet and curl." \
			"Alternatively, get the file by other means and run: kubectl apply -f cert-manager.yaml" >&2; exit 1; }
	@$(KUBECTL) apply --server-side -f dist/cert-manager.yaml
	@$(KUBECTL) -n cert-manager wait --for=condition=Available --timeout=$(WAIT) deployment --all

.PHONY: emojivoto
emojivoto: ## Deploy an app whose Deployments opted in to restarts (the nodes pull its images from the internet)
	@$(KUBECTL) apply -f config/samples/emojivoto.yaml
	@$(KUBECTL) -n emojivoto wait --for=condition=Available --timeout=$(WAIT) deployment --all || { \
		echo "Not available within $(WAIT): the nodes pull the images from the internet. kubectl -n emojivoto get pods" >&2; exit 1; }

.PHONY: clean
clean: ## Remove the build outputs (the Kubernetes sources stay in ~/.cache/linkerd-operator)
	$(CARGO) clean
	rm -rf dist

##@ Release

VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
ARCH = $(patsubst aarch64%,arm64,$(patsubst x86_64%,amd64,$(TRIPLE)))
REGISTRY ?= registry.example.com/team
RELEASE := dist/release
RELEASE_URL ?= https://downloads.example.com/linkerd-operator/v$(VERSION)
# The address of a published copy of the documentation. The chart has the same setting, the value docsURL.
DOCS_URL ?=
RELEASE_NAME = linkerd-operator-$(VERSION)
TOOLS := $(abspath $(TARGET)/tools)
CARGO_AUDITABLE := 0.7.7
CARGO_DENY := 0.20.2
CARGO_CYCLONEDX := 0.5.9
# A tar archive that is the same in each build of one commit.
TAR = tar --sort=name --mtime="@$$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --format=ustar

.PHONY: version
version: ## Print the version, which Cargo.toml has
	@echo $(VERSION)

# The tools come from crates.io, into the target directory.
.PHONY: release-tools
release-tools:
	@for tool in cargo-auditable@$(CARGO_AUDITABLE) cargo-cyclonedx@$(CARGO_CYCLONEDX); do \
		grep -qs "\"$${tool%@*} $${tool#*@} " $(TOOLS)/.crates.toml || \
			$(CARGO) install --quiet --locked --root $(TOOLS) "$$tool"; \
	done

.PHONY: release-artifacts
release-artifacts: release-tools ## Write the files of a release for one architecture into dist/release: REGISTRY=registry.example.com/team (TRIPLE=aarch64-unknown-linux-gnu for arm64)
	@rm -rf $(RELEASE); mkdir -p $(RELEASE)
	@PATH="$(TOOLS)/bin:$$PATH" $(MAKE) image BUILD="auditable build" IMAGE=$(REGISTRY)/linkerd-operator:$(VERSION) \
		IMAGE_TAR=$(RELEASE)/$(RELEASE_NAME)-image-$(ARCH).tar
	@$(MAKE) release-cli
	@$(MAKE) build-installer IMAGE=$(REGISTRY)/linkerd-operator:$(VERSION) >/dev/null; cp dist/install.yaml $(RELEASE)/
	@$(KUBECTL) kustomize crd > $(RELEASE)/crds.yaml
	@$(MAKE) helm-package PACKAGES=$(RELEASE) CHART_IMAGE=$(REGISTRY)/linkerd-operator >/dev/null
	@PATH="$(TOOLS)/bin:$$PATH" $(MAKE) sbom >/dev/null; cp $(TARGET)/sbom/linkerd-operator.cdx.json $(RELEASE)/$(RELEASE_NAME).cdx.json
	@$(MAKE) krew-manifest checksums

# Packs the binary STATIC, with the notices of the image. A binary of another architecture cannot print its man pages
# here, which are the same in each build.
PRINTS = $(if $(CROSS),$(TARGET)/debug/linkerd-operator,$(STATIC))
.PHONY: release-cli
release-cli:
	@$(if $(CROSS),$(CARGO) build --quiet --locked --workspace --bin linkerd-operator;) \
	$(STAMP); name=$(RELEASE_NAME)-linux-$(ARCH); parent=$$(mktemp -d); trap "rm -rf $$parent" EXIT; folder=$$parent/$$name; \
	mkdir -p $$folder/man $$folder/completion; \
	cp $(STATIC) $$folder/linkerd-operator; cp LICENSE $$folder/; \
	tar -xOf $(RELEASE)/$(RELEASE_NAME)-image-$(ARCH).tar layer.tar | tar -xOf - THIRD-PARTY-NOTICES > $$folder/THIRD-PARTY-NOTICES; \
	$(PRINTS) _man-pages $$folder/man; \
	for shell in bash zsh fish; do $(PRINTS) completion $$shell > $$folder/completion/linkerd-operator.$$shell; done; \
	$(TAR) -C $$parent -cf - $$name | gzip -n > $(RELEASE)/$$name.tar.gz

# One plugin for the architectures whose archives are in RELEASE. Krew needs the license beside the binary. It refuses a
# file of another name, and versions without `v`.
.PHONY: krew-manifest
krew-manifest: ## Write the manifest of the kubectl plugin for Krew: dist/release/linkerd-operator.yaml (RELEASE_URL=address of the files, DOCS_URL=address of the documentation)
	@{ cat .krew.yaml; \
		$(if $(DOCS_URL),printf '  homepage: %s\n' '$(DOCS_URL)';) \
		printf '  version: v%s\n  platforms:\n' '$(VERSION)'; \
		for archive in $(RELEASE)/$(RELEASE_NAME)-linux-*.tar.gz; do \
			arch=$${archive##*-linux-}; sum=$$(sha256sum < "$$archive"); \
			printf '    - selector: {matchLabels: {os: linux, arch: %s}}\n' "$${arch%.tar.gz}"; \
			printf '      uri: %s/%s\n      sha256: %s\n' '$(RELEASE_URL)' "$${archive##*/}" "$${sum%% *}"; \
			printf '      bin: linkerd-operator\n      files:\n'; \
			for file in linkerd-operator LICENSE THIRD-PARTY-NOTICES; do printf '        - {from: "*/%s", to: .}\n' $$file; done; \
		done; } > $(RELEASE)/linkerd-operator.yaml
	@echo $(RELEASE)/linkerd-operator.yaml

.PHONY: checksums
checksums:
	@cd $(RELEASE); rm -f SHA256SUMS; sha256sum -- * > SHA256SUMS; cat SHA256SUMS

# Pushes what is in RELEASE, and builds nothing.
.PHONY: publish
publish: ## Push the images and charts of dist/release to a registry with crane: REGISTRY=registry.example.com/team (crane auth login first)
	@image=$(REGISTRY)/linkerd-operator:$(VERSION); manifests=(); \
	for archive in $(RELEASE)/$(RELEASE_NAME)-image-*.tar; do \
		arch=$${archive##*-image-}; arch=$${arch%.tar}; \
		$(CRANE) push "$$archive" "$$image-$$arch"; manifests+=(--manifest "$$image-$$arch"); \
	done; \
	$(CRANE) index append "$${manifests[@]}" --tag "$$image"
	@layout=$$(mktemp -d); trap "rm -rf $$layout" EXIT; \
	for chart in $(notdir $(CHARTS)); do \
		rm -rf $$layout/*; tar -xf $(RELEASE)/$$chart-$(VERSION)-oci.tar -C $$layout; \
		$(CRANE) push $$layout $(REGISTRY)/charts/$$chart:$(VERSION); \
	done

##@ Supply chain

DENY = PATH="$(TOOLS)/bin:$$PATH" $(CARGO) deny
.PHONY: advisories
advisories: ## Check all dependencies for known vulnerabilities, licenses and sources: .deny.toml (needs the internet)
	@grep -qs '"cargo-deny $(CARGO_DENY) ' $(TOOLS)/.crates.toml || \
		$(CARGO) install --quiet --locked --root $(TOOLS) cargo-deny@$(CARGO_DENY)
	@$(DENY) --version
	@$(DENY) --locked check bans licenses sources
	@$(DENY) --locked check advisories || { \
		echo "The findings are above. If the advisory database could not be fetched, nothing was checked: this needs the internet." >&2; \
		exit 1; \
	}

.PHONY: sbom
sbom: ## Write a CycloneDX SBOM of the operator to target/sbom (needs cargo-cyclonedx)
	@command -v cargo-cyclonedx >/dev/null || { echo "cargo-cyclonedx is missing: cargo install --locked cargo-cyclonedx" >&2; exit 1; }
	@$(STAMP); $(CARGO) cyclonedx --format json --target all
	@mkdir -p $(TARGET)/sbom
# The references of our own packages contain the path of the checkout.
	@sed 's|path+file://$(CURDIR)|path+file:///src|g' linkerd-operator.cdx.json > $(TARGET)/sbom/linkerd-operator.cdx.json
	@rm linkerd-operator.cdx.json
	@rm -f e2e/e2e.cdx.json
	@echo "$(TARGET)/sbom/linkerd-operator.cdx.json"

##@ Help

.PHONY: help
help: ## Print this list
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
