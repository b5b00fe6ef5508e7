# Go older than this cannot build culvert (gVisor needs it).
GO_NEEDED := 1.26.3
GO ?= go
FUZZTIME ?= 30s
SIMTIME ?= 5m
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
# Which Kubernetes: that of integration/kubernetes/go.mod or, with a name, of NAME.mod beside it, such as oldest.
KUBERNETES ?=
KUBEBUILDER_ASSETS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/culvert/kubernetes$(KUBERNETES:%=-%)
CHECKLOCKS := gvisor.dev/gvisor/tools/checklocks/cmd/checklocks@v0.0.0-20260905035102-160fafc42237
UNIT := $$($(GO) list ./... | grep -v /integration)

SHELL := /bin/bash
.SHELLFLAGS := -e -o pipefail -c

# Shows of `go test -v` what a reader wants.
RESULTS := awk -f .ci/results.awk

# Shows every few seconds how far go build -v is: a first build takes minutes.
PROGRESS := .ci/progress

# What make test runs, and race if it is given. RUN names one test, for test-kube and test-gvisor too.
PACKAGES ?= ./integration ./...
RUN ?=

# Tests and what is built for them share all that is compiled, with a C compiler or without.
test: export CGO_ENABLED := 0

.DEFAULT_GOAL := help
.PHONY: help build demo clusters clusters-down test test-gvisor test-kube kube-assets kube-nodes kube-dns kube-cni kube-helm race fuzz sim bench lint image images binaries release reproducible size pictures clean go-version

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

go-version:
	@command -v $(GO) >/dev/null || { echo "make: no go command; install Go $(GO_NEEDED) or newer" >&2; exit 1; }
	@have=$$($(GO) env GOVERSION | sed 's/^go//; s/[^0-9.].*//'); \
	printf '%s\n%s\n' $(GO_NEEDED) "$$have" | sort -C -V || \
	{ echo "make: Go $$have is too old; install $(GO_NEEDED) or newer" >&2; exit 1; }

# HTTP/2 is spoken to Kubernetes' API servers alone, by client-go, which brings golang.org/x/net/http2: the copy in net/http would be dead weight.
TAGS = nethttpomithttp2

build: BUILD = CGO_ENABLED=0 $(GO) build -v -trimpath -tags=$(TAGS) -ldflags='-s -w' -o bin/ ./cmd/culvert ./cmd/culvert-lab
build: go-version ## build bin/culvert, one static binary, and bin/culvert-lab
	@echo "$(BUILD)"; $(BUILD) 2>&1 | $(PROGRESS)

demo: build ## two clusters in network namespaces, checked: a line a lab with its figures (V=1: a line a check)
	bin/culvert-lab check --brief$(if $(V), --verbose)

# Where make clusters keeps what they need. CNI makes the pods' network: flannel, flannel-host-gw, kube-router, or the plugin bridge alone; with
# FAMILY=dual they have IPv6 as well, and with FAMILY=6 nothing else.
CLUSTERS ?= /var/lib/culvert-clusters
export CNI FAMILY

clusters: ## two real Kubernetes clusters on this machine, joined and open to play with (root; builds Kubernetes, six minutes, once)
	@integration/clusters.sh check
	@$(MAKE) -s build kube-nodes kube-dns $(if $(CNI),kube-cni)
	@export KUBEBUILDER_ASSETS='$(KUBEBUILDER_ASSETS)'; integration/clusters.sh up '$(CLUSTERS)'; \
	integration/clusters.sh dns '$(CLUSTERS)'; \
	integration/clusters.sh load '$(CLUSTERS)' localhost/culvert:1 bin/culvert; \
	integration/clusters.sh join '$(CLUSTERS)' localhost/culvert:1

clusters-down: ## end what make clusters has started
	@integration/clusters.sh down '$(CLUSTERS)'

test: go-version ## all tests; as root, or as a user who may make user namespaces
	@$(GO) build -v -trimpath ./... 2>&1 | $(PROGRESS)
	@# integration takes longest: the other packages run beside it.
	@echo '$(GO) test $(PACKAGES)'; $(GO) test -v -trimpath -timeout 20m -p 2 -parallel 3 $(if $(RUN),-run '$(RUN)') $(PACKAGES) 2>&1 | $(RESULTS)

test-gvisor: go-version ## the checks of two clusters with both gateways in gVisor (root; builds runsc, two minutes, once)
	@runsc=$$(cd integration/gvisor && CGO_ENABLED=0 $(GO) tool -n runsc); echo "RUNSC=$$runsc $(GO) test -run GVisor ./integration"; \
	RUNSC=$$runsc $(GO) test -v -count=1 -timeout 20m -run '$(or $(RUN),GVisor)' ./integration 2>&1 | $(RESULTS)

test-kube: ## gateways and nodes under Kubernetes API servers (root; builds kube-apiserver and etcd, four minutes, once)
	@$(MAKE) -s $$(integration/clusters.sh check 2>/dev/null && echo kube-nodes || echo kube-assets) # for TestKubeClusters or without it
	@export KUBEBUILDER_ASSETS='$(KUBEBUILDER_ASSETS)'; echo "KUBEBUILDER_ASSETS=$$KUBEBUILDER_ASSETS $(GO) test -run Kube ./integration"; \
	$(GO) test -v -count=1 -timeout 20m -run '$(or $(RUN),Kube)' ./integration 2>&1 | $(RESULTS)

kube-assets: PROGRAMS = kube-apiserver
kube-nodes: PROGRAMS = kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy

# A program of Kubernetes that is not told its version at build time knows none.
kube-assets kube-nodes: go-version
	@cd integration/kubernetes; export CGO_ENABLED=0 $(KUBERNETES:%=GOFLAGS="$$GOFLAGS -modfile=%.mod"); \
	version=$$($(GO) list -m -f '{{.Version}}' k8s.io/kubernetes); \
	minor=$${version#v1.}; v=k8s.io/component-base/version; \
	{ $(GO) build -v -trimpath -ldflags='-s -w' -o '$(KUBEBUILDER_ASSETS)/etcd' go.etcd.io/etcd/server/v3; \
	$(GO) build -v -trimpath -ldflags="-s -w -X $$v.gitVersion=$$version -X $$v.gitMajor=1 -X $$v.gitMinor=$${minor%%.*}" \
		-o '$(KUBEBUILDER_ASSETS)/' $(PROGRAMS:%=k8s.io/kubernetes/cmd/%); \
	$(if $(KUBERNETES),:,$(GO) build -v -trimpath -ldflags='-s -w' -o '$(KUBEBUILDER_ASSETS)/' ./endpoints ./kubeproxy); } 2>&1 | ../../$(PROGRESS)

# CoreDNS, for make clusters and make long.
kube-dns: MODULE = coredns
kube-dns: MAIN = .
# Helm, for make long.
kube-helm: MODULE = helm
kube-helm: MAIN = helm.sh/helm/v3/cmd/helm

kube-dns kube-helm: go-version
	@cd integration/$(MODULE); CGO_ENABLED=0 $(GO) build -v -trimpath -ldflags='-s -w' -o '$(KUBEBUILDER_ASSETS)/' $(MAIN) 2>&1 | ../../$(PROGRESS)

# CNIs, for make clusters and make long.
kube-cni: go-version
	@export CGO_ENABLED=0; { $(GO) -C integration/cni/flannel build -v -trimpath -ldflags='-s -w' -o '$(KUBEBUILDER_ASSETS)/flannel' .; \
	$(GO) -C integration/cni/kube-router build -v -trimpath -ldflags='-s -w' -o '$(KUBEBUILDER_ASSETS)/' github.com/cloudnativelabs/kube-router/v2/cmd/kube-router; } \
	  2>&1 | $(PROGRESS)

# An older culvert, for make long: version 0.1.0.
OLDER = 7b686911

bin/culvert-older: go-version
	@dir=$$(mktemp -d) && trap "rm -rf $$dir" EXIT; git archive $(OLDER) | tar -x -C $$dir; \
	cd $$dir && CGO_ENABLED=0 $(GO) build -v -trimpath -o '$(CURDIR)/$@' ./cmd/culvert 2>&1 | '$(CURDIR)/$(PROGRESS)'

long: go-version kube-nodes kube-dns kube-cni kube-helm bin/culvert-older ## in full what the tests do in small: sieges, millions of packets, 200 nodes, outages (root; three hours)
	CULVERT_LONG=1 IPAM_LONG=1 $(GO) test -v -count=1 -timeout 90m -run 'TestMemorySiege|TestCPU|TestInnocentThroughput|TestHoleRate|TestMillionConnections|TestWatchedThroughput|TestChangesBesideStreams|TestLabFaults|TestLongLab|AgainstKernel|TestLabRestart|TestServicesCrash|ProxyProtocol' ./integration
	IPAM_LONG=1 $(GO) test -v -count=1 -timeout 90m ./ipam
	CULVERT_LONG=1 $(GO) test -v -count=1 -timeout 90m -run 'TestSetIsWhatIsInIt|TestExplainIsProcess|TestRestoreModel' ./nat/...
	CULVERT_LONG=1 $(GO) test -v -count=1 -timeout 90m -run 'TestTraceIsPath|TestLongCapture' ./gateway
	CULVERT_LONG=1 $(GO) test -v -race -count=1 -timeout 30m -run TestSwitches ./gateway
	CULVERT_LONG=1 $(GO) test -v -count=1 -timeout 90m -run TestRandomEdits ./gateway/node/links
	CULVERT_LONG=1 $(GO) test -v -count=1 -timeout 3h ./integration/sim
	KUBEBUILDER_ASSETS='$(KUBEBUILDER_ASSETS)' CULVERT_OLDER='$(CURDIR)/bin/culvert-older' CULVERT_LONG=1 $(GO) test -v -count=1 -timeout 80m -run 'TestKubeGateways|TestKubeClusters|TestKubeStandbyCost|TestKubeScale|TestKubePeeringScale|TestKubePeering$$|TestKubeEndpoints|TestKubeProxyAgrees|TestKubeServicesMany|TestKubeMulticlusterPace|TestKubeHelm|TestKubeLinks|TestServicesShortConnections' ./integration
	KUBEBUILDER_ASSETS='$(KUBEBUILDER_ASSETS)' CULVERT_ATTACK=1h $(GO) test -v -count=1 -timeout 90m -run 'TestKubeMulticlusterAttack$$' ./integration
	CULVERT_LONG=1 $(MAKE) test-kube KUBERNETES=oldest RUN='TestKubeClusters$$$$'

# What one goroutine tries at random cannot race: -short tries less of it.
race: go-version ## the unit tests under the race detector (needs a C compiler)
	@# nat takes longest, on one core: the others run beside it.
	@echo '$(GO) test -race -short'; GORACE=atexit_sleep_ms=0 \
	  $(GO) test -v -race -short -timeout 20m $(if $(RUN),-run '$(RUN)') $(if $(filter file,$(origin PACKAGES)),culvert/nat \
	  $$($(GO) list ./... | grep -v '/integration\|^culvert/nat$$'),$(PACKAGES)) 2>&1 | $(RESULTS)

# On a busy machine, go test sometimes fails because the time for fuzzing has ended, without any failing input: then it runs again. It prints
# that error alone on a line. One that a target reports has its file and line before it, and is a failure.
fuzz: go-version ## each fuzz target for FUZZTIME (30s)
	@for at in $$(grep -ro '^func Fuzz[[:alnum:]_]*' --include='*_test.go' * | grep -v ^integration/ | sed 's,/[^/]*:func ,:,' | sort); do \
	  package=./$${at%:*} target=$${at#*:}; echo "$$package $$target"; \
	  for try in 1 2 3; do \
	    said=$$($(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$package 2>&1) && failed= || failed=1; \
	    echo "$$said"; \
	    case $$said in *'Failing input'*) exit 1;; esac; \
	    grep -qx ' *context deadline exceeded' <<<"$$said" || break; \
	  done; \
	  [ -z "$$failed" ] || exit 1; \
	done

sim: go-version ## two gateways in virtual time under random faults for SIMTIME (5m), on one core
	$(GO) test -v -count=1 -timeout 60m -run 'TestSchedules$$' ./integration/sim -time=$(SIMTIME)

bench: build ## micro benchmarks, then pods through culvert and through a gateway of kernel parts (20 minutes)
	$(GO) test -run '^$$' -bench . -benchmem $(UNIT)
	bin/culvert-lab bench --growth

lint: go-version ## gofmt, go vet, staticcheck; what a mutex guards is used under it
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	[ -z "$$unformatted" ] || { echo "gofmt: $$unformatted" >&2; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	GOBIN=$(CURDIR)/bin $(GO) install $(CHECKLOCKS)
	@# Tests look at what is guarded while nothing else runs.
	found=$$({ $(GO) vet -vettool=bin/checklocks -inferred=false $(UNIT) 2>&1 || true; } | grep -v '^#\|_test\.go:' || true); \
	[ -z "$$found" ] || { echo "$$found" >&2; exit 1; }

# What is built for dist, and for which architectures: image and images need less than a release.
ARCHS = amd64 arm64
COMMANDS = culvert culvert-lab
HOSTARCH = $(shell $(GO) env GOHOSTARCH)

# What `go version -m` shows of a binary for $$arch: the version, or the value of a build setting.
stamp = $$($(GO) version -m dist/culvert-linux-$$arch | awk '$(1)')

image images: COMMANDS = culvert
image: ARCHS = $(HOSTARCH)
image: binaries ## container image culvert:latest for this machine's architecture, by buildah, podman or docker, or in dist/image.tar
images: binaries ## images culvert:latest-amd64 and culvert:latest-arm64; culvert:latest is this machine's; or both in dist/image.tar
image images:
	@tool=$$(command -v buildah podman docker | sed -n 1p || true); [ -n "$$tool" ] || \
	{ dist/culvert-linux-$(HOSTARCH) image save --name culvert:latest dist/image.tar; echo "dist/image.tar: there is no buildah, podman or docker"; exit; }; \
	for arch in $(ARCHS); do \
	  echo "$$tool build: culvert:latest-$$arch"; \
	  $$tool build --platform linux/$$arch -t culvert:latest-$$arch --build-arg TARGETARCH=$$arch \
	    --build-arg VERSION="$(call stamp,$$1 == "mod" {print $$3})" \
	    --build-arg REVISION="$(call stamp,sub(/vcs.revision=/, "", $$2) {print $$2})" \
	    --build-arg CREATED="$(call stamp,sub(/vcs.time=/, "", $$2) {print $$2})" .; \
	  [ $$arch != $(HOSTARCH) ] || $$tool tag culvert:latest-$$arch culvert:latest; \
	done

# The same commit and the same Go give the same bytes, on whatever machine.
binaries: go-version
	@rm -rf dist
	@for arch in $(ARCHS); do \
	  echo "go build: $(COMMANDS) for linux/$$arch"; \
	  CGO_ENABLED=0 GOOS=linux GOARCH=$$arch GOAMD64=v1 GOARM64=v8.0 GOFLAGS=-trimpath GOEXPERIMENT= GOWORK=off \
	    $(GO) build -v -buildvcs=true -tags=$(TAGS) -ldflags='-s -w -buildid=' -o dist/ $(COMMANDS:%=./cmd/%) 2>&1 | $(PROGRESS); \
	  for name in $(COMMANDS); do mv dist/$$name dist/$$name-linux-$$arch; done; \
	done

release: binaries ## archives, packages, image, chart, lists of components and checksums, for linux/amd64 and linux/arm64, in dist
	@cd integration/release && CGO_ENABLED=0 GOFLAGS=-trimpath GOWORK=off $(GO) run . ../..

reproducible: ## build the release of the last commit twice, in other folders with other caches, and compare the bytes
	@dir=$$(mktemp -d) && trap "chmod -R u+w $$dir; rm -rf $$dir" EXIT; \
	git clone -q . $$dir/one; git clone -q $$dir/one $$dir/another/place; \
	for copy in one another/place; do GOCACHE=$$dir/cache/$$copy $(MAKE) -s -C $$dir/$$copy release; done; \
	diff -r $$dir/{one,another/place}/dist; \
	if grep -aqF $$dir -r $$dir/one/dist; then echo "make: dist names the folder in which it was built" >&2; exit 1; fi; \
	echo "both builds are the same, byte by byte"

size: go-version ## the stripped binary has at most 24,000,000 bytes, and 15,000,000 without Kubernetes
	@mkdir -p bin; for build in culvert:24800000:$(TAGS) culvert-nokube:15100000:nokube,$(TAGS); do IFS=: read -r name most tags <<<$$build; \
	  CGO_ENABLED=0 $(GO) build -trimpath -tags "$$tags" -ldflags='-s -w' -o bin/$$name ./cmd/culvert; \
	  bytes=$$(stat -c %s bin/$$name); echo "bin/$$name: $$bytes bytes, at most $$most"; [ $$bytes -le $$most ]; \
	done

pictures: ## docs/pictures/*.svg from their .dot files (needs graphviz)
	@cd docs/pictures; for f in *.dot; do dot -Tsvg $$f -o $${f%.dot}.svg; done

clean: ## remove what make built
	rm -rf bin dist
