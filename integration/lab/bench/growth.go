package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"culvert/integration/lab"
	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
)

// growthSetting is a size of culvert's tables.
type growthSetting struct {
	name        string
	connections int // besides those of the measurement
	nodes       int // in each gateway's configuration
	routes      int // to pods, of all nodes
}

var growthSettings = []growthSetting{
	{"2 nodes, 10 pod routes", 0, 2, 10},
	{"10,000 connections", 10_000, 2, 10},
	{"1,000,000 connections", 1_000_000, 2, 10},
	{"500 nodes", 0, 500, 500},
	{"5,000 nodes", 0, 5_000, 5_000},
	{"50,000 pod routes", 0, 2, 50_000},
}

// growthRows are the figures taken of each setting, with their titles.
var growthRows = []struct {
	id    rowID
	title string
}{
	{rowTCP1, "TCP Gb/s"}, {rowDials, "connects k/s"}, {rowUDP64, "UDP 64 B k/s"}, {rowIdleP50, "ping p50 µs"},
	{rowResident, "resident MiB"},
}

// GrowthRow is culvert's figures at one size of its tables.
type GrowthRow struct {
	Setting string            `json:"setting"`
	Figures map[string]Figure `json:"figures"` // by title
}

// grow measures culvert alone with growing tables.
func (b *bench) grow(ctx context.Context) ([]GrowthRow, error) {
	var variants []*lab.Variant
	for i, s := range growthSettings {
		variants = append(variants, &lab.Variant{Name: s.name, Config: grownFile(i), Connections: s.connections})
		if err := writeGrown(b.lab, i); err != nil {
			return nil, err
		}
	}
	kept, grown := b.rows, newRows()
	b.rows = grown
	defer func() { b.rows = kept }()
	err := b.alternate(ctx, b.times.growthRuns, []measurement{{name: "growing tables", take: b.takeGrown}}, variants,
		func(v *lab.Variant) {
			b.record(v, rowResident, b.totals[v.Name].resident)
		})
	if err != nil {
		return nil, err
	}
	var out []GrowthRow
	for _, v := range variants {
		g := GrowthRow{Setting: v.Name, Figures: make(map[string]Figure)}
		for _, column := range growthRows {
			r := grown[column.id]
			g.Figures[column.title] = summarise(r.figures[v.Name], r.scale)
		}
		out = append(out, g)
	}
	return out, nil
}

func (b *bench) takeGrown(ctx context.Context, v *lab.Variant) error {
	if v.Connections > 0 {
		if err := b.path.FillConnections(ctx, v.Connections); err != nil {
			return err
		}
		b.say("  %d connections are there", v.Connections)
	}
	for _, take := range []func(context.Context, *lab.Variant) error{
		b.datagrams("", rowUDP64, 64).take, b.streams("", rowTCP1, 1, 0).take, b.takeDials, b.takeIdle,
	} {
		if err := take(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

func grownFile(i int) string { return fmt.Sprintf("gateway-grown%d.yaml", i) }

// writeGrown writes the configuration of both gateways at a setting.
func writeGrown(l *lab.Lab, i int) error {
	s := growthSettings[i]
	for j := range plan.V4 {
		c := &plan.V4[j]
		text, err := os.ReadFile(l.Path(c.Name, "gateway.yaml"))
		if err != nil {
			return err
		}
		var config lab.Object
		if err := yaml.Unmarshal(text, &config); err != nil {
			return err
		}
		nodes := config["geneve"].(lab.Object)["nodes"].([]any)
		config["geneve"].(lab.Object)["nodes"] = grownNodes(c, nodes, s.nodes, s.routes)
		config["nat"] = lab.Object{"maxConnections": 1 << 20}
		if err := l.WriteYAML(c.Name, grownFile(i), config); err != nil {
			return err
		}
	}
	return nil
}

// grownNodes adds nodes that do not answer, and gives all nodes in turn routes to single pods. The
// routes to pods that exist stay as they are.
func grownNodes(c *plan.Cluster, nodes []any, total, routes int) []any {
	underlay, internal := netip.MustParseAddr("172.24.0.1"), netip.MustParseAddr("10.81.0.1")
	for i := len(nodes); i < total; i++ {
		nodes = append(nodes, lab.Object{"name": fmt.Sprintf("%s-absent%d", c.Name, i), "vni": 1000 + i,
			"underlay": underlay, "address": internal,
			"podCIDRs": []any{}})
		underlay, internal = underlay.Next(), internal.Next()
	}
	lists := make([][]any, len(nodes))
	for i, n := range nodes {
		lists[i], _ = n.(lab.Object)["podCIDRs"].([]any)
		routes -= len(lists[i])
	}
	for i, pod := 0, netip.MustParseAddr("10.0.3.0"); i < routes; pod = pod.Next() {
		if pod == c.Nodes[0].Pod || pod == c.Nodes[1].Pod {
			continue
		}
		lists[(len(nodes)-1+i)%len(nodes)] = append(lists[(len(nodes)-1+i)%len(nodes)],
			netip.PrefixFrom(pod, 32).String())
		i++
	}
	for i, n := range nodes {
		n.(lab.Object)["podCIDRs"] = lists[i]
	}
	return nodes
}

// bypassBridgeFilters keeps packet filters from seeing frames on the routers' bridges, which stand
// for cables.
func bypassBridgeFilters(l *lab.Lab) error {
	for i := range plan.V4 {
		err := l.Host(plan.V4[i].Name + "/router").Do(func() error {
			const name, name6 = "bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"
			if _, err := os.Stat(filepath.Join("/proc/sys/net", name)); errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return netns.Sysctl(map[string]string{name: "0", name6: "0"})
		})
		if err != nil {
			return fmt.Errorf("%s/router: %w", plan.V4[i].Name, err)
		}
	}
	return nil
}
