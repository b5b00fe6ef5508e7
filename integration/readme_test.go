package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"culvert/integration/need"
)

// blocks returns the fenced blocks of a documentation page: commands by the word after "sh", files
// by the name at the beginning of their first line, others by their number.
func blocks(t *testing.T, page string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(page)
	need.NoError(t, err)
	found := make(map[string]string)
	for i, m := range regexp.MustCompile("(?ms)^```(\\S*) ?(\\S*)\n(.*?)^```$").FindAllStringSubmatch(
		string(text), -1) {
		name := m[2]
		if file := regexp.MustCompile(`^# (\S+\.yaml), `).FindStringSubmatch(m[3]); file != nil {
			name = file[1]
		}
		if name == "" {
			name = fmt.Sprint(m[1], " ", i)
		}
		if found[name] != "" {
			t.Fatalf("%s: two blocks are called %s", page, name)
		}
		found[name] = m[3]
	}
	return found
}

// lines returns the commands of a block.
func lines(t *testing.T, blocks map[string]string, name string) []string {
	t.Helper()
	text, ok := blocks[name]
	if !ok {
		t.Fatalf("no block %s", name)
	}
	return strings.Split(strings.TrimSpace(text), "\n")
}

const firstNetwork = "../docs/first-network.md"

// readmeHere returns the commands with which README makes two clusters on one machine, and the
// final ping. kind is the kind of rome's node: culvert, or vxlan or geneve as in
// docs/first-network.md.
func readmeHere(t *testing.T, kind string) (commands []string, ping string) {
	t.Helper()
	readme, more := blocks(t, "../README.md"), blocks(t, firstNetwork)
	commands, ping = lines(t, readme, "here"), lines(t, readme, "ping")[0]
	if kind != "culvert" {
		byHand := lines(t, more, "vxlan")
		if kind == "geneve" {
			byHand = slices.Concat(lines(t, more, "geneve"), byHand[1:])
		}
		last := len(commands) - 1
		if !strings.Contains(commands[last], "culvert node") || !strings.Contains(commands[last], "rome-1.yaml") {
			t.Fatalf("the last command is not rome's node: %s", commands[last])
		}
		commands = slices.Concat(commands[:last], byHand)
	}
	if n := len(commands) + 1; n > 10 {
		t.Errorf("%d commands until pods talk, want at most 10", n)
	}
	return commands, ping
}

// nodeAnswers is in culvert node's log once its gateway answers.
const nodeAnswers = `msg="the gateway answers"`

// asWritten runs the commands of a page in a folder of an ordinary user; those with sudo as root.
type asWritten struct {
	*peerHost
	dir  string
	path string // folder of culvert
}

func newAsWritten(h *peerHost, dir string) *asWritten {
	h.t.Helper()
	bin := h.t.TempDir()
	err := errors.Join(os.Symlink(os.Getenv(binaryEnv), filepath.Join(bin, "culvert")), os.Chmod(bin, 0o755),
		os.Chmod(filepath.Dir(bin), 0o711),
		os.Chmod(filepath.Dir(dir), 0o711), os.Chown(dir, unprivilegedUID, unprivilegedUID))
	need.NoError(h.t, err)
	return &asWritten{h, dir, bin}
}

// command runs one command. It returns the process of a command that ends with &, else nil.
func (w *asWritten) command(line string) *peerProcess {
	w.t.Helper()
	line, background := strings.CutSuffix(line, " &")
	var user *syscall.Credential
	command, root := strings.CutPrefix(line, "sudo ")
	if !root {
		user = &syscall.Credential{Uid: unprivilegedUID, Gid: unprivilegedUID}
	}
	if background {
		command = "exec " + command
	}
	p := w.start(user, "sh", "-c", fmt.Sprintf("cd %s; PATH=%s:$PATH; %s", w.dir, w.path, command))
	if background {
		return p
	}
	if <-p.ended; !p.cmd.ProcessState.Success() {
		w.t.Fatalf("%s: %v: %s", line, p.cmd.ProcessState, p.output())
	}
	return nil
}

// answered waits until a node's process has logged that its gateway answers.
func answered(t *testing.T, p *peerProcess) {
	t.Helper()
	eventually(t, nodeAnswers, func() error {
		if !strings.Contains(p.output(), nodeAnswers) {
			return errors.Join(errNotYet, p.running())
		}
		return nil
	})
}

// TestReadmeHere pastes README's commands; afterwards pods of both clusters reach each other.
func TestReadmeHere(t *testing.T) {
	for _, kind := range []string{"culvert", "vxlan"} {
		t.Run(kind, func(t *testing.T) {
			beside(t, func(t *testing.T) {
				commands, ping := readmeHere(t, kind)
				w := newAsWritten(newPeerHost(t, "machine"), t.TempDir())
				var nodes []*peerProcess
				for _, line := range commands {
					if p := w.command(line); p != nil && strings.Contains(line, "culvert node") {
						nodes = append(nodes, p)
					}
				}
				for _, p := range nodes {
					answered(t, p)
				}
				w.command(ping)
			}, programs("ping", "ping"))
		})
	}
}

// TestReadmeGeneve is TestReadmeHere on a machine whose kernel has Geneve.
func TestReadmeGeneve(t *testing.T) {
	beside(t, func(t *testing.T) {
		g := startGuest(newPeerHost(t, "machine"), "192.0.2.1/24", "192.0.2.9/24")
		for _, kind := range []string{"culvert", "geneve"} {
			commands, ping := readmeHere(t, kind)
			dir := "/tmp/" + kind
			g.sh("mkdir " + dir)
			nodes, pids := 0, ""
			for i, line := range commands {
				line, background := strings.CutSuffix(strings.TrimPrefix(line, "sudo "), " &")
				if background {
					line = fmt.Sprintf("%s >%d.log 2>&1 & echo $! >%d.pid", line, i, i)
					pids += fmt.Sprintf(" %d.pid", i)
				}
				g.sh("cd "+dir, line)
				if strings.Contains(line, "culvert node") {
					nodes++
				}
			}
			// await waits until a number of logs have a text.
			await := func(logs int, text string) {
				t.Helper()
				looks := int(startTimeout / (200 * time.Millisecond))
				g.sh("cd "+dir, fmt.Sprintf("n=0; until [ $(grep -l '%s' *.log | wc -l) = %d ]; do n=$((n+1)); "+
					"[ $n -lt %d ] || { cat *.log; exit 1; }; sleep 0.2; done", text, logs, looks))
			}
			await(nodes, nodeAnswers)
			g.sh("cd "+dir, strings.TrimPrefix(ping, "sudo "))
			await(1, "encap=geneve node=rome-1") // by the gateway
			g.sh("cd "+dir, "kill $(cat"+pids+")", "sh rome-milan/here.sh down")
		}
	}, probeGuest)
}

// TestFirstNetworkFiles: the four files of docs/first-network.md, each saved and started as its
// first line says, make two clusters.
func TestFirstNetworkFiles(t *testing.T) {
	beside(t, func(t *testing.T) {
		page := blocks(t, firstNetwork)
		rome, milan := newPeerHost(t, "rome-gw"), newPeerHost(t, "milan-gw")
		x := &examples{t: t, romeGateway: rome, milan: newPeerHost(t, "milan-1")}
		node := newPeerHost(t, "rome-1")
		join(rome, milan, "192.0.2.1/24", "192.0.2.7/24", 1500)
		join(rome, node, "172.18.0.9/24", "172.18.0.2/24", 1500)
		join(milan, x.milan, "172.19.0.9/24", "172.19.0.2/24", 1500)
		x.pod(node, 1)
		x.pod(x.milan, 1)
		text, err := os.ReadFile(firstNetwork)
		need.NoError(t, err)
		places := make(map[string]*asWritten)
		for name, h := range map[string]*peerHost{"rome": rome, "milan": milan, "rome-1": node, "milan-1": x.milan} {
			places[name] = newAsWritten(h, t.TempDir())
			need.NoError(t, os.WriteFile(filepath.Join(places[name].dir, name+".yaml"),
				[]byte(page[name+".yaml"]), 0o644))
		}
		for _, m := range regexp.MustCompile("`(culvert keygen (\\w+)\\.key > (\\w+\\.pub))`").FindAllStringSubmatch(
			string(text), -1) {
			own, other := places[m[2]], places["milan"]
			if m[2] == "milan" {
				other = places["rome"]
			}
			own.command(m[1])
			other.command("cp " + filepath.Join(own.dir, m[3]) + " .")
		}
		for _, name := range []string{"milan", "rome", "milan-1", "rome-1"} {
			first, _, _ := strings.Cut(page[name+".yaml"], "\n")
			_, command, ok := strings.Cut(first, ": ")
			if !ok {
				t.Fatalf("%s does not say how it is started", name)
			}
			if said := places[name].run("sh", "-c", fmt.Sprintf("cd %s; %s/%s --check", places[name].dir,
				places[name].path, strings.TrimPrefix(command, "sudo "))); strings.Contains(said, "warning") {
				t.Errorf("%s: %s", name, said)
			}
			if p := places[name].command(command + " &"); strings.Contains(command, "culvert node") {
				answered(t, p)
			}
		}
		x.reaches(t, node, 1)

		gateway := blocks(t, "../docs/gateway.md")
		need.NoError(t, os.WriteFile(filepath.Join(places["rome"].dir, "more.yaml"), []byte(gateway["yaml 0"]), 0o644))
		places["rome"].command("culvert gateway --check --config more.yaml")
	}, programs("ping", "ping"))
}

// TestReadmeIPv6: the files of docs/gateway.md with both families, and the same for milan with its
// own names and addresses, make two clusters whose pods reach each other over both families,
// through tunnels over IPv6.
func TestReadmeIPv6(t *testing.T) {
	beside(t, func(t *testing.T) {
		files := blocks(t, "../docs/gateway.md")
		milans := strings.NewReplacer("cluster: rome", "cluster: milan", "peer: milan", "peer: rome",
			`client, endpoint: "[2001:db8:c::7]:51840"`, "server",
			"rome.key", "milan.key", "milan.pub", "rome.pub", "rome-1", "milan-1", "fd18:", "fd19:",
			"10.61.", "10.62.", "10.71.", "10.72.", "fd00:61:", "fd00:62:", "fd00:71:", "fd00:72:")
		hosts := make(map[string]*peerHost)
		for _, name := range []string{"rome-gw", "milan-gw", "rome-1", "milan-1"} {
			hosts[name] = newPeerHost(t, name)
			hosts[name].acceptAddresses()
		}
		join(hosts["rome-gw"], hosts["milan-gw"], "2001:db8:c::1/64", "2001:db8:c::7/64", 1500)
		join(hosts["rome-gw"], hosts["rome-1"], "fd18::9/64", "fd18::2/64", 1500)
		join(hosts["milan-gw"], hosts["milan-1"], "fd19::9/64", "fd19::2/64", 1500)
		x := &examples{t: t, milan: hosts["milan-1"]}
		for _, name := range []string{"rome-1", "milan-1"} {
			x.pod(hosts[name], 1)
			hosts[name].ip("address add fd00:10:0:1::5/128 dev lo")
			hosts[name].sysctl("net/ipv6/conf/all/forwarding", "1")
		}
		rome, milan := newKeyPair(t), newKeyPair(t)
		keys := map[string]string{"rome.key": rome.private, "rome.pub": rome.public, "milan.key": milan.private,
			"milan.pub": milan.public}
		for _, p := range []struct{ host, kind, text string }{
			{"milan-gw", "gateway", milans.Replace(files["dual.yaml"])}, {"rome-gw", "gateway", files["dual.yaml"]},
			{"milan-1", "node", milans.Replace(files["dual-1.yaml"])}, {"rome-1", "node", files["dual-1.yaml"]},
		} {
			dir, h := t.TempDir(), hosts[p.host]
			file := filepath.Join(dir, "dual.yaml")
			for name, text := range keys {
				need.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			}
			need.NoError(t, os.WriteFile(file, []byte(p.text), 0o600))
			if said := h.run(os.Getenv(binaryEnv), p.kind, "--check", "--config", file); !strings.Contains(said,
				"good") || strings.Contains(said, "warning") {
				t.Errorf("%s: %s", p.host, said)
			}
			if started := h.start(nil, os.Getenv(binaryEnv), p.kind, "--config", file); p.kind == "node" {
				answered(t, started)
			}
		}
		x.reaches(t, hosts["rome-1"], 1)
		for from, to := range map[string]string{"rome-1": "fd00:61:0:1::5", "milan-1": "fd00:62:0:1::5"} {
			eventually(t, from+" → "+to, func() error {
				_, err := hosts[from].try("", "ping", "-c", "1", "-W", "1", "-I", "fd00:10:0:1::5", to)
				return err
			})
		}
	}, programs("ping", "ping"))
}
