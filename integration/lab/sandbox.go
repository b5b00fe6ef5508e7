package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/step"
)

// Sandbox runs the gateways under gVisor: runsc runs each as an OCI container with gVisor's own
// network stack. The links' addresses and routes move into it; the network namespace keeps only the
// links.
type Sandbox struct {
	Runsc string // gVisor's OCI runtime; "" = gateways are ordinary processes

	// Groups is the OCI cgroupsPath of each gateway without its suffix, -rome or -milan. The caller
	// that names groups has made them, with SandboxMemory as their limit, and removes them. "" = no
	// groups.
	Groups string
}

// SandboxMemory is what a gateway needs, in bytes, when it shares its control group with gVisor's
// kernel, and that kernel does not queue packets without a bound.
const SandboxMemory = 128 << 20

const (
	sandboxUser    = 65532 // as in the container image
	sandboxCulvert = "/culvert"
	sandboxBusybox = "/busybox" // for what only a process inside can see
)

// sandbox is a gateway's sandbox.
type sandbox struct {
	Sandbox
	root string // folder of runsc's own state
	id   string
}

// command prepares a runsc command about this sandbox.
func (s *sandbox) command(ctx context.Context, args ...string) *exec.Cmd {
	// Gofers get an empty network namespace each: with a shared one, runsc would leave it mounted
	// below root. With one processor for a channel, what reads packets also handles them. With
	// more, gVisor queues packets for its processors without a bound, and a flood of small ones
	// fills the group on a slow CPU (pkg/tcpip/link/fdbased/processors.go).
	flags := []string{"--root=" + s.root, "--platform=systrap", "--network=sandbox",
		"--network-processors-per-channel=1", "--gofer-network-namespace=new"}
	if s.Groups == "" {
		flags = append(flags, "--ignore-cgroups")
	}
	return exec.CommandContext(ctx, s.Runsc, append(flags, args...)...)
}

// newSandbox makes the sandbox of the gateway in a host, and the command that runs it there with
// culvert's arguments.
func (l *Lab) newSandbox(h *netns.Host, args []string) (*sandbox, *exec.Cmd, error) {
	if err := netns.ProbeRoot(); err != nil {
		return nil, nil, fmt.Errorf("root: %w", err)
	}
	cluster := plan.Of(h.Name).Name
	s := &sandbox{l.Options.Sandbox, filepath.Join(l.Dir, "runsc"), cluster}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return nil, nil, err
	}
	files := filepath.Dir(l.Path(cluster, "gateway.yaml"))
	state := l.Path(cluster, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		return nil, nil, err
	}
	for _, name := range []string{files, state, l.Path(cluster, "gateway.yaml"), l.Path(cluster, "private.key")} {
		if err := os.Chown(name, sandboxUser, sandboxUser); err != nil {
			return nil, nil, err
		}
	}
	bind := func(source, destination, mode string) Object {
		return Object{"type": "bind", "source": source, "destination": destination, "options": []string{"bind", mode}}
	}
	namespaces := []Object{{"type": "network", "path": "/proc/self/ns/net"}} // of runsc, which starts inside the host
	for _, kind := range []string{"pid", "mount", "ipc", "uts"} {
		namespaces = append(namespaces, Object{"type": kind})
	}
	linux := Object{"namespaces": namespaces}
	if s.Groups != "" {
		linux["cgroupsPath"] = s.Groups + "-" + cluster
	}
	bundle := filepath.Join(l.Dir, "bundle-"+cluster)
	if err := os.MkdirAll(filepath.Join(bundle, "root"), 0o755); err != nil {
		return nil, nil, err
	}
	text, err := json.Marshal(Object{
		"ociVersion": "1.0.2",
		"process": Object{
			"user": Object{"uid": sandboxUser, "gid": sandboxUser}, "cwd": "/", "noNewPrivileges": true,
			"args": append([]string{sandboxCulvert}, args...), "capabilities": Object{},
		},
		"root": Object{"path": "root", "readonly": true},
		"mounts": []Object{
			{"type": "proc", "source": "proc", "destination": "/proc"},
			{"type": "sysfs", "source": "sysfs", "destination": "/sys"},
			{"type": "cgroup", "source": "cgroup", "destination": "/sys/fs/cgroup", "options": []string{"ro"}},
			{"type": "tmpfs", "source": "tmpfs", "destination": "/tmp"},
			bind(l.Options.Culvert, sandboxCulvert, "ro"), bind(busybox, sandboxBusybox, "ro"),
			bind(files, files, "ro"), bind(state, state, "rw"),
		},
		"linux": linux,
	})
	if err != nil {
		return nil, nil, err
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), text, 0o600); err != nil {
		return nil, nil, err
	}
	h.Get = s.get
	return s, s.command(context.Background(), "run", "--bundle="+bundle, s.id), nil
}

// signal sends a signal to the gateway, because runsc passes none on.
func (s *sandbox) signal(n unix.Signal) error {
	out, err := s.command(context.Background(), "kill", s.id, strconv.Itoa(int(n))).CombinedOutput()
	if err != nil {
		return fmt.Errorf("runsc kill: %w: %s", err, out)
	}
	return nil
}

// hold stops the gateway for a time, while gVisor's kernel continues.
func (s *sandbox) hold(ctx context.Context, d time.Duration) error {
	if out, err := s.command(ctx, "pause", s.id).CombinedOutput(); err != nil {
		return fmt.Errorf("runsc pause: %w: %s", err, out)
	}
	step.Sleep(ctx, d)
	if out, err := s.command(context.Background(), "resume", s.id).CombinedOutput(); err != nil {
		return fmt.Errorf("runsc resume: %w: %s", err, out)
	}
	return nil
}

// run runs a busybox program beside the gateway and returns what it prints.
func (s *sandbox) run(ctx context.Context, args ...string) (string, error) {
	cmd := s.command(ctx, append([]string{"exec", s.id, sandboxBusybox}, args...)...)
	out, err := cmd.Output()
	if exit, ok := err.(*exec.ExitError); ok {
		return "", fmt.Errorf("%s in the sandbox: %w: %s", args[0], err, strings.TrimSpace(string(exit.Stderr)))
	}
	return string(out), err
}

// get fetches a page from the gateway, which listens on the sandbox's loopback.
func (s *sandbox) get(ctx context.Context, url string) (string, error) {
	return s.run(ctx, "wget", "-q", "-O", "-", url)
}

// capabilities returns the effective ones of the gateway as a bit mask.
func (s *sandbox) capabilities(ctx context.Context) (mask uint64, err error) {
	status, err := s.run(ctx, "cat", "/proc/1/status")
	if err != nil {
		return 0, err
	}
	_, after, found := strings.Cut(status, "\nCapEff:")
	if !found {
		return 0, fmt.Errorf("no CapEff in %q", status)
	}
	line, _, _ := strings.Cut(after, "\n")
	return strconv.ParseUint(strings.TrimSpace(line), 16, 64)
}
