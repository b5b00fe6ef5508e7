package template

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
)

const (
	keysName  = "wireguard-config"
	keysDir   = "/etc/wireguard/keys"
	runVolume = "run"
	runDir    = "/run/culvert"
	runSize   = "16Mi"

	stateVolume = "state"
	stateDir    = "/var/lib/culvert"
	stateSize   = "128Mi" // for two files with as many connections as fit into limitMemory

	// A gateway of two nodes was measured with 25 MiB resident when idle, and 31 MiB after 500
	// connections and a few dozen changes. The limit determines the size of its connection table: a
	// quarter of a million.
	requestCPU, requestMemory, limitMemory = "100m", "64Mi", "256Mi"

	healthFlag, metricsFlag   = "health-probe-bind-address", "metrics-address"
	healthPort, defaultHealth = "healthz", ":8083"

	// MetricsPort is the name by which Liqo's PodMonitor finds the port to scrape.
	MetricsPort = "wg-metrics"
)

// taken are the flags that our gateway takes over from Liqo's. Their names differ between Liqo's
// releases.
var taken = []string{
	"mtu", "listen-port", "listen-ports", "endpoint-address", "endpoint-port", "endpoint-ports", "keys-dir",
	"geneve-port",
	"ping-enabled", "ping-port", "ping-interval", "ping-loss-threshold", "ping-update-status-interval",
	metricsFlag, healthFlag,
}

// elected are the flags that our gateway also takes over if it has replicas.
var elected = []string{"leader-election-lease-duration", "leader-election-renew-deadline",
	"leader-election-retry-period"}

// known are Liqo's other flags: the gateway's identity and its replicas, which our template sets
// itself, and those for a kernel or several containers.
var known = []string{
	"name", "namespace", "remote-cluster-id", "gateway-uid", "mode", "node-name", "pod-name",
	"container-name", "concurrent-containers-names", "reconcile-timeout", "leader-election", "enable-nft-monitor",
	"enable-route-monitor",
	"disable-kernel-version-check", "minimum-kernel-version", "enable-multipath-hash-policy", "global-labels",
	"global-annotations",
	"enable-connection-controller", "ping-buffer-size", "dns-check-interval", "implementation",
	"preserve-client-endpoint",
	"geneve-cleanup-interval", "disable-arp",
}

// readFlags returns the values of the flags that ours has too. If several containers have a flag,
// the one that runs WireGuard counts: its metrics port is the one scraped for a tunnel.
func (t *taker) readFlags(containers []map[string]any) map[string]string {
	containers = slices.Clone(containers)
	sort.SliceStable(containers, func(i, j int) bool {
		return containers[i]["name"] == "wireguard" && containers[j]["name"] != "wireguard"
	})
	values := map[string]string{}
	for _, c := range containers {
		ours := false
		for _, f := range Flags(c) {
			ours = ours || f.Name == "gateway-uid"
			if _, have := values[f.Name]; slices.Contains(t.flags(), f.Name) && !have {
				values[f.Name] = f.Value
			} else if !have && !slices.Contains(known, f.Name) && !slices.Contains(elected, f.Name) {
				t.warn("--%s of container %v is left out; culvert has no such flag", f.Name, c["name"])
			}
		}
		if !ours {
			t.warn("container %v is left out; culvert's pod has one", c["name"])
		}
	}
	return values
}

// flags returns the flags that are taken over.
func (t *taker) flags() []string {
	if t.replicas > 1 {
		return slices.Concat(taken, elected)
	}
	return taken
}

// A Flag is one argument of a container.
type Flag struct{ Name, Value string }

// Flags parses the arguments of a container.
func Flags(container map[string]any) (flags []Flag) {
	args := slices.Concat(list(container["command"]), list(container["args"]))
	for i := 0; i < len(args); i++ {
		arg, _ := args[i].(string)
		name, isFlag := strings.CutPrefix(arg, "-")
		if !isFlag {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimPrefix(name, "-"), "=")
		if !ok && i+1 < len(args) && !strings.HasPrefix(fmt.Sprint(args[i+1]), "-") {
			i++
			value = fmt.Sprint(args[i])
		}
		flags = append(flags, Flag{name, value})
	}
	return flags
}

// container returns our container. Every flag contains its value, because rendering turns a string
// that is only a number into a number.
func (t *taker) container(flags map[string]string, pullPolicy any) map[string]any {
	mode := "client"
	if t.server {
		mode = "server"
	}
	args := []any{
		"gateway", "--liqo", "--name={{ .Name }}", "--namespace={{ .Namespace }}",
		"--remote-cluster-id={{ .ClusterID }}",
		"--gateway-uid={{ .GatewayUID }}", "--mode=" + mode, "--node-name=$(NODE_NAME)", "--pod-name=$(POD_NAME)",
		"--state=" + stateDir,
	}
	if flags[healthFlag] == "" || flags[healthFlag] == "0" {
		flags[healthFlag] = defaultHealth // needed by the probes
	}
	if t.replicas > 1 {
		args = append(args, "--leader-election=true")
	}
	for _, name := range t.flags() {
		if value, ok := flags[name]; ok {
			if value == "" {
				value = "true"
			}
			args = append(args, "--"+name+"="+value)
		}
	}
	ports := []any{t.port(flags, healthFlag, healthPort)}
	if v := flags[metricsFlag]; v != "" && v != "0" {
		ports = append(ports, t.port(flags, metricsFlag, MetricsPort))
	}
	keys := keysDir
	if dir := flags["keys-dir"]; dir != "" {
		keys = dir
	}
	return map[string]any{
		"name": "culvert", "image": t.image, "imagePullPolicy": pullPolicy, "args": args, "ports": ports,
		"env": []any{fromField("NODE_NAME", "spec.nodeName"), fromField("POD_NAME", "metadata.name")},
		"volumeMounts": []any{
			map[string]any{"name": keysName, "mountPath": keys, "readOnly": true},
			map[string]any{"name": runVolume, "mountPath": runDir},
			map[string]any{"name": stateVolume, "mountPath": stateDir}, // survives the container
		},
		"resources": map[string]any{
			"requests": map[string]any{"cpu": requestCPU, "memory": requestMemory},
			"limits":   map[string]any{"memory": limitMemory},
		},
		"securityContext": map[string]any{
			"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
			"capabilities": map[string]any{"drop": []any{"ALL"}},
		},
		"livenessProbe":  probe("/healthz", 10),
		"readinessProbe": probe("/readyz", 2),
	}
}

// port returns the container port for a flag with a listen address.
func (t *taker) port(flags map[string]string, flag, name string) any {
	_, text, _ := strings.Cut(flags[flag], ":")
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		t.fail("--%s=%s: want :PORT", flag, flags[flag])
	}
	return map[string]any{"name": name, "containerPort": int64(n), "protocol": "TCP"}
}

func probe(path string, period int64) any {
	return map[string]any{"httpGet": map[string]any{"path": path, "port": healthPort}, "periodSeconds": period}
}

func fromField(name, path string) any {
	return map[string]any{"name": name, "valueFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": path}}}
}
