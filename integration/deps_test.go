package integration

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"culvert/integration/need"
)

// An importRule lists what the packages below a folder may import, besides the standard library and
// themselves, and the reason for the limit.
type importRule struct {
	folder string
	allow  []string // import paths, with everything below them
	reason string
}

const (
	gvisor    = "gvisor.dev/gvisor/pkg/"
	wireguard = "golang.zx2c4.com/wireguard"
)

// importRules has the most specific folder first, because the first match counts.
var importRules = []importRule{
	{"gateway/configfile", []string{"sigs.k8s.io/json", "sigs.k8s.io/yaml", "go.yaml.in/yaml/v2", "go.yaml.in/yaml/v3"},
		"it reads files for every command and knows none of them"},
	{"gateway/wgkey", nil, "a key is 32 bytes, and whoever has one needs nothing else"},
	{"gateway/setup", []string{"culvert/ipam", "culvert/gateway/config", "culvert/gateway/configfile",
		"culvert/gateway/node", "culvert/gateway/wgkey"}, "files that a gateway and its nodes read: it runs neither"},
	{"gateway/unixsocket", []string{"golang.org/x/sys/unix"}, "a socket and its folder"},
	{"gateway/control", nil, "outsiders use its types and its client: the standard library and nothing of the gateway"},
	{"gateway/gather", []string{"culvert/gateway/control"},
		"texts in, an archive out: it asks as any other client does, with Kubernetes or without"},
	{"gateway/webpage", []string{"culvert/gateway/control"},
		"it shows what the control socket says, like any other client"},
	{"gateway/capture", nil, "it records bytes with a note, and does not know what they mean"},
	{"gateway/config", []string{"culvert/nat", "culvert/geneve", "culvert/ipam", "culvert/gateway/configfile",
		"culvert/gateway/wgkey", "github.com/gaissmai/bart"},
		"a configuration is written, read and judged where no gateway runs: values, no sockets, no WireGuard"},
	{"gateway/echo", nil, "bytes in, bytes out: who asks, and what an answer means, is not its business"},
	{"gateway/seats", []string{"culvert/geneve/share"}, "connections and where they come from, whatever is said there"},
	{"gateway/state", []string{"culvert/ipam/durable", "github.com/sirupsen/logrus"}, "a folder and its files"},
	{"gateway/handover", []string{"culvert/nat", "culvert/geneve/udp", "culvert/gateway/sweep", "golang.org/x/sys/unix"},
		"two processes, what is open in them, and their table: no rules, no configuration"},
	{"gateway/replica", []string{"culvert/nat", "culvert/gateway/control", "culvert/gateway/seats",
		"culvert/gateway/sweep", "culvert/gateway/wgkey", "github.com/sirupsen/logrus"},
		"a table and its copy: no sockets of tunnels, no configuration, no role"},
	{"gateway/latency", nil, "durations and counts"},
	{"gateway/wg", []string{"culvert/geneve/share", "culvert/geneve/udp", "culvert/gateway/echo",
		"culvert/gateway/latency", "culvert/gateway/procs", "culvert/gateway/wgkey", "culvert/gateway/unixsocket",
		wireguard, "golang.org/x/crypto/blake2s",
		gvisor + "tcpip", gvisor + "tcpip/header", gvisor + "tcpip/checksum", "github.com/sirupsen/logrus",
		"golang.org/x/sys/unix"},
		"wireguard-go is fed and bounded here by whoever has packets: no NAT, no Geneve, no configuration"},
	{"gateway/procs", []string{"golang.org/x/sys/unix"}, "threads of this process, whatever they do"},
	{"gateway/doctor", []string{"culvert/gateway/control", "culvert/gateway/procs", "culvert/geneve/udp",
		"golang.org/x/crypto/chacha20poly1305", "golang.org/x/sys/cpu"},
		"it looks at a machine, with or without a gateway on it"},
	{"gateway/exports", nil, "datagrams and times in, datagrams and lists out: no sockets, no clock, no Kubernetes"},
	{"gateway/health", nil, "observations in, sentences out: no sockets, no clock, no logging"},
	{"gateway/pathmtu", nil, "sizes and times in, probes and sizes out: no sockets, no clock, no packets"},
	{"gateway/node/services/announce", []string{"culvert/gateway/prometheus", "culvert/gateway/node/rtnl",
		"github.com/vishvananda/netlink", "golang.org/x/sys", "github.com/sirupsen/logrus"},
		"addresses and links, whatever is served there"},
	{"gateway/node/services/steer", []string{"culvert/nat/rules", "culvert/gateway/node/rtnl",
		"github.com/vishvananda/netlink", "golang.org/x/sys"},
		"routes and rules to a device, whoever reads there"},
	{"gateway/node/services", []string{"culvert/geneve/share", "culvert/nat", "culvert/gateway/configfile",
		"culvert/gateway/seats", "culvert/gateway/state", "culvert/gateway/sweep",
		"culvert/gateway/handover", "culvert/gateway/unixsocket", "culvert/gateway/control",
		"culvert/gateway/prometheus", "culvert/gateway/node/page",
		"culvert/gateway/node/rtnl", "github.com/vishvananda/netlink", "golang.org/x/sys",
		wireguard + "/tun", "github.com/sirupsen/logrus"},
		"a node's Services need its kernel's routes and the engine, neither the tunnel nor the gateway"},
	{"gateway/node/links", []string{"culvert/geneve", "culvert/geneve/udp", "culvert/gateway/control",
		"culvert/gateway/prometheus", "culvert/gateway/node/carry",
		"culvert/gateway/node/rtnl", "culvert/gateway/unixsocket", "github.com/vishvananda/netlink", "golang.org/x/sys",
		wireguard + "/tun", "github.com/sirupsen/logrus"},
		"links need the kernel's devices and the tunnel, whoever asks for them"},
	{"gateway/node/load", []string{"culvert/gateway/control", "culvert/gateway/health", "culvert/gateway/procs",
		"culvert/gateway/prometheus", "culvert/geneve/udp",
		"github.com/vishvananda/netlink", "github.com/sirupsen/logrus"},
		"counters of devices and sockets, whatever passes them"},
	{"gateway/node/remote", []string{"culvert/gateway/node/rtnl", "github.com/vishvananda/netlink", "golang.org/x/sys",
		"github.com/sirupsen/logrus"},
		"routes and a table of the kernel's, whoever asks for them"},
	{"gateway/node", []string{"culvert/geneve", "culvert/geneve/udp", "culvert/gateway/echo",
		"culvert/gateway/configfile", "culvert/gateway/prometheus", "culvert/gateway/seats",
		"culvert/gateway/unixsocket", "github.com/vishvananda/netlink", "golang.org/x/sys",
		wireguard + "/tun", "github.com/sirupsen/logrus"},
		"the node end needs the kernel's links, not the gateway"},
	{"gateway/path", []string{"culvert/nat", "culvert/geneve", "culvert/geneve/share", "culvert/geneve/udp",
		"culvert/gateway/wg", "culvert/gateway/latency",
		gvisor + "tcpip/header", gvisor + "tcpip/checksum"},
		"a packet's way needs the engine and both tunnels; who looks at packets or probes the other ends is called by interfaces"},
	{"gateway/monitor", []string{"culvert/nat", "culvert/geneve", "culvert/geneve/udp", "culvert/gateway/path",
		"culvert/gateway/wg", "culvert/gateway/wgkey",
		"culvert/gateway/config", "culvert/gateway/control", "culvert/gateway/echo", "culvert/gateway/exports",
		"culvert/gateway/health", "culvert/gateway/pathmtu",
		"culvert/gateway/procs",
		gvisor + "tcpip", gvisor + "tcpip/header", gvisor + "tcpip/checksum", "github.com/sirupsen/logrus",
		"golang.org/x/sys/unix", "golang.org/x/time/rate"},
		"it judges a path by what that counts, whoever asks for it and however long it lives"},
	{"gateway/inspect", []string{"culvert/nat", "culvert/geneve", "culvert/geneve/udp", "culvert/gateway/path",
		"culvert/gateway/monitor", "culvert/gateway/wg",
		"culvert/gateway/config", "culvert/gateway/control", "culvert/gateway/echo", "culvert/gateway/health",
		"culvert/gateway/pathmtu", "culvert/gateway/latency",
		"culvert/gateway/capture", "culvert/gateway/doctor", "culvert/gateway/prometheus", "culvert/gateway/role",
		"culvert/gateway/seats", "culvert/gateway/sweep",
		"culvert/gateway/unixsocket", gvisor + "tcpip", gvisor + "tcpip/header", gvisor + "tcpip/checksum",
		"github.com/sirupsen/logrus", "golang.org/x/sys/unix", "golang.org/x/time/rate"},
		"it shows what there is, and knows nothing of how a gateway begins or ends"},
	{"gateway/lifecycle", []string{"culvert/nat", "culvert/geneve", "culvert/geneve/udp", "culvert/gateway/path",
		"culvert/gateway/monitor", "culvert/gateway/wg",
		"culvert/gateway/config", "culvert/gateway/control", "culvert/gateway/handover", "culvert/gateway/pathmtu",
		"culvert/gateway/prometheus",
		"culvert/gateway/seats", "culvert/gateway/state", "culvert/gateway/sweep", "github.com/sirupsen/logrus",
		"golang.org/x/sys/unix"},
		"it moves connections, sockets and packets to another process, whoever looks at them"},
	{"gateway/role", nil, "a value in, a value out: no clock, no socket, no Kubernetes"},
	{"gateway/prometheus", nil, "names, labels and numbers"},
	{"gateway", []string{"culvert/nat", "culvert/geneve", "culvert/geneve/udp", "github.com/sirupsen/logrus",
		"github.com/KimMachineGun/automemlimit/memlimit"},
		"the gateway needs neither netlink nor Kubernetes, and wireguard-go only by gateway/wg"},
	{"nat/packet", []string{gvisor + "tcpip/header", gvisor + "tcpip/checksum"},
		"bytes in, bytes out: no connections, no rules, no links but by number"},
	{"nat/siphash", nil, "arithmetic on words"},
	{"nat/rules", []string{"culvert/nat/packet", "culvert/nat/siphash", "github.com/gaissmai/bart"},
		"desired state in, an immutable set out: no connections, no clock"},
	{"nat/nattest/cost", []string{"golang.org/x/crypto/chacha20poly1305", "golang.org/x/sys/unix"},
		"the unit of the budgets: no code of nat"},
	{"nat/nattest", nil, "packets for tests: no code of nat"},
	{"nat", []string{"github.com/gaissmai/bart"},
		"packets, a clock value and a snapshot in, verdicts out: no sockets, no stack, no logging"},
	{"geneve/share", nil, "counts of who holds how much, whatever it is"},
	{"geneve", []string{"culvert/geneve", "golang.org/x/net", "golang.org/x/sys"},
		"a codec and a socket, usable without the rest"},
	{"ipam/durable", nil, "files and folders, whatever is in them"},
	{"ipam", []string{"github.com/gaissmai/bart"}, "arithmetic on prefixes, and a file"},
	{"kube/objects", []string{"culvert/nat/rules", "k8s.io/apimachinery", "k8s.io/utils/net"},
		"objects and their meaning in themselves: no client, no clock"},
	{"kube/template", nil, "templates are objects as JSON has them, made and rendered where no cluster is"},
	{"kube/manifests/manifeststest", nil, "templates in, objects out"},
	{"kube/manifests", []string{"culvert/gateway/configfile", "go.yaml.in/yaml/v3"}, "manifests and values: files, in and out"},
	{"kube/image", []string{"culvert/kube", "github.com/google/go-containerregistry"},
		"a file and a registry: no cluster"},
	{"kube/deploy", []string{"culvert/kube", "culvert/kube/join/terms", "culvert/kube/manifests", "culvert/kube/mcs",
		"culvert/kube/peering", "k8s.io/apimachinery", "k8s.io/client-go/dynamic", "k8s.io/client-go/rest",
		"k8s.io/client-go/util/retry", "sigs.k8s.io/mcs-api/config/crd", "sigs.k8s.io/yaml"},
		"it applies and removes what others have decided: no flags, no terminal, no gateway"},
	{"kube/join/terms", []string{"culvert/gateway/configfile", "culvert/gateway/wgkey", "culvert/ipam",
		"culvert/kube/objects", "culvert/kube/peering", "k8s.io/apimachinery"},
		"what is proposed follows from objects and flags: no client, no clock, no file"},
	{"kube/join", []string{"culvert/gateway/configfile", "culvert/gateway/wgkey", "culvert/kube/deploy",
		"culvert/kube/manifests", "culvert/kube/mcs", "culvert/kube/peering"},
		"it plans, applies and waits for whoever asks: no flags, no terminal, no file"},
	{"kube/fabric", []string{"culvert/gateway/control", "culvert/gateway/node/links", "culvert/geneve", "culvert/kube",
		"culvert/nat/rules", "k8s.io/apimachinery", "k8s.io/client-go/dynamic",
		"github.com/sirupsen/logrus"},
		"which links a node has is a value: no devices, no packets"},
	{"kube/election", []string{"culvert/gateway/role", "culvert/kube", "k8s.io/apimachinery",
		"k8s.io/client-go/dynamic", "github.com/sirupsen/logrus"},
		"whom pods elect is independent of what a gateway carries"},
	{"kube/peering", []string{"culvert/gateway/config", "culvert/gateway/configfile", "culvert/gateway/control",
		"culvert/gateway/exports", "culvert/gateway/node/links",
		"culvert/gateway/node/remote", "culvert/gateway/node/services", "culvert/gateway/wgkey",
		"golang.org/x/time/rate", "culvert/kube/mcs", "culvert/kube/service",
		"culvert/geneve", "culvert/kube", "culvert/nat", "culvert/nat/packet", "culvert/nat/rules",
		"k8s.io/apimachinery", "k8s.io/client-go/dynamic", "github.com/sirupsen/logrus"},
		"what a gateway and a node have is a value: no devices, no packets"},
	{"kube/mcs", []string{"culvert/gateway/exports", "culvert/kube/objects", "k8s.io/apimachinery"},
		"objects in, what they export out: no client, no clock"},
	{"kube/multicluster", []string{"culvert/gateway/exports", "culvert/kube", "culvert/kube/mcs",
		"culvert/kube/objects", "culvert/kube/peering", "golang.org/x/time/rate", "k8s.io/apimachinery",
		"k8s.io/client-go/dynamic", "github.com/sirupsen/logrus"},
		"what Services are called is independent of what carries their packets: no gateway, no node"},
	{"kube/gather", []string{"culvert/gateway/control", "culvert/gateway/gather", "culvert/kube", "culvert/kube/peering",
		"k8s.io/apimachinery", "k8s.io/client-go/dynamic", "k8s.io/client-go/rest"},
		"it sees what its user sees of a cluster: no gateway, no node"},
	{"kube/verify/probe", []string{"golang.org/x/sys/unix"}, "two ends of a connection, wherever they run"},
	{"kube/verify", []string{"culvert/gateway/config", "culvert/gateway/wgkey", "culvert/kube", "culvert/kube/peering",
		"culvert/nat/rules", "k8s.io/apimachinery", "k8s.io/client-go/dynamic"},
		"it sees what any user of the clusters sees: no gateway, no node"},
	{"kube/service", []string{"culvert/gateway/seats", "culvert/gateway/node/services", "culvert/kube",
		"culvert/nat/rules", "k8s.io/apimachinery", "k8s.io/client-go/dynamic",
		"github.com/sirupsen/logrus", "golang.org/x/sys/unix"},
		"what a node serves is a value: no routes, no packets, no gateway"},
	{"integration/lab/attack", []string{"culvert/integration/lab", "culvert/nat/nattest", wireguard,
		"github.com/vishvananda/netlink", "golang.org/x/sys/unix"},
		"a lab and who is hostile there: nothing of a gateway's inside"},
	{"integration/lab/check", []string{"culvert/gateway/node", "culvert/integration/lab"},
		"which labs, in which order: no hosts, no packets"},
	{"integration/lab/fault", []string{"culvert/gateway/configfile", "culvert/gateway/control", "culvert/gateway/health",
		"culvert/gateway/node", "culvert/integration/lab", "github.com/vishvananda/netlink", "golang.org/x/sys/unix",
		"sigs.k8s.io/yaml"}, "a lab and what is wrong there"},
	{"integration/lab/holder", []string{"culvert/integration/lab", "golang.org/x/sys/unix"},
		"a process and its clients: no gateways, no packets"},
	{"integration/lab/plan", nil, "addresses: no sockets, no namespaces"},
	{"integration/lab/netns", []string{"culvert/gateway/node", "culvert/integration/fresh",
		"culvert/integration/lab/step",
		"github.com/vishvananda/netlink", "golang.org/x/sys/unix"}, "hosts and their links, whatever runs there"},
	{"integration/lab/probe", []string{"culvert/integration/lab/netns", "culvert/integration/lab/step",
		"culvert/nat/nattest", "golang.org/x/net", "golang.org/x/sys/unix"},
		"two hosts and what they send each other: no clusters, no gateways"},
	{"integration/lab/reference", []string{"culvert/gateway/config", "culvert/integration/lab/netns",
		"culvert/integration/lab/plan", wireguard, "github.com/vishvananda/netlink", "golang.org/x/sys/unix"},
		"one gateway in one namespace"},
	{"integration/lab/step", nil, "errors and times, whatever a check does"},
	{"kube/liqo", []string{"culvert/gateway/config", "culvert/geneve", "culvert/kube", "culvert/nat",
		"k8s.io/apimachinery", "k8s.io/client-go", "github.com/sirupsen/logrus", "sigs.k8s.io/json"},
		"what a gateway under Liqo has is a value; Liqo is no dependency"},
	{"kube", []string{"culvert/nat/rules", "k8s.io/apimachinery", "k8s.io/client-go", "k8s.io/klog/v2",
		"github.com/sirupsen/logrus", "golang.org/x/time/rate"},
		"Kubernetes stops here, whatever is made of its objects"},
}

// exact lists import paths that are allowed without the packages below them.
var exact = []string{gvisor + "tcpip", gvisor + "tcpip/header", "culvert/geneve"}

type goPackage struct {
	ImportPath string
	Dir        string
	Imports    []string
	Standard   bool
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	cmd := need.Go("list", "-json=ImportPath,Dir,Imports,Standard", "culvert/...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func ruleFor(path string) *importRule {
	for i, r := range importRules {
		if folder := "culvert/" + r.folder; path == folder || strings.HasPrefix(path, folder+"/") {
			return &importRules[i]
		}
	}
	return nil
}

func TestImportRules(t *testing.T) {
	judged := 0
	for _, p := range packages(t) {
		rule := ruleFor(p.ImportPath)
		if rule == nil {
			continue
		}
		for _, imported := range p.Imports {
			if !strings.Contains(strings.Split(imported, "/")[0], ".") && !strings.HasPrefix(imported, "culvert/") {
				continue // standard library
			}
			judged++
			if !allowed(rule, imported) {
				t.Errorf("%s imports %s; %s: %s", p.ImportPath, imported, rule.folder, rule.reason)
			}
		}
	}
	if judged == 0 {
		t.Fatal("no import was judged: the rules name no package of this tree")
	}
}

// TestFloors: a top-level folder imports only folders below it.
func TestFloors(t *testing.T) {
	floors := []string{"cmd", "integration", "kube", "gateway", "nat", "geneve", "ipam"} // top floor first
	floor := func(path string) int {
		folder, _, _ := strings.Cut(strings.TrimPrefix(path, "culvert/"), "/")
		return slices.Index(floors, folder)
	}
	for _, p := range packages(t) {
		for _, imported := range p.Imports {
			if strings.HasPrefix(imported, "culvert/") && floor(imported) < floor(p.ImportPath) {
				t.Errorf("%s imports %s, which is above it", p.ImportPath, imported)
			}
		}
	}
}

func allowed(rule *importRule, imported string) bool {
	if imported == "culvert/"+rule.folder || strings.HasPrefix(imported, "culvert/"+rule.folder+"/") {
		return true
	}
	for _, a := range rule.allow {
		if imported == a {
			return true
		}
		if !slices.Contains(exact, a) && strings.HasPrefix(imported, a+"/") {
			return true
		}
	}
	return false
}

// TestTestPackagesOnlyInTests: only tests import test doubles, and the simulation. The lab, which
// forges packets, may build them with nattest.
func TestTestPackagesOnlyInTests(t *testing.T) {
	for _, p := range packages(t) {
		if isDouble(p.ImportPath) {
			continue
		}
		for _, imported := range p.Imports {
			if isDouble(imported) && strings.HasPrefix(imported, "culvert/") &&
				p.ImportPath != "culvert/integration/sim" && !(ofLab(p.ImportPath) && imported == "culvert/nat/nattest") {
				t.Errorf("%s imports the test double %s outside its tests", p.ImportPath, imported)
			}
			if imported == "culvert/integration/need" {
				t.Errorf("%s imports what skips tests outside its tests", p.ImportPath)
			}
			if ofLab(imported) && !ofLab(p.ImportPath) && p.ImportPath != "culvert/cmd/culvert-lab" {
				t.Errorf("%s imports the lab; only cmd/culvert-lab and tests may", p.ImportPath)
			}
		}
	}
}

// TestProductWithoutLab: culvert contains nothing of the lab, which attacks gateways.
func TestProductWithoutLab(t *testing.T) {
	all := make(map[string]goPackage)
	for _, p := range packages(t) {
		all[p.ImportPath] = p
	}
	// the chain of imports that leads to each package
	ways := map[string]string{"culvert/cmd/culvert": "culvert/cmd/culvert"}
	for queue := []string{"culvert/cmd/culvert"}; len(queue) > 0; queue = queue[1:] {
		for _, imported := range all[queue[0]].Imports {
			if _, known := ways[imported]; known || !strings.HasPrefix(imported, "culvert/") {
				continue
			}
			ways[imported] = ways[queue[0]] + " → " + imported
			queue = append(queue, imported)
			if strings.HasPrefix(imported, "culvert/integration") {
				t.Errorf("cmd/culvert has a package of integration: %s", ways[imported])
			}
		}
	}
	if len(ways) < 20 {
		t.Errorf("cmd/culvert is made of %d packages", len(ways))
	}
}

// ofLab reports whether a package is the lab, or a room of it.
func ofLab(path string) bool {
	return path == "culvert/integration/lab" || strings.HasPrefix(path, "culvert/integration/lab/")
}

func isDouble(path string) bool {
	base := filepath.Base(path)
	return strings.HasSuffix(base, "test") && filepath.Base(filepath.Dir(path)) == strings.TrimSuffix(base, "test")
}

// TestPackageDocs: each package has exactly one package comment.
func TestPackageDocs(t *testing.T) {
	for _, p := range packages(t) {
		docs := 0
		files, err := filepath.Glob(filepath.Join(p.Dir, "*.go"))
		need.NoError(t, err)
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.PackageClauseOnly|parser.ParseComments)
			need.NoError(t, err)
			if f.Doc != nil {
				docs++
			}
		}
		if docs != 1 {
			t.Errorf("%s has %d package comments, want 1", p.ImportPath, docs)
		}
	}
}

// TestTree: the root holds only the agreed folders and files.
func TestTree(t *testing.T) {
	want := []string{"cmd", "gateway", "nat", "geneve", "ipam", "kube", "integration", "go.mod", "go.sum", "Makefile",
		"Dockerfile",
		"docs", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE", "bin"}
	entries, err := os.ReadDir("..")
	need.NoError(t, err)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && !slices.Contains(want, e.Name()) {
			t.Errorf("%s has no place in the root folder", e.Name())
		}
	}
	for _, name := range want[:len(want)-1] {
		if _, err := os.Stat(filepath.Join("..", name)); errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is missing", name)
		}
	}
}

// TestCipherAsDoctorJudges: x/crypto chooses its assembly as package doctor judges CPUs.
func TestCipherAsDoctorJudges(t *testing.T) {
	out, err := need.Go("list", "-f", "{{.Dir}}", "golang.org/x/crypto/chacha20poly1305").Output()
	need.NoError(t, err)
	dir := strings.TrimSpace(string(out))
	code, err := os.ReadFile(filepath.Join(dir, "chacha20poly1305_amd64.go"))
	need.NoError(t, err)
	const amd64 = "cpu.X86.HasSSSE3 && cpu.X86.HasAVX2 && cpu.X86.HasBMI2"
	if strings.Count(string(code), "cpu.X86.") != 3 || !strings.Contains(string(code), amd64) {
		t.Errorf("x/crypto no longer asks for %s: change gateway/doctor/cipher.go", amd64)
	}
	for pattern, want := range map[string]int{"chacha20/*_arm64.s": 1, "chacha20poly1305/*_arm64.s": 0,
		"internal/poly1305/*_arm64.s": 0} {
		if files, err := filepath.Glob(filepath.Join(filepath.Dir(dir), pattern)); err != nil || len(files) != want {
			t.Errorf("x/crypto has %q, want %d of %s (%v): change gateway/doctor/cipher.go", files, want, pattern, err)
		}
	}
}
