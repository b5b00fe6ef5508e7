package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"sigs.k8s.io/yaml"

	"culvert/integration/need"
)

// asRoot runs a command line of an example inside a host, where this process is root. A command
// that ends with & runs until the end of the test.
func (h *peerHost) asRoot(line string) {
	h.t.Helper()
	command, background := strings.CutSuffix(strings.ReplaceAll(line, "sudo ", ""), " &")
	if background {
		h.start(nil, "sh", "-c", "exec "+command)
		return
	}
	eventually(h.t, line, func() error {
		_, err := h.try("", "sh", "-c", command)
		if err != nil && !strings.Contains(line, " ping ") {
			h.t.Fatal(err)
		}
		return err
	})
}

// TestInitHere runs the commands that culvert init --here prints, unchanged. They must make two
// clusters whose pods reach each other, and remove them again.
func TestInitHere(t *testing.T) {
	beside(t, func(t *testing.T) {
		h := newPeerHost(t, "machine")
		dir := filepath.Join(t.TempDir(), "d")
		printed := h.run(os.Getenv(binaryEnv), "init", dir, "--here")
		var commands []string
		for line := range strings.Lines(printed) {
			if command, ok := strings.CutPrefix(line, "    "); ok {
				commands = append(commands, strings.TrimSpace(command))
			}
		}
		if len(commands) < 7 || len(commands) > 9 {
			t.Fatalf("%d commands:\n%s", len(commands), printed)
		}
		for _, command := range commands {
			h.asRoot(command)
		}
		if left := h.run("ip", "-brief", "link"); strings.Contains(left, "cv-") {
			t.Errorf("left behind: %s", left)
		}
	}, programs("ping", "ping"))
}

// TestInit: the files that culvert init writes for real machines work there unedited.
func TestInit(t *testing.T) {
	beside(t, func(t *testing.T) {
		binary, dir := os.Getenv(binaryEnv), filepath.Join(t.TempDir(), "d")
		x := &examples{t: t, dir: dir, milan: newPeerHost(t, "milan-1"), romeGateway: newPeerHost(t, "rome-gw")}
		rome, milanGateway := newPeerHost(t, "rome-1"), newPeerHost(t, "milan-gw")
		join(x.romeGateway, milanGateway, "192.0.2.1/24", "192.0.2.7/24", 1500)
		join(x.romeGateway, rome, "172.18.0.9/24", "172.18.0.2/24", 1500)
		join(milanGateway, x.milan, "172.19.0.9/24", "172.19.0.2/24", 1500)
		x.pod(rome, 1)
		x.pod(x.milan, 1)
		rome.run(binary, "init", dir, "--cluster", "rome", "--pods", "10.0.0.0/16", "--gateway", "172.18.0.9",
			"--nodes", "rome-1=172.18.0.2,10.0.1.0/24",
			"--peer", "milan", "--peer-pods", "10.0.0.0/16", "--peer-gateway", "172.19.0.9", "--peer-nodes",
			"milan-1=172.19.0.2,10.0.1.0/24",
			"--endpoint", "192.0.2.7:4500")
		for _, p := range []struct {
			host       *peerHost
			kind, file string
		}{
			{x.romeGateway, "gateway", "rome/gateway.yaml"}, {milanGateway, "gateway", "milan/gateway.yaml"},
			{rome, "node", "rome/nodes/rome-1.yaml"}, {x.milan, "node", "milan/nodes/milan-1.yaml"},
		} {
			x.check(p.host, p.kind, p.file)
			p.host.start(nil, binary, p.kind, "--config", filepath.Join(dir, p.file))
		}
		x.reaches(t, rome, 1)
	}, programs("ping", "ping"))
}

const exampleFolder = "../docs/examples"

// newExamples copies the examples to a folder that an ordinary user may read, and adds the keys,
// which are not in the repository.
func newExamples(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	need.NoError(t, errors.Join(os.CopyFS(dir, os.DirFS(exampleFolder)), os.Chmod(filepath.Dir(dir), 0o711),
		os.Chmod(dir, 0o711)))
	rome, milan := newKeyPair(t), newKeyPair(t)
	for name, text := range map[string]string{
		"rome/gateway.key": rome.private, "milan/peer.pub": rome.public,
		"milan/gateway.key": milan.private, "rome/peer.pub": milan.public,
	} {
		name = filepath.Join(dir, name)
		need.NoError(t, errors.Join(os.WriteFile(name, []byte(text), 0o600), os.Chown(name, unprivilegedUID,
			unprivilegedUID)))
	}
	return dir
}

// fakeDocker stands in for docker. It runs a container's command on the host, with the volume's
// source path in place of its target.
const fakeDocker = `#!/bin/sh
while [ "$1" != culvert:latest ]; do
	if [ "$1" = --volume ]; then volume=${2%%:*}; fi
	shift
done
shift
exec $CULVERT_PEER_BINARY $(echo "$@" | sed "s|/etc/culvert|$volume|")
`

// TestExamples: the files of docs/examples make two clusters. Rome gets a node of each kind, whose
// pods must reach milan's and be reached.
func TestExamples(t *testing.T) {
	beside(t, func(t *testing.T) {
		dir, binary := newExamples(t), os.Getenv(binaryEnv)
		x := &examples{t: t, dir: dir, milan: newPeerHost(t, "milan-1")}
		x.romeGateway = newPeerHost(t, "rome-gw")
		milanGateway := newPeerHost(t, "milan-gw")
		join(x.romeGateway, milanGateway, "192.0.2.1/24", "192.0.2.7/24", 1500)
		join(milanGateway, x.milan, "172.19.0.9/24", "172.19.0.2/24", 1500)
		x.romeGateway.ip("link add nodes type bridge", "address add 172.18.0.9/24 dev nodes", "link set nodes up")
		x.pod(x.milan, 1)

		docker := t.TempDir()
		need.NoError(t, os.WriteFile(filepath.Join(docker, "docker"), []byte(fakeDocker), 0o755))
		need.NoError(t, os.Chmod(docker, 0o755))
		user := &syscall.Credential{Uid: unprivilegedUID, Gid: unprivilegedUID}
		x.check(x.romeGateway, "gateway", "rome/gateway.yaml")
		x.romeGateway.ip("link set milan-gw mtu 1399")
		if said := x.romeGateway.run(binary, "gateway", "--check", "--config",
			filepath.Join(dir, "rome/gateway.yaml")); !strings.Contains(said,
			"mtu: 1340 needs 1400 bytes on the way to wireguard.endpoint 192.0.2.7, where milan-gw carries 1399; write at most 1339") {
			t.Errorf("a way of 1399 bytes: %s", said)
		}
		x.romeGateway.ip("link set milan-gw mtu 1500")
		x.check(milanGateway, "gateway", "milan/gateway.yaml")
		x.romeGateway.start(user, "sh", "-c", fmt.Sprintf("cd %s/rome && PATH=%s:$PATH exec ../container.sh",
			dir, docker))
		milanGateway.start(user, binary, "gateway", "--config", filepath.Join(dir, "milan/gateway.yaml"))
		x.check(x.milan, "node", "milan/milan-1.yaml")
		x.milan.start(nil, binary, "node", "--config", filepath.Join(dir, "milan/milan-1.yaml"))

		t.Run("culvert node with one capability", func(t *testing.T) {
			node := x.node(t, 1, "172.18.0.2/24")
			x.check(node, "node", "rome/rome-1.yaml")
			node.start(nil, "setpriv", "--reuid=65532", "--regid=65532", "--clear-groups", "--inh-caps=-all,+net_admin",
				"--ambient-caps=-all,+net_admin", "--bounding-set=-all,+net_admin", binary, "node", "--config",
				filepath.Join(dir, "rome/rome-1.yaml"))
			x.reaches(t, node, 1)
			x.alerts(t)
		})
		t.Run("VXLAN by ip", func(t *testing.T) {
			node := x.node(t, 2, "172.18.0.3/24")
			node.run("sh", filepath.Join(dir, "nodes/rome-2-vxlan.sh"))
			x.reaches(t, node, 2)
		})
		t.Run("Open vSwitch", func(t *testing.T) {
			needPrograms(t, []probe{probeOVS})
			node := x.node(t, 3, "")
			x.romeGateway.run("ethtool", "-K", node.name, "tx", "off")
			o := startOVS(node)
			// The user-space datapath has the underlay's address itself, and AF_PACKET gives it a
			// copy of each packet: the kernel must not answer too.
			o.vsctl("add-br br-phy -- set bridge br-phy datapath_type=netdev -- add-port br-phy rome-gw")
			node.feed("add table netdev ovs\n"+
				"add chain netdev ovs ingress { type filter hook ingress device rome-gw priority 0; policy drop; }\n",
				"nft", "-f", "-")
			node.ip("address add 172.18.0.4/24 dev br-phy", "link set br-phy up")
			node.run("env", "OVS_RUNDIR="+o.dir, "DATAPATH=netdev", "sh",
				filepath.Join(dir, "nodes/rome-3-openvswitch.sh"))
			x.reaches(t, node, 3)
		})
		t.Run("Geneve by ip", func(t *testing.T) {
			node := x.node(t, 4, "172.18.0.5/24")
			if _, err := node.try("", "ip", "link", "add", "probe", "type", "geneve", "id", "9", "remote",
				"172.18.0.9"); err != nil {
				x.differsInLink(t)
				return
			}
			node.ip("link delete probe")
			node.run("sh", filepath.Join(dir, "nodes/rome-4-geneve.sh"))
			x.reaches(t, node, 4)
		})
	}, programs("ping", "ping"), programs("setpriv", "setpriv"))
}

// examples are the two clusters that the example files make.
type examples struct {
	t                  *testing.T
	dir                string
	romeGateway, milan *peerHost
}

// node makes a host beside rome's gateway that has the address of a pod.
func (x *examples) node(t *testing.T, number int, underlay string) *peerHost {
	t.Helper()
	h := newPeerHost(t, fmt.Sprintf("rome-%d", number))
	join(x.romeGateway, h, "", underlay, 1500)
	x.romeGateway.ip("link set " + h.name + " master nodes")
	x.pod(h, number)
	return h
}

func (x *examples) pod(h *peerHost, number int) {
	h.t.Helper()
	h.ip(fmt.Sprintf("address add 10.0.%d.5/32 dev lo", number))
	h.router()
}

// check fails unless --check accepts a file without a warning.
func (x *examples) check(h *peerHost, kind, name string) {
	h.t.Helper()
	if said := h.run(os.Getenv(binaryEnv), kind, "--check", "--config", filepath.Join(x.dir, name)); !strings.Contains(
		said, "good") || strings.Contains(said, "warning") {
		h.t.Errorf("%s: %s", name, said)
	}
}

// reaches fails unless a pod of one of rome's nodes and milan's pod reach each other.
func (x *examples) reaches(t *testing.T, node *peerHost, number int) {
	t.Helper()
	pod, seen := fmt.Sprintf("10.0.%d.5", number), fmt.Sprintf("10.62.%d.5", number)
	for _, p := range []struct {
		from     *peerHost
		src, dst string
	}{{node, pod, milanPodAtRome}, {x.milan, podAddress, seen}} {
		eventually(t, p.from.name+" → "+p.dst, func() error {
			_, err := p.from.try("", "ping", "-c", "1", "-W", "1", "-I", p.src, p.dst)
			return err
		})
	}
}

// alerts fails unless gateways serve each metric that alerts.yaml uses.
func (x *examples) alerts(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "kube", "manifests", "alerts.yaml"))
	need.NoError(t, err)
	var file struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []struct {
				Alert       string            `json:"alert"`
				Expr        string            `json:"expr"`
				For         string            `json:"for"`
				Labels      map[string]string `json:"labels"`
				Annotations map[string]string `json:"annotations"`
			} `json:"rules"`
		} `json:"groups"`
	}
	need.NoError(t, yaml.UnmarshalStrict(text, &file))
	page, err := x.romeGateway.get("/metrics")
	need.NoError(t, err)
	metrics := 0
	for _, r := range file.Groups[0].Rules {
		if r.Alert == "" || r.Annotations["summary"] == "" || r.Labels["severity"] == "" {
			t.Errorf("%+v", r)
		}
		for _, name := range regexp.MustCompile(`culvert_\w+`).FindAllString(r.Expr, -1) {
			metrics++
			if name == "culvert_role" {
				continue // of gateways with replicas alone: TestReplicaMetrics
			}
			if !strings.Contains(page, "# TYPE "+name+" ") {
				t.Errorf("%s: the gateway has no %s", r.Alert, name)
			}
		}
	}
	if metrics == 0 {
		t.Error("no alert has a metric of culvert's")
	}
}

// differsInLink: the Geneve and the VXLAN example of a node differ only in the kind of link and in
// the node's own numbers.
func (x *examples) differsInLink(t *testing.T) {
	t.Helper()
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(x.dir, "nodes", name))
		need.NoError(t, err)
		return string(text)
	}
	vxlan := strings.NewReplacer("rome-2", "rome-4", "VXLAN", "Geneve", "10.80.0.3/32", "10.80.0.6/32",
		"type vxlan id 2 local 172.18.0.3", "type geneve id 4", " nolearning", "").Replace(read("rome-2-vxlan.sh"))
	if geneve := read("rome-4-geneve.sh"); geneve != vxlan {
		t.Errorf("got %s\nwant %s", geneve, vxlan)
	}
}

// TestExampleUnits: systemd accepts both units.
func TestExampleUnits(t *testing.T) {
	needPrograms(t, []probe{programs("systemd", "systemd-analyze")})
	binary, err := culvertBinary()
	need.NoError(t, err)
	dir := t.TempDir()
	for name, instance := range map[string]string{
		"culvert-gateway@.service": "culvert-gateway@rome.service", "culvert-node.service": "culvert-node.service",
	} {
		text, err := os.ReadFile(filepath.Join(exampleFolder, "systemd", name))
		need.NoError(t, err)
		unit := filepath.Join(dir, instance)
		// systemd-analyze verify checks that the program exists.
		edited := strings.ReplaceAll(string(text), "/usr/local/bin/culvert", binary)
		need.NoError(t, os.WriteFile(unit, []byte(edited), 0o644))
		if out, err := need.Command(t, "systemd-analyze", "verify", "--man=no", unit).CombinedOutput(); err != nil ||
			len(out) > 0 {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

// TestExamplesAreListed: the examples' README lists each file, and each listed file exists.
func TestExamplesAreListed(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(exampleFolder, "README.md"))
	need.NoError(t, err)
	links := make(map[string]bool)
	for _, m := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(string(text), -1) {
		links[m[1]] = true
		if _, err := os.Stat(filepath.Join(exampleFolder, m[1])); err != nil {
			t.Error(err)
		}
	}
	err = filepath.WalkDir(exampleFolder, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(exampleFolder, path)
		if err == nil && !d.IsDir() && name != "README.md" && !links[name] && !links[filepath.Dir(name)] {
			t.Errorf("README.md does not have %s", name)
		}
		return err
	})
	need.NoError(t, err)
}
